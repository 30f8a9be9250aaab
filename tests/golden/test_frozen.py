"""Compare the output of every command-line verb with previously recorded values.

The values and directories in `frozen` were recorded before the code was reorganized. If a value
differs, behavior has changed. If that is intended, say so in CHANGELOG.md and record the value with

    python -m tests.golden.record CASE

On the machine that recorded the values, floats must match down to the last bit. See `differences`
for what is compared on other machines.
"""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable
from typing import Any

import pytest

from .frozen_runs import CASES, FORMATS, GROUPS, RUNS, TEXTS, VALUES, measure
from .frozen_values import differences, fingerprint

Measure = Callable[[str], dict[str, Any]]


def recorded(name: str) -> Any:
    return json.loads((VALUES / f"{name}.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def same_machine() -> bool:
    return fingerprint() == recorded("fingerprint")


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Measure:
    """Return a function that measures a case, along with the other cases of its group."""
    results: dict[str, dict[str, Any]] = {}
    # These commands do not lock the cache, so no other process may write to the same directory.
    cache = os.environ.get("JAX_COMPILATION_CACHE_DIR")
    cache = cache and f"{cache}/frozen"

    def get(name: str) -> dict[str, Any]:
        if name not in results:
            (group,) = (group for group in GROUPS if name in group)
            results.update(measure(group, tmp_path_factory.mktemp("frozen") / "run", cache))
        return results[name]

    return get


def check(old: Any, new: Any, exact: bool) -> None:
    problems = list(differences(old, new, exact=exact))
    assert not problems, "\n".join([f"{len(problems)} differences:", *problems[:40]])


@pytest.mark.parametrize("name", TEXTS)
def test_values_match_the_recorded_ones(name: str, measured: Measure, same_machine: bool) -> None:
    check(recorded(name), measured(name), same_machine)


@pytest.mark.slow
@pytest.mark.parametrize("name", (*RUNS, *FORMATS))
def test_slow_values_match_the_recorded_ones(
    name: str, measured: Measure, same_machine: bool
) -> None:
    check(recorded(name), measured(name), same_machine)


@pytest.mark.slow
@pytest.mark.parametrize("run", ["recent", "pretrain"])
def test_a_run_stopped_by_older_code_resumes_to_the_same_results(
    run: str, measured: Measure, same_machine: bool
) -> None:
    """Compare resumed runs with an uninterrupted one.

    The run "recent" was stopped by code that rounds like the current code, so its results are the
    same to the last bit. The run "pretrain" was stopped by the oldest code whose files can still be
    read. That code rounded the gradients of attention and norms differently, so the results differ
    as much as the results of two machines.
    """
    uninterrupted, resumed = measured("pretrain"), measured("kept")
    for kind, name in (
        ("texts", "work/{}/metrics.jsonl"),
        ("parameters", "exported/{}/model.safetensors"),
    ):
        check(
            uninterrupted[kind][name.format("pretrain")],
            resumed[kind][name.format(run)],
            same_machine and run == "recent",
        )


def test_every_command_succeeds() -> None:
    for name in CASES:
        for printed in recorded(name)["printed"]:
            assert printed["exit"] == 0, printed


def changed(value: Any, *path: Any, to: Callable[[Any], Any]) -> Any:
    """Return a copy of a value with one leaf changed."""
    result = copy.deepcopy(value)
    inner = result
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = to(inner[path[-1]])
    return result


def test_span_logits_may_be_shifted_on_another_machine() -> None:
    logits = [{"start_logit": 2.0, "end_logit": -1.0}, {"start_logit": 0.5, "end_logit": 3.0}]
    shifted = [{"start_logit": 2.01, "end_logit": -1.0}, {"start_logit": 0.51, "end_logit": 3.0}]
    one = [{"start_logit": 2.01, "end_logit": -1.0}, {"start_logit": 0.5, "end_logit": 3.0}]
    assert list(differences(logits, shifted, exact=True))
    assert not list(differences(logits, shifted, exact=False))
    assert list(differences(logits, one, exact=False))


WEIGHTS = ("parameters", "exported/pretrain/model.safetensors", "cls.predictions.bias")
LOSS = ("texts", "work/pretrain/metrics.jsonl", 3, "loss")
CONFIG = ("texts", "work/pretrain/config.json", "optimizer", "name")


@pytest.mark.parametrize(
    ("path", "to", "on_any_machine"),
    [
        (LOSS, lambda x: x * (1 + 1e-7), False),
        (LOSS, lambda x: x * (1 + 1e-3), True),
        (CONFIG, lambda x: "lamb", True),
        ((*WEIGHTS, "sha256"), lambda x: x[::-1], False),
        ((*WEIGHTS, "norm"), lambda x: x * (1 + 2e-3), True),
        ((*WEIGHTS, "shape"), lambda x: [*x, 1], True),
        (("sha256", "work/pretrain/tokenizer/vocab.txt"), lambda x: x[::-1], True),
        (("files", "exported/pretrain"), lambda x: x[1:], True),
        (("printed", 0, "lines", 0), lambda x: x.replace("model", "Model"), True),
        (("printed", 0, "exit"), lambda x: 2, True),
    ],
)
def test_changed_values_are_found(
    path: tuple[Any, ...], to: Callable[[Any], Any], on_any_machine: bool
) -> None:
    """Test that the recording machine detects every change, and that any machine detects some."""
    value = recorded("pretrain")
    other = changed(value, *path, to=to)
    assert value != other
    assert not list(differences(value, value, exact=True))
    assert list(differences(value, other, exact=True))
    assert bool(list(differences(value, other, exact=False))) == on_any_machine
