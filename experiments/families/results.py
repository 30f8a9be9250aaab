"""Read and write results.json, whose rows may come from several processes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from commands import locked

from bert_jax.files import write_file


def read_rows(
    file: Path, measured_with: Mapping[str, Any], recipes: Mapping[str, dict]
) -> dict[str, dict]:
    """Return a results file's rows in order, leaving out rows whose recipes have changed.

    Raises:
      SystemExit: the file's settings or corpora differ from `measured_with`.
    """
    content = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {"runs": {}}
    for name, value in measured_with.items() if content["runs"] else ():
        if content[name] != _as_read(value):
            raise SystemExit(
                f"{file}: its results were measured with {name} {json.dumps(content[name])}, not "
                f"{json.dumps(value)}. Move the file away, or use the same settings"
            )
    rows: dict[str, dict] = content["runs"]
    stale = [name for name, row in rows.items() if row["recipe"] != _as_read(recipes.get(name))]
    if stale:
        print(f"{file}: removed results of other recipes: {', '.join(stale)}", flush=True)
    return {name: rows[name] for name in recipes if name in rows and name not in stale}


def add_row(
    file: Path,
    lock: Path,
    row: tuple[str, dict],
    measured_with: Mapping[str, Any],
    recipes: Mapping[str, dict],
) -> dict[str, dict]:
    """Add a row (a name and its results) to a results file, and return all rows."""
    name, result = row
    with locked(lock):
        rows = read_rows(file, measured_with, recipes)
        rows[name] = _as_read(result | {"recipe": recipes[name]})
        rows = {name: rows[name] for name in recipes if name in rows}
        write_file(file, json.dumps({"runs": rows, **measured_with}, indent=1) + "\n")
    return rows


def _as_read(value: Any) -> Any:
    return json.loads(json.dumps(value))
