r"""Compare the speed of bert_jax's train step with that of Hugging Face's BERT in PyTorch.

    python experiments/step_speed/run.py tiny mini --same-malloc
    python experiments/step_speed/run.py base large --device cuda --batch 128 --length 512 \
        --without-attention-dropout

The peer is `yardsticks/peer_torch_bert.py` in the folder given by the environment variable
BERT_JAX_SHARED (default: `shared` next to the repository). It trains `BertForPreTraining` with
AdamW and gradient clipping, both in eager mode and compiled; the masked-LM head runs only at the
masked positions. In every round, each program runs once in a separate process. A round's ratio is
bert_jax's tokens/s divided by the tokens/s of the peer's faster mode. The peer also applies dropout
to attention probabilities; --without-attention-dropout measures bert_jax with and without this
dropout. On a CPU, bert-jax configures malloc to keep freed buffers; --same-malloc also measures the
peer with this setting. The script writes results.json, or results_cuda.json on a GPU.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
from pathlib import Path

from bert_jax.processes import largest_block, memory_bytes

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
CONFIGS = {"tiny": "tiny", "mini": "mini", "base": "bert_base", "large": "bert_large"}
# The malloc settings from bert_jax.processes, as environment variables for another program.
KEEPING = (
    f"glibc.malloc.mmap_threshold={largest_block(memory_bytes())}:glibc.malloc.arena_max=1:"
    "glibc.malloc.trim_threshold=1000000000000"
)
SHARED = Path(os.environ.get("BERT_JAX_SHARED", ROOT.parent / "shared"))


def last_json(command: list[str], **variables: str) -> dict:
    """Run a command with additional environment variables, and parse its last line of output."""
    environment = {**os.environ, **variables}
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    if result.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{result.stderr}")
    return json.loads(result.stdout.strip().splitlines()[-1])


def ours(size: str, args: argparse.Namespace, *overrides: str) -> dict:
    """Measure bert_jax with `bert-jax bench step`."""
    return last_json(
        [sys.executable, "-m", "bert_jax.cli.main", "bench", "step"]
        + ["--config", f"configs/pretrain/{CONFIGS[size]}.py", "--steps", str(args.steps)]
        + [f"--config.phases.phase1.batch_size={args.batch}"]
        + [f"--config.phases.phase1.sequence_length={args.length}", *overrides]
    )


def peer(size: str, compiled: int, args: argparse.Namespace, **variables: str) -> dict:
    """Measure the PyTorch peer with the same shapes and dropout."""
    return last_json(
        [sys.executable, str(SHARED / "yardsticks/peer_torch_bert.py"), "--device", args.device]
        + [
            "--size",
            size,
            "--seq",
            str(args.length),
            "--batch",
            str(args.batch),
            "--steps",
            str(args.steps),
        ]
        + ["--compile", str(compiled), "--head", "sparse", "--dropout", "0.1"],
        **variables,
    )


def processor() -> str:
    """Return the name of the processor, read from /proc on Linux."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def measure(size: str, args: argparse.Namespace) -> dict:
    """Measure every program once, and return the measurements and ratios."""
    row = {"size": size, "ours": ours(size, args)}
    if (" cpu" in row["ours"]["device"]) != (args.device == "cpu"):
        raise SystemExit(f"--device {args.device}, but JAX is running on {row['ours']['device']}")
    if args.without_attention_dropout:
        row["ours_without"] = ours(size, args, "--config.model.attention_dropout=0.0")
    row |= {"eager": peer(size, 0, args), "compiled": peer(size, 1, args)}
    best = max(row["eager"]["tok_s"], row["compiled"]["tok_s"])
    for side in ("ours", "ours_without"):
        if side in row:
            row[side.replace("ours", "ratio")] = round(row[side]["tok_s"] / best, 3)
    if args.same_malloc:
        for compiled, mode in enumerate(("eager", "compiled")):
            row[f"{mode}_same_malloc"] = peer(size, compiled, args, GLIBC_TUNABLES=KEEPING)
        best = max(row["eager_same_malloc"]["tok_s"], row["compiled_same_malloc"]["tok_s"])
        row["ratio_same_malloc"] = round(row["ours"]["tok_s"] / best, 3)
    return row


def table_line(name: str, sides: tuple[str, ...], ratio_name: str, rows: list[dict]) -> str:
    """Return the table row for one size: medians over all rounds, and the range of the ratio."""
    speeds = [f"{statistics.median(row[column]['tok_s'] for row in rows):,.0f}" for column in sides]
    ratios = [row[ratio_name] for row in rows]
    ratio = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
    return f"| {name} | {' | '.join(speeds)} | {ratio} |"


def main() -> None:
    """Measure every size, write the results and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sizes", nargs="+", choices=list(CONFIGS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--without-attention-dropout", action="store_true")
    parser.add_argument("--same-malloc", action="store_true")
    args = parser.parse_args()
    if args.same_malloc and args.device != "cpu":
        parser.error("--same-malloc: bert-jax configures malloc only on a CPU")
    if settings := [name for name in os.environ if name.startswith(("GLIBC_TUNABLES", "MALLOC_"))]:
        parser.error(f"unset {', '.join(settings)}, which would change malloc for all programs")
    rows = []
    for size in args.sizes:
        for number in range(args.rounds):
            rows.append(measure(size, args))
            print(f"{size} round {number + 1}: {rows[-1]['ratio']}", file=sys.stderr, flush=True)
    host = {"date": str(datetime.date.today()), "processor": processor(), "cores": os.cpu_count()}
    results = HERE / ("results.json" if args.device == "cpu" else "results_cuda.json")
    results.write_text(json.dumps({**host, "rows": rows}, indent=1) + "\n")
    device = rows[0]["ours"]["device"]
    print(f"{host['date']}, {device}, {host['cores']} cores of {host['processor']}\n")
    print("| model | bert_jax tok/s | PyTorch eager | PyTorch compiled | ratio to the faster |")
    print("|---|---|---|---|---|")
    for size in args.sizes:
        mine = [row for row in rows if row["size"] == size]
        print(table_line(size, ("ours", "eager", "compiled"), "ratio", mine))
        if args.without_attention_dropout:
            sides = ("ours_without", "eager", "compiled")
            print(table_line(f"{size}, no attention dropout", sides, "ratio_without", mine))
        if args.same_malloc:
            sides = ("ours", "eager_same_malloc", "compiled_same_malloc")
            print(table_line(f"{size}, same malloc", sides, "ratio_same_malloc", mine))


if __name__ == "__main__":
    main()
