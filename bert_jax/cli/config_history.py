"""The config that a run was given, and what it was before where that has changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bert_jax.cli.config import RESOLVED_NAME, write_resolved
from bert_jax.conversion import to_dataclass, to_plain
from bert_jax.differences import differences
from bert_jax.files import write_file
from bert_jax.json_files import read_json_object

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
