"""Extract a run's parameters and losses in a form that allows bitwise comparison."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

# Fields of log entries that are not computed by the model.
_NOT_COMPUTED = {"tokens_per_second", "stall", "seconds", "compiling", "utilisation"}


def digest(work_dir: Path, step: int | None = None) -> str:
    """Return a hash of the parameters in a checkpoint (default: the one that commands use)."""
    import numpy as np

    from bert_jax.models.compute_config import ComputeConfig
    from bert_jax.runs.checkpoints import load_model_parameters
    from bert_jax.runs.work_dir import read_model

    compute = ComputeConfig(dtype="float32", attention="xla")
    loaded = load_model_parameters(work_dir, read_model(work_dir)[0], compute, step)
    total = hashlib.sha256()
    for name in sorted(loaded):
        values = np.asarray(loaded[name])
        total.update(f"{name} {values.dtype} {values.shape}".encode())
        total.update(values.tobytes())
    return total.hexdigest()


def losses(work_dir: Path) -> list[str]:
    """Return the values in a run's log that the model computed, one entry per line."""
    entries = [json.loads(x) for x in (work_dir / "metrics.jsonl").read_text().splitlines()]
    return [
        json.dumps({k: v for k, v in entry.items() if k not in _NOT_COMPUTED}, sort_keys=True)
        for entry in entries
    ]


def files_of(directory: Path, *but: str) -> dict[str, str]:
    """Return a dict from the relative path of every file in a directory tree to its SHA-256."""
    return {
        str(file.relative_to(directory)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(directory.rglob("*"))
        if file.is_file() and file.name not in but
    }
