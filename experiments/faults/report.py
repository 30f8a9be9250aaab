"""Save a campaign's results, one line per case, and tabulate the problems."""

from __future__ import annotations

import datetime
import json
import os
import platform
from collections import Counter, defaultdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from cases import has_traceback
from lanes import Outcome

from bert_jax.files import write_file

LIBRARIES = ("jax", "orbax-checkpoint", "tokenizers", "torch", "tensorflow-cpu", "pyarrow")
# The kinds of problems, in the order in which they appear as table columns.
KINDS = (
    "wrongly accepted",
    "wrongly refused",
    "wrong result",
    "traceback",
    "hang",
    "memory",
    "exit code",
    "other",
)


class Results:
    """The results on disk for one code version and seed, as one JSON object per line."""

    def __init__(self, path: Path, code: str, seed: int):
        self._path, self._stamp = path, {"code": code, "seed": seed}
        self.rows: list[dict[str, Any]] = []
        if path.is_file():
            rows = [json.loads(line) for line in path.read_text().splitlines()]
            self.rows = [row for row in rows if {k: row.get(k) for k in self._stamp} == self._stamp]
        write_file(path, "".join(json.dumps(row) + "\n" for row in self.rows))

    @property
    def done(self) -> set[str]:
        """The keys of the cases that already have a result."""
        return {row["case"] for row in self.rows}

    @property
    def problems(self) -> list[str]:
        """All problems, each with the name of its case."""
        return [f"{row['case']}: {problem}" for row in self.rows for problem in row["problems"]]

    def add(self, outcome: Outcome) -> None:
        """Save an outcome."""
        ended = outcome.ended
        row = {
            "case": outcome.case.key,
            "group": outcome.case.group,
            "expectation": outcome.case.expectation,
            "exit_codes": [each.code for each in ended],
            "seconds": round(sum(each.seconds for each in ended), 2),
            "longest": round(max((each.seconds for each in ended), default=0.0), 2),
            "memory_mib": max((each.memory for each in ended), default=0) >> 20,
            "traceback": any(map(has_traceback, ended)),
            "stderr_lines": [len(each.errors.splitlines()) for each in ended],
            "problems": outcome.problems,
            **self._stamp,
        }
        self.rows.append(row)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


def _kind(problem: str) -> str:
    kind = problem.partition(":")[0]
    return kind if kind in KINDS else "other"


def table(results: Results) -> str:
    """Return the table as Markdown, one line per group."""
    groups = defaultdict(list)
    for row in results.rows:
        groups[row["group"]].append(row)
    header = ["group", "cases", "refused", "accepted", *KINDS, "longest, s", "memory, MiB"]
    lines = [f"| {' | '.join(header)} |", f"|{'---|' * len(header)}"]
    for name, rows in [*groups.items(), ("all", results.rows)]:
        kinds = Counter(_kind(problem) for row in rows for problem in row["problems"])
        refused = sum(row["exit_codes"][-1:] == [2] for row in rows)
        accepted = sum(row["exit_codes"][-1:] == [0] for row in rows)
        cells = [name, len(rows), refused, accepted, *(kinds[kind] for kind in KINDS)]
        cells += [
            f"{max((row['longest'] for row in rows), default=0):.0f}",
            max((row["memory_mib"] for row in rows), default=0),
        ]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def processor() -> str:
    """Return the processor's name as reported by Linux."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def write(results: Results, path: Path) -> None:
    """Write all results, with the date, the hardware and the library versions."""
    content = {
        "date": str(datetime.date.today()),
        "hardware": f"{os.cpu_count()} cores of {processor()}",
        "versions": {"python": platform.python_version()}
        | {name: version(name) for name in LIBRARIES},
        "seconds": round(sum(row["seconds"] for row in results.rows)),
        "cases": results.rows,
    }
    write_file(path, json.dumps(content, indent=1) + "\n")
