r"""Compile train steps for TPUs and GPUs that are not present, and tabulate their estimated times.

    python experiments/accelerators/run.py                     # all steps; takes hours
    python experiments/accelerators/run.py base-512:v5e base-512:h200
    python experiments/accelerators/run.py --table             # rewrite the table only

Each case is a model, a length and a chip. A step with all of the model's layers takes long to
compile, so the script compiles two steps with only a few layers. The difference between them gives
the cost of a layer, from which the script extrapolates to the whole model. `--full` also compiles
the whole step for comparison. Each result is written to results.json immediately and is not
computed again, so a script that was stopped can simply be restarted.

`--checkout DIR` compiles the steps of another checkout of this repository, such as a `git worktree`
of an older commit, and records them under that commit. All compiled programs are read with the code
of this checkout, so that the estimates of two commits can be compared. The table shows the commit
that was measured last and, as "before", the one that was measured first.

The script needs libtpu (`pip install -e '.[tpu]'`) for TPUs and JAX's CUDA plugin (`pip install -e
'.[cuda13]'`) for GPUs, but neither a TPU nor a GPU.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

from cases import CHIPS, GPUS, MODELS, Model

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "experiments")]  # Make an uninstalled checkout importable.

from commands import locked  # noqa: E402

from bert_jax.analysis.chips import chip, peak_flops  # noqa: E402
from bert_jax.analysis.custom_calls import Work  # noqa: E402
from bert_jax.analysis.estimate_step import estimate_step  # noqa: E402
from bert_jax.analysis.kernel_times import kernel_times  # noqa: E402
from bert_jax.files import write_file  # noqa: E402

RESULTS, README = HERE / "results.json", HERE / "README.md"
LOCK = ROOT / "runs/accelerators.lock"
BEGIN, END = "<!-- results -->\n", "<!-- end of results -->"
GIB = 2**30
# With these flags, the program contains the times that XLA's cost model expects. Older checkouts do
# not set the flags themselves.
GPU_FLAGS = "--xla_gpu_enable_triton_gemm=false --xla_gpu_collect_cost_model_stats=true"
# The costs that are extrapolated over the number of layers.
COSTS = ("ms", "model_flops", "hbm_gib", "kernels", "temporaries_gib")


def compiled(model: Model, chip_name: str, num_layers: int, checkout: Path) -> dict[str, Any]:
    """Compile a step in a separate process, and return its text and statistics."""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    environment["PYTHONPATH"] = os.pathsep.join(
        [str(checkout), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    if chip_name in GPUS:
        environment["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {GPU_FLAGS}".strip()
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "step.json"
        recipe = checkout / f"configs/pretrain/{model.recipe}.py"
        words = [recipe, CHIPS[chip_name][0], output, *model.words(chip_name, num_layers)]
        command = [sys.executable, str(HERE / "compiled.py"), *map(str, words)]
        result = subprocess.run(command, env=environment, cwd=checkout)
        if result.returncode:
            raise SystemExit(f"{' '.join(command)} failed with exit code {result.returncode}")
        return json.loads(output.read_text(encoding="utf-8"))


def measure(model: Model, chip_name: str, num_layers: int, checkout: Path) -> dict[str, Any]:
    """Return the estimated costs of a step with `num_layers` layers."""
    step = compiled(model, chip_name, num_layers, checkout)
    kind = step["device_kind"]
    figures = chip(kind)
    pallas = {name: Work(*counts) for name, counts in step["pallas"].items()}
    times = kernel_times(kind, pallas)
    assert figures is not None and times is not None
    estimate = estimate_step(
        step["text"],
        1,
        times,
        link_bandwidth=figures.link_bandwidth,
        memory_bandwidth=figures.memory_bandwidth,
        least_seconds=None,
        num_layers=num_layers,
    )
    assert estimate is not None, f"the text of the step for {kind} must contain estimates"
    return {
        "ms": estimate.seconds * 1e3,
        "model_flops": step["model_flops"],
        "hbm_gib": estimate.bytes / GIB,
        "kernels": estimate.kernels,
        "temporaries_gib": step["temporaries"] / GIB,
        "attention": step["attention"],
        "device_kind": kind,
        "by_kind_ms": {name: seconds * 1e3 for name, seconds in estimate.by_kind.items()},
        "by_method_ms": {name: seconds * 1e3 for name, seconds in estimate.by_method.items()},
        "not_estimated": dict(estimate.not_estimated),
        "compile_seconds": step["compile_seconds"],
    }


def extrapolated(model: Model, steps: dict[str, Any]) -> dict[str, float]:
    """Return the costs of a layer and of the step with all layers, from two compiled steps."""
    few, more = model.compiled
    costs = {}
    for name in COSTS:
        layer = (steps[str(more)][name] - steps[str(few)][name]) / (more - few)
        costs[f"layer_{name}"] = layer
        costs[name] = steps[str(few)][name] + (model.num_layers - few) * layer
    return costs


def load() -> dict[str, Any]:
    """Return the recorded commits, in the order of their first measurement, and the cases."""
    if RESULTS.is_file():
        return json.loads(RESULTS.read_text(encoding="utf-8"))
    return {"commits": {}, "cases": {}}


def record(case: str, commit: str, num_layers: int, costs: dict[str, Any]) -> None:
    """Add a measurement to results.json, to which another process may be writing."""
    LOCK.parent.mkdir(exist_ok=True)
    with locked(LOCK):
        results = load()
        results["cases"].setdefault(case, {}).setdefault(commit, {})[str(num_layers)] = costs
        facts = {"date": str(datetime.date.today()), "versions": versions()}
        results["commits"].setdefault(commit, facts)
        write_file(RESULTS, json.dumps(results, indent=1) + "\n")


def commit_of(checkout: Path) -> str:
    """Return the commit of a checkout; exit if its package has uncommitted changes."""
    git = ["git", "-C", str(checkout)]
    changed = subprocess.run(
        [*git, "status", "--porcelain", "bert_jax", "configs"], capture_output=True, text=True
    )
    if changed.returncode or changed.stdout:
        raise SystemExit(f"{checkout} must be a git checkout without changes: {changed.stdout}")
    head = subprocess.run([*git, "rev-parse", "--short=8", "HEAD"], capture_output=True, text=True)
    return head.stdout.strip()


def versions() -> dict[str, str]:
    """Return the versions of the compilers that are installed."""
    found = {}
    for package in ("jax", "libtpu", "jax-cuda13-plugin"):
        try:
            found[package] = version(package)
        except ModuleNotFoundError:
            continue
    return found


def cells(model: Model, chip_name: str, by_commit: dict[str, Any], commits: list[str]) -> list[str]:
    """Return the cells of a case's row in the table."""
    done = [commit for commit in commits if len(by_commit.get(commit, {})) >= 2]
    last = by_commit[done[-1]]
    now, before = extrapolated(model, last), ""
    step = last[str(model.compiled[1])]
    if len(done) > 1:
        before = f"{extrapolated(model, by_commit[done[0]])['ms']:.1f}"
    peak = peak_flops(step["device_kind"], "bfloat16")
    assert peak is not None
    whole = last.get(str(model.num_layers))
    return [
        f"{model.title}, {model.rows[chip_name in GPUS]} x {model.length}",
        CHIPS[chip_name][1],
        step["attention"],
        before,
        f"{now['ms']:.1f}" + (f" ({whole['ms']:.1f} compiled whole)" if whole else ""),
        f"{now['model_flops'] / (now['ms'] / 1e3) / peak:.1%}",
        f"{now['layer_ms']:.2f}",
        f"{now['layer_hbm_gib']:.2f}",
        f"{now['layer_kernels']:.0f}",
        f"{now['layer_temporaries_gib']:.3f}",
    ]


