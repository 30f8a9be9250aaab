"""Generate invalid paths, names and options, such as URLs, hub-like names and repeated options."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from assets import Assets
from cases import Case, command_case

_SCHEMES = ("gs://bucket/x", "s3://bucket/x", "hf://org/x", "https://a.org/x", "file:///tmp/x")
# The arguments of a command: the verb, and options with their values.
Words = tuple[str, ...]


def _verbs(assets: Assets) -> dict[str, Words]:
    """Return a dict from each verb to a complete command; {out} stands for the output."""
    run, text = str(assets / "run"), str(assets / "text.txt")
    tokenizer = str(assets / "wordpiece")
    prepare = ("--input", text, "--tokenizer", tokenizer, "--output", "{out}", "--workers", "1")
    return {
        "prepare": ("prepare", *prepare, "--max-length", "32"),
        "train-tokenizer": ("train-tokenizer", "--input", text, "--output", "{out}"),
        "import": ("import", str(assets / "huggingface"), "--output", "{out}"),
        "export": ("export", run, "--format", "huggingface", "--output", "{out}"),
        "extract": ("extract", run, "--step", "newest", "--output", "{out}"),
        "predict": ("predict", run, "--input", text, "--output", "{out}"),
        "evaluate": ("evaluate", str(assets / "tuned-table"), "--output", "{out}"),
        "demo-corpus": ("demo-corpus", "--output", "{out}"),
        "pretrain": (
            "pretrain",
            "--config",
            str(assets / "pretrain.py"),
            "--config.work_dir={out}",
        ),
        "finetune": (
            "finetune",
            *("--config", str(assets / "table.py"), "--init", run, "--config.work_dir={out}"),
        ),
        "sweep": (
            "sweep",
            *("--config", str(assets / "table.py"), "--init", run, "--output", "{out}"),
            *("--batch-sizes", "16", "--learning-rates", "1e-3", "--epochs", "1", "--seeds", "1"),
        ),
        "verify": ("verify", run, str(assets / "huggingface")),
        "inspect": ("inspect", run),
        "fill-mask": ("fill-mask", "--work-dir", run, "the [MASK]"),
    }


_OPTIONS = {
    "prepare": {
        "--max-length": ("0", "-1", "4", "abc", str(10**30), "1.5", "1e2"),
        "--max-documents-per-record": ("0", "-1", "x", str(10**12)),
        "--held-out": ("-0.1", "1.5", "nan", "inf", "x"),
        "--workers": ("0", "-1", "x", "1.5"),
        "--language": ("", "xx-no", "english", "../../x"),
        "--unit-bytes": ("0", "-1", "x"),
        "--on-bad-line": ("ignore", ""),
        "--text-field": ("",),
    },
    "train-tokenizer": {
        "--vocab-size": ("0", "-1", "3", "x", str(10**30)),
        "--kind": ("bpe", "", "WordPiece"),
        "--min-frequency": ("-1", "0", "x", str(10**30)),
        "--num-unused": ("-1", "x", str(10**12)),
        "--max-bytes": ("0", "-1", "x"),
    },
    "import": {
        "--head": ("nothing", "", "classification"),
        "--labels": ("", "a"),
        "--problem": ("x", "regression"),
        "--max-positions": ("0", "-1", "x", "65", str(10**12)),
        "--seed": ("x", "1.5"),
        "--tokenizer": ("nowhere", ""),
    },
    "export": {
        "--format": ("pickle", ""),
        "--head": ("span", "x"),
        "--dtype": ("int8", "float64"),
    },
    "extract": {"--step": ("0", "-1", "x", "9999", "1.5", str(10**30), "")},
    "predict": {
        "--batch-size": ("0", "-1", "x", str(10**12)),
        "--max-length": ("0", "-1", "2", "x", "65", str(10**12)),
        "--top-k": ("0", "-1", "x", str(10**12)),
        "--task": ("classify", "tag", "x"),
        "--format": ("xml",),
        "--dtype": ("float16",),
        "--unusable": ("skip",),
    },
    "evaluate": {
        "--step": ("-1", "x", "9999", str(10**30)),
        "--data": ("nowhere.csv", "", "."),
    },
    "sweep": {
        "--batch-sizes": ("0", "-1", "x", "1.5"),
        "--learning-rates": ("0", "-1", "nan", "inf", "x"),
        "--epochs": ("0", "-1", "x", "1.5"),
        "--seeds": ("0", "-1", "x"),
        "--keep": ("some",),
    },
    "verify": {"--tolerance": ("-1", "nan", "x"), "--seed": ("-1", "x")},
    "fill-mask": {"--top": ("0", "-1", "x", str(10**12))},
}


def name_cases(assets: Assets, seed: int) -> Iterator[Case]:
    """Yield cases that run commands with invalid paths and options."""
    verbs = _verbs(assets)
    made = [*_options(verbs), *_outputs(verbs), *_inputs(assets, random.Random(f"{seed}/names"))]
    for number, (name, words, mentions) in enumerate(made, 1):
        yield command_case(
            "names",
            f"{number:03d} {name}"[:120].replace("/", "|"),
            partial(_words, words),
            expectation="refused",
            mentions=mentions,
            must_not_exist="out",
        )


def _words(words: Words, here: Path) -> Words:
    return tuple(word.replace("{out}", str(here / "out")) for word in words)


def _options(verbs: dict[str, Words]) -> Iterator[tuple[str, Words, str]]:
    for verb, options in _OPTIONS.items():
        for option, values in options.items():
            kept = [*verbs[verb]]
            if option in kept:
                place = kept.index(option)
                kept[place : place + 2] = []
            for value in values:
                yield f"{verb} {option} {value!r}", (*kept, option, value), ""
        yield f"{verb} --nonsense", (*verbs[verb], "--nonsense"), "--nonsense"
    for verb, words in verbs.items():
        for place, word in enumerate(words):
            if word.startswith("--") and "." not in word and word not in ("--input", "--config"):
                repeated = (*words, word, words[place + 1])
                yield f"{verb} {word} twice", repeated, word.strip("-").replace("-", "[-_]")


def _outputs(verbs: dict[str, Words]) -> Iterator[tuple[str, Words, str]]:
    """Yield commands whose output cannot be written."""
    for verb, words in verbs.items():
        if not any("{out}" in word for word in words):
            continue
        for output in (*_SCHEMES[:3], "", "/proc/nothing/x", "/dev/null/x"):
            if verb == "train-tokenizer" and not output:
                continue  # This is the current directory.
            given = tuple(word.replace("{out}", output) for word in words)
            yield f"{verb} to {output!r}", given, ""


def _inputs(assets: Assets, rng: random.Random) -> Iterator[tuple[str, Words, str]]:
    """Yield commands whose input does not exist or is of the wrong kind."""
    run, text = str(assets / "run"), str(assets / "text.txt")
    tokenizer = str(assets / "wordpiece")
    names = [
        *_SCHEMES, "", ".", "..", "/", "~", "nowhere", "google-bert/bert-base-uncased",
        "org/name/x", "bert base", "-", "/dev/null", "/dev/zero", "/etc/passwd", "tfds:nothing",
        "a" * 300,
        f"{'x/' * 300}y", "[x", "*", "\udcff", str(assets / "run/checkpoints"),
        str(assets / "table.py"),
    ]  # fmt: skip
    commands: dict[str, Words] = {
        "import": ("import", "{in}", "--output", "{out}"),
        "export": ("export", "{in}", "--format", "huggingface", "--output", "{out}"),
        "extract": ("extract", "{in}", "--step", "newest", "--output", "{out}"),
        "predict": ("predict", "{in}", "--input", text, "--output", "{out}"),
        "evaluate": ("evaluate", "{in}"),
        "verify": ("verify", run, "{in}"),
        "inspect": ("inspect", "{in}"),
        "prepare --tokenizer": (
            *("prepare", "--input", text, "--tokenizer", "{in}", "--output", "{out}"),
            *("--workers", "1"),
        ),
        "pretrain corpus": (
            *("pretrain", "--config", str(assets / "pretrain.py"), "--config.work_dir={out}"),
            "--config.phases.phase1.corpus={in}",
        ),
        "finetune --init": (
            *("finetune", "--config", str(assets / "table.py"), "--config.work_dir={out}"),
            *("--init", "{in}"),
        ),
        "finetune train": (
            *("finetune", "--config", str(assets / "table.py"), "--config.work_dir={out}"),
            *("--init", run, "--config.sentences.files.train={in}"),
        ),
        "prepare --input": (
            *("prepare", "--input", "{in}", "--tokenizer", tokenizer, "--output", "{out}"),
            *("--workers", "1"),
        ),
    }
    for verb, words in commands.items():
        for name in rng.sample(names, 14):
            if verb == "prepare --input" and name in ("/etc/passwd", ".", "..", "/", "*", "~"):
                # Skip names that are readable text, or whose content differs from machine to
                # machine.
                continue
            yield f"{verb} {name[:40]!r}", tuple(word.replace("{in}", name) for word in words), ""
