"""Define all commands that write output, and how to read their output for comparison."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assets import Assets, prepare_words
from parameters import digest, files_of, losses


@dataclass(frozen=True)
class Writing:
    """A command that writes output.

    Attributes:
        words: a function that takes the output path and returns the command-line arguments.
        result: a function that returns the output's contents for comparison; it runs in its own
          process.
        seconds: the command's approximate duration.
        resumes: whether the command, if repeated, resumes after a kill and accepts finished output.
        size: the output's size in bytes, from which the disk sizes are computed.
    """

    words: Callable[[Path], tuple[str, ...]]
    result: Callable[[Path], Any]
    seconds: float
    size: int
    resumes: bool = False


def _training(work_dir: Path) -> Any:
    return [digest(work_dir), losses(work_dir)]


def _imported(work_dir: Path) -> Any:
    return [digest(work_dir), files_of(work_dir / "tokenizer")]


def _exported(directory: Path) -> Any:
    # Serializing the same program twice does not always give the same bytes.
    programs = ("model.stablehlo", "signature.json", "fingerprint.pb", "saved_model.pb")
    return files_of(directory, "README.md", "SHA256SUMS", *programs)


def _sweep(directory: Path) -> Any:
    runs = sorted((directory / "runs").iterdir())
    assert len(runs) == 2, runs
    return [[run.name, losses(run)] for run in runs]


def writing_commands(assets: Assets) -> dict[str, Writing]:
    """Return the commands, keyed by name."""
    run, tuned, text = str(assets / "run"), str(assets / "tuned-table"), str(assets / "text.txt")

    def tokenizer(kind: str, size: int) -> Callable[[Path], tuple[str, ...]]:
        more = ("--num-unused", "0") if kind == "wordpiece" else ()
        return lambda out: (
            *("train-tokenizer", "--input", text, "--kind", kind, "--vocab-size", str(size)),
            *("--output", str(out), *more),
        )

    def to(*words: str) -> Callable[[Path], tuple[str, ...]]:
        return lambda out: (*words, "--output", str(out))

    def size(name: str) -> int:
        path = assets / name
        files = path.rglob("*") if path.is_dir() else [path]
        return sum(-(-file.stat().st_size // 4096) * 4096 for file in files)

    grid = ("--batch-sizes", "16", "--learning-rates", "1e-2", "--epochs", "1", "--seeds", "2")
    commands = {
        "prepare": Writing(
            lambda out: prepare_words(assets / "text.txt", assets / "wordpiece", out),
            lambda out: files_of(out),
            1.0,
            size("corpus"),
            resumes=True,
        ),
        "demo-corpus": Writing(
            lambda out: ("demo-corpus", "--output", f"{out}.jsonl"),
            lambda out: Path(f"{out}.jsonl").stat().st_size,
            2.0,
            2_500_000,
        ),
        "import": Writing(
            to("import", str(assets / "huggingface")), _imported, 1.0, size("run/checkpoints/24")
        ),
        "extract": Writing(
            to("extract", run, "--step", "newest"), _imported, 1.0, size("run/checkpoints/24")
        ),
        "predict": Writing(
            lambda out: ("predict", run, "--task", "embed", "--input", text, "--output", str(out)),
            lambda out: hashlib.sha256(out.read_bytes()).hexdigest(),
            2.0,
            400_000,
        ),
        "evaluate": Writing(
            lambda out: ("evaluate", tuned, "--predictions", str(out)),
            lambda out: files_of(out),
            2.0,
            4096,
        ),
        "pretrain": Writing(
            lambda out: assets.words("pretrain", "pretrain", f"work_dir={out}"),
            _training,
            4.0,
            size("run"),
            resumes=True,
        ),
        "finetune": Writing(
            lambda out: assets.words("finetune", "table", f"work_dir={out}"),
            _training,
            5.0,
            size("tuned-table"),
            resumes=True,
        ),
        "sweep": Writing(
            lambda out: (*assets.words("sweep", "table"), "--output", str(out), *grid),
            _sweep,
            6.0,
            size("tuned-table"),
            resumes=True,
        ),
    }
    for kind, entries in (("wordpiece", 150), ("byte-bpe", 300), ("sentencepiece", 90)):
        commands[f"train-tokenizer {kind}"] = Writing(
            tokenizer(kind, entries), lambda out: files_of(out), 0.5, size(kind)
        )
    for kind in ("huggingface", "onnx", "stablehlo", "savedmodel"):
        commands[f"export {kind}"] = Writing(
            to("export", run, "--format", kind), _exported, 2.0, size(kind)
        )
    return commands
