"""Check output directories, and turn an unfinished preparation into a corpus.

A preparation writes all files to DIR/.work. When all shards are finished, it moves them to DIR,
writes manifest.json, and removes .work.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import shutil
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Literal

from bert_jax.corpus.inputs import CHECKSUM_KEY, MTIME_KEY
from bert_jax.corpus.manifest import MANIFEST, TOKENIZER, Manifest, read_manifest, write_manifest
from bert_jax.corpus.plans import (
    IGNORED_IF_FINISHED,
    IGNORED_IF_UNFINISHED,
    different_settings,
    finished_meanwhile,
    not_empty,
    plan_differences,
    read_plan,
)
from bert_jax.corpus.shard_keeper import LocalShards
from bert_jax.corpus.shared_files import SameDirectory
from bert_jax.files import sync_directory, write_file
from bert_jax.local_paths import make_directory
from bert_jax.storage.locations import exists, modified_ns, sha256_of
from bert_jax.storage.objects import remove_tree
from bert_jax.storage.urls import Location, ObjectUrl, parse_location
from bert_jax.tokenizers.files import has_tokenizer

logger = logging.getLogger(__name__)

WORK = ".work"
# The subdirectories for the results of screening: for blocks of documents, and for all documents.
SCREENING, SCREENED = "screening", "screened"
PLAN = "plan.json"
LOCK = "lock"

# These names are copied, because the modules that define them (`runs.work_dir`,
# `finetuning.sweep_directory` and `interop`) import JAX.
MODEL_NAME, SWEEP_NAME = "model.json", "sweep.json"
PROGRAM_NAMES = ("model.onnx", "model.stablehlo", "saved_model.pb")

Kind = Literal[
    "corpus", "sweep", "work directory", "Hugging Face directory", "exported model", "tokenizer"
]


def has_corpus(directory: Path) -> bool:
    """Return whether a directory contains a corpus, finished or in preparation."""
    finished = (directory / MANIFEST).is_file() and any(directory.glob("*.arrayrecord"))
    return finished or (directory / WORK / PLAN).is_file()


def check_outside_corpora(path: Path, name: str) -> None:
    """Check that an output path is not inside a corpus directory.

    Args:
      path: the output path, which need not exist. A corpus directory itself is accepted.
      name: the option or config key that specifies the path.

    Raises:
      ValueError: the path is inside a corpus. The message names the corpus.
    """
    for parent in () if has_corpus(path) else path.resolve().parents:
        if has_corpus(parent):
            raise ValueError(
                f"{name}={path}: this is inside the corpus {parent}. Choose another path."
            )


def directory_kind(directory: Path) -> Kind | None:
    """Return the kind of a directory, which its files reveal, or None if it is unknown."""
    if has_corpus(directory):
        return "corpus"
    if (directory / SWEEP_NAME).is_file():
        return "sweep"
    if (directory / MODEL_NAME).is_file():
        return "work directory"
    weights = [*directory.glob("*.safetensors"), *directory.glob("pytorch_model*.bin")]
    if weights and (directory / "config.json").is_file():
        return "Hugging Face directory"
    if any((directory / name).is_file() for name in PROGRAM_NAMES):
        return "exported model"
    return "tokenizer" if has_tokenizer(directory) else None


def check_output(path: Path, name: str, *, may_be: Collection[Kind] = ()) -> None:
    """Check that a command may write to an output directory.

    Args:
      path: the directory, which need not exist.
      name: the option or config key that specifies the directory.
      may_be: the kinds of directories that the command can continue or add to.

    Raises:
      ValueError: the directory is of a different kind or is inside a corpus.
    """
    kind = directory_kind(path)
    if kind is not None and kind not in may_be:
        article = "an" if kind == "exported model" else "a"
        raise ValueError(f"{name}={path}: this is {article} {kind}. Choose another directory.")
    check_outside_corpora(path, name)


def finished_corpus(output: Location, plan: dict[str, Any]) -> Manifest | None:
    """Return the manifest of a finished corpus with this plan, or None if there is no manifest.

    Raises:
      ValueError: the directory contains a different corpus.
    """
    if not exists(output / MANIFEST):
        return None
    manifest = read_manifest(output)
    finished_plan = {
        "tokenizer_fingerprint": manifest.tokenizer_fingerprint,
        "options": manifest.options,
        "sources": manifest.sources,
    }
    if differences := plan_differences(finished_plan, plan, ignored=IGNORED_IF_FINISHED):
        raise ValueError(
            f"{output}: contains a finished corpus with different settings: {differences}. "
            "Choose another output directory."
        )
    _check_contents(output, manifest.sources, plan["sources"])
    # The directory for unfinished work remains if a preparation was killed after it had written the
    # manifest.
    if isinstance(output, ObjectUrl):
        remove_tree(output / WORK)
    else:
        shutil.rmtree(output / WORK, ignore_errors=True)
    return manifest


def _check_contents(
    output: Location,
    recorded: Iterable[Mapping[str, Any]],
    current: Iterable[Mapping[str, Any]],
) -> None:
    """Raise ValueError if an input file's content has changed since the corpus was finished.

    Checksums are compared only for files whose modification time differs from the recorded one.
    Early manifests record neither modification times nor checksums, so a file that is newer than
    the corpus only causes a warning.
    """
    finished = modified_ns(output / MANIFEST)
    recorded_sources = {source["path"]: source for source in recorded}
    for source in current:
        path = source["path"]
        recorded_source = recorded_sources[path]
        if MTIME_KEY not in source or source[MTIME_KEY] == recorded_source.get(MTIME_KEY):
            continue
        if CHECKSUM_KEY not in recorded_source:
            if source[MTIME_KEY] > finished:
                logger.warning(
                    "%s was modified after %s was finished. This corpus was made by an early "
                    "version, which did not record checksums of the inputs. If the content has "
                    "changed, choose another output directory",
                    path,
                    output,
                )
            continue
        logger.info("%s was modified after preparation, so its checksum is being compared", path)
        if sha256_of(parse_location(path)) != recorded_source[CHECKSUM_KEY]:
            raise ValueError(
                f"{output}: contains a finished corpus built from different inputs: {path} has "
                "changed since the corpus was prepared, although its size has not. Choose another "
                "output directory."
            )


class Workspace:
    """A context manager that locks DIR/.work, so that no other `prepare` can write to DIR.

    Attributes:
      output: the corpus directory.
      work: the directory for unfinished work.
      files: the files that machines exchange, which share the directory.
      keeper: the object that keeps finished shards.
    """

    def __init__(self, output: str | os.PathLike[str], plan: dict[str, Any]):
        """Open a new directory, or one with an unfinished preparation that has the same plan.

        Args:
          output: the corpus directory.
          plan: everything that determines the corpus. Its keys are tokenizer_fingerprint, options
            and sources (a list of dicts with the keys "path" and "num_bytes").

        Raises:
          ValueError: the directory contains something else, a preparation with a different plan, or
            a preparation that is still running or has just finished.
        """
        self.output = Path(output)
        self.work = self.output / WORK
        self.files = SameDirectory(self.work)
        self.keeper = LocalShards()
        self._check_directory()
        make_directory(self.work)
        self._lock = self._take_lock()
        try:
            # Another process finished the corpus after the caller's check.
            if (self.output / MANIFEST).exists():
                raise ValueError(finished_meanwhile(self.output))
            self._check_plan(plan)
        except ValueError:
            self._lock.close()
            raise
        self._clean_up()

    def _check_directory(self) -> None:
        if self.output.exists() and not self.output.is_dir():
            raise ValueError(f"{self.output}: this is a file. Specify a directory.")
        if not self.work.exists() and self.output.exists() and any(self.output.iterdir()):
            raise ValueError(not_empty(self.output))

    def _check_plan(self, plan: dict[str, Any]) -> None:
        path = self.work / PLAN
        if not path.exists():
            # `discard` was interrupted, so it is unknown which options these files were made with.
            self._remove("*.arrayrecord", "*.json")
        elif differences := plan_differences(read_plan(path), plan, ignored=IGNORED_IF_UNFINISHED):
            if any(self.work.glob("*.arrayrecord")):
                raise ValueError(different_settings(self.output, differences, self.work))
        # The copy may be from another tokenizer.
        shutil.rmtree(self.work / TOKENIZER, ignore_errors=True)
        write_file(path, json.dumps(plan, indent=1))

    def _clean_up(self) -> None:
        self._remove("*.tmp")
        for shard in self.output.glob("*.arrayrecord"):  # `publish` was interrupted
            os.replace(shard, self.work / shard.name)

    def _remove(self, *patterns: str) -> None:
        for pattern in patterns:
            for leftover in self.work.glob(pattern):
                leftover.unlink(missing_ok=True)

    def _take_lock(self) -> IO[str]:
        lock = open_lock(self.work / LOCK)
        if not try_lock(lock, fcntl.LOCK_EX):
            lock.close()
            raise ValueError(
                f"{self.output}: another preparation is writing to it. Wait until it "
                "ends, or stop it."
            )
        return lock

    def discard(self) -> None:
        """Remove all files of a preparation that cannot be resumed."""
        # The plan is removed first, which marks the other files as leftovers.
        (self.work / PLAN).unlink()
        shutil.rmtree(self.work)

    def publish(self, manifest: Manifest) -> None:
        """Move the manifest's files into the corpus directory, and write the manifest last."""
        for shard in (*manifest.train.shards, *manifest.heldout.shards):
            os.replace(self.work / shard.name, self.output / shard.name)
        for name in manifest.filter_files:
            os.replace(self.work / SCREENED / name, self.output / name)
        shutil.rmtree(self.output / TOKENIZER, ignore_errors=True)
        os.replace(self.work / TOKENIZER, self.output / TOKENIZER)
        sync_directory(self.output)  # The files must be on disk before the manifest.
        write_manifest(self.output, manifest)
        # Another process that finds the manifest removes this directory as well.
        shutil.rmtree(self.work, ignore_errors=True)

    def __enter__(self) -> Workspace:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._lock.close()


def open_lock(path: Path) -> IO[str]:
    """Open a file to be locked, and create it if necessary."""
    return open(path, "a+", encoding="utf-8")


def try_lock(lock: IO[str], kind: int) -> bool:
    """Try to take a lock that another process may hold, and return whether it was taken.

    Args:
      lock: the open file.
      kind: `fcntl.LOCK_EX` or `fcntl.LOCK_SH`.

    Raises:
      OSError: the file system has no locks.
    """
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EAGAIN, errno.EACCES):
            raise
        return False
    return True
