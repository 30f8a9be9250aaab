r"""Measure the speed, exactness and memory use of importing and exporting BERT models.

    python experiments/exchange/run.py base large

For each size, a Hugging Face BertForPreTraining with perturbed random weights is imported with
`bert-jax import`, checked with `verify`, and exported to every format; each export is also checked
with `verify`. Each command runs in a separate process. The peak resident memory of this process
(including mapped files) is compared with the peak memory of the same command for a model of only a
few kilobytes. The script writes results.json.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
SIZES = {
    "smallest": dict(
        num_hidden_layers=1, hidden_size=8, num_attention_heads=1, intermediate_size=8
    ),
    "base": dict(),
    "large": dict(
        num_hidden_layers=24, hidden_size=1024, num_attention_heads=16, intermediate_size=4096
    ),
}
SIZES["smallest"] |= dict(vocab_size=128, max_position_embeddings=16)
FORMATS = ("huggingface", "onnx", "stablehlo", "savedmodel")
SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def make(directory: Path, size: str) -> int:
    """Write a Hugging Face model, and return the size of its float32 weights in bytes."""
    import torch
    import transformers

    torch.manual_seed(0)
    model = transformers.BertForPreTraining(transformers.BertConfig(**SIZES[size]))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.02 * torch.randn_like(parameter)
    model.save_pretrained(directory)
    words = [*SPECIALS, *"abcdefghijklmnopqrstuvwxyz", *(f"##{c}" for c in "abcdefghijklmnop")]
    (directory / "vocab.txt").write_text("\n".join(words) + "\n")
    return 4 * sum(parameter.numel() for parameter in model.parameters())


def run(*words: str | Path) -> dict[str, float | str]:
    """Run a `bert-jax` command; return its time (s), peak memory (bytes) and last output line."""
    code = (
        "import sys\n"
        "from bert_jax.cli.main import main\n"
        "code = main()\n"
        # getrusage would count the parent's memory at the time of the fork as the child's.
        "status = dict(line.split(':', 1) for line in open('/proc/self/status'))\n"
        "print(int(status['VmHWM'].split()[0]) * 1024)\n"
        "sys.exit(code)"
    )
    start = time.perf_counter()
    finished = subprocess.run(
        [sys.executable, "-c", code, *map(str, words)], capture_output=True, text=True
    )
    seconds = time.perf_counter() - start
    if finished.returncode:
        raise SystemExit(f"{words} failed:\n{finished.stdout}{finished.stderr}")
    *_, last, peak = finished.stdout.strip().splitlines()
    return {"seconds": round(seconds, 1), "peak_bytes": int(peak), "last_line": last}


def measure(size: str, directory: Path) -> dict:
    """Measure all commands for one size."""
    theirs, ours = directory / "theirs", directory / "ours"
    weights = make(theirs, size)
    commands = {"import": run("import", theirs, "--output", ours)}
    commands["verify import"] = run("verify", theirs, ours)
    for form in FORMATS:
        out = directory / form
        commands[f"export {form}"] = run("export", ours, "--format", form, "--output", out)
        # `verify` does not support SavedModels, so only the tests compare them with the original.
        if form != "savedmodel":
            commands[f"verify {form}"] = run("verify", ours, out)
    same = (theirs / "model.safetensors").read_bytes() == (
        directory / "huggingface/model.safetensors"
    ).read_bytes()
    return {"weights_bytes": weights, "same_safetensors": same, "commands": commands}


def main() -> int:
    """Measure every size, write results.json and print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("sizes", nargs="+", choices=[size for size in SIZES if size != "smallest"])
    results: dict[str, dict] = {}
    for size in ("smallest", *parser.parse_args().sizes):
        with tempfile.TemporaryDirectory() as directory:
            results[size] = measure(size, Path(directory))
        print(f"{size} measured", flush=True)
    about = {
        "date": datetime.date.today().isoformat(),
        "machine": f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores",
    }
    text = json.dumps({**about, "results": results}, indent=1)
    (HERE / "results.json").write_text(text + "\n", encoding="utf-8")
    baseline = results.pop("smallest")["commands"]
    print("| size | command | seconds | additional memory / weights | largest difference |")
    print("|---|---|---|---|---|")
    for size, result in results.items():
        for name, command in result["commands"].items():
            above = command["peak_bytes"] - baseline[name]["peak_bytes"]
            share = above / result["weights_bytes"]
            match = re.search(r"(PASS: \S+) is", command["last_line"])
            words = match.group(1) if match else ""
            if name == "export huggingface" and result["same_safetensors"]:
                words = "model.safetensors is identical"
            print(f"| {size} | {name} | {command['seconds']} | {share:.2f} | {words} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
