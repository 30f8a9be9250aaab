"""Define a test case: the commands that it runs and the outcome that it expects."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, assert_never

# A job prints this prefix to standard output, followed by the result of its `call`.
VALUE = "\x00value: "
MAX_SECONDS = 90.0
MAX_MEMORY = 2 << 30
USER_MISTAKE = 2

# "anything" is for damage with an unpredictable effect: either outcome is accepted.
Expectation = Literal["accepted", "refused", "anything"]


@dataclass(frozen=True)
class Job:
    """A process to run: a `bert-jax` command, or a Python function that returns a result.

    Attributes:
        words: the command-line arguments.
        call: a function to call instead of the command; its result is printed as JSON.
        signal: a signal to send to the process; None to send no signal.
        after: the delay before the signal is sent, in seconds.
        to_group: whether to send the signal to the whole process group.
        environment: environment variables to set in addition to the campaign's.
    """

    words: tuple[str, ...] = ()
    call: Callable[[], Any] | None = None
    signal: int | None = None
    after: float = 0.0
    to_group: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)
    seconds: float = MAX_SECONDS


@dataclass(frozen=True)
class Ended:
    """The result of a process; `memory` is the peak memory of its process tree in bytes."""

    code: int
    seconds: float
    memory: int
    output: str
    errors: str
    hung: bool = False

    @property
    def value(self) -> Any:
        """The result of a job's `call`."""
        return json.loads(self.output[self.output.rindex(VALUE) + len(VALUE) :])


Steps = Generator[Job, Ended, list[str]]


@dataclass(frozen=True)
class Case:
    """A test case, which runs its jobs in its own folder.

    The name is unique within the group. `steps` yields jobs, receives the result of each one, and
    returns the problems that it found.
    """

    group: str
    name: str
    steps: Callable[[Path], Steps]
    expectation: Expectation = "refused"

    @property
    def key(self) -> str:
        """The case's name in the results."""
        return f"{self.group}/{self.name}"


Check = Callable[[Path, Ended], str]


def command_case(
    group: str,
    name: str,
    words: Callable[[Path], tuple[str, ...]],
    *,
    expectation: Expectation,
    write: Callable[[Path], None] | None = None,
    mentions: str = "",
    check: Check | None = None,
    must_not_exist: str = "",
) -> Case:
    """Return a case that writes files into its folder and runs one command.

    Args:
        words: a function that takes the folder and returns the command-line arguments.
        write: a function that writes the files into the folder.
        mentions: a regular expression, such as a file name, that an error message must match.
        check: a function that checks a successful command's output; returns a problem, or "".
        must_not_exist: a file in the folder that a failed command must not leave behind.
    """

    def steps(here: Path) -> Steps:
        if write is not None:
            write(here)
        ended = yield Job(words(here))
        problems = problems_of(ended, expectation, mentions)
        if ended.code == 0 and check is not None and (problem := check(here, ended)):
            problems.append(f"wrong result: {problem}")
        if ended.code and must_not_exist and (here / must_not_exist).exists():
            problems.append(f"leftover: {must_not_exist}")
        return problems

    return Case(group, name, steps, expectation)


def problems_of(ended: Ended, expectation: Expectation, mentions: str = "") -> list[str]:
    """Return the problems with a command's result; each begins with its kind and a colon."""
    problems = faults_of(ended)
    refused = ended.code == USER_MISTAKE
    match expectation:
        case "accepted":
            if ended.code:
                problems.append(f"wrongly refused: {sentence_of(ended)}")
        case "refused":
            if ended.code == 0:
                problems.append("wrongly accepted: exit code 0")
            elif not refused:
                problems.append(f"exit code: {ended.code}")
        case "anything":
            if ended.code not in (0, USER_MISTAKE):
                problems.append(f"exit code: {ended.code}")
        case _:
            assert_never(expectation)
    if refused and expectation != "accepted":
        sentence = sentence_of(ended)
        if not sentence:
            problems.append("no sentence: no error message")
        elif mentions and not re.search(mentions, sentence):
            problems.append(f"not named: {mentions} in {sentence[:300]}")
        if "BERT_JAX_TRACEBACK" in ended.errors:
            problems.append(f"library's words: {sentence[:300]}")
    return problems


def faults_of(ended: Ended) -> list[str]:
    """Return problems that are never acceptable, whether the command succeeds or fails."""
    problems = []
    if ended.hung:
        problems.append(f"hang: over {ended.seconds:.0f} s")
    if ended.memory > MAX_MEMORY:
        problems.append(f"memory: {ended.memory / 2**30:.1f} GiB")
    if has_traceback(ended):
        problems.append(f"traceback: {ended.errors.strip().splitlines()[-1][:300]}")
    return problems


def has_traceback(ended: Ended) -> bool:
    """Return whether the output contains a Python traceback or a crash report from a library."""
    signs = ("Traceback (most recent call last)", "panicked at", "Fatal Python error")
    return any(sign in ended.errors for sign in signs)


def sentence_of(ended: Ended) -> str:
    """Return all lines of a command's error message."""
    start = re.search(r"^bert-jax[^:\n]*: error: ", ended.errors, re.MULTILINE)
    return ended.errors[start.start() :].strip() if start else ""
