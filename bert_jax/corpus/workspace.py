"""The output directory of a preparation while it is not finished, and how it becomes a corpus.

Everything is written under DIR/.work. When all shards are there they are renamed into DIR, and
manifest.json last; then .work goes.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from bert_jax.corpus.inputs import CHECKSUM_KEY, MTIME_KEY, SPLIT_KEY
from bert_jax.corpus.manifest import MANIFEST, TOKENIZER, Manifest, read_manifest, write_manifest
from bert_jax.files import file_sha256, sync_directory, write_file
from bert_jax.json_files import read_json_object
from bert_jax.local_paths import make_directory

logger = logging.getLogger(__name__)

WORK = ".work"
_PLAN = "plan.json"
_MAX_DIFFERENCES = 5
# What may differ from a finished corpus that is asked for again: it will not be made again.
_DECIDED_THEN = ("libraries.",)
# What may differ from an unfinished one: an input that was refused and has been mended. Shards are
# kept only where the documents they hold are still the same.
_MENDED_SINCE = ("on_bad_line", "size in bytes of ")
_LOCK = "lock"


def holds_corpus(directory: Path) -> bool:
    """Return whether a directory holds a corpus, finished or in preparation."""
    finished = (directory / MANIFEST).is_file() and any(directory.glob("*.arrayrecord"))
    return finished or (directory / WORK / _PLAN).is_file()


def check_outside_corpora(path: Path, name: str) -> None:
    """Refuse an output path inside a corpus's directory.

    Args:
      path: the output's path, which need not exist; the corpus's own directory passes.
      name: the option or config key that specifies it.

    Raises:
      ValueError: the path is inside a corpus; names the corpus.
    """
    for parent in () if holds_corpus(path) else path.resolve().parents:
        if holds_corpus(parent):
            raise ValueError(f"{name}={path}: inside the corpus {parent}. Give another path.")


def finished_corpus(output: str | os.PathLike[str], plan: dict[str, Any]) -> Manifest | None:
    """The manifest, if `output` holds the finished corpus of this plan; None if none is finished.

    Raises:
        ValueError: the corpus there is another one.
    """
    if not Path(output, MANIFEST).exists():
        return None
    manifest = read_manifest(output)
    made_from = {
        "tokenizer_fingerprint": manifest.tokenizer_fingerprint,
        "options": manifest.options,
        "sources": manifest.sources,
    }
    if differences := _differences(made_from, plan, passed_over=_DECIDED_THEN):
        raise ValueError(
            f"{output} holds a finished corpus made from something else: {differences}. "
            "Choose another output directory."
        )
    _check_contents(output, manifest.sources, plan["sources"])
    shutil.rmtree(Path(output, WORK), ignore_errors=True)  # a kill may have come just before this
    return manifest


def _check_contents(
    output: str | os.PathLike[str],
    recorded: Iterable[Mapping[str, Any]],
    current: Iterable[Mapping[str, Any]],
) -> None:
    """Refuse input files whose content has changed since the corpus was finished.

    Reads only files whose modification time differs from the recorded one, to compare their
    checksums. Early manifests record neither, so files newer than the corpus cause a warning.
    """
    finished = Path(output, MANIFEST).stat().st_mtime_ns
    before = {source["path"]: source for source in recorded}
    for source in current:
        path, then = source["path"], before[source["path"]]
        if MTIME_KEY not in source or source[MTIME_KEY] == then.get(MTIME_KEY):
            continue
        if CHECKSUM_KEY not in then:
            if source[MTIME_KEY] > finished:
                logger.warning(
                    "%s was modified after %s was finished, whose early version has no checksums "
                    "of its inputs. If its content has changed, choose another output directory",
                    path,
                    output,
                )
            continue
        logger.info("%s was modified since then: comparing its content", path)
        if file_sha256(path) != then[CHECKSUM_KEY]:
            raise ValueError(
                f"{output} holds a finished corpus made from something else: {path} has changed "
                "since then, although its size has not. Choose another output directory."
            )


class Workspace:
    """A context manager around DIR/.work, locked against a second preparation."""

    def __init__(self, output: str | os.PathLike[str], plan: dict[str, Any]):
        """Open a new directory, or one in which the same plan was begun.

        Args:
            plan: all that decides the corpus: tokenizer_fingerprint, options, and sources, a list
                of {"path", "num_bytes"}.

        Raises:
            ValueError: the directory holds something else, a preparation with another plan, or one
                that is running.
        """
        self.output = Path(output)
        self.work = self.output / WORK
        if self.output.exists() and not self.output.is_dir():
            raise ValueError(f"{self.output} is a file; the output of prepare is a directory")
        if not self.work.exists() and self.output.exists() and any(self.output.iterdir()):
            raise ValueError(
                f"{self.output} is not empty and holds no preparation to continue; choose a new "
                "or an empty directory"
            )
        make_directory(self.work)
        self._lock = self._take_lock()
        try:
            self._check_plan(plan)
        except ValueError:
            self._lock.close()
            raise
        self._remove("*.tmp")

    def _check_plan(self, plan: dict[str, Any]) -> None:
        path = self.work / _PLAN
        if not path.exists():
            # A kill while all was being removed: nobody knows with which options these were made.
            self._remove("*.arrayrecord", "*.json")
        elif differences := _differences(_read_plan(path), plan, passed_over=_MENDED_SINCE):
            if any(self.work.glob("*.arrayrecord")):
                raise ValueError(
                    f"{self.output} holds an unfinished preparation of something else: "
                    f"{differences}. Repeat that one to continue it, choose another output "
                    f"directory, or delete {self.work} to begin anew."
                )
        shutil.rmtree(self.work / TOKENIZER, ignore_errors=True)  # may hold files of another one
        write_file(path, json.dumps(plan, indent=1))

    def _remove(self, *patterns: str) -> None:
        for pattern in patterns:
            for leftover in self.work.glob(pattern):
                leftover.unlink(missing_ok=True)

    def _take_lock(self) -> IO[str]:
        lock = open(self.work / _LOCK, "w", encoding="utf-8")  # noqa: SIM115
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            lock.close()
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise
            raise ValueError(
                f"another preparation is writing to {self.output}; wait for it, or end it"
            ) from None
        return lock

    def discard(self) -> None:
        """Give up what was made: no continuation could use it."""
        (self.work / _PLAN).unlink()  # first: what is left by a kill in between is then known
        shutil.rmtree(self.work)

    def publish(self, manifest: Manifest) -> None:
        """Rename the files the manifest names into the corpus directory, itself the last."""
        for shard in (*manifest.train.shards, *manifest.heldout.shards):
            os.replace(self.work / shard.name, self.output / shard.name)
        shutil.rmtree(self.output / TOKENIZER, ignore_errors=True)
        os.replace(self.work / TOKENIZER, self.output / TOKENIZER)
        sync_directory(self.output)  # all that the manifest names is there before it is
        write_manifest(self.output, manifest)
        shutil.rmtree(self.work)

    def __enter__(self) -> Workspace:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._lock.close()


def _read_plan(path: Path) -> dict[str, Any]:
    return read_json_object(path, f"Delete {path.parent} to start over")


def _differences(there: dict[str, Any], here: dict[str, Any], passed_over: tuple[str, ...]) -> str:
    """What differs between two plans, in words; empty if nothing does."""
    before, now = _flat(there), _flat(here)
    names = [name for name in {**before, **now} if not name.startswith(passed_over)]
    different = [name for name in names if before.get(name) != now.get(name)]
    words = [
        f"{name} is {before.get(name, 'absent')} there and {now.get(name, 'absent')} here"
        for name in different[:_MAX_DIFFERENCES]
    ]
    if len(different) > len(words):
        words.append(f"and {len(different) - len(words)} more")
    return "; ".join(words)


def _flat(plan: dict[str, Any]) -> dict[str, Any]:
    """A plan as name -> value, in which a source is named by its path."""
    options = dict(plan["options"])
    flat = {f"libraries.{name}": version for name, version in options.pop("libraries", {}).items()}
    flat |= options
    flat["tokenizer_fingerprint"] = plan["tokenizer_fingerprint"]
    for number, source in enumerate(plan["sources"], start=1):
        held_out = ", held out" if source.get(SPLIT_KEY) else ""
        flat[f"input {source['path']}"] = f"number {number}{held_out}"
        flat[f"size in bytes of {source['path']}"] = source["num_bytes"]
    return flat
