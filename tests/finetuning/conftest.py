"""Define toy tasks, in common file formats, that a one-layer BERT can learn from scratch."""

from __future__ import annotations

import json
import os
import random
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np
import pytest

from bert_jax.cli import evaluate, finetune
from bert_jax.cli.main import main
from bert_jax.finetuning.scoring import Scorer
from bert_jax.models.compute_config import ComputeConfig
from bert_jax.models.config import EncoderConfig
from bert_jax.models.model import ModelConfig, define_model
from bert_jax.runs.checkpoints import load_model_parameters
from bert_jax.runs.work_dir import CHECKPOINTS_NAME, TOKENIZER_NAME, read_model, write_model
from bert_jax.tokenizers.tokenizer import Tokenizer
from bert_jax.training import reporting
from bert_jax.training.checkpoint_parameters import save_parameters
from bert_jax.training.metrics_log import read_metrics

GOOD, BAD = "lovely great warm".split(), "awful poor cold".split()
NEUTRAL = "the film was so a very and its cast story we saw it in my".split()
PEOPLE, PLACES = "matt sinan ada".split(), "canada paris rome".split()
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *GOOD, *BAD, *NEUTRAL, *PEOPLE, *PLACES]
WORDS += ["where", "is", "lives", ".", "?"]

TRAIN = 192
# Every recipe has these settings in addition to its task. They suffice for all tasks, and they let
# runs share compiled programs.
COMMON = dict(
    init_from="",
    max_length=24,
    num_epochs=3,
    batch_size=16,
    max_shapes=1,
    report_every_steps=1,
    optimizer=dict(peak_learning_rate=2e-2),
)
RECIPE = """
from ml_collections import ConfigDict


def get_config():
    return ConfigDict({0!r})
"""
# Fields of a log entry whose values are not computed by the model.
NOT_COMPUTED = {"kind", "tokens_per_second", "stall", "seconds", "compiling", "utilisation"}


@pytest.fixture(autouse=True)
def no_programs_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the user's compilation cache unchanged."""
    for module in (finetune, evaluate):
        monkeypatch.setattr(module, "enable_compilation_cache", lambda: None)


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip drawing curves, which would take longer than training in these tests."""
    monkeypatch.setattr(reporting, "draw_curves", lambda *_, **__: False)


Maker = Callable[..., Path]


@pytest.fixture(scope="session")
def make_source(tmp_path_factory: pytest.TempPathFactory) -> Maker:
    """Return a function that creates a work directory with a randomly initialized model.

    The function takes a head, its labels, a seed, and encoder settings that differ from the
    defaults.
    """

    def make(
        head: str = "pretraining", labels: tuple[str, ...] = (), seed: int = 7, **changes: object
    ) -> Path:
        sizes = dict(
            vocab_size=len(WORDS), hidden_dim=32, num_layers=1, num_heads=2, ffn_dim=64,
            max_positions=32, initializer_range=0.1,
        )  # fmt: skip
        config = ModelConfig(EncoderConfig(**(sizes | changes)), head, labels)
        directory = tmp_path_factory.mktemp("source")
        definition = define_model(config, ComputeConfig(dtype="float32", attention="xla"))
        initial = jax.jit(definition.init)(jax.random.key(seed))
        params = {name: np.asarray(x) for name, x in initial.items()}
        save_parameters(directory / CHECKPOINTS_NAME, params, {})
        vocabulary = directory / "vocab.txt"
        vocabulary.write_text("".join(f"{word}\n" for word in WORDS))
        tokenizer = Tokenizer.load(vocabulary)
        write_model(config, {"command": "bert-jax pretrain"}, directory, tokenizer=tokenizer)
        tokenizer.save(directory / TOKENIZER_NAME)
        return directory

    return make


@pytest.fixture(scope="session")
def source(make_source: Maker) -> Path:
    """Return the work directory of the model that every run starts from."""
    return make_source()


def sentence(rng: random.Random, *kept: str) -> str:
    """Return a sentence made of the given words and some neutral ones, in random order."""
    words = [*kept, *rng.choices(NEUTRAL, k=rng.randint(2, 9))]
    rng.shuffle(words)
    return " ".join(words)


def reviews(rng: random.Random, count: int) -> list[tuple[str, int]]:
    return [(sentence(rng, rng.choice(GOOD if i % 2 else BAD)), i % 2) for i in range(count)]


def write_reviews(directory: Path, rng: random.Random, flipped: str = "") -> None:
    """Write files in SST-2's format; if `flipped` names a split, all of its labels are wrong."""
    directory.mkdir()
    for name, count in (("train", TRAIN), ("dev", 21)):
        examples = [
            (text, 1 - label if name == flipped else label) for text, label in reviews(rng, count)
        ]
        rows = (f"{text}\t{label}\n" for text, label in examples)
        (directory / f"{name}.tsv").write_text("sentence\tlabel\n" + "".join(rows))
    # Number the rows in descending order, to test that submissions are sorted by number.
    rows = (f"{10 - i}\t{text}\n" for i, (text, _) in enumerate(reviews(rng, 11)))
    (directory / "test.tsv").write_text("index\tsentence\n" + "".join(rows))


