"""Make the cases' input files: small texts, tokenizers, corpora, runs and exported models."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cases import Case, Job, Steps
from lanes import run_cases

NOUNS = "boat sailor anchor wave gull rope cook oven spoon soup bread knife owl fox oak".split()
GOOD, BAD = "lovely great warm".split(), "awful poor cold".split()
PEOPLE, PLACES = "Matt Sinan Ada".split(), "Canada Paris Rome".split()
SIZES = dict(hidden_dim=16, num_layers=1, num_heads=2, ffn_dim=32, max_positions=64)
VOCAB_SIZE = 150
CONFIG = """from ml_collections import ConfigDict


def get_config():
    return ConfigDict({0!r})
"""


@dataclass(frozen=True)
class Assets:
    """A folder that contains the assets; `assets / name` is the path of one of them."""

    root: Path

    def __truediv__(self, name: str) -> Path:
        return self.root / name

    def words(self, verb: str, config: str, *overrides: str) -> tuple[str, ...]:
        """Return arguments for `pretrain`, or for a `finetune` run starting from the tiny run."""
        init = () if verb == "pretrain" else ("--init", str(self / "run"))
        values = (f"--config.{word}" for word in overrides)
        return (verb, "--config", str(self / f"{config}.py"), *init, *values)


def sentence(rng: random.Random, *kept: str) -> str:
    """Return a sentence that consists of random nouns and the words in `kept`."""
    words = [*kept, *rng.choices(NOUNS, k=rng.randint(3, 8))]
    rng.shuffle(words)
    return " ".join(words)


def documents(rng: random.Random, count: int) -> list[str]:
    """Return short documents with one sentence per line."""
    return [
        "\n".join(f"{sentence(rng).capitalize()}." for _ in range(rng.randint(2, 6)))
        for _ in range(count)
    ]


def write_config(path: Path, values: dict[str, Any]) -> None:
    """Write a config file with these values."""
    path.write_text(CONFIG.format(values), encoding="utf-8")


def make_assets(root: Path, lanes: int) -> Assets:
    """Make all assets that are missing; raise SystemExit if a command fails."""
    assets = Assets(root)
    root.mkdir(parents=True, exist_ok=True)
    if not (root / "text.txt").is_file():
        write_files(assets, random.Random(0))
    for stage in (_tokenizers, _corpora, _runs, _tuned, _exported):
        jobs = stage(assets)
        todo = ((name, job) for name, job in jobs.items() if not (root / name).exists())
        for outcome in run_cases((_asset(*each) for each in todo), root, lanes):
            if outcome.problems:
                raise SystemExit(f"{outcome.case.name}: {outcome.problems[0]}")
    return assets


def _asset(name: str, job: Job) -> Case:
    def steps(here: Path) -> Steps:
        ended = yield job
        return [f"{job.words}: {ended.errors}"] if ended.code else []

    return Case("assets", name, steps, "accepted")


def _tokenizers(assets: Assets) -> dict[str, Job]:
    common = ("train-tokenizer", "--input", str(assets / "text.txt"))
    sizes = {"wordpiece": VOCAB_SIZE, "byte-bpe": 300, "sentencepiece": 90}
    return {
        kind: Job(
            (*common, "--kind", kind, "--vocab-size", str(size), "--output", str(assets / kind))
            + (("--num-unused", "0") if kind == "wordpiece" else ())
        )
        for kind, size in sizes.items()
    }


def prepare_words(inputs: Path, tokenizer: Path, output: Path, *more: str) -> tuple[str, ...]:
    """Return the arguments of a command that prepares a corpus with one worker."""
    words = ("--input", str(inputs), "--tokenizer", str(tokenizer), "--output", str(output))
    return ("prepare", *words, "--max-length", "32", "--held-out", "0.1", "--workers", "1", *more)


def _corpora(assets: Assets) -> dict[str, Job]:
    words = prepare_words(assets / "text.txt", assets / "wordpiece", assets / "corpus")
    return {"corpus": Job(words)}


def _runs(assets: Assets) -> dict[str, Job]:
    return {"run": Job(assets.words("pretrain", "pretrain", f"work_dir={assets / 'run'}"))}


def _tuned(assets: Assets) -> dict[str, Job]:
    return {
        f"tuned-{task}": Job(
            assets.words("finetune", task, f"work_dir={assets / f'tuned-{task}'}"), seconds=300
        )
        for task in ("table", "tags", "choices", "spans")
    }


def _exported(assets: Assets) -> dict[str, Job]:
    run, hf = str(assets / "run"), str(assets / "huggingface")
    jobs = {
        kind: Job(("export", run, "--format", kind, "--output", str(assets / kind)))
        for kind in ("huggingface", "onnx", "stablehlo", "savedmodel")
    }
    return jobs | {
        "imported": Job(call=lambda: _second_step(assets, hf)),
    }


def _second_step(assets: Assets, _: str) -> None:
    """Make the assets that need other libraries: a .bin file and a TensorFlow checkpoint."""
    from foreign import write_bin, write_tensorflow

    write_bin(assets / "huggingface", assets / "bin")
    write_tensorflow(assets / "huggingface", assets / "tensorflow")
    (assets / "imported").write_text("bin and tensorflow are there\n")


def write_files(assets: Assets, rng: random.Random) -> None:
    """Write texts, tables, tagged sentences, choices and questions, and a config for each task."""
    texts = documents(rng, 150)
    (assets / "jsonl.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in texts))
    for name, rows in _tables(rng).items():
        (assets / name).write_text("".join(rows), encoding="utf-8")
    for name, values in _configs(assets).items():
        write_config(assets / f"{name}.py", values)
    (assets / "text.txt").write_text("\n\n".join(texts) + "\n", encoding="utf-8")


def _tables(rng: random.Random) -> Iterator[Any] | dict[str, list[str]]:
    files: dict[str, list[str]] = {}
    for split, count in (("train", 64), ("validation", 16)):
        files[f"table-{split}.csv"] = ["text,label\n", *_rows(count, lambda i: review(rng, i))]
        files[f"tags-{split}.txt"] = _rows(count, lambda _: tagged(rng))
        files[f"choices-{split}.csv"] = [
            "context,e0,e1,label\n",
            *_rows(count, lambda i: choice(rng, i)),
        ]
        files[f"spans-{split}.json"] = [json.dumps(squad(rng, count))]
    return files


def _rows(count: int, make: Callable[[int], str]) -> list[str]:
    return [make(number) for number in range(count)]


def review(rng: random.Random, number: int) -> str:
    """Return one row for a table of reviews."""
    kind = number % 2
    return f"{sentence(rng, rng.choice(GOOD if kind else BAD))},{'good' if kind else 'bad'}\n"


def tagged(rng: random.Random) -> str:
    """Return a tagged sentence with one word per line."""
    tags = dict.fromkeys(PEOPLE, "B-PER") | dict.fromkeys(PLACES, "B-LOC")
    words = sentence(rng, rng.choice(PEOPLE), rng.choice(PLACES)).split()
    return "".join(f"{word}\t{tags.get(word, 'O')}\n" for word in words) + "\n"


def choice(rng: random.Random, number: int) -> str:
    """Return a row with a context, two endings and the index of the correct one."""
    right = number % 2
    endings = (rng.choice(GOOD), rng.choice(BAD))
    first, second = endings if right == 0 else endings[::-1]
    return f"{sentence(rng)},{sentence(rng, first)},{sentence(rng, second)},{right}\n"


def squad(rng: random.Random, count: int) -> dict[str, Any]:
    """Return questions about passages, in SQuAD's format."""
    paragraphs = []
    for number in range(count):
        place = rng.choice(PLACES)
        context = sentence(rng, place)
        answer = {"text": place, "answer_start": context.index(place)}
        question = {"id": f"q{number}", "question": "where is the boat", "answers": [answer]}
        paragraphs.append({"context": context, "qas": [question]})
    return {"version": "1.1", "data": [{"title": "t", "paragraphs": paragraphs}]}


