"""Test that readers of a log in a bucket always see one complete version of it."""

from collections.abc import Callable

import pytest

from bert_jax.runs import bucket_logs
from bert_jax.runs.bucket_logs import LogParts, read_log
from bert_jax.storage.objects import list_objects, write_bytes
from bert_jax.storage.urls import ObjectUrl


def opened(url: ObjectUrl, check: Callable[[], None] = lambda: None) -> LogParts:
    return LogParts(url, list(list_objects(url)), check)


def lines(first: int, last: int) -> bytes:
    return b"".join(b'{"step": %d}\n' % step for step in range(first, last + 1))


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket_logs, "PART_BYTES", 40)


def test_a_log_grows_in_parts(bucket: ObjectUrl) -> None:
    url = bucket / "run/metrics.parts"
    log = opened(url)
    for last in (1, 2, 7, 20):
        log.write(lines(1, last) + b'{"step": unterminated', epoch=1)
        assert read_log(url) == lines(1, last) == opened(url).content
    names = [info.url.name for info in list_objects(url)]
    assert names == [f"0001.0000-{number:06d}.jsonl" for number in range(len(names))]
    assert len(names) > 3
    before = {info.url: info.version for info in list_objects(url)}
    log.write(lines(1, 21), epoch=1)
    after = {info.url: info.version for info in list_objects(url)}
    assert sum(after[one] != version for one, version in before.items()) <= 1


def test_a_changed_log_replaces_the_old_one_as_a_whole(bucket: ObjectUrl) -> None:
    url = bucket / "run/metrics.parts"
    opened(url).write(lines(1, 20), epoch=1)
    changed = lines(1, 12) + b'{"kind": "other"}\n'
    stop_after = 0
    while True:
        # Each attempt is interrupted after one more write or removal than the one before.
        left = stop_after

        def interrupt() -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise InterruptedError

        try:
            opened(url, interrupt).write(changed, epoch=2 + stop_after)
            break
        except InterruptedError:
            assert read_log(url) in (lines(1, 20), changed)
            stop_after += 1
    assert read_log(url) == changed and stop_after > 3
    opened(url).write(b"", epoch=1000)
    assert read_log(url) == b""
    opened(url).write(lines(1, 3), epoch=1000)
    assert read_log(url) == lines(1, 3)


def test_other_objects_and_incomplete_versions_are_ignored(bucket: ObjectUrl) -> None:
    url = bucket / "run/metrics.parts"
    opened(url).write(lines(1, 2), epoch=1)
    write_bytes(url / "0002.0000-000001.jsonl", b'{"step": 99}\n')
    write_bytes(url / "notes.txt", b"mine\n")
    assert read_log(url) == lines(1, 2)
    opened(url).write(lines(5, 6), epoch=3)
    assert read_log(url) == lines(5, 6)


def test_a_process_that_was_replaced_does_not_change_the_log(bucket: ObjectUrl) -> None:
    url = bucket / "run/metrics.parts"
    opened(url).write(lines(1, 20), epoch=1)
    former = opened(url)
    former.write(lines(1, 12), epoch=2)
    new = opened(url)
    new.write(lines(1, 14), epoch=3)
    former.write(lines(1, 17), epoch=2)
    assert read_log(url) == lines(1, 14)
    former.write(lines(2, 30), epoch=2)
    assert read_log(url) == lines(1, 14)
    new.write(lines(1, 15), epoch=3)
    assert read_log(url) == lines(1, 15) == opened(url).content
