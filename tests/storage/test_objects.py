"""Test requests to emulated object stores, including stores that fail."""

import logging
import os
import pickle
import random
from contextlib import nullcontext
from pathlib import Path

import pytest

from bert_jax.storage import objects, retries
from bert_jax.storage.errors import ConflictError, MissingObjectError, StorageError
from bert_jax.storage.objects import (
    create,
    find,
    has_objects,
    list_directory,
    list_objects,
    read_bytes,
    read_range,
    remove,
    remove_tree,
    stat,
    upload,
    write_bytes,
)
from bert_jax.storage.store import MAX_SINGLE_WRITE
from bert_jax.storage.urls import ObjectUrl
from bert_jax.text.files import expand_inputs

from .conftest import Emulator


def test_objects_are_written_read_listed_and_removed(bucket: ObjectUrl) -> None:
    url = bucket / "folder/a b+ü#%.txt"
    assert find(url) is None and not has_objects(bucket)
    write_bytes(url, "text")
    write_bytes(bucket / "folder/inner/c", b"")
    write_bytes(bucket / "folder2", b"x")
    info = stat(url)
    assert (info.url, info.num_bytes, read_bytes(url)) == (url, 4, b"text")
    assert read_range(info, 1, 3) == b"ex" and read_range(info, 2, 99) == b"xt"
    names = [(bucket / "folder").relative(each.url) for each in list_objects(bucket / "folder")]
    assert names == ["a b+ü#%.txt", "inner/c"]
    found, directories = list_directory(bucket / "folder")
    assert [each.url for each in found] == [url]
    assert directories == [bucket / "folder/inner"]
    remove(url)
    remove(url)
    assert find(url) is None
    remove_tree(bucket / "folder")
    assert [each.url.key for each in list_objects(bucket)] == ["folder2"]


def test_large_content_is_written_like_a_file(
    bucket: ObjectUrl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "MAX_SINGLE_WRITE", 9)
    write_bytes(bucket / "x", "1234567890")
    write_bytes(bucket / "x", "ü" * 10)
    assert read_bytes(bucket / "x").decode() == "ü" * 10


def test_objects_that_stand_for_folders_are_not_listed(
    emulator: Emulator, bucket: ObjectUrl
) -> None:
    for folder in ("text", "text/inner"):
        emulator.create_folder(bucket / folder)
    assert not has_objects(bucket / "text")
    write_bytes(bucket / "text/inner/a.txt", "One.")
    assert [each.url for each in list_objects(bucket)] == [bucket / "text/inner/a.txt"]
    assert list_directory(bucket / "text") == ([], [bucket / "text/inner"])
    assert expand_inputs([str(bucket / "text")]) == [f"{bucket}/text/inner/a.txt"]


