"""Find the files of a corpus's shards: in a directory, or as copies of objects in a bucket."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bert_jax.corpus.manifest import ShardInfo
from bert_jax.local_paths import cache_directory
from bert_jax.storage.cache import Cache
from bert_jax.storage.errors import ConflictError, MissingObjectError
from bert_jax.storage.objects import list_directory, stat
from bert_jax.storage.urls import Location, ObjectUrl

logger = logging.getLogger(__name__)

DEFAULT_CACHE_GIB = 100.0
_PREFETCHES = 4  # This many shards are copied at the same time before they are needed.


def corpus_cache(directory: str | os.PathLike[str] = "", gib: float = DEFAULT_CACHE_GIB) -> Cache:
    """Return the cache that contains shards of corpora stored in buckets.

    Args:
      directory: the directory of the cache; "" for the default, `corpora` in bert_jax's cache
        directory.
      gib: the maximum size of all copies, in GiB.
    """
    path = Path(directory) if os.fspath(directory) else cache_directory() / "corpora"
    return Cache(path, int(gib * (1 << 30)))


class BucketShardFiles:
    """Local copies of the shards in a bucket, which are verified against the manifest when copied.

    If the whole split fits into the cache, threads also copy shards that have not been requested
    yet. A process does not wait for these threads when it ends. Any number of processes on one host
    may share the cache. Instances are not pickled; each process makes its own.
    """

    def __init__(self, url: ObjectUrl, shards: Sequence[ShardInfo], cache: Cache):
        """Create the object; no shard is copied before it is requested.

        Args:
          url: the URL of the corpus.
          shards: the shards of a split.
          cache: where the copies are kept.
        """
        self._url, self._shards, self._cache = url, shards, cache
        self._num_bytes = sum(shard.num_bytes for shard in shards)
        self.fits = self._num_bytes <= cache.max_bytes
        self._lock = threading.Lock()
        self._missing = set(range(len(shards)))
        self._started, self._waited = 0.0, 0.0

    @contextmanager
    def open(self, shard: int) -> Iterator[Path]:
        """Return a copy of a shard, waiting for it if necessary.

        Raises:
          ValueError: the shard was removed or replaced since the corpus was finished.
          OSError: the shard cannot be read, or the copy cannot be written.
        """
        began = time.monotonic()
        with self._copy(shard) as path:
            with self._lock:
                first = not self._started
                self._started = self._started or began
                self._waited += time.monotonic() - began
            if first:
                self._prefetch()
            self._finished(shard)
            yield path

    @contextmanager
    def _copy(self, shard: int) -> Iterator[Path]:
        info = self._shards[shard]
        url = self._url / info.name
        try:
            described = stat(url)
            if described.num_bytes != info.num_bytes:
                raise ConflictError(url, "conflict")
            with self._cache.copy_of(described, info.sha256) as path:
                yield path
        except MissingObjectError as error:
            raise ValueError(
                f"{url}: this shard was deleted from the bucket. Restore it, or prepare the corpus "
                "again."
            ) from error
        except ConflictError as error:
            raise ValueError(
                f"{url}: this shard was replaced by another file since the corpus was finished. "
                "Restore it, or prepare the corpus again."
            ) from error

    def _prefetch(self) -> None:
        if not self.fits:
            logger.warning(
                "%s: the shards need %.1f GiB, but the cache in %s may hold only %.1f GiB, so "
                "shards will be copied repeatedly. Raise loader.cache_gib",
                self._url,
                self._num_bytes / (1 << 30),
                self._cache.directory,
                self._cache.max_bytes / (1 << 30),
            )
            return
        # Processes start with different shards, so that they do not all copy the same ones at once.
        start = os.getpid() % max(1, len(self._shards))
        waiting = deque([*range(start, len(self._shards)), *range(start)])
        for number in range(min(_PREFETCHES, len(waiting))):
            # Daemon threads are used instead of an executor, because at exit, Python waits for the
            # threads of an executor, until the whole corpus has been copied. Incomplete copies are
            # removed later.
            threading.Thread(
                target=self._fetch_ahead, args=[waiting], name=f"copy-shards-{number}", daemon=True
            ).start()

    def _fetch_ahead(self, waiting: deque[int]) -> None:
        while True:
            with self._lock:
                if not waiting or not self._missing:
                    return
                shard = waiting.popleft()
                if shard not in self._missing:
                    continue
            try:
                with self._copy(shard):
                    self._finished(shard)
            # The error occurs again when the shard is requested.
            except (OSError, ValueError) as error:
                logger.warning("a shard could not be copied ahead of time: %s", error)

    def _finished(self, shard: int) -> None:
        """Count a copied shard. After the last shard, report the time spent waiting for shards."""
        with self._lock:
            if shard not in self._missing:
                return
            self._missing.remove(shard)
            if self._missing:
                return
            elapsed, waited = time.monotonic() - self._started, self._waited
        logger.info(
            "%s: all %d shards (%.2f GiB) are in %s after %.1f s; batches waited for %.1f s",
            self._url,
            len(self._shards),
            self._num_bytes / (1 << 30),
            self._cache.directory,
            elapsed,
            waited,
        )

    def close(self) -> None:
        """Stop copying shards ahead of time."""
        with self._lock:
            self._missing.clear()


def file_sizes(directory: Location) -> dict[str, int]:
    """Return the sizes of the files directly in a directory, by name."""
    if isinstance(directory, ObjectUrl):
        return {info.url.name: info.num_bytes for info in list_directory(directory)[0]}
    with os.scandir(directory) as entries:
        return {entry.name: entry.stat().st_size for entry in entries if entry.is_file()}
