"""Test that a process cannot affect the results after another one has taken over its lease."""

import json
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from bert_jax.corpus import bucket_workspace
from bert_jax.corpus.prepare import prepare
from bert_jax.runs import checkpoint_parts
from bert_jax.runs.background_copies import RunNotUploaded
from bert_jax.runs.bucket_layout import LEASE_NAME, read_layout
from bert_jax.runs.bucket_logs import read_log
from bert_jax.runs.run_index import RunIndex
from bert_jax.runs.staging import copy_to_continue
from bert_jax.runs.uploads import Uploads
from bert_jax.storage import exclusive_writes, gcs, objects
from bert_jax.storage import lease as lease_module
from bert_jax.storage.exclusive_writes import ExclusiveWriter
from bert_jax.storage.lease import Lease, LeaseLostError
from bert_jax.storage.objects import find, list_objects, read_bytes, remove, upload, write_bytes
from bert_jax.storage.store import Store
from bert_jax.storage.uploads import new_tree
from bert_jax.storage.urls import ObjectUrl

from .conftest import Emulator
from .test_prepare import OPTIONS, OnDisk, checksums, checksums_on_disk, on_disk

__all__ = ["on_disk"]

LOST = "run stopped writing, because another process took over its lease"


@pytest.fixture(autouse=True)
def lasting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a process act as if it still held its lease, and write one object at a time."""
    monkeypatch.setattr(lease_module, "LEASE_SECONDS", 1e6)
    monkeypatch.setattr(lease_module, "RENEWAL_SECONDS", 1e6)
    monkeypatch.setattr(lease_module, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(checkpoint_parts, "_THREADS", 1)


def train(url: ObjectUrl, staging: Path, name: str, steps: tuple[int, ...]) -> None:
    """Save checkpoints as a run does; each file contains the name of the process."""
    with Lease(url / LEASE_NAME, "run", f"work_dir={url}") as lease:
        index = RunIndex(url, lease)
        index.open({})
        layout = read_layout(url)
        copy_to_continue(layout, staging)
        uploads = Uploads(staging, layout, lease, index)
        (staging / "model.json").write_text("{}\n")
        (staging / "config.json").write_text(f'{{"name": "{name}"}}\n')
        log = staging / "metrics.jsonl"
        log.touch()
        kept = [line for line in log.read_text().splitlines() if json.loads(line)["step"] < 10]
        with uploads.running():
            for step in steps:
                kept.append(json.dumps({"step": step, "name": name}))
                log.write_text("\n".join(kept) + "\n")
                files = staging / "checkpoints" / str(step)
                shutil.rmtree(files, ignore_errors=True)
                (files / "d").mkdir(parents=True)
                for file in ("manifest.ocdbt", f"d/{name}"):
                    (files / file).write_text(f"{name} {step}")
                for old in steps[: max(0, steps.index(step) - 1)]:
                    shutil.rmtree(staging / "checkpoints" / str(old), ignore_errors=True)
                uploads.saved(step)
                uploads.raise_if_failed(wait=True)


def contents(url: ObjectUrl) -> dict[str, object]:
    """Return the contents of all objects that affect the results."""
    layout = read_layout(url)
    return {
        "files": {name: read_bytes(info.url) for name, info in layout.files.items()},
        "log": read_log(url / "metrics.parts"),
        "checkpoints": {
            step: {name: read_bytes(info.url) for name, info in files.items()}
            for step, files in layout.checkpoints.items()
        },
    }


class Interruption:
    """An object that calls a function before the nth request that changes a matching object."""

    def __init__(self, number: int, action: Callable[[], None], pattern: str = ""):
        self.left, self.action, self.pattern = number, action, pattern
        self._lock = threading.Lock()

    def wrap(self, store: Store) -> Store:
        outer = self

        class Interrupted:
            def __getattr__(self, name: str) -> object:
                method = getattr(store, name)
                return outer.before(method) if name in ("write", "upload", "remove") else method

        return Interrupted()  # type: ignore[return-value]

    def before(self, method: Callable[..., object]) -> Callable[..., object]:
        def interrupted(url: ObjectUrl, *args: object, **options: object) -> object:
            if re.search(self.pattern, str(url)):
                with self._lock:
                    self.left -= 1
                    due = self.left == 0
                if due:
                    self.action()
            return method(url, *args, **options)

        return interrupted


@contextmanager
def interrupted(
    monkeypatch: pytest.MonkeyPatch, number: int, action: Callable[[], None], pattern: str = ""
) -> Iterator[Interruption]:
    """Suspend the block before one of its writes, while a function takes over its lease."""

    def take_over() -> None:
        enter = Lease.__enter__

        def enter_now(lease: Lease) -> Lease:
            with monkeypatch.context() as expired:
                expired.setattr(lease_module, "LEASE_SECONDS", 0.0)
                return enter(lease)

        with monkeypatch.context() as patch:
            patch.setattr(Lease, "__enter__", enter_now)
            action()

    interruption, store_of = Interruption(number, take_over, pattern), objects.store_of
    with monkeypatch.context() as patch:
        patch.setattr(objects, "store_of", lambda url: interruption.wrap(store_of(url)))
        yield interruption


@pytest.mark.slow
def test_a_suspended_run_changes_nothing_wherever_it_was_suspended(
    bucket: ObjectUrl, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stops = []
    for number in range(4, 1000):  # The first three writes take the lease.
        url, here = bucket / f"run{number}", tmp_path / str(number)
        train(url, here / "first", "first", (5,))
        after: dict[str, object] = {}

        def take_over(
            url: ObjectUrl = url, here: Path = here, after: dict[str, object] = after
        ) -> None:
            train(url, here / "new", "new", (10, 15, 20))
            after |= contents(url)

        stopped = ""
        with interrupted(monkeypatch, number, take_over) as interruption:
            try:
                train(url, here / "old", "old", (10, 15, 20))
            except (RunNotUploaded, LeaseLostError) as error:
                stopped = str(error)
        if interruption.left > 0:
            assert not stopped
            break
        assert contents(url) == after, f"after write {number}: {stopped}"
        assert find(url / LEASE_NAME) is None
        stops.append(stopped)
    assert len(stops) >= 20
    noticed = [stopped for stopped in stops if stopped]
    assert all(LOST in stopped and stopped.endswith("again.") for stopped in noticed)
    # After its last commit, a process only removes files that are no longer used.
    assert stops[: len(noticed)] == noticed


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pattern", "max_length"),
    [("train-00000.arrayrecord", 32), ("corpus/manifest.json", 64)],
)
def test_a_suspended_preparation_changes_nothing(
    on_disk: OnDisk,
    bucket: ObjectUrl,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    pattern: str,
    max_length: int,
) -> None:
    output = bucket / "corpus"
    options = {**OPTIONS, "workers": 1}

    def take_over() -> None:
        prepare(on_disk.text, on_disk.tokenizer, output, **{**options, "max_length": max_length})

    monkeypatch.setattr(bucket_workspace, "_UPLOADS", 1)
    with interrupted(monkeypatch, 1, take_over, pattern), suppress(LeaseLostError):
        prepare(on_disk.text, on_disk.tokenizer, output, **options)
    expected = on_disk.corpus
    if max_length != OPTIONS["max_length"]:
        expected = tmp_path / "expected"
        prepare(on_disk.text, on_disk.tokenizer, expected, **{**options, "max_length": max_length})
    found = checksums(output)
    # The results of finished units may be written again, but they are not part of a corpus.
    assert {name: found[name] for name in found if not name.startswith(".work/")} == (
        checksums_on_disk(expected)
    )


@pytest.mark.slow
def test_a_suspended_command_does_not_change_the_directory_of_its_successor(
    bucket: ObjectUrl, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(url: ObjectUrl, content: str) -> None:
        with new_tree(url, ("model.json",), "output") as directory:
            for name in ("a", "b", "model.json"):
                (directory / name).write_text(f"{name} {content}")

    for name in ("a", "b", "model.json"):
        url = bucket / f"directory-{name}"
        with (
            interrupted(monkeypatch, 1, lambda url=url: write(url, "new"), f"/{name}$"),
            pytest.raises(LeaseLostError, match="command stopped writing"),
        ):
            write(url, "old")
        found = {url.relative(info.url): read_bytes(info.url) for info in list_objects(url)}
        assert found == {name: f"{name} new".encode() for name in ("a", "b", "model.json")}


def test_a_request_is_not_repeated_after_the_lease_was_taken_over(
    bucket: ObjectUrl, emulator: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    # With this value, every check sends a request to the store.
    monkeypatch.setattr(lease_module, "LEASE_SECONDS", 0.0)
    for number, change in enumerate(CHANGES):
        target, lease_url = bucket / f"target{number}", bucket / f"lease{number}"
        write_bytes(target, "mine")
        with Lease(lease_url, "run", "work_dir=x") as lease:
            emulator.fail("status", methods="POST PUT DELETE", path="target")
            check = CheckWithTakeover(lease, lease_url)
            with pytest.raises(LeaseLostError, match=LOST):
                change(target, check)
            assert check.calls == 2
        assert read_bytes(target) == b"mine"


class CheckWithTakeover:
    """A check of a lease that another process takes over just before the second call."""

    def __init__(self, lease: Lease, url: ObjectUrl):
        self.lease, self.url, self.calls = lease, url, 0

    def __call__(self) -> None:
        self.calls += 1
        if self.calls == 2:
            write_bytes(self.url, "{}")
        self.lease.check()


CHANGES: tuple[Callable[[ObjectUrl, Callable[[], None]], object], ...] = (
    lambda url, check: write_bytes(url, "late", check=check),
    lambda url, check: upload(Path(__file__), url, check=check),
    lambda url, check: remove(url, check=check),
)


def test_a_large_file_replaces_only_what_the_writer_has_found(
    bucket: ObjectUrl, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(exclusive_writes, "MAX_SINGLE_WRITE", 3)
    monkeypatch.setattr(gcs, "MAX_SINGLE_WRITE", 3)
    file, url = tmp_path / "file", bucket / "file"
    file.write_text("mine")
    with Lease(bucket / "lease", "run", "work_dir=x") as lease:
        writer = ExclusiveWriter(lease)
        version = writer.upload(file, url)
        # Repeat the upload, as if the response had been lost.
        assert writer.upload(file, url) == version
        write_bytes(url, "of an earlier process")
        version = writer.upload(file, url)
        assert read_bytes(url) == b"mine"
        write_bytes(url, "of a later process")
        write_bytes(bucket / "lease", "{}")
        with pytest.raises(LeaseLostError, match=LOST):
            writer.upload(file, url)
        with pytest.raises(LeaseLostError, match=LOST):
            writer.remove(url, version)
        assert read_bytes(url) == b"of a later process"