@pytest.mark.slow
# gcsfs sends large chunks.
@pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")
def test_large_files_are_uploaded_in_parts(bucket: ObjectUrl, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(random.Random(1).randbytes(61 << 20))
    upload(file, bucket / "file")
    info = stat(bucket / "file")
    assert info.num_bytes == 61 << 20
    assert read_bytes(bucket / "file") == file.read_bytes()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")
@pytest.mark.parametrize("status", [404, 410])
def test_an_upload_that_the_store_forgets_begins_again(
    emulator: Emulator, bucket: ObjectUrl, tmp_path: Path, status: int
) -> None:
    if emulator.scheme == "s3":
        pytest.skip("s3fs uploads files of this size in one request")
    file = tmp_path / "file"
    file.write_bytes(random.Random(1).randbytes(MAX_SINGLE_WRITE + 1))
    emulator.fail("status", path="upload_id", status=status)
    upload(file, bucket / "file")
    assert emulator.faults_left() == 0 and read_bytes(bucket / "file") == file.read_bytes()


def test_conditional_writes(bucket: ObjectUrl) -> None:
    url = bucket / "x"
    create(url, "1")
    # A second request with the same content looks like a retry after the first response was lost.
    create(url, "1")
    with pytest.raises(ConflictError, match="another process wrote this object"):
        create(url, "2")
    first = stat(url)
    write_bytes(url, "2", first.version)
    with pytest.raises(ConflictError):
        write_bytes(url, "3", first.version)
    with pytest.raises(ConflictError):
        read_range(first, 0, 1)
    assert read_bytes(url) == b"2"
    remove(url)
    with pytest.raises(ConflictError):
        write_bytes(url, "4", first.version)


def test_conditional_removals(bucket: ObjectUrl) -> None:
    url = bucket / "x"
    write_bytes(url, "1")
    first = stat(url).version
    second = write_bytes(url, "2")
    with pytest.raises(ConflictError):
        remove(url, first)
    assert read_bytes(url) == b"2"
    remove(url, second)
    assert find(url) is None
    remove(url, second)


@pytest.mark.slow
def test_a_store_without_conditional_removals(emulator: Emulator, bucket: ObjectUrl) -> None:
    if emulator.scheme == "gs":
        pytest.skip("Google Cloud Storage has conditional removals")
    url = bucket / "x"
    write_bytes(url, "1")
    first = stat(url).version
    second = write_bytes(url, "2")
    body = "<Error><Code>NotImplemented</Code><Message>If-Match</Message></Error>"
    for version, left in ((first, b"2"), (second, None)):
        emulator.fail("status", methods="DELETE", status=501, body=body)
        with nullcontext() if left is None else pytest.raises(ConflictError):
            remove(url, version)
        assert emulator.faults_left() == 0
        assert (None if find(url) is None else read_bytes(url)) == left


def test_a_lost_answer_does_not_fail_a_conditional_write(
    emulator: Emulator, bucket: ObjectUrl
) -> None:
    emulator.fail("lost", methods="POST PUT")
    create(bucket / "x", "mine")
    assert emulator.faults_left() == 0 and read_bytes(bucket / "x") == b"mine"


@pytest.mark.parametrize("kind", ["status", "cut", "lost"])
def test_failed_requests_are_repeated_and_logged_once(
    emulator: Emulator, bucket: ObjectUrl, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    write_bytes(bucket / "x", "text" * 100)
    info = stat(bucket / "x")
    emulator.fail(kind, 2, path="/x")
    with caplog.at_level(logging.WARNING):
        assert read_range(info, 0, 400) == b"text" * 100
    messages = [each.getMessage() for each in caplog.records if each.name.startswith("bert_jax")]
    # aiohttp itself repeats a request if the server has closed the idle connection.
    attempts = 2 if kind == "lost" else 3
    assert len(messages) == 1
    assert f"{bucket}/x: reading succeeded at attempt {attempts}, after " in messages[0]
    assert emulator.faults_left() == 0


def test_an_outage_is_reported_in_one_sentence(
    emulator: Emulator, bucket: ObjectUrl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retries, "BUDGET_SECONDS", 0.5)
    emulator.fail("status", 100, status=429)
    with pytest.raises(StorageError, match=r"/x: the store does not respond \(\d attempts in \d s"):
        stat(bucket / "x")


def test_missing_objects_and_missing_buckets_have_different_messages(bucket: ObjectUrl) -> None:
    with pytest.raises(MissingObjectError, match=f"{bucket}/x: there is no such object"):
        stat(bucket / "x")
    other = ObjectUrl(bucket.scheme, "no-such-bucket")
    for action in (
        lambda: stat(other / "x"),
        lambda: write_bytes(other / "x", "text"),
        lambda: create(other / "x", "text"),
        lambda: list(list_objects(other)),
        lambda: upload(Path(__file__), other / "x"),
    ):
        with pytest.raises(StorageError, match="the bucket 'no-such-bucket' does not exist"):
            action()


@pytest.mark.parametrize(("status", "message"), [(403, "denies access"), (401, "no valid cred")])
def test_refused_requests_are_not_repeated(
    emulator: Emulator, bucket: ObjectUrl, status: int, message: str
) -> None:
    emulator.fail("status", 2, status=status)
    with pytest.raises(StorageError, match=message) as caught:
        write_bytes(bucket / "x", "text")
    asks_why = emulator.scheme == "s3" and status == 403
    assert emulator.faults_left() == (0 if asks_why else 1)
    error = pickle.loads(pickle.dumps(caught.value))
    assert str(error) == str(caught.value) and error.problem == caught.value.problem


def test_a_server_of_tokens_that_does_not_answer_is_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("gcsfs")
    from google.auth.exceptions import RefreshError, TransportError

    from bert_jax.storage.gcs import EMULATOR, Gcs

    monkeypatch.setenv(EMULATOR, "http://127.0.0.1:9")
    unreachable = RefreshError("the metadata server is unavailable")
    unreachable.__cause__ = TransportError("503")
    problems = [
        Gcs().problem(error)
        for error in (
            *(TransportError("503"), unreachable, RefreshError("503", retryable=True)),
            *(RefreshError("invalid_grant: the account was deleted"),),
        )
    ]
    assert problems == ["transient", "transient", "transient", "credentials"]


@pytest.mark.slow
def test_missing_credentials_are_reported(
    s3_emulator: Emulator, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{s3_emulator.proxy_port}/?")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(StorageError, match="no valid credentials for this store. Run `aws conf"):
        stat(s3_emulator.create_bucket() / "x")


@pytest.mark.slow
def test_requests_survive_a_stall_of_thirty_seconds(
    emulator: Emulator, bucket: ObjectUrl, caplog: pytest.LogCaptureFixture
) -> None:
    write_bytes(bucket / "x", "text")
    emulator.fail("stall", 1, seconds=30)
    with caplog.at_level(logging.WARNING):
        assert read_bytes(bucket / "x") == b"text"
    assert "succeeded at attempt 2, after 2" in caplog.text
