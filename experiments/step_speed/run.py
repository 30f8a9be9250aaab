"""Train-step speed beside Hugging Face BERT in PyTorch, both in one run, in turn.

    python experiments/step_speed/run.py tiny mini

The peer is `yardsticks/peer_torch_bert.py` of the folder BERT_JAX_SHARED (default: `shared` beside
the repository): `BertForPreTraining` with the masked-LM head on the masked positions only, AdamW
and clipping, eager and compiled. Every side runs once a round in a process of its own; the ratio of
a round is our tokens/s over those of the peer's faster mode in that round. Writes results.json.
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

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SHARED = Path(os.environ.get("BERT_JAX_SHARED", ROOT.parent / "shared"))


def last_json(command: list[str]) -> dict:
    """Run a command and parse the last line it prints."""
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if result.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{result.stderr}")
    return json.loads(result.stdout.strip().splitlines()[-1])


def ours(size: str, args: argparse.Namespace) -> dict:
    """One measurement of `bert-jax bench step`."""
    return last_json(
        [sys.executable, "-m", "bert_jax.cli.main", "bench", "step"]
        + ["--config", f"configs/pretrain/{size}.py", "--steps", str(args.steps)]
        + [f"--config.phases.phase1.batch_size={args.batch}"]
    )


def peer(size: str, compiled: int, args: argparse.Namespace) -> dict:
    """One measurement of the peer, same shapes and dropout."""
    return last_json(
        [sys.executable, str(SHARED / "yardsticks/peer_torch_bert.py"), "--device", args.device]
        + ["--size", size, "--seq", "128", "--batch", str(args.batch), "--steps", str(args.steps)]
        + ["--compile", str(compiled), "--head", "sparse", "--dropout", "0.1"]
    )


def processor() -> str:
    """The processor's name, as Linux tells it."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def main() -> None:
    """Measure every size and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sizes", nargs="+", choices=["tiny", "mini"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    rows = []
    for size in args.sizes:
        for number in range(args.rounds):
            row = {
                "size": size,
                "ours": ours(size, args),
                "eager": peer(size, 0, args),
                "compiled": peer(size, 1, args),
            }
            best = max(row["eager"]["tok_s"], row["compiled"]["tok_s"])
            row["ratio"] = round(row["ours"]["tok_s"] / best, 3)
            rows.append(row)
            print(f"{size} round {number + 1}: ratio {row['ratio']}", file=sys.stderr, flush=True)
    host = {"date": str(datetime.date.today()), "processor": processor(), "cores": os.cpu_count()}
    (HERE / "results.json").write_text(json.dumps({**host, "rows": rows}, indent=1) + "\n")
    print(f"{host['date']}, {host['cores']} cores of {host['processor']}\n")
    print("| model | bert_jax tok/s | PyTorch eager | PyTorch compiled | ratio to the faster |")
    print("|---|---|---|---|---|")
    for size in args.sizes:
        mine = [row for row in rows if row["size"] == size]
        speeds = [
            f"{statistics.median(row[side]['tok_s'] for row in mine):,.0f}"
            for side in ("ours", "eager", "compiled")
        ]
        ratio = statistics.median(row["ratio"] for row in mine)
        spread = f"{min(r['ratio'] for r in mine):.2f} to {max(r['ratio'] for r in mine):.2f}"
        print(f"| {size} | {' | '.join(speeds)} | {ratio:.2f} ({spread}) |")


if __name__ == "__main__":
    main()
