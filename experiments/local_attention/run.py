r"""Measure how much less time and memory local attention needs than global attention.

    python experiments/local_attention/run.py

The script times the attention of one layer (from the projected queries, keys and values to the
weighted values), computed by `local_attention` and by the dense attention in `models/attention.py`.
"Forward" is the forward pass without dropout, as in evaluation; "step" is the forward and the
backward pass. In every round, each program runs once, and a round's ratio is the time of local
attention divided by the time of global attention. The table shows the fastest run of each program,
and the median and range of the ratio. Memory is the size of the program's temporary buffers
according to XLA's memory analysis. --blocks also times other block sizes. The script prints the
table and writes results.json.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT))  # Make an uninstalled checkout importable.

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402

from bert_jax.files import write_file  # noqa: E402
from bert_jax.models import local_attention as local  # noqa: E402
from bert_jax.models.attention import View, scaled_scores, xla_attention  # noqa: E402
from bert_jax.processes import tune_malloc_for_training  # noqa: E402

GLOBAL, PASSES = "global", ("forward", "step")


class Program(NamedTuple):
    """A compiled program, its arguments, and the memory for its temporary buffers in bytes."""

    run: Callable[..., Any]
    arguments: tuple[Any, ...]
    memory: int

    def seconds(self) -> float:
        """Run the program once, and return how long it takes."""
        start = time.perf_counter()
        jax.block_until_ready(self.run(*self.arguments))
        return time.perf_counter() - start


def attend(
    block: int | None,
    window: int,
    rate: float,
    ids: jax.Array,
    dropout_key: jax.Array | None,
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
) -> jax.Array:
    """Compute local attention with this block size, or global attention if it is None."""
    if block is None:
        scores = scaled_scores(query, key)
        return xla_attention(scores, value, View(ids, packed=True), rate, dropout_key)
    # The library reads the block size while JAX traces this function.
    local.BLOCK = block
    return local.local_attention(query, key, value, ids, True, window, rate, dropout_key)


def compiled(block: int | None, kind: str, length: int, args: argparse.Namespace) -> Program:
    """Compile a program for rows of `length` tokens, which hold four documents each."""
    shape = (args.batch, length, args.heads, args.head_dim)
    keys = jax.random.split(jax.random.key(0), 5)
    inputs = [jax.random.normal(key, shape, jnp.dtype(args.dtype)) for key in keys[:4]]
    ids = jnp.broadcast_to(1 + jnp.arange(length) * args.documents // length, shape[:2])
    attention = partial(attend, block, args.window, args.dropout)

    def forward(ids: jax.Array, query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
        return attention(ids, None, query, key, value)

    def step(
        ids: jax.Array, dropout_key: jax.Array, cotangent: jax.Array, *inputs: jax.Array
    ) -> Any:
        attended, pull = jax.vjp(partial(attention, ids, dropout_key), *inputs)
        return attended, pull(cotangent)

    if kind == "forward":
        function: Callable[..., Any] = forward
        arguments: tuple[Any, ...] = (ids, *inputs[:3])
    else:
        function, arguments = step, (ids, keys[4], inputs[3], *inputs[:3])
    run = jax.jit(function).lower(*arguments).compile()
    return Program(run, arguments, run.memory_analysis().temp_size_in_bytes)


def measure(kind: str, length: int, args: argparse.Namespace) -> dict[str, Any]:
    """Time the programs in turn; return their times and the ratios to global attention's."""
    names = {GLOBAL: None} | {f"local {block}": block for block in args.blocks}
    programs = {name: compiled(block, kind, length, args) for name, block in names.items()}
    times: dict[str, list[float]] = {name: [] for name in programs}
    for name in programs:
        programs[name].seconds()  # Run each program once to warm up.
    for _ in range(args.rounds):
        for name, program in programs.items():
            times[name].append(program.seconds())
    row: dict[str, Any] = {"pass": kind, "length": length}
    for name, program in programs.items():
        ratios = np.divide(times[name], times[GLOBAL])
        row[name] = {
            "seconds": times[name],
            "memory": program.memory,
            "ratio": statistics.median(ratios),
            "range": [float(ratios.min()), float(ratios.max())],
        }
    return row


def processor() -> str:
    """Return the name of the processor, read from /proc on Linux."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def table(rows: list[dict[str, Any]], blocks: list[int]) -> Iterator[str]:
    """Yield the lines of a Markdown table."""
    yield "| pass | tokens | block | global | local | ratio | global memory | local memory |"
    yield "|---|---|---|---|---|---|---|---|"
    for row in rows:
        for block in blocks:
            one, other = row[GLOBAL], row[f"local {block}"]
            times = [f"{1000 * min(x['seconds']):,.1f} ms" for x in (one, other)]
            memory = [f"{x['memory'] / 1e6:,.1f} MB" for x in (one, other)]
            low, high = other["range"]
            ratio = f"{other['ratio']:.3f} ({low:.3f} to {high:.3f})"
            words = [row["pass"], f"{row['length']:,}", str(block), *times, ratio, *memory]
            yield f"| {' | '.join(words)} |"


def main() -> None:
    """Measure every pass and length, write the results and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, 1024, 2048, 4096, 8192])
    parser.add_argument("--window", type=int, default=129)
    parser.add_argument("--blocks", type=int, nargs="+", default=[local.BLOCK])
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--documents", type=int, default=4, help="documents in a row")
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=Path, default=HERE / "results.json")
    args = parser.parse_args()
    tune_malloc_for_training()  # `bert-jax pretrain` uses the same malloc settings.
    rows = []
    for kind in PASSES:
        for length in args.lengths:
            rows.append(measure(kind, length, args))
            print(f"{kind}, {length} tokens", file=sys.stderr, flush=True)
    settings = {name: value for name, value in vars(args).items() if name != "output"}
    host = {
        "date": str(datetime.date.today()),
        "device": jax.devices()[0].device_kind,
        "processor": processor(),
        "cores": os.cpu_count(),
        "jax": jax.__version__,
    }
    results = {**host, "settings": settings, "rows": rows}
    write_file(args.output, json.dumps(results, indent=1) + "\n")
    print("\n".join(table(rows, args.blocks)))


if __name__ == "__main__":
    main()
