"""Run the commands whose results are frozen, and collect the files and lines that they write.

Only the command line is used, so that the recorded values do not depend on how the code is
organized. The commands run in a separate process, since compiler flags and additional devices
change the last bits of a loss. The command

    python -m tests.golden.frozen_runs RESULTS DIRECTORY CASE ...

runs the named cases in DIRECTORY and writes the values of each to RESULTS/CASE.json.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from .frozen_values import collect, normalized_lines

REPOSITORY = Path(__file__).resolve().parents[2]
FROZEN = Path(__file__).parent / "frozen"
INPUTS, KEPT, VALUES = FROZEN / "inputs", FROZEN / "kept", FROZEN / "values"
KINDS = ("glue", "sentences", "choices", "tags", "spans")
TOKENIZERS = ("wordpiece", "byte-bpe", "sentencepiece", "sentencepiece-bpe")
VERBS = (
    "prepare train-tokenizer demo-corpus pretrain finetune evaluate sweep import export extract "
    "verify verify-checkpoint status keys inspect plan bench predict fill-mask "
    "look tokenize show-batch probe compare prune-heads add-words"
).split()
# The modification time to set on the input files, since a corpus's manifest records it.
WRITTEN = 1_600_000_000


@dataclass(frozen=True)
class Case:
    """Commands to run, and the parts of their output files to record.

    commands: arguments for `bert-jax`, separated by spaces, or by "|" if they contain spaces.
    texts: glob patterns for files to record in full.
    hashes: glob patterns for files whose SHA-256 is recorded.
    listed: directories whose file names are recorded.
    weights: safetensors files, which are recorded as shapes, checksums, sums and norms.
    kept: whether to run in a copy of the committed directories instead of the inputs.
    """

    commands: Sequence[str]
    texts: Sequence[str] = ()
    hashes: Sequence[str] = ()
    listed: Sequence[str] = ()
    weights: Sequence[str] = ()
    kept: bool = False


def _prepare(tokenizer: str, length: int) -> str:
    return (
        f"prepare --input text/tales.txt --tokenizer tokenizers/{tokenizer} --workers 1 "
        f"--max-length {length} --held-out 0.1 --output corpora/{tokenizer}{length}"
    )


def _train_tokenizer(kind: str) -> str:
    size = {"wordpiece": "280 --num-unused 0", "byte-bpe": "300"}.get(kind, "120")
    words = f"train-tokenizer --input text/tales.txt --kind {kind} --vocab-size {size}"
    return f"{words} --output tokenizers/{kind}"


def _finetune(kind: str) -> Case:
    run = f"work/{kind}"
    data = " --data data/places-train.csv" if kind == "sentences" else ""
    ask = f"data/ask-{kind}." + ("txt" if kind == "glue" else "jsonl")
    train = f"finetune --config configs/{kind}.py --init work/pretrain{data}"
    return Case(
        commands=(
            train,
            train,  # finished: nothing to do
            f"evaluate {run}",
            f"predict {run} --input {ask} --output {run}/answers.jsonl",
            f"export {run} --format huggingface --output exported/{kind}",
        ),
        texts=(
            *(f"{run}/{name}" for name in ("metrics.jsonl", "config.json", "model.json")),
            *(f"{run}/{name}" for name in ("scores.json", "answers.jsonl", "predictions/*")),
            f"exported/{kind}/*.json",
        ),
        hashes=(f"{run}/tokenizer/*",),
        listed=(run, f"exported/{kind}"),
        weights=(f"exported/{kind}/model.safetensors",),
    )


_PRETRAINED = "work/pretrain"
_SWEEP = (
    "sweep --config configs/glue.py --init work/pretrain --output work/sweep --seeds 2 "
    "--batch-sizes 4 --learning-rates 1e-2 3e-2 --epochs 1"
)
_MASKS = "The quiet [MASK] rustled.|Mary from [MASK] saw the [MASK]."
CASES = {
    "help": Case(
        commands=(
            "--help",
            *(f"{verb} --help" for verb in VERBS),
            *(f"bench {part} --help" for part in ("data", "prepare", "step")),
        )
    ),
    "keys": Case(commands=("keys pretrain", "keys finetune", "keys finetune optimizer")),
    "tokenizers": Case(
        commands=[_train_tokenizer(kind) for kind in TOKENIZERS], hashes=("tokenizers/*/*",)
    ),
    "corpora": Case(
        commands=(
            *(_prepare(kind, 32) for kind in TOKENIZERS),
            _prepare("wordpiece", 64),
            _prepare("wordpiece", 64),  # finished: nothing to do
        ),
        texts=("corpora/*/manifest.json",),
        hashes=("corpora/*/*.arrayrecord", "corpora/*/tokenizer/*"),
    ),
    "pretrain": Case(
        commands=(
            "pretrain --config configs/pretrain.py",
            "pretrain --config configs/pretrain.py",  # finished: nothing to do
            f"fill-mask|--work-dir|{_PRETRAINED}|--top|3|{_MASKS}",
            f"predict {_PRETRAINED} --input data/ask-masks.txt --output work/masks.jsonl --top-k 3",
            f"predict {_PRETRAINED} --task next-sentence --input data/ask-pairs.jsonl",
            f"predict {_PRETRAINED} --task embed --input data/ask-masks.txt --output work/e.jsonl",
            f"verify-checkpoint {_PRETRAINED}",
            f"inspect {_PRETRAINED}",
            "inspect --config configs/pretrain.py",
            f"export {_PRETRAINED} --format huggingface --output exported/pretrain",
            f"extract {_PRETRAINED} --step 20 --output work/extracted",
            "export work/extracted --format huggingface --output exported/extracted",
            "import exported/pretrain --output work/imported",
        ),
        texts=(
            *(f"{_PRETRAINED}/{name}" for name in ("metrics.jsonl", "config.json", "model.json")),
            "work/masks.jsonl",
            "work/e.jsonl",
            "work/extracted/model.json",
            "work/imported/model.json",
            "exported/pretrain/*.json",
        ),
        hashes=(f"{_PRETRAINED}/tokenizer/*",),
        listed=(_PRETRAINED, "exported/pretrain", "work/extracted", "work/imported"),
        weights=("exported/pretrain/model.safetensors", "exported/extracted/model.safetensors"),
    ),
    **{kind: _finetune(kind) for kind in KINDS},
    "sweep": Case(
        commands=(_SWEEP, _SWEEP), texts=("work/sweep/results.json",), listed=("work/sweep",)
    ),
    "kept": Case(
        kept=True,
        commands=(
            "verify-checkpoint work/pretrain",
            "pretrain --config configs/pretrain.py",  # resumes
            "pretrain --config configs/pretrain.py --config.work_dir=work/recent",  # resumes
            "verify-checkpoint work/glue",
            "finetune --config configs/glue.py --init work/source",  # finished: nothing to do
            "evaluate work/glue",
            "predict work/glue --input data/ask-glue.txt --output work/answers.jsonl",
            f"fill-mask|--work-dir|work/source|--top|3|{_MASKS}",
            "inspect work/glue",
            "export work/pretrain --format huggingface --output exported/pretrain",
            "export work/recent --format huggingface --output exported/recent",
            "export work/glue --format huggingface --output exported/glue",
            "extract work/glue --step best --output work/extracted",
        ),
        texts=(
            *("work/pretrain/metrics.jsonl", "work/pretrain/config.json", "work/answers.jsonl"),
            "work/recent/metrics.jsonl",
            "work/glue/scores.json",
        ),
        hashes=("corpora/*/*.arrayrecord",),
        listed=("work/glue", "work/extracted", "exported/glue"),
        weights=tuple(
            f"exported/{name}/model.safetensors" for name in ("pretrain", "recent", "glue")
        ),
    ),
    "formats": Case(
        kept=True,
        commands=(
            *(
                f"export work/glue --format {name} --output exported/{name}"
                for name in ("onnx", "stablehlo", "savedmodel")
            ),
            "export work/source --format onnx --head encoder --output exported/encoder",
            "export work/source --format huggingface --dtype float16 --output exported/half",
            "import exported/half --output work/imported",
            "plan --config configs/pretrain.py --topology cpu:1",
        ),
        texts=("work/imported/model.json", "exported/half/config.json"),
        listed=(
            *(
                f"exported/{name}"
                for name in ("onnx", "stablehlo", "savedmodel", "encoder", "half")
            ),
            "work/imported",
        ),
        weights=("exported/half/model.safetensors",),
    ),
}
# These cases do not need files from other cases.
TEXTS = ("help", "keys")
# These cases do not use files from other groups, so they can be recorded separately.
FORMATS = ("formats",)
RUNS = tuple(name for name in CASES if name not in (*TEXTS, *FORMATS))
# The cases in each group run one after another, since later cases use files from earlier ones.
GROUPS = (TEXTS, RUNS, FORMATS)


def environment(cache: str | None) -> dict[str, str]:
    """Return the environment variables for commands whose results are recorded or compared.

    cache: the directory for the compilation cache, or None to use no cache.
    """
    flags = "--xla_force_host_platform_device_count=1 --xla_backend_optimization_level=0"
    # Set the flag only for this version, since XLA exits on unknown flags.
    if version("jaxlib").startswith("0.10."):
        flags += " --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
    chosen = {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": flags,
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.05",
        "COLUMNS": "100",  # This is the width of help texts.
    }
    if cache is not None:
        chosen["JAX_COMPILATION_CACHE_DIR"] = cache
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("JAX_", "XLA_", "BERT_JAX_"))
    }
    return inherited | chosen


def measure(names: Sequence[str], directory: Path, cache: str | None) -> dict[str, Any]:
    """Run cases in a separate process, and return the values that each one yields.

    directory: an empty directory.
    cache: see `environment`.

    Raises:
      AssertionError: the process failed. The message is the end of its output.
    """
    results, place = directory / "results", directory / "place"
    results.mkdir(parents=True)
    words = [sys.executable, "-m", "tests.golden.frozen_runs", str(results), str(place), *names]
    ended = subprocess.run(
        words, env=environment(cache), cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, (ended.stdout + ended.stderr)[-8000:]
    return {name: json.loads((results / f"{name}.json").read_text("utf-8")) for name in names}


def run_cases(names: Sequence[str], directory: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Run cases one after another, keeping their files, and yield the name and values of each."""
    draw_no_curves()
    for name in names:
        case = CASES[name]
        place = directory / ("kept" if case.kept else "new")
        lay_out(place, kept=case.kept)
        os.chdir(place)
        printed = [
            {"command": command.replace("|", " "), **run_command(command, directory)}
            for command in case.commands
        ]
        yield name, {"printed": printed, **collect(case, place)}