def _configs(assets: Assets) -> dict[str, dict[str, Any]]:
    def files(task: str, ending: str) -> dict[str, str]:
        return {
            split: str(assets / f"{task}-{split}.{ending}") for split in ("train", "validation")
        }

    pretrain = dict(
        work_dir="",
        model=dict(vocab_size=VOCAB_SIZE, **SIZES),
        phases=dict(
            phase1=dict(
                corpus=str(assets / "corpus"), sequence_length=32, batch_size=8, num_steps=24
            )
        ),
        optimizer=dict(peak_learning_rate=1e-3, warmup_steps=2),
        evaluation=dict(every_steps=8),
        checkpoint=dict(every_steps=4, keep_last=3),
        reporting=dict(every_steps=1, tensorboard=True),
    )
    common = dict(
        work_dir="",
        init_from="",
        max_length=24,
        num_epochs=8,
        batch_size=16,
        max_shapes=1,
        report_every_steps=1,
        optimizer=dict(peak_learning_rate=2e-2),
    )
    table = dict(label="label", first="text", labels=("bad", "good"), **files("table", "csv"))
    endings = dict(context="context", endings=("e0", "e1"), **files("choices", "csv"))
    return {
        "pretrain": pretrain,
        "table": common | dict(sentences=dict(files=table)),
        "tags": common | dict(tags=dict(files=files("tags", "txt"))),
        "choices": common | dict(choices=dict(files=endings)),
        "spans": common
        | dict(spans=dict(files=files("spans", "json"), doc_stride=4, max_query_length=6)),
    }
