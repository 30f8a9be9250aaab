"""Prepare a corpus in a bucket, where nothing can be locked or renamed.

A lease, OUTPUT/.work/lease, ensures that only one preparation writes. Shards are written to a local
directory and uploaded as they are finished, first the shard itself and then its result,
OUTPUT/.work/NAME.json, which marks the shard as finished. The results of screening documents are
uploaded in the same way. A preparation that was killed can therefore be resumed on any machine. The
manifest is written last and marks the corpus as finished.
"""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from bert_jax.corpus.manifest import MANIFEST, TOKENIZER, Manifest, manifest_text
from bert_jax.corpus.plans import (
    IGNORED_IF_UNFINISHED,
    different_settings,
    finished_meanwhile,
    not_empty,
    plan_differences,
    read_plan,
)
from bert_jax.corpus.shards import UnitResult, result_of
from bert_jax.corpus.shared_files import RESULT_SUFFIX, BucketFiles, upload_shard
from bert_jax.corpus.workspace import PLAN, SCREENED, WORK, has_corpus
from bert_jax.files import temporary_beside, writing
from bert_jax.json_files import parse_json_object
from bert_jax.local_paths import cache_directory, make_directory
from bert_jax.storage.exclusive_writes import ExclusiveWriter
from bert_jax.storage.lease import Lease, wait_until_free
from bert_jax.storage.objects import (
    find,
    list_directory,
    list_objects,
    read_range,
    remove,
    remove_all,
)
from bert_jax.storage.store import ABSENT, ObjectInfo
from bert_jax.storage.urls import Location, ObjectUrl

LEASE = "lease"
_READS = 16  # This many results are read at the same time.
# This many uploads run at the same time, and twice as many shards may wait on the local disk.
_UPLOADS = 4


class BucketShards:
    """Uploads finished shards in background threads; see `ShardKeeper`."""

    def __init__(self, output: ObjectUrl, writer: ExclusiveWriter):
        """Find the shards that are already finished.

        Args:
          output: the URL of the corpus.
          writer: writes objects on behalf of the holder of the lease.
        """
        self._output, self._writer = output, writer
        self.refresh()
        self._threads = ThreadPoolExecutor(_UPLOADS, thread_name_prefix="upload")
        self._pending: deque[Future[None]] = deque()

    def refresh(self) -> None:
        """Find the shards that this and other machines have finished."""
        self._sizes = {info.url.name: info.num_bytes for info in list_directory(self._output)[0]}
        infos = list_directory(self._output / WORK)[0]
        found = [info for info in infos if info.url.suffix == RESULT_SUFFIX]
        self._marked = {info.url.name for info in found}
        self._results = self._read_results(found)

    def _read_results(self, infos: Sequence[ObjectInfo]) -> dict[str, UnitResult]:
        """Return the results whose shards are complete, keyed by the names of the units."""
        with ThreadPoolExecutor(_READS) as threads:
            contents = threads.map(lambda info: read_range(info, 0, info.num_bytes), infos)
            results = {}
            for info, content in zip(infos, contents, strict=True):
                # If the result is damaged, the shard is made again.
                with suppress(ValueError, KeyError, TypeError):
                    result = result_of(parse_json_object(content, info.url))
                    if self._sizes.get(result.shard.name) == result.shard.num_bytes:
                        results[info.url.name.removesuffix(RESULT_SUFFIX)] = result
        return results

    def kept(self, work: Path, name: str) -> UnitResult | None:
        """Return the result for a unit if its shard was uploaded, or None."""
        return self._results.get(name)

    def keep(self, work: Path, name: str) -> None:
        """Start uploading a shard, but first wait for earlier uploads if there are too many."""
        while len(self._pending) >= 2 * _UPLOADS or (self._pending and self._pending[0].done()):
            self._pending.popleft().result()
        self._pending.append(self._threads.submit(self._upload, work, name))

    def _upload(self, work: Path, name: str) -> None:
        marked = f"{name}{RESULT_SUFFIX}" in self._marked
        upload_shard(work, name, self._output / WORK, self._writer, marked=marked)

    def wait(self) -> None:
        """Wait until all shards have been uploaded.

        Raises:
          OSError: a shard cannot be uploaded.
        """
        while self._pending:
            self._pending.popleft().result()

    def close(self) -> None:
        """Wait for the running uploads, and cancel the others."""
        self._threads.shutdown(wait=True, cancel_futures=True)