def table(results: dict[str, Any]) -> str:
    """Return the results as a Markdown table, with the commits, versions and dates."""
    lines = [
        "| step | chip | attention | before, ms | now, ms | MFU | ms/layer | HBM GiB/layer | "
        "kernels/layer | temporaries GiB/layer |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    commits = list(results["commits"])
    for name, model in MODELS.items():
        for chip_name in CHIPS:
            by_commit = results["cases"].get(f"{name}:{chip_name}", {})
            if any(len(steps) >= 2 for steps in by_commit.values()):
                lines.append(f"| {' | '.join(cells(model, chip_name, by_commit, commits))} |")
    lines += ["", "Commits:", ""]
    for commit, facts in results["commits"].items():
        compilers = ", ".join(f"{name} {number}" for name, number in facts["versions"].items())
        lines.append(f"- {commit}, compiled on {facts['date']} with {compilers}")
    return "\n".join(lines) + "\n"


def write_table(results: dict[str, Any]) -> None:
    """Replace the table in the README."""
    text = README.read_text(encoding="utf-8")
    start, end = text.index(BEGIN) + len(BEGIN), text.index(END)
    write_file(README, f"{text[:start]}\n{table(results)}\n{text[end:]}")


def main() -> None:
    """Measure the cases that are not recorded yet, and write the results and the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = [f"{model}:{chip_name}" for model in MODELS for chip_name in CHIPS]
    parser.add_argument("cases", nargs="*", metavar="MODEL:CHIP", help=f"one of {', '.join(names)}")
    parser.add_argument("--checkout", type=Path, default=ROOT, help="a checkout to compile from")
    parser.add_argument("--full", action="store_true", help="also compile steps with all layers")
    parser.add_argument("--table", action="store_true", help="only rewrite the table")
    args = parser.parse_args()
    if unknown := set(args.cases) - set(names):
        parser.error(f"unknown cases {', '.join(sorted(unknown))}. Choose from {', '.join(names)}")
    commit = "" if args.table else commit_of(args.checkout)
    for case in [] if args.table else args.cases or names:
        name, _, chip_name = case.partition(":")
        model = MODELS[name]
        for num_layers in model.compiled + (model.num_layers,) * args.full:
            if str(num_layers) in load()["cases"].get(case, {}).get(commit, {}):
                continue
            print(f"{case}, {num_layers} layers of {commit}", file=sys.stderr, flush=True)
            record(case, commit, num_layers, measure(model, chip_name, num_layers, args.checkout))
    results = load()
    write_table(results)
    print(table(results))


if __name__ == "__main__":
    main()
