"""Generate invalid config files, and overrides with invalid values."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from assets import CONFIG, Assets
from cases import Case, Expectation, command_case

# Values that are invalid for each kind of key.
_WRONG = {
    "count": ("0", "-1", "1.5", "abc", "", "nan", "True", "None", "1e3", str(10**30), "[1]"),
    "count or 0": ("-1", "-7", "0.5", "abc", "", "inf", "None", str(10**30)),
    "share": ("-0.1", "1.5", "nan", "inf", "abc", "", "None", "1e400"),
    "positive": ("-1", "nan", "inf", "-inf", "abc", "", "1e400", "None"),
    "not negative": ("-1", "nan", "inf", "-inf", "abc", "", "1e400", "None"),
    "choice": ("", "nothing", "3", "None", "True"),
    "truth": ("maybe", "", "2", "None"),
}
_MODEL = {
    "model.vocab_size": "count",
    "model.hidden_dim": "count",
    "model.num_layers": "count",
    "model.num_heads": "count",
    "model.ffn_dim": "count",
    "model.max_positions": "count",
    "model.num_segments": "count or 0",
    "model.hidden_dropout": "share",
    "model.attention_dropout": "share",
    "model.layer_norm_epsilon": "positive",
    "model.initializer_range": "not negative",
    "model.activation": "choice",
    "model.positions": "choice",
    "model.norm": "choice",
    "model.sharing": "choice",
    "model.num_groups": "count",
    "model.position_offset": "count or 0",
    "model.pooler_activation": "choice",
    "model.pooler_dropout": "truth",
}
_COMMON = {
    "optimizer.name": "choice",
    "optimizer.peak_learning_rate": "positive",
    "optimizer.warmup_steps": "count or 0",
    "optimizer.warmup_fraction": "share",
    "optimizer.schedule": "choice",
    "optimizer.end_learning_rate": "not negative",
    "optimizer.beta1": "share",
    "optimizer.beta2": "share",
    "optimizer.epsilon": "positive",
    "optimizer.weight_decay": "not negative",
    "optimizer.clip_norm": "not negative",
    "compute.dtype": "choice",
    "compute.attention": "choice",
    "compute.remat": "choice",
    "compute.scan_layers": "truth",
    "mesh.fsdp": "count",
    "mesh.tensor": "count",
    "accumulation_steps": "count",
    "seed": "count or 0",
}
_PRETRAIN = (
    _MODEL
    | _COMMON
    | {
        "phases.phase1.num_steps": "count",
        "phases.phase1.sequence_length": "count",
        "phases.phase1.batch_size": "count",
        "sentence_pairs": "choice",
        "vocabulary": "choice",
        "join_documents": "truth",
        "masking.rate": "share",
        "masking.mask_fraction": "share",
        "masking.random_fraction": "share",
        "masking.unit": "choice",
        "masking.max_ngram": "count",
        "masking.span_probability": "share",
        "masking.max_span": "count",
        "masking.num_maskings": "count or 0",
        "masking.final_rate": "share",
        "evaluation.masking_rate": "share",
        "checkpoint.every_steps": "count",
        "checkpoint.keep_last": "count",
        "checkpoint.keep_every": "count or 0",
        "checkpoint.keep_best": "count or 0",
        "checkpoint.lower_is_better": "truth",
        "evaluation.every_steps": "count or 0",
        "evaluation.batch_size": "count or 0",
        "evaluation.max_records": "count or 0",
        "reporting.every_steps": "count",
        "reporting.tensorboard": "truth",
        "reporting.profile_steps": "count or 0",
        "loader.num_workers": "count or 0",
        "loader.prefetch": "count",
    }
)
_FINETUNE = _COMMON | {
    "max_length": "count",
    "num_epochs": "count",
    "batch_size": "count",
    "evaluation_batch_size": "count or 0",
    "max_shapes": "count",
    "evaluations_per_epoch": "count",
    "patience": "count or 0",
    "report_every_steps": "count",
    "tensorboard": "truth",
    "from_scratch": "truth",
    "tuning.embeddings": "truth",
    "tuning.layer_decay": "positive",
}
# These keys accept very large values, since they only limit the number of epochs, steps or records.
_MAY_BE_LARGE = {
    "checkpoint.every_steps", "checkpoint.keep_last", "checkpoint.keep_every",
    "checkpoint.keep_best", "evaluation.every_steps", "evaluation.max_records",
    "reporting.every_steps", "report_every_steps", "patience", "masking.max_ngram",
    "masking.max_span", "max_shapes", "evaluation.batch_size", "evaluation_batch_size",
    "reporting.profile_steps", "masking.num_maskings",
}  # fmt: skip


def setting_cases(assets: Assets, seed: int) -> Iterator[Case]:
    """Yield runs with invalid configs, which must be rejected before training or writing."""
    rng = random.Random(f"{seed}/settings")
    made = [*_overrides("pretrain", _PRETRAIN, rng), *_overrides("table", _FINETUNE, rng)]
    for number, (config, word) in enumerate(made, 1):
        yield command_case(
            "settings",
            f"{number:03d} {config} {word}"[:120].replace("/", "|"),
            partial(_train, assets, config, word),
            expectation="refused",
            mentions=word.partition("=")[0].rpartition(".")[2],
            must_not_exist="run",
        )
    for number, (name, content, expectation) in enumerate(_files(assets), len(made) + 1):
        yield command_case(
            "settings",
            f"{number:03d} file {name}",
            lambda here: (
                "pretrain",
                "--config",
                str(here / "given.py"),
                f"--config.work_dir={here / 'run'}",
            ),
            expectation=expectation,
            write=partial(_write, content),
            mentions="given|config",
            must_not_exist="run",
        )


def _overrides(config: str, keys: dict[str, str], rng: random.Random) -> Iterator[tuple[str, str]]:
    for key, kind in keys.items():
        values = [v for v in _WRONG[kind] if not (v == str(10**30) and key in _MAY_BE_LARGE)]
        for value in rng.sample(values, min(4, len(values))):
            yield config, f"{key}={value}"
        section = key.rpartition(".")[0]
        yield config, f"{section}.{'x' * rng.randint(3, 9)}=1".lstrip(".")


def _train(assets: Assets, config: str, word: str, here: Path) -> tuple[str, ...]:
    verb = "pretrain" if config == "pretrain" else "finetune"
    return assets.words(verb, config, f"work_dir={here / 'run'}", word)


def _write(content: bytes, here: Path) -> None:
    (here / "given.py").write_bytes(content)


def _files(assets: Assets) -> Iterator[tuple[str, bytes, Expectation]]:
    whole = (assets / "pretrain.py").read_text()
    short = whole.replace("num_steps': 24", "num_steps': 2")
    yield "as it is", short.encode(), "accepted"
    yield "with CRLF", short.replace("\n", "\r\n").encode(), "accepted"
    for name, content in {
        "empty": "",
        "no get_config": "x = 1\n",
        "a syntax error": "def get_config(:\n",
        "an exception": "def get_config():\n    return 1 / 0\n",
        "exit": "import sys\nsys.exit(0)\n",
        "exit in get_config": "def get_config():\n    raise SystemExit(0)\n",
        "a dict": "def get_config():\n    return {}\n",
        "None": "def get_config():\n    return None\n",
        "an empty config": CONFIG.format({}),
        "no phases": CONFIG.format({"work_dir": "x", "phases": {}}),
        "phases that are a list": CONFIG.format({"work_dir": "x", "phases": [1]}),
        "a number for a section": whole.replace("'optimizer': {", "'optimizer': 3, 'q': {"),
        "an unknown section": whole.replace("'optimizer': {", "'optimiser': {"),
        "text for a number": whole.replace("'hidden_dim': 16", "'hidden_dim': '16'"),
        "a list for a number": whole.replace("'hidden_dim': 16", "'hidden_dim': [16]"),
        "an import that is not there": "import nothing_of_the_name\n" + whole,
        "recursion": "def get_config():\n    return get_config()\n",
        "NULs": "\x00" * 20,
    }.items():
        yield name, content.encode(), "refused"
    yield "random bytes", random.Random(1).randbytes(200), "refused"
