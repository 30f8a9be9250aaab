"""Check that the estimated cost of a BERT-base layer stays below ceilings, for a v5e and an H200.

The tests compile a whole train step with two layers of BERT-base and rows of 512 tokens, with the
recipe's hyperparameters. They need no accelerator, only its compiler: libtpu or JAX's CUDA plugin.
If a change makes a layer cheaper, lower the ceilings.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from bert_jax.analysis.chips import chip
from bert_jax.analysis.custom_calls import Work
from bert_jax.analysis.estimate_step import estimate_step
from bert_jax.analysis.estimates import StepEstimate
from bert_jax.analysis.hlo import arrays
from bert_jax.analysis.kernel_times import kernel_times

from ..commands import REPOSITORY

NUM_LAYERS, NUM_HEADS, LENGTH = 2, 12, 512
GIB = 2**30


@dataclass(frozen=True)
class Ceilings:
    """The maximum cost of a layer, without the optimizer, and the expected attention.

    Attributes:
      topology: the chip, as an argument of `plan`.
      compiler: the module that must be installed.
      batch_size: the number of rows.
      attention: the expected attention implementation.
      ms: the estimated time in ms.
      hbm_gib: the bytes of main memory that are read and written, in GiB.
      kernels: the number of kernels.
      kept_gib: the size of the arrays that the backward pass needs from the forward pass, in GiB.
      score_arrays: the number of stored arrays with an element for every pair of tokens, head and
        row, keyed by dtype, in both layers together. Dropout masks are "pred".
    """

    topology: str
    compiler: str
    batch_size: int
    attention: str
    ms: float
    hbm_gib: float
    kernels: float
    kept_gib: float
    score_arrays: dict[str, int]


CEILINGS = [
    Ceilings("v5e:1x1", "libtpu", 32, "flash_tpu", 6.05, 0.81, 58, 0.145, {}),
    Ceilings("h200:1", "jax_cuda13_plugin", 128, "flash_gpu", 8.9, 11.1, 61, 1.52, {}),
]


def compiled(ceilings: Ceilings, output: Path) -> tuple[str, StepEstimate]:
    """Compile the step in a separate process, and return its attention and its estimate."""
    words = ["configs/pretrain/bert_base.py", ceilings.topology, output]
    words += [f"model.num_layers={NUM_LAYERS}", "phases.phase1=None"]
    words += [f"phases.phase2.batch_size={ceilings.batch_size}"]
    script = REPOSITORY / "experiments/accelerators/compiled.py"
    path = os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])
    subprocess.run(
        [sys.executable, script, *words],
        env={**os.environ, "PYTHONPATH": path, "JAX_PLATFORMS": "cpu"},
        cwd=REPOSITORY,
        check=True,
    )
    step = json.loads(output.read_text(encoding="utf-8"))
    figures = chip(step["device_kind"])
    pallas = {name: Work(*counts) for name, counts in step["pallas"].items()}
    times = kernel_times(step["device_kind"], pallas)
    assert figures is not None and times is not None
    estimate = estimate_step(
        step["text"],
        1,
        times,
        link_bandwidth=figures.link_bandwidth,
        memory_bandwidth=figures.memory_bandwidth,
        least_seconds=None,
        num_layers=NUM_LAYERS,
    )
    assert estimate is not None
    return step["attention"], estimate


def score_arrays(estimate: StepEstimate, batch_size: int) -> dict[str, int]:
    """Count the stored arrays with an element for every pair of tokens, head and row, by dtype."""
    size = batch_size * NUM_HEADS * LENGTH * LENGTH
    return Counter(
        array.dtype
        for line in estimate.instructions
        for stored in line.stored
        for array in arrays(stored)
        if math.prod(array.dims) == size
    )


@pytest.mark.slow
@pytest.mark.parametrize("ceilings", CEILINGS, ids=lambda ceilings: ceilings.topology)
def test_a_layer_of_bert_base_costs_no_more_than_before(ceilings: Ceilings, tmp_path: Path) -> None:
    if importlib.util.find_spec(ceilings.compiler) is None:
        pytest.skip(f"compiling for {ceilings.topology} needs {ceilings.compiler}")
    attention, estimate = compiled(ceilings, tmp_path / "step.json")
    layer = estimate.per_layer
    assert layer is not None
    found = {
        "ms": layer.seconds * 1e3,
        "hbm_gib": layer.bytes / GIB,
        "kernels": layer.kernels,
        "kept_gib": layer.kept_bytes / GIB,
    }
    print(attention, found, score_arrays(estimate, ceilings.batch_size))
    assert attention == ceilings.attention
    assert {name: cost for name, cost in found.items() if cost > getattr(ceilings, name)} == {}
    assert score_arrays(estimate, ceilings.batch_size) == ceilings.score_arrays
