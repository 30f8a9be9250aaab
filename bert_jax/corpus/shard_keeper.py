"""Define where a preparation keeps its finished shards."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from bert_jax.corpus.shards import UnitResult, read_result


class ShardKeeper(Protocol):
    """A store of finished shards, which a later preparation can reuse."""

    def refresh(self) -> None:
        """Find the shards that other machines have finished."""

    def kept(self, work: Path, name: str) -> UnitResult | None:
        """Return the result for a unit if its shard was kept, or None if the shard must be made."""

    def keep(self, work: Path, name: str) -> None:
        """Keep the shard of a unit and its result, which the worker has just written to `work`."""

    def wait(self) -> None:
        """Wait until all shards are kept.

        Raises:
          OSError: a shard cannot be kept.
        """


class LocalShards:
    """Leaves the shards in the directory for unfinished work; see `ShardKeeper`."""

    def refresh(self) -> None:
        """Do nothing."""

    def kept(self, work: Path, name: str) -> UnitResult | None:
        """Return the result for a unit if its shard is intact, or None."""
        return read_result(work, name)

    def keep(self, work: Path, name: str) -> None:
        """Do nothing, since the worker has already written the files."""

    def wait(self) -> None:
        """Do nothing."""
