"""Give a work directory to one run: one writer, no foreign files, a history of its config."""

from __future__ import annotations

import fcntl
import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from bert_jax.conversion import to_dataclass, to_plain
from bert_jax.files import write_file
from bert_jax.json_files import read_json_object
from bert_jax.local_paths import make_directory
from bert_jax.runs.work_dir import MODEL_NAME, TOKENIZER_NAME
from bert_jax.tokenizers.tokenizer import Tokenizer
from bert_jax.validation import differences

RESOLVED_NAME = "config.json"


def write_resolved(config: Any, work_dir: str | os.PathLike[str]) -> Path:
    """Write every key of a config dataclass to `work_dir`/config.json, whole or not at all.

    `to_dataclass(cls, json.loads(path.read_text()))` gives the same dataclass back.
    """
    directory = make_directory(work_dir)
    path = directory / RESOLVED_NAME
    write_file(path, json.dumps(to_plain(config), indent=2) + "\n")
    return path


LOCK_NAME = ".lock"


@contextmanager
def only_writer(work_dir: Path) -> Iterator[None]:
    """Holds `work_dir` against a second run, whose checkpoints and log would overwrite the first's.

    A file in it is locked that is open for writing: NFS tells its server of such a lock, and keeps
    one on a directory to this machine. The file stays; the lock ends with the process however it
    dies.

    Raises:
      ValueError: another process holds it.
    """
    lock = _locked(work_dir)
    try:
        yield
    finally:
        with suppress(OSError):  # a run that was refused leaves no empty directory behind
            if os.listdir(work_dir) == [LOCK_NAME]:
                os.unlink(work_dir / LOCK_NAME)
                work_dir.rmdir()
        os.close(lock)


def _locked(work_dir: Path) -> int:
    """The locked file."""
    file = work_dir / LOCK_NAME
    while True:
        make_directory(work_dir)
        lock = os.open(file, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise ValueError(
                f"{work_dir}: another run is at work in it; wait for it, end it, or use another "
                "work_dir"
            ) from None
        except OSError as error:
            logging.getLogger(__name__).warning(
                "%s cannot be locked (%s): see to it that no second run uses it", work_dir, error
            )
            return lock
        # A run that was refused may have removed the file since it was opened here.
        if file.exists() and os.path.samestat(os.fstat(lock), file.stat()):
            return lock
        os.close(lock)


def check_claimable(work_dir: Path, tokenizer: Tokenizer, *, begun: bool) -> None:
    """Refuses a directory that has what no run wrote in the places of a run's own.

    tokenizer: the run's, which may lie there already. begun: whether a checkpoint does.

    Raises:
      ValueError: it has a config or another tokenizer of somebody else's.
    """
    if begun or (work_dir / MODEL_NAME).is_file():  # which a run writes first
        return
    if (work_dir / RESOLVED_NAME).is_file():
        raise ValueError(
            f"work_dir={work_dir} has a {RESOLVED_NAME}, which no run wrote (there is no "
            f"{MODEL_NAME}), and would lose it: choose another directory"
        )
    if (work_dir / TOKENIZER_NAME).exists() and not holds(work_dir, tokenizer):
        raise ValueError(
            f"work_dir={work_dir} has another tokenizer in it than the run's, and would lose it: "
            "choose another directory"
        )


def holds(work_dir: Path, tokenizer: Tokenizer) -> bool:
    """Whether the tokenizer in a directory is this one."""
    try:
        return Tokenizer.load(work_dir / TOKENIZER_NAME).fingerprint == tokenizer.fingerprint
    except ValueError:
        return False


REMOVE_CONFIG = "Remove it; the run can continue without it"
_NOWHERE = {"work_dir": ""}  # a directory may be moved


def keep_config(config: Any, work_dir: Path, step: int, *, finished: bool) -> list[str]:
    """Writes config.json, and says what differs from the config that the run had so far.

    step: of the checkpoint that the run goes on from, 0 at its start. The config up to there stays
      beside as config-until-STEP.json; that of a finished run is not replaced.
    """
    path, kept = work_dir / RESOLVED_NAME, work_dir / f"config-until-{step}.json"
    # A start that was killed before its first checkpoint left its own: nothing was learned by it.
    source = kept if kept.is_file() else path
    former = read_json_object(source, REMOVE_CONFIG) if step and source.is_file() else None
    current = json.loads(json.dumps(to_plain(config)))
    lines = []
    if former is not None:
        filled = _with_new_keys(former, type(config))
        lines = differences(filled | _NOWHERE, current | _NOWHERE)
    told = [f"  {line}" for line in lines]
    if finished and former is not None and not lines and source == path:
        return []
    if lines and finished:
        return ["NOTE       the run ended with another config, which is kept (then -> now):", *told]
    if lines:
        write_file(kept, json.dumps(former, indent=2) + "\n")
    write_resolved(config, work_dir)
    if not lines:
        kept.unlink(missing_ok=True)
        return []
    return [f"changed    since step {step:,}, whose config is kept as {kept.name}:", *told]


def _with_new_keys(former: dict[str, Any], cls: type) -> dict[str, Any]:
    """Return an earlier version's config, with defaults for the keys that were added since."""
    try:
        filled = to_plain(to_dataclass(cls, former))
    except ValueError:  # the printed differences show keys that were removed since
        return former
    values: dict[str, Any] = json.loads(json.dumps(filled))
    return values