class BucketWorkspace:
    """A context manager for an unfinished preparation in a bucket; see `Workspace`.

    Attributes:
      work: the local directory for unfinished work.
      files: the files that are exchanged with other machines.
      keeper: the object that keeps finished shards.
    """

    work: Path
    files: BucketFiles
    keeper: BucketShards

    def __init__(self, output: ObjectUrl, plan: dict[str, Any]):
        """Create the workspace. Nothing is read or written until its `with` block begins.

        Args:
          output: the URL of the corpus.
          plan: everything that determines the corpus; see `Workspace`.
        """
        self._output, self._plan = output, plan
        self._remote = output / WORK
        self._lease = Lease(self._remote / LEASE, "preparation", f"output={output}")
        self._writer = ExclusiveWriter(self._lease)
        self._stack = ExitStack()

    def __enter__(self) -> BucketWorkspace:
        """Take the lease, and check the contents of the bucket.

        Raises:
          ValueError: the bucket contains something else below the URL, a preparation with a
            different plan, or a preparation that is still running or has just finished.
        """
        check_empty(self._output)
        with ExitStack() as stack:
            stack.enter_context(self._lease)
            for lease in part_leases(self._output):
                wait_until_free(lease, "part of the preparation", f"output={self._output}")
            # Another process finished the corpus during the wait for the lease.
            if find(self._output / MANIFEST) is not None:
                raise ValueError(finished_meanwhile(self._output))
            self._check_plan()
            self.work = stack.enter_context(local_work(self._output, "all"))
            self.files = BucketFiles(self.work, self._remote, self._writer)
            self.keeper = BucketShards(self._output, self._writer)
            stack.callback(self.keeper.close)
            self._stack = stack.pop_all()
        return self

    def _check_plan(self) -> None:
        url = self._remote / PLAN
        info = find(url)
        if info is None:
            check_empty(self._output)
            # These results may come from a preparation with other options.
            self._remove_results()
        else:
            existing = read_plan(url)
            ignored = IGNORED_IF_UNFINISHED
            if differences := plan_differences(existing, self._plan, ignored=ignored):
                if any(info.url.suffix == ".arrayrecord" for info in list_objects(self._output)):
                    raise ValueError(different_settings(self._output, differences, self._remote))
        version = ABSENT if info is None else info.version
        self._writer.write(url, json.dumps(self._plan, indent=1), version)

    def discard(self) -> None:
        """Remove all objects of a preparation that cannot be resumed.

        The plan is removed last. If the removal is interrupted, the next preparation finds the
        plan, and makes the removed shards again.
        """
        self.keeper.close()
        for info in list_directory(self._output)[0]:
            if info.url.suffix == ".arrayrecord":
                self._writer.remove(info.url, info.version)
        self._remove_results()
        remove(self._remote / PLAN, check=self._lease.check)

    def publish(self, manifest: Manifest) -> None:
        """Upload the tokenizer and other files, and then the manifest."""
        self.keeper.wait()
        for name in manifest.filter_files:
            self._writer.upload(self.work / SCREENED / name, self._output / name)
        for file in sorted((self.work / TOKENIZER).iterdir()):
            self._writer.upload(file, self._output / TOKENIZER / file.name)
        shards = (*manifest.train.shards, *manifest.heldout.shards)
        kept = {*(shard.name for shard in shards), *manifest.filter_files}
        # Shards missing from the manifest are from empty units or earlier preparations.
        for info in list_directory(self._output)[0]:
            if info.url.name not in kept:
                self._writer.remove(info.url, info.version)
        self._lease.confirm()
        self._writer.write(self._output / MANIFEST, manifest_text(manifest))
        self._remove_results()
        remove(self._remote / PLAN, check=self._lease.check)

    def _remove_results(self) -> None:
        """Remove everything in OUTPUT/.work except the plan and the lease. The shards are kept."""
        kept = (self._remote / PLAN, self._remote / LEASE)
        urls = [info.url for info in list_objects(self._remote) if info.url not in kept]
        remove_all(urls, check=self._lease.check)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.__exit__(kind, error, traceback)


def check_empty(output: ObjectUrl) -> None:
    """Check that there is nothing but an unfinished preparation at or below a URL.

    Raises:
      ValueError: there are other objects.
    """
    if find(output) is not None:
        raise ValueError(f"{output}: this is an object. Specify another URL.")
    if find(output / WORK / PLAN) is None:
        for info in list_objects(output):
            if not output.relative(info.url).startswith(f"{WORK}/"):
                raise ValueError(not_empty(output))


@contextmanager
def local_work(output: ObjectUrl, name: str) -> Iterator[Path]:
    """Yield an empty local directory for unfinished work, and remove it at the end.

    Args:
      output: the URL of the corpus.
      name: a name that differs between processes that may prepare the corpus at the same time.
    """
    digest = hashlib.sha256(f"{output} {name}".encode()).hexdigest()[:16]
    local = cache_directory() / "prepare" / digest
    with writing(local):
        make_directory(local.parent)
    with temporary_beside(local, directory=True) as directory:
        yield directory


def part_leases(output: ObjectUrl) -> list[ObjectUrl]:
    """Return the URLs of the leases of parts, which may have expired."""
    infos = list_directory(output / WORK)[0]
    return [info.url for info in infos if info.url.suffix == ".lease"]


def check_outside_bucket_corpora(url: ObjectUrl, name: str) -> None:
    """Check that an output URL is not inside a corpus in a bucket; see `check_outside_corpora`.

    Raises:
      ValueError: the URL is inside a corpus.
    """
    parent = url.parent
    while parent.key:
        if is_corpus(parent):
            raise ValueError(
                f"{name}={url}: this is inside the corpus {parent}. Choose another URL."
            )
        parent = parent.parent


def is_corpus(location: Location) -> bool:
    """Return whether there is a corpus at a path or URL, finished or in preparation."""
    if not isinstance(location, ObjectUrl):
        return has_corpus(location)
    if find(location / WORK / PLAN) is not None:
        return True
    if find(location / MANIFEST) is None:
        return False
    return any(info.url.suffix == ".arrayrecord" for info in list_directory(location)[0])
