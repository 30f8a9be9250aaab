"""Reserve a work directory for one run, protect other files in it, and save the run's configs."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert_jax.conversion import to_dataclass, to_plain, without_absent_sections
from bert_jax.files import write_file
from bert_jax.json_files import read_json_object
from bert_jax.local_paths import make_directory
from bert_jax.runs.work_dir import MODEL_NAME, TOKENIZER_NAME
from bert_jax.tokenizers.tokenizer import Tokenizer
from bert_jax.validation import differences

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

RESOLVED_NAME = "config.json"
LOCK_NAME = ".lock"
# A run tries to lock its directory several times, because `is_locked` holds a shared lock for a
# moment.
_LOCK_TRIES, _LOCK_PAUSE = 3, 0.05


@contextmanager
def only_writer(work_dir: Path) -> Iterator[None]:
    """Lock `work_dir` against a second run, which would overwrite the checkpoints and the log.

    The lock is on a file that is open for writing, since NFS forwards this kind of lock to its
    server. A lock on a directory would be local to this machine. When the process ends, the lock is
    released, even if the process was killed, but the file remains.

    Raises:
      ValueError: another process has the lock.
    """
    lock = _lock(work_dir)
    try:
        yield
    finally:
        with suppress(OSError):  # If the run was rejected, leave no empty directory behind.
            if os.listdir(work_dir) == [LOCK_NAME]:
                os.unlink(work_dir / LOCK_NAME)
                work_dir.rmdir()
        os.close(lock)


def is_locked(work_dir: Path) -> bool:
    """Return whether a run is using `work_dir`, without changing anything in it.

    The result is False if the file system has no locks.
    """
    try:
        lock = os.open(work_dir / LOCK_NAME, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(lock)
    return False


def _lock(work_dir: Path) -> int:
    """Lock the lock file and return its descriptor."""
    file = work_dir / LOCK_NAME
    tries = 0
    while True:
        make_directory(work_dir)
        lock = os.open(file, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            tries += 1
            if tries < _LOCK_TRIES:
                time.sleep(_LOCK_PAUSE)
                continue
            raise ValueError(
                f"{work_dir}: another run is using this directory. Wait until it ends, stop it, or "
                "use another work_dir."
            ) from None
        except OSError as error:
            logging.getLogger(__name__).warning(
                "%s cannot be locked (%s): make sure that no other run uses it", work_dir, error
            )
            return lock
        # A rejected run may have removed the file after this process opened it.
        if file.exists() and os.path.samestat(os.fstat(lock), file.stat()):
            return lock
        os.close(lock)


def check_claimable(work_dir: Path, tokenizer: Tokenizer, *, begun: bool) -> None:
    """Reject a directory in which a run would overwrite files that no run wrote.

    Args:
      work_dir: the directory.
      tokenizer: the run's tokenizer, which may be in the directory already.
      begun: whether the run already has a checkpoint.

    Raises:
      ValueError: the directory has a config that no run wrote, or a different tokenizer.
    """
    if begun or (work_dir / MODEL_NAME).is_file():  # A run writes this file before all others.
        return
    if (work_dir / RESOLVED_NAME).is_file():
        raise ValueError(
            f"work_dir={work_dir} contains a {RESOLVED_NAME} that no run wrote (there is no "
            f"{MODEL_NAME}) and that this run would overwrite. Choose another directory."
        )
    if (work_dir / TOKENIZER_NAME).exists() and not holds(work_dir, tokenizer):
        raise ValueError(
            f"work_dir={work_dir} contains a different tokenizer, which this run would overwrite. "
            "Choose another directory."
        )


def holds(work_dir: Path, tokenizer: Tokenizer) -> bool:
    """Return whether a directory contains the given tokenizer."""
    try:
        return Tokenizer.load(work_dir / TOKENIZER_NAME).fingerprint == tokenizer.fingerprint
    except ValueError:
        return False


@dataclass(frozen=True)
class ResolvedConfig:
    """The values of a run's config, as they are written to `config.json`.

    Attributes:
      values: a dict from every key to its value, as plain JSON values.
      cls: the config's dataclass, with the defaults for keys that an older version did not write.
    """

    values: dict[str, Any]
    cls: type

    @staticmethod
    def of(config: DataclassInstance) -> ResolvedConfig:
        """Return the values of a config dataclass."""
        return ResolvedConfig(to_plain(config), type(config))

    def with_values(self, values: Mapping[str, Any]) -> ResolvedConfig:
        """Return the config with new values for some keys; a section's values are merged."""
        merged = dict(self.values)
        for key, value in values.items():
            merged[key] = {**merged[key], **value} if isinstance(value, Mapping) else value
        return ResolvedConfig(merged, self.cls)

    def write(self, work_dir: str | os.PathLike[str]) -> Path:
        """Write `config.json` atomically, and return its path.

        `to_dataclass(cls, json.loads(path.read_text()))` returns the same dataclass again.
        """
        path = make_directory(work_dir) / RESOLVED_NAME
        write_file(path, json.dumps(self.values, indent=2) + "\n")
        return path

    def as_read(self) -> dict[str, Any]:
        """Return the values as they would be read back from JSON, with lists instead of tuples."""
        values: dict[str, Any] = json.loads(json.dumps(self.values))
        return values


REMOVE_CONFIG = "Remove it; the run can continue without it"
_ANYWHERE = {"work_dir": ""}  # A work directory may be moved.


def keep_config(config: ResolvedConfig, work_dir: Path, step: int, *, finished: bool) -> list[str]:
    """Write `config.json`, and return lines that describe changes since the run's last start.

    The config used for the steps before a change is kept as `config-until-STEP.json`.

    Args:
      config: the run's config.
      work_dir: the run's work directory.
      step: the step of the checkpoint that the run resumes from; 0 for a new run.
      finished: whether the run has ended, in which case its config is not replaced.
    """
    path, backup = work_dir / RESOLVED_NAME, work_dir / f"config-until-{step}.json"
    # If an earlier start was killed before it saved a checkpoint, its config is in `path`, although
    # none of its training was kept.
    source = backup if backup.is_file() else path
    former = read_json_object(source, REMOVE_CONFIG) if step and source.is_file() else None
    changes = []
    if former is not None:
        completed = _with_new_keys(former, config.cls)
        changes = differences(completed | _ANYWHERE, config.as_read() | _ANYWHERE)
    lines = [f"  {change}" for change in changes]
    if finished and former is not None and not changes and source == path:
        return []
    if changes and finished:
        return [
            "NOTE       the run finished with a different config, which is kept (then -> now):",
            *lines,
        ]
    if changes:
        write_file(backup, json.dumps(former, indent=2) + "\n")
    config.write(work_dir)
    if not changes:
        backup.unlink(missing_ok=True)
        return []
    return [f"changed    since step {step:,} (old config kept as {backup.name}):", *lines]


def _with_new_keys(former: dict[str, Any], cls: type) -> dict[str, Any]:
    """Return an earlier version's config, with defaults for keys that have been added since."""
    try:
        values = without_absent_sections(cls, former)
        return ResolvedConfig(to_plain(to_dataclass(cls, values)), cls).as_read()
    # Some keys were removed in later versions; the printed differences show them.
    except ValueError:
        return former
