"""Test `finetune --data FILE` with the unmodified table recipe, and the commands run after it."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bert_jax import Classify
from bert_jax.argument_parser import ArgumentParser
from bert_jax.cli import sweep
from bert_jax.finetuning.config import FinetuneConfig
from bert_jax.finetuning.glue import GlueConfig
from bert_jax.finetuning.hyperparameters import Grid
from bert_jax.finetuning.sentences import SentencesConfig
from bert_jax.recipes.load import load_config
from bert_jax.recipes.sweep_arguments import SweepArguments

from ..commands import REPOSITORY
from .conftest import COMMON, GOOD, reviews, scores

RECIPES = REPOSITORY / "configs/finetune"
SIZES = [f"--config.{key}={COMMON[key]}" for key in ("max_length", "batch_size", "max_shapes")]
SIZES += ["--config.optimizer.peak_learning_rate=2e-2", "--config.num_epochs=1"]


def write_table(path: Path, count: int = 160, seed: int = 0) -> Path:
    rows = reviews(random.Random(seed), count)
    named = [("fine" if label else "sad", text) for text, label in rows]
    lines = [f'{number},{label},"{text}"\n' for number, (label, text) in enumerate(named)]
    path.write_text("id,opinion,what was said\n3001,?,unknown\n" + "".join(lines))
    return path


def words(source: Path, work_dir: Path, data: Path, *more: str) -> list:
    skipped = "--config.sentences.files.skip_labels=('?',)"
    recipe = ["--config", RECIPES / "table.py", "--init", source, "--data", data]
    return ["finetune", *recipe, f"--config.work_dir={work_dir}", *SIZES, skipped, *more]


def test_a_table_is_trained_on_without_any_settings(
    source, bert_jax_here, tmp_path, caplog
) -> None:
    caplog.set_level("INFO")
    data, run = write_table(tmp_path / "reviews.csv"), tmp_path / "run"
    trained = bert_jax_here(*words(source, run, data))
    assert trained.code == 0, trained.errors
    assert "text in 'what was said', label in 'opinion' (2 classes: 'fine', 'sad')" in caplog.text
    assert caplog.messages.count(f"{data}: skipped 1 row labeled '?'") == 1
    files = json.loads((run / "config.json").read_text())["sentences"]["files"]
    assert (files["first"], files["second"], files["label"]) == ("what was said", "", "opinion")
    assert files["labels"] == ["fine", "sad"] and files["validation_share"] == 0.1

    # The run's config records the columns and labels, so no later command detects them again.
    output = tmp_path / "scores.json"
    assert bert_jax_here("evaluate", run, "--output", output).code == 0
    found = json.loads(output.read_text())["sets"]["validation"]
    assert found["scores"] == scores(run)["scores"] and 5 < found["examples"] < 35
    held_out = write_table(tmp_path / "others.csv", 30, seed=1)
    assert bert_jax_here("evaluate", run, "--data", held_out, "--output", output).code == 0
    assert json.loads(output.read_text())["sets"]["others"]["examples"] == 30
    assert Classify(run)(f"it was {GOOD[0]}").label in ("fine", "sad")
    config = ("--config", RECIPES / "table.py", "--config.max_length=24", SIZES[1])
    skipped = "--config.sentences.files.skip_labels=('?',)"
    again = bert_jax_here(
        *("evaluate", run, *config, skipped, "--data", held_out),
        *("--output", tmp_path / "again.json"),
    )
    assert again.code == 0, again.errors
    sets = [json.loads(file.read_text())["sets"] for file in (output, tmp_path / "again.json")]
    assert sets[0]["others"]["scores"]["accuracy"] == sets[1]["others"]["scores"]["accuracy"]

    # Repeating the command does nothing, but the command is rejected if the file has changed.
    resumed = bert_jax_here(*words(source, run, data))
    assert resumed.code == 0 and "finished: nothing to do" in resumed.output
    write_table(data, 170)
    refused = bert_jax_here(*words(source, run, data))
    assert refused.code == 2 and "training examples (their file" in refused.errors


def test_a_sweep_also_accepts_a_table(tmp_path: Path) -> None:
    parser = ArgumentParser()
    sweep.add_arguments(parser)
    data = write_table(tmp_path / "a.csv")
    given = ["--config", RECIPES / "table.py", "--init", "model", "--output", "out", "--data", data]
    args = parser.parse_args(list(map(str, given)))
    overrides = ["--config.sentences.files.skip_labels=('?',)"]
    arguments = SweepArguments("table", overrides, args.init, args.data, args.output)
    config, vary = arguments.load()
    assert vary == {}
    config = config.with_columns()
    assert isinstance(config.task, SentencesConfig)
    assert config.task.files.train == str(data)
    assert config.task.files.first == "what was said"
    assert f"--data {data}" in arguments.command(Grid(), "best")


def load(name: str, *overrides: str) -> FinetuneConfig:
    changed = ["init_from=models/base", *overrides]
    return load_config(
        str(RECIPES / f"{name}.py"), [f"--config.{word}" for word in changed], kind="finetune"
    )


@pytest.mark.parametrize("name", ["table", "swag", "conll2003", "squad"])
def test_data_is_the_training_file(name: str, tmp_path: Path) -> None:
    config = load(name)
    changed = config.with_file("mine", "train")
    task: Any = config.task
    assert changed.task == replace(task, files=replace(task.files, train="mine"))
    assert replace(changed, task=task) == config
    with pytest.raises(ValueError, match=f"{tmp_path} is a directory; expected a file with train"):
        config.with_file(str(tmp_path), "train")


def test_data_of_glue_is_the_tasks_directory(tmp_path: Path) -> None:
    config = load("mnli", "glue.validation=dev.tsv")
    assert isinstance(config.task, GlueConfig)
    for directory in (str(tmp_path), "tfds:glue/mnli"):
        changed = config.with_file(directory, "train")
        assert changed.task == replace(config.task, directory=directory)
    with pytest.raises(ValueError, match=r"train.tsv: no such directory. To train on MNLI, spec"):
        config.with_file("train.tsv", "train")


def test_settings_that_do_not_fit_detected_labels_are_refused(tmp_path: Path) -> None:
    data = write_table(tmp_path / "a.csv")
    options = ("sentences.files.skip_labels=('?',)", f"sentences.files.train={data}")
    config = load("table", "sentences.metrics=('pearson',)", *options)
    with pytest.raises(
        ValueError, match="config.sentences: metrics: 'pearson' is a metric for a number"
    ):
        config.with_columns()
    found = load("table", *options).with_columns()
    assert isinstance(found.task, SentencesConfig) and found.task.files.labels == ("fine", "sad")
    assert found.with_columns() is found


def test_rows_of_glue_are_skipped_by_their_label(tmp_path, toy, caplog) -> None:
    from bert_jax.tokenizers.tokenizer import Tokenizer

    caplog.set_level("INFO")
    rows = "one\ttwo\tneutral\nthree\tfour\t-\n"
    for name in ("train", "dev_matched", "dev_mismatched"):
        (tmp_path / f"{name}.tsv").write_text("sentence1\tsentence2\tgold_label\n" + rows)
    config = GlueConfig("MNLI", str(tmp_path), skip_labels=("-",))
    tokenizer = Tokenizer.load(toy.source / "tokenizer")
    data = config.open(tokenizer, 16, ("train", "validation"))
    assert data.train is not None and len(data.train) == 1
    assert [len(each.features) for each in data.validation.values()] == [1, 1]
    assert f"{tmp_path}/dev_matched.tsv: skipped 1 row labeled '-'" in caplog.messages
    with pytest.raises(ValueError, match="'neutral' is also one of the labels"):
        GlueConfig("MNLI", "x", skip_labels=("neutral",))