def write_scores(directory: Path, rng: random.Random) -> None:
    """Write JSON Lines files of text pairs, each with a numeric score."""
    directory.mkdir()
    for name, count in (("train", TRAIN), ("validation", 21)):
        rows = [
            {"a": sentence(rng, word), "b": sentence(rng), "score": float(word in GOOD)}
            for word in rng.choices(GOOD + BAD, k=count)
        ]
        (directory / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_choices(directory: Path, rng: random.Random) -> None:
    directory.mkdir()
    for name, count in (("train", TRAIN), ("validation", 21), ("test", 5)):
        rows = []
        for _ in range(count):
            answer = rng.randrange(3)
            endings = [
                sentence(rng, rng.choice(GOOD if i == answer else BAD))[:60] for i in range(3)
            ]
            rows.append(f'"{sentence(rng)}",{",".join(endings)},{answer}\n')
        (directory / f"{name}.csv").write_text("context,e0,e1,e2,label\n" + "".join(rows))


def write_tagged(directory: Path, rng: random.Random) -> None:
    directory.mkdir()
    tags = dict.fromkeys(PEOPLE, "B-PER") | dict.fromkeys(PLACES, "B-LOC")
    for name, count in (("train", TRAIN), ("validation", 21), ("test", 5)):
        sentences = (
            "".join(f"{word}\t{tags.get(word, 'O')}\n" for word in text.split())
            for text in (
                sentence(rng, rng.choice(PEOPLE), rng.choice(PLACES)) for _ in range(count)
            )
        )
        (directory / f"{name}.txt").write_text("\n".join(sentences))


def write_several(directory: Path, rng: random.Random) -> None:
    """Write texts that mention a person, a place, both or neither."""
    directory.mkdir()
    for name, count in (("train", TRAIN), ("validation", 21), ("test", 5)):
        rows = []
        for _ in range(count):
            kept = {
                label: rng.choice(words)
                for label, words in (("person", PEOPLE), ("place", PLACES))
                if rng.random() < 0.5
            }
            rows.append(f"{sentence(rng, *kept.values())}\t{'|'.join(kept)}\n")
        (directory / f"{name}.tsv").write_text("text\tlabels\n" + "".join(rows))


def squad(rng: random.Random, count: int, prefix: str) -> dict[str, object]:
    paragraphs = []
    for number in range(count):
        place = rng.choice(PLACES)
        context = sentence(rng, place, rng.choice(PEOPLE))
        answer = {"text": place, "answer_start": context.index(place)}
        question = {"id": f"{prefix}{number}", "question": "where is it ?", "answers": [answer]}
        paragraphs.append({"context": context, "qas": [question]})
    return {"version": "1.1", "data": [{"title": "t", "paragraphs": paragraphs}]}


def write_questions(directory: Path, rng: random.Random) -> None:
    directory.mkdir()
    for name, count in (("train", TRAIN), ("validation", 21), ("test", 5)):
        content = json.dumps(squad(rng, count, name))
        (directory / f"{name}.json").write_text(content)


def tasks(root: Path) -> dict[str, dict[str, object]]:
    """Return the config section of each task."""

    def files(kind: str, ending: str, *splits: str) -> dict[str, str]:
        return {split: f"{root}/{kind}/{split}.{ending}" for split in splits}

    every = ("train", "validation", "test")
    table = dict(first="a", second="b", label="score", form=dict(kind="jsonl"))
    several = dict(first="text", label="labels", separator="|", labels=("person", "place"))
    endings = dict(context="context", endings=("e0", "e1", "e2"), form=dict(kind="csv"))
    glue = dict(task="SST-2", directory=f"{root}/reviews")
    return {
        "glue": dict(glue=glue),
        "sigmoid": dict(glue=glue | dict(sigmoid=True)),
        "regression": dict(
            sentences=dict(files=table | files("scores", "jsonl", "train", "validation"))
        ),
        "several": dict(sentences=dict(files=several | files("several", "tsv", *every))),
        "choices": dict(choices=dict(files=endings | files("choices", "csv", *every))),
        "tags": dict(tags=dict(files=files("tagged", "txt", *every))),
        "spans": dict(
            spans=dict(files=files("questions", "json", *every), doc_stride=4, max_query_length=4)
        ),
    }


@dataclass(frozen=True)
class Toy:
    """The directory of the tasks' recipes, and the model that the runs start from."""

    root: Path
    source: Path

    def words(self, task: str, work_dir: Path, *overrides: str, init: Path | None = None) -> list:
        named = (f"work_dir={work_dir}", *overrides)
        config = ["--config", self.root / f"{task}.py", "--init", init or self.source]
        return ["finetune", *config, *(f"--config.{word}" for word in named)]


@pytest.fixture(scope="session")
def toy(tmp_path_factory: pytest.TempPathFactory, source: Path) -> Toy:
    root, rng = tmp_path_factory.mktemp("toy"), random.Random(0)
    write_reviews(root / "reviews", rng)
    write_reviews(root / "flipped", rng, flipped="train")
    write_scores(root / "scores", rng)
    write_choices(root / "choices", rng)
    write_several(root / "several", random.Random(1))
    write_tagged(root / "tagged", rng)
    write_questions(root / "questions", rng)
    for name, section in tasks(root).items():
        config = COMMON | dict(work_dir="") | section
        (root / f"{name}.py").write_text(RECIPE.format(config))
    return Toy(root, source)


def history(work_dir: Path) -> dict[tuple[str, int], dict[str, float]]:
    """Return the model's logged metrics, keyed by (kind, step); no key may occur twice."""
    entries = read_metrics(work_dir / "metrics.jsonl")
    metrics = {
        (entry["kind"], entry["step"]): {k: v for k, v in entry.items() if k not in NOT_COMPUTED}
        for entry in entries
    }
    assert len(metrics) == len(entries)
    return metrics


def parameters(work_dir: Path, step: int | None = None) -> dict[str, np.ndarray]:
    """Return the parameters at a step or, by default, at the step that commands use."""
    compute = ComputeConfig(dtype="float32", attention="xla")
    loaded = load_model_parameters(work_dir, read_model(work_dir)[0], compute, step)
    return {name: np.asarray(x) for name, x in loaded.items()}


def scores(work_dir: Path) -> dict:
    return json.loads((work_dir / "scores.json").read_text())


# Options for three epochs of twelve steps, with two evaluations per epoch and two row lengths.
WHOLE = ("max_shapes=2", "evaluations_per_epoch=2")


@pytest.fixture(scope="session")
def whole(toy: Toy, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the work directory of an uninterrupted run on the reviews task."""
    work_dir = tmp_path_factory.mktemp("runs") / "whole"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(finetune, "enable_compilation_cache", lambda: None)
        patch.setattr(reporting, "draw_curves", lambda *_, **__: False)
        assert main([str(word) for word in toy.words("glue", work_dir, *WHOLE)]) == 0
    return work_dir


@pytest.fixture
def stopped_while_predicting(bert_jax_here, monkeypatch: pytest.MonkeyPatch) -> Callable:
    """Return a function that runs a command and stops it when it starts predicting a test set."""
    answers = Scorer.answers

    def stop_and_answer(*args, **details):
        os.kill(os.getpid(), signal.SIGTERM)
        return answers(*args, **details)

    def run(*words):
        with monkeypatch.context() as patch:
            patch.setattr(Scorer, "answers", stop_and_answer)
            return bert_jax_here(*words)

    return run