def lay_out(place: Path, *, kept: bool) -> None:
    """Copy the inputs and, if `kept`, the committed directories to `place`, unless it exists."""
    if place.exists():
        return
    for source in (INPUTS, KEPT) if kept else (INPUTS,):
        shutil.copytree(source, place, dirs_exist_ok=True)
    for path in (place / "text").iterdir():
        os.utime(path, (WRITTEN, WRITTEN))


def run_command(command: str, root: Path) -> dict[str, Any]:
    """Run a command in this process, and return its exit code and its normalized output."""
    from bert_jax.cli.main import main

    printed = io.BytesIO()
    output = io.TextIOWrapper(printed, encoding="utf-8", write_through=True)
    words = command.split("|" if "|" in command else " ")
    try:
        with contextlib.redirect_stdout(output):
            code = main(words)
    except SystemExit as left:  # argparse raises this exception after --help.
        code = int(left.code or 0)
    output.flush()
    return {"exit": code, "lines": normalized_lines(printed.getvalue().decode(), root)}


def draw_no_curves() -> None:
    """Write placeholders instead of plots, since drawing takes half a second per evaluation."""
    from matplotlib.figure import Figure

    def savefig(self: Figure, target: io.BytesIO, **_: object) -> None:
        target.write(b"no picture")

    Figure.savefig = savefig  # type: ignore[method-assign]


def _main(results: str, directory: str, *names: str) -> None:
    for name, result in run_cases(names, Path(directory).resolve()):
        text = json.dumps(result, indent=1, ensure_ascii=False) + "\n"
        Path(results, f"{name}.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    _main(*[str(Path(word).resolve()) for word in sys.argv[1:3]], *sys.argv[3:])
