"""Test that a store at a wrong address is reported at once, and that the command soon fails."""

import contextlib
import logging
import os
import socket
import time
from collections.abc import Iterator

import pytest

from bert_jax.local_paths import Scheme
from bert_jax.storage import gcs, retries, s3
from bert_jax.storage.errors import StorageError
from bert_jax.storage.objects import stat, store_of
from bert_jax.storage.urls import ObjectUrl

from .conftest import free_port


@pytest.fixture(params=["gs", pytest.param("s3", marks=pytest.mark.slow)])
def scheme(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Scheme:
    """Return a scheme whose store has never responded, and cut all delays to a tenth or less."""
    pytest.importorskip({"gs": "gcsfs", "s3": "s3fs"}[request.param])
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setattr(retries, "contacts", retries.Contacts())
    monkeypatch.setattr(retries, "FIRST_DELAY", 0.05)
    monkeypatch.setattr(retries, "NOTICE_SECONDS", 0.1)
    monkeypatch.setattr(retries, "REFUSED_SECONDS", 0.3)
    monkeypatch.setattr(retries, "FIRST_CONTACT_SECONDS", 0.8)
    monkeypatch.setattr(retries, "BUDGET_SECONDS", 1.5)
    for module in (gcs, s3):
        monkeypatch.setattr(module, "CONNECT_SECONDS", 0.2)
    return request.param


@contextlib.contextmanager
def silent_port() -> Iterator[int]:
    """Yield a port to which no connection can be opened, since its queue is full."""
    with contextlib.ExitStack() as closing:
        listener = closing.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            client = closing.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]


def seconds_until_failure(scheme: Scheme, port: int, monkeypatch: pytest.MonkeyPatch) -> float:
    variable = {"gs": "STORAGE_EMULATOR_HOST", "s3": "AWS_ENDPOINT_URL"}[scheme]
    monkeypatch.setenv(variable, f"http://127.0.0.1:{port}")
    url = ObjectUrl(scheme, "bucket", "x")
    # Make one attempt first, since it also imports the library and creates its client.
    with monkeypatch.context() as patch, pytest.raises(StorageError):
        patch.setattr(retries, "BUDGET_SECONDS", 0.0)
        stat(url)
    started = time.monotonic()
    with pytest.raises(StorageError, match=r"x: the store does not respond \(\d+ attempts in \d s"):
        stat(url)
    return time.monotonic() - started


def test_an_address_that_refuses_connections_is_given_up_soon(
    scheme: Scheme, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    port = free_port()
    with caplog.at_level(logging.WARNING):
        assert 0.3 < seconds_until_failure(scheme, port, monkeypatch) < 0.8
    (message,) = [each.getMessage() for each in caplog.records if each.name.startswith("bert_jax")]
    assert f"{scheme}://bucket/x: reading has failed for " in message
    assert "and is retried for up to 0 s" in message
    # A store that has responded before gets more time, since it may have been restarted.
    retries.contacts.note_answer(store_of(ObjectUrl(scheme, "bucket")))
    assert seconds_until_failure(scheme, port, monkeypatch) > 1.5


def test_an_address_that_does_not_answer_is_given_up_later(
    scheme: Scheme, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with silent_port() as port, caplog.at_level(logging.WARNING):
        assert 0.8 < seconds_until_failure(scheme, port, monkeypatch) < 1.5
    assert caplog.text.count("reading has failed for ") == 1
