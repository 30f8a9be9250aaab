"""Test how `experiments/accelerators` extrapolates over layers and tabulates its results."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

import pytest

from .commands import REPOSITORY

FOLDER = REPOSITORY / "experiments/accelerators"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FOLDER))
        module = importlib.import_module("run")
    # Scripts of other experiments have the same name.
    del sys.modules["run"], sys.modules["cases"]
    return module


def step(num_layers: int, scale: float = 1.0) -> dict[str, Any]:
    """Return the costs of a step in which a layer takes 2 ms and everything else 5 ms."""
    return {
        "ms": scale * (5 + 2 * num_layers),
        "model_flops": 10**12 * (1 + num_layers),
        "hbm_gib": 3.0 + num_layers,
        "kernels": 100 + 50 * num_layers,
        "temporaries_gib": 1 + 0.25 * num_layers,
        "attention": "xla",
        "device_kind": "TPU v5 lite",
    }


@pytest.mark.parametrize("name", ["base-512", "modernbert-8192"])
def test_the_costs_of_all_layers_are_extrapolated(script: ModuleType, name: str) -> None:
    model = script.MODELS[name]
    few, more = model.compiled
    assert (model.num_layers - few) % (more - few) == 0
    costs = script.extrapolated(model, {str(few): step(few), str(more): step(more)})
    assert costs["ms"] == 5 + 2 * model.num_layers and costs["layer_ms"] == 2
    assert costs["layer_temporaries_gib"] == 0.25
    assert costs["kernels"] == 100 + 50 * model.num_layers


def test_the_table_compares_the_first_commit_with_the_last(script: ModuleType) -> None:
    old = {"1": step(1, 2.0), "2": step(2, 2.0)}
    new = {"1": step(1), "2": step(2), "12": step(12)}
    facts = {"date": "2026-11-26", "versions": {"jax": "0.10.2"}}
    results = {
        "commits": {"aaaa": facts, "bbbb": facts},
        "cases": {
            "base-512:v5e": {"aaaa": old, "bbbb": new},
            # Only one of the two steps was compiled.
            "base-128:v5e": {"bbbb": {"1": step(1)}},
        },
    }
    header, _, row, _, _, _, *commits = script.table(results).splitlines()
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert len(cells) == header.count("|") - 1
    mfu = 13e12 / 29e-3 / 197e12
    assert cells == [
        *("BERT-base, 32 x 512", "TPU v5e", "xla", "58.0", "29.0 (29.0 compiled whole)"),
        *(f"{mfu:.1%}", "2.00", "1.00", "50", "0.250"),
    ]
    assert commits == [
        f"- {name}, compiled on 2026-11-26 with jax 0.10.2" for name in ("aaaa", "bbbb")
    ]
