"""Read and write results.json, to which several commands may add tasks."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from commands import locked
from report import SIDES
from tasks import TASKS

from bert_jax.files import write_file

# These parts of a description identify a model. The other parts describe its origin.
_SAME = ("encoder", "tokenizer", "parameters")


@dataclass(frozen=True)
class ResultsFile:
    """A results file.

    file: the path of the file.
    lock: the file to lock while writing.
    model: the description of the model, as returned by `describe`.
    fast: whether the results were measured with --fast, on only a few examples.
    after_mnli: whether both sides were trained on MNLI first.
    """

    file: Path
    lock: Path
    model: dict
    fast: bool
    after_mnli: bool

    def tasks(self) -> dict[str, dict]:
        """Return the tasks in the file, or {} if it does not exist.

        Raises:
          SystemExit: the file's results are for a different model or different options.
        """
        if not self.file.is_file():
            return {}
        content = json.loads(self.file.read_text(encoding="utf-8"))
        differing = [part for part in _SAME if content["model"][part] != self.model[part]]
        if differing:
            self._refuse(f"of a model with a different {', '.join(differing)}")
        if content["fast"] != self.fast:
            self._refuse("with --fast" if content["fast"] else "without --fast")
        if content.get("after_mnli", False) != self.after_mnli:
            self._refuse("without --after-mnli" if self.after_mnli else "with --after-mnli")
        tasks: dict[str, dict] = content["tasks"]
        return tasks

    def add(self, name: str, measured: dict) -> dict:
        """Add a task to the file and return it.

        If only one side was measured this time, the other side's earlier results are kept, provided
        that both sides were trained in the same way.
        """
        with locked(self.lock):
            tasks = self.tasks()
            before = tasks.get(name, {})
            trainings = {measured[side]["made_of"] for side in SIDES if side in measured}
            for side in (side for side in SIDES if side in before and side not in measured):
                if {before[side]["made_of"]} == trainings:
                    measured = measured | {side: before[side]}
                else:
                    print(f"{name}: removed {side}, which was trained differently", flush=True)
            tasks[name] = measured
            kept = {task: tasks[task] for task in TASKS if task in tasks}
            content = {"model": self.model, "fast": self.fast, "tasks": kept}
            content |= {"after_mnli": True} if self.after_mnli else {}
            write_file(self.file, json.dumps(content, indent=1) + "\n")
        return measured

    def _refuse(self, why: str) -> None:
        raise SystemExit(
            f"{self.file} has results {why}. Use another --output, or move the file away"
        )
