"""results.json: tasks of one model, which several commands may each measure some of."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from commands import locked
from report import SIDES
from tasks import TASKS

from bert_jax.files import write_file

# What makes a model the same; the rest of its description tells where it comes from.
_SAME = ("encoder", "tokenizer", "parameters")


@dataclass(frozen=True)
class ResultsFile:
    """Where results go. lock: of those who write. model: as `described`. fast: of few examples.

    after_mnli: both sides learned MNLI before.
    """

    file: Path
    lock: Path
    model: dict
    fast: bool
    after_mnli: bool

    def tasks(self) -> dict[str, dict]:
        """Those in the file; none if there is no such file.

        SystemExit: they are of another model, or of few examples if these are of all.
        """
        if not self.file.is_file():
            return {}
        content = json.loads(self.file.read_text(encoding="utf-8"))
        differing = [part for part in _SAME if content["model"][part] != self.model[part]]
        if differing:
            self._refuse(f"of a model of other {', '.join(differing)}")
        if content["fast"] != self.fast:
            self._refuse("with --fast" if content["fast"] else "without --fast")
        if content.get("after_mnli", False) != self.after_mnli:
            self._refuse("without --after-mnli" if self.after_mnli else "with --after-mnli")
        tasks: dict[str, dict] = content["tasks"]
        return tasks

    def add(self, name: str, measured: dict) -> dict:
        """Puts a task beside the others, and what there was of a side that was not measured now
        beside the other one if both were learned in the same way; gives the task."""
        with locked(self.lock):
            tasks = self.tasks()
            before = tasks.get(name, {})
            learned = {measured[side]["made_of"] for side in SIDES if side in measured}
            for side in (side for side in SIDES if side in before and side not in measured):
                if {before[side]["made_of"]} == learned:
                    measured = measured | {side: before[side]}
                else:
                    print(f"{name}: left out {side}, which was learned otherwise", flush=True)
            tasks[name] = measured
            kept = {task: tasks[task] for task in TASKS if task in tasks}
            content = {"model": self.model, "fast": self.fast, "tasks": kept}
            content |= {"after_mnli": True} if self.after_mnli else {}
            write_file(self.file, json.dumps(content, indent=1) + "\n")
        return measured

    def _refuse(self, why: str) -> None:
        raise SystemExit(f"{self.file} has results {why}: give another --output, or move it away")
