"""Kill commands at random moments and repeat them."""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator
from pathlib import Path

from assets import Assets
from cases import Case, Job, Steps, faults_of, problems_of
from commands_that_write import Writing, writing_commands

_SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
# The number of cases per command. In each case, the command is killed once or twice.
_CASES = {"pretrain": 8, "finetune": 8, "sweep": 4, "prepare": 8}
_CASES_OF_OTHERS = 4


def kill_cases(assets: Assets, seed: int) -> Iterator[Case]:
    """Yield cases that kill a command once or twice and then run it to completion."""
    rng = random.Random(f"{seed}/kills")
    for name, command in writing_commands(assets).items():
        for number in range(_CASES.get(name, _CASES_OF_OTHERS)):
            kills = [
                (rng.choice(_SIGNALS) if number >= 4 else _SIGNALS[number], rng.random())
                for _ in range(rng.randint(1, 2))
            ]
            yield _case(f"{name} {number}", command, kills, to_group=rng.random() < 0.3)


def _case(
    name: str, command: Writing, kills: list[tuple[signal.Signals, float]], to_group: bool
) -> Case:
    def steps(here: Path) -> Steps:
        words, problems = command.words(here / "out"), []
        for number, moment in kills:
            after = 0.05 + moment * command.seconds
            killed = yield Job(words, signal=number, after=after, to_group=to_group)
            problems += faults_of(killed)
            # The command had already finished when the signal was sent.
            if not command.resumes and (here / "out").exists():
                break
        else:
            problems += problems_of((yield Job(words)), "accepted")
        problems += [f"leftover: {left}" for left in leftovers(here)]
        if not problems:
            problems += problems_of((yield Job(command.words(here / "undisturbed"))), "accepted")
        if not problems:
            both = (here / "out", here / "undisturbed")
            found = yield Job(call=lambda: command.result(both[0]) == command.result(both[1]))
            if found.code or not found.value:
                problems.append("wrong result: differs from the undisturbed command's")
        return problems

    sent = " ".join(f"{number.name}@{moment:.2f}" for number, moment in kills)
    return Case("kills", f"{name} {sent}", steps, "accepted")


def leftovers(here: Path) -> list[str]:
    """Return temporary files that a finished command should have removed."""
    return [
        str(path.relative_to(here))
        for path in here.rglob("*")
        if ".tmp" in path.name or path.name == ".work"
    ]
