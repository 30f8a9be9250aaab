"""Test that only one process at a time can hold a lease."""

import os
import signal
import subprocess
import sys
import time

import pytest

from bert_jax.storage import lease as lease_module
from bert_jax.storage.lease import Lease, LeaseHeldError, LeaseLostError
from bert_jax.storage.objects import find, list_objects, read_bytes, remove, store_of, write_bytes
from bert_jax.storage.store import ABSENT, Store
from bert_jax.storage.urls import ObjectUrl

HOLD = """
import sys, time
from bert_jax.storage import lease
from bert_jax.storage.urls import parse_url
lease.LEASE_SECONDS, lease.RENEWAL_SECONDS = 2.0, 0.2
with lease.Lease(parse_url(sys.argv[1]), "preparation", "output=x"):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_module, "LEASE_SECONDS", 2.0)
    monkeypatch.setattr(lease_module, "RENEWAL_SECONDS", 0.2)
    monkeypatch.setattr(lease_module, "POLL_SECONDS", 0.1)


def make(bucket: ObjectUrl) -> Lease:
    return Lease(bucket / "lease", "preparation", "output=x")


def test_a_second_holder_is_refused(bucket: ObjectUrl) -> None:
    with make(bucket) as held:
        message = rf"output=x: another preparation is writing to it \(process {os.getpid()} on "
        with pytest.raises(LeaseHeldError, match=message):
            make(bucket).__enter__()
        held.check()
    assert find(bucket / "lease") is None
    with make(bucket) as again:
        again.check()


def test_a_holder_notices_that_its_lease_was_taken(bucket: ObjectUrl) -> None:
    with make(bucket) as held:
        write_bytes(bucket / "lease", "{}")
        with pytest.raises(LeaseLostError, match="another process took over its lease"):
            for _ in range(100):  # Wait until the next renewal has failed.
                time.sleep(0.1)
                held.check()
    assert read_bytes(bucket / "lease") == b"{}"
    remove(bucket / "lease")


def test_an_expired_lease_is_renewed_unless_it_was_taken(
    bucket: ObjectUrl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_module, "RENEWAL_SECONDS", 60.0)
    monkeypatch.setattr(lease_module, "LEASE_SECONDS", 0.2)
    with make(bucket) as held:
        before = read_bytes(bucket / "lease")
        time.sleep(0.3)
        held.check()
        assert read_bytes(bucket / "lease") != before
        time.sleep(0.3)
        # Another process has taken over the lease and ended, which removed the object.
        remove(bucket / "lease")
        with pytest.raises(LeaseLostError, match="another process took over its lease"):
            held.check()


@pytest.mark.parametrize("ignored", ["create", "replace"])
def test_a_store_that_ignores_conditions_is_refused(
    bucket: ObjectUrl, monkeypatch: pytest.MonkeyPatch, ignored: str
) -> None:
    store = type(store_of(bucket))
    write = store.write

    def write_anyway(self: Store, url: ObjectUrl, content: bytes, condition: str | None) -> str:
        kind = "create" if condition == ABSENT else "replace"
        return write(self, url, content, None if kind == ignored else condition)

    monkeypatch.setattr(store, "write", write_anyway)
    with pytest.raises(ValueError, match="output=x: this store ignores conditions on writes"):
        make(bucket).__enter__()
    assert find(bucket / "lease") is None


@pytest.mark.slow
def test_the_lease_of_a_killed_process_expires(bucket: ObjectUrl) -> None:
    command = [sys.executable, "-c", HOLD, f"{bucket}/lease"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"held\n"
        with pytest.raises(LeaseHeldError):
            make(bucket).__enter__()
        process.send_signal(signal.SIGKILL)
    started = time.monotonic()
    with make(bucket) as held:
        held.check()
    assert time.monotonic() - started > 1.9


def test_the_leases_of_a_killed_process_are_replaced_together(bucket: ObjectUrl) -> None:
    for name, owner in (("lease", "killed"), ("first", "killed"), ("second", "killed")):
        write_bytes(bucket / name, f'{{"owner": "{owner}"}}')
    write_bytes(bucket / "other", '{"owner": "other"}')
    with make(bucket) as held:
        started = time.monotonic()
        with Lease(bucket / "first", "run", "x", held) as within:
            assert time.monotonic() - started < 1.5  # without waiting for it to expire
            within.check()
        held.discard(bucket / "second")
        held.discard(bucket / "other")
    assert [info.url.name for info in list_objects(bucket)] == ["other"]
