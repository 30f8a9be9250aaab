"""Test the fault injection in `experiments/faults`: its verdicts and a small part of a campaign."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from types import ModuleType

import pytest

from .commands import REPOSITORY

CAMPAIGN = REPOSITORY / "experiments/faults"


@pytest.fixture(scope="module")
def cases() -> ModuleType:
    spec = importlib.util.spec_from_file_location("faults_cases", CAMPAIGN / "cases.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look up the module here to resolve annotations.
    spec.loader.exec_module(module)
    return module


REFUSAL = "bert-jax: error: given/vocab.txt: cut short\n"


@pytest.mark.parametrize(
    ("expectation", "code", "errors", "kinds"),
    [
        ("refused", 2, REFUSAL, []),
        ("accepted", 0, "prepare: 100 %\n", []),
        ("anything", 0, "", []),
        ("anything", 2, REFUSAL, []),
        ("refused", 0, "", ["wrongly accepted"]),
        ("accepted", 2, REFUSAL, ["wrongly refused"]),
        ("refused", 2, "bert-jax: error: [Errno 28] No space left\n", ["not named"]),
        ("refused", 2, "", ["no sentence"]),
        (
            "refused",
            1,
            "Traceback (most recent call last):\nKeyError\n",
            ["traceback", "exit code"],
        ),
        ("anything", -9, "", ["exit code"]),
    ],
)
def test_verdicts(cases, expectation, code, errors, kinds):
    ended = cases.Ended(code, seconds=1.0, memory=1 << 20, output="", errors=errors)
    problems = cases.problems_of(ended, expectation, "given")
    assert [problem.partition(":")[0] for problem in problems] == kinds


def test_hanging_processes_and_excessive_memory_are_problems(cases):
    ended = cases.Ended(0, seconds=91.0, memory=3 << 30, output="", errors="", hung=True)
    problems = cases.problems_of(ended, "accepted")
    assert [problem.partition(":")[0] for problem in problems] == ["hang", "memory"]


@pytest.mark.slow
def test_one_eighth_of_the_cases_have_no_problems(tmp_path):
    groups = ("tokenizers", "models", "texts", "tables", "settings", "flips", "kills")
    command = [sys.executable, CAMPAIGN / "run.py", "--work", tmp_path, "--fast", "--only", *groups]
    run = subprocess.run(command, capture_output=True, text=True, timeout=1200)
    assert run.returncode == 0, run.stderr
    results = json.loads((tmp_path / "results.json").read_text())
    assert len(results["cases"]) > 150
    assert not any(case["problems"] for case in results["cases"])
