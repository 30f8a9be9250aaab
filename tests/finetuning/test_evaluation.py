"""Test that an evaluation's scores do not depend on batches, devices or file locations."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bert_jax.finetuning.registry import kind_of_head
from bert_jax.finetuning.task_data import TaskData
from bert_jax.labeled_data.features import Features
from bert_jax.models.compute_config import ComputeConfig
from bert_jax.runs.work_dir import read_model, write_model
from bert_jax.tasks.span_scores import entity_counts
from bert_jax.tokenizers.tokenizer import Tokenizer
from bert_jax.training.checkpoint_parameters import save_parameters

from .conftest import parameters, scores


@pytest.fixture
def evaluated(bert_jax_here, tmp_path):
    """Return a function that runs `evaluate` and returns the contents of its output file."""

    def run(work_dir: Path, *words) -> dict:
        output = tmp_path / "scores.json"
        finished = bert_jax_here("evaluate", work_dir, "--output", output, *words)
        assert finished.code == 0, finished.errors
        return json.loads(output.read_text())

    return run


def copy_with(work_dir: Path, target: Path, **changes: object) -> Path:
    """Copy a work directory, and change some keys in its config."""
    shutil.copytree(work_dir, target)
    file = target / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    return target


@pytest.mark.parametrize("size", [8, 24])
def test_scores_do_not_depend_on_the_batch_size(whole, evaluated, tmp_path, size):
    result = evaluated(copy_with(whole, tmp_path / "copy", evaluation_batch_size=size))
    result = result["sets"]["validation"]
    # The number of examples is not a multiple of either batch size.
    assert result["examples"] == 21
    assert result["scores"] == pytest.approx(scores(whole)["scores"], rel=1e-5)


def test_an_extracted_checkpoint_has_the_same_scores(bert_jax_here, whole, evaluated, tmp_path):
    finished = bert_jax_here("extract", whole, "--step", "best", "--output", tmp_path / "best")
    assert finished.code == 0, finished.errors
    result = evaluated(tmp_path / "best")["sets"]["validation"]
    assert result["scores"] == scores(whole)["scores"]


def test_the_callback_after_a_batch_can_end_the_evaluation(whole):
    from bert_jax.finetuning.open_evaluation import open_evaluation
    from bert_jax.finetuning.scoring import ValidationMetrics

    class Stop(Exception):
        pass

    evaluation = open_evaluation(whole)

    def after_batch():
        raise Stop

    head = evaluation.scorer.task.config.head
    metrics = ValidationMetrics(
        evaluation.scorer, TaskData(head, None, evaluation.sets, {}, "accuracy")
    )
    with pytest.raises(Stop):
        metrics(evaluation.params, after_batch)


def test_scores_do_not_depend_on_the_number_of_devices(whole, bert_jax, tmp_path):
    output = tmp_path / "scores.json"
    finished = bert_jax("evaluate", whole, "--output", output, devices=1)
    assert "devices    1 x cpu" in finished.output
    result = json.loads(output.read_text())["sets"]["validation"]["scores"]
    assert result == pytest.approx(scores(whole)["scores"], rel=1e-5)


def test_smaller_batches_of_long_rows_have_the_same_logits(whole, monkeypatch):
    from bert_jax.finetuning import scoring
    from bert_jax.finetuning.open_evaluation import open_evaluation

    evaluation = open_evaluation(whole)
    (examples,) = evaluation.sets.values()
    scorer = evaluation.scorer
    step, shapes = scorer.step, []

    def record(params, batch):
        shapes.append(batch["token_ids"].shape)
        return step(params, batch)

    monkeypatch.setitem(scorer.__dict__, "step", record)
    expected, loss = scorer.logits(evaluation.params, examples.features)
    first_shapes = shapes.copy()
    shapes.clear()
    monkeypatch.setattr(scoring, "TOKENS_IN_A_CACHE", 8 * max(scorer.row_lengths))
    result, other_loss = scorer.logits(evaluation.params, examples.features)
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)
    assert other_loss == pytest.approx(loss, rel=1e-5)
    longest = max(length for _, length in shapes)
    assert {rows for rows, length in shapes if length == longest} == {8}
    assert max(rows for rows, _ in first_shapes) > 8


def test_the_loss_is_the_mean_of_single_examples(whole, toy):
    """Compare the loss with a reference that computes each example's loss in float64."""
    from bert_jax.finetuning.open_evaluation import open_evaluation

    evaluation = open_evaluation(whole)
    (examples,) = evaluation.sets.values()
    features: Features = examples.features
    logits, loss = evaluation.scorer.logits(evaluation.params, features)
    assert logits.shape == (21, 2) and np.isfinite(logits).all()
    config, kind = read_model(whole)[0], kind_of_head("classification")
    assert kind is not None
    task = kind.loss(config, ComputeConfig(dtype="float32", attention="xla"))
    model = task.definition.module(parameters(whole))
    batch = features.batch(np.arange(21), int(features.lengths.max()))
    reference = np.asarray(task.logits(model, batch), np.float64)
    np.testing.assert_allclose(logits, reference, atol=1e-5)
    gold = features.targets["labels"]
    expected = np.mean(np.logaddexp.reduce(reference, axis=1) - reference[np.arange(21), gold])
    assert loss["loss"] == pytest.approx(expected, rel=1e-5, abs=1e-7)


def test_another_file_or_directory_can_be_evaluated(whole, toy, evaluated, tmp_path):
    """Evaluate a file with wrong labels and one text that is longer than any training text."""
    from bert_jax.finetuning.open_evaluation import open_evaluation

    right = scores(whole)["scores"]["accuracy"]
    lines = (toy.root / "reviews/dev.tsv").read_text().splitlines()
    wrong = [line[:-1] + str(1 - int(line[-1])) for line in lines[1:]]
    file = tmp_path / "wrong.tsv"
    file.write_text("\n".join([lines[0], *wrong, "the " * 60 + "\t0"]) + "\n")
    result = evaluated(whole, "--data", file)
    assert result["data"] == str(file)
    assert result["sets"]["wrong"]["examples"] == 22
    assert result["sets"]["wrong"]["scores"]["accuracy"] <= 1 - right + 1 / 22
    evaluation = open_evaluation(whole, data=str(file))
    scorer, features = evaluation.scorer, evaluation.sets["wrong"].features
    longer = scorer._lengths(features)
    assert max(longer) >= features.lengths.max() > max(scorer.row_lengths)
    # There are as many lengths as before, so no additional program is compiled.
    assert len(longer) == len(scorer.row_lengths)
    result = evaluated(whole, "--data", toy.root / "reviews")
    assert result["sets"]["validation"]["scores"] == scores(whole)["scores"]


def test_predictions_never_overwrite_the_tasks_files(whole, toy, bert_jax_here, tmp_path):
    folder = toy.root / "reviews"
    before = {file: file.read_bytes() for file in folder.iterdir()}
    for words in (["--unlabelled"], [], ["--data", folder / "dev.tsv"], ["--data", folder]):
        refused = bert_jax_here("evaluate", whole, "--predictions", folder, *words)
        assert refused.code == 2 and "contains one of the task's files" in refused.errors
    other = toy.root / "flipped"
    refused = bert_jax_here("evaluate", whole, "--predictions", other, "--data", other / "dev.tsv")
    assert refused.code == 2 and "contains one of the task's files" in refused.errors
    assert {file: file.read_bytes() for file in folder.iterdir()} == before
    (tmp_path / "file").touch()
    refused = bert_jax_here("evaluate", whole, "--predictions", tmp_path / "file")
    assert refused.code == 2 and "file is a file. Specify a directory" in refused.errors


def test_scores_only_overwrite_scores(whole, toy, bert_jax_here, tmp_path):
    labels = tmp_path / "mine.tsv"
    shutil.copy(toy.root / "reviews/dev.tsv", labels)
    work_dir = tmp_path / "run"
    shutil.copytree(whole, work_dir)
    for output in (labels, work_dir / "scores.json", work_dir / "model.json"):
        before = output.read_bytes()
        refused = bert_jax_here("evaluate", work_dir, "--data", labels, "--output", output)
        assert refused.code == 2 and "was not written by `evaluate`" in refused.errors
        assert output.read_bytes() == before
    os.mkfifo(tmp_path / "pipe")
    for output, problem in (
        (tmp_path / "pipe", "not a regular file"),
        (tmp_path, "is a directory"),
    ):
        refused = bert_jax_here("evaluate", work_dir, "--data", labels, "--output", output)
        assert refused.code == 2 and f"--output={output}: {problem}" in refused.errors
    words = ("--predictions", tmp_path / "out", "--output", tmp_path / "out/validation.tsv")
    refused = bert_jax_here("evaluate", work_dir, *words)
    assert refused.code == 2 and "one of them could overwrite this file" in refused.errors
    assert not (tmp_path / "out").exists()
    empty = tmp_path / "empty"
    empty.touch()
    assert bert_jax_here("evaluate", work_dir, "--data", labels, "--output", empty).code == 0
    assert json.loads(empty.read_text())["sets"]


def test_a_directory_without_test_files_is_refused(whole, toy, bert_jax_here, tmp_path):
    data = tmp_path / "reviews"
    shutil.copytree(toy.root / "reviews", data)
    (data / "test.tsv").unlink()
    words = ("--unlabelled", "--data", data, "--predictions", tmp_path / "out")
    refused = bert_jax_here("evaluate", whole, *words)
    assert refused.code == 2 and f"{data} contains no test file for the task" in refused.errors


def test_a_model_with_nan_scores_is_refused(whole, tmp_path, monkeypatch):
    from bert_jax.finetuning.open_evaluation import open_evaluation

    evaluation = open_evaluation(whole)
    broken = evaluation.params | {
        "classifier.bias": evaluation.params["classifier.bias"] + np.float32("nan")
    }
    monkeypatch.setitem(evaluation.__dict__, "params", broken)
    with pytest.raises(ValueError, match=r"validation: the model's scores are NaN or inf.*float32"):
        evaluation.score(None)


def test_the_error_for_a_missing_step_lists_the_available_steps(whole, bert_jax_here):
    finished = bert_jax_here("evaluate", whole, "--step", 5)
    assert finished.code == 2
    assert "no checkpoint at step 5. Available steps: " in finished.errors
    assert finished.errors.split("Available steps: ")[1].strip().endswith("36.")


def test_scores_are_given_by_entity_type(toy, bert_jax_here, evaluated, tmp_path):
    work_dir = tmp_path / "run"
    assert bert_jax_here(*toy.words("tags", work_dir, "num_epochs=1")).code == 0
    # The labels come from the model, so the training file is not read.
    file = tmp_path / "tagged.txt"
    shutil.copy(toy.root / "tagged/validation.txt", file)
    config = json.loads((work_dir / "config.json").read_text())
    config["tags"]["files"]["train"] = "gone"
    (work_dir / "config.json").write_text(json.dumps(config))
    result = evaluated(work_dir, "--data", file, "--predictions", tmp_path / "predicted")
    assert result["sets"]["tagged"]["scores"] == scores(work_dir)["scores"]
    assert result["sets"]["tagged"]["examples"] == 21
    written = (tmp_path / "predicted/tagged.txt").read_text().strip().split("\n\n")
    columns = [[line.split("\t")[1:] for line in sentence.split("\n")] for sentence in written]
    gold, predicted = ([[row[c] for row in each] for each in columns] for c in (0, 1))
    for kind, row in entity_counts(predicted, gold, "IOB2").items():
        assert result["sets"]["tagged"]["types"][kind] == row.scores() | row._asdict()

    # Entities of an unknown type count as missed, and a sentence split into windows counts once.
    file.write_text(file.read_text() + "\nada\tB-DOG\n" + "was\tO\n" * 40)
    result = evaluated(work_dir, "--data", file)["sets"]["tagged"]
    assert result["examples"] == 22
    assert result["types"]["DOG"]["recall"] == 0 and result["types"]["DOG"]["gold"] == 1

    # Tags that do not mark entities are rejected before training or scoring.
    plain = tmp_path / "plain.txt"
    plain.write_text(file.read_text().replace("B-", ""))
    line = next(i for i, row in enumerate(plain.read_text().split("\n"), 1) if row[-3:] == "PER")
    messages = [f"{plain}:{line}: tag 'PER' is not valid in IOB2: expected O, B-TYPE, I-TYPE"]
    messages += [f"{plain}:{line + n}: tag 'LOC' is not valid in IOB2" for n in range(-12, 13)]
    words = toy.words("tags", tmp_path / "other", f"tags.files.validation={plain}")
    for refused in (bert_jax_here("evaluate", work_dir, "--data", plain), bert_jax_here(*words)):
        assert refused.code == 2 and any(each in refused.errors for each in messages)


@pytest.fixture
def make_imported(whole, tmp_path):
    """Return a function that saves the run's model as if it had been imported, with other labels.

    The labels may also be in a different order.
    """

    def make(*labels: str, order: tuple[int, ...] = (0, 1)) -> Path:
        config, _ = read_model(whole)
        directory = tmp_path / "-".join(["model", *labels])
        reordered = dict(parameters(whole))
        for name in ("classifier.kernel", "classifier.bias"):
            reordered[name] = reordered[name][..., list(order)]
        save_parameters(directory / "checkpoints", reordered, {})
        tokenizer = Tokenizer.load(whole / "tokenizer")
        tokenizer.save(directory / "tokenizer")
        config, origin = replace(config, labels=labels), {"command": "bert-jax import"}
        write_model(config, origin, directory, tokenizer=tokenizer)
        return directory

    return make


@pytest.mark.parametrize(
    ("labels", "order"),
    [
        (("negative", "positive"), (0, 1)),
        (("POSITIVE", "NEGATIVE"), (1, 0)),
        (("1", "0"), (1, 0)),
        (("LABEL_0", "LABEL_1"), (0, 1)),
    ],
)
def test_an_imported_model_is_scored_with_a_config(
    whole, toy, evaluated, make_imported, labels, order
):
    """Match the model's labels to the names that the task uses, in any order."""
    words = ("--config", toy.root / "glue.py")
    result = evaluated(make_imported(*labels, order=order), *words)["sets"]["validation"]
    assert result["scores"] == pytest.approx(scores(whole)["scores"], rel=1e-5)
    assert result["types"].keys() == {"negative", "positive"}


def test_a_model_fine_tuned_for_another_task_is_refused(toy, bert_jax_here, make_imported, whole):
    for directory, config, message in (
        (
            make_imported("good", "bad"),
            "glue",
            "labels are 'good', 'bad', but the config's are 'negative'",
        ),
        (
            make_imported("LABEL_0", "LABEL_1"),
            "spans",
            "classifies texts, but the config's section 'spans' needs a model with the head 'span'",
        ),
        (
            make_imported("bad", "good"),
            "tags",
            "the config's section 'tags' needs a model with the head 'tagging'",
        ),
    ):
        words = ("evaluate", directory, "--config", toy.root / f"{config}.py")
        refused = bert_jax_here(*words)
        assert refused.code == 2 and message in refused.errors
    long = bert_jax_here(*words[:-1], toy.root / "glue.py", "--config.max_length=64")
    assert (
        long.code == 2 and "has 32 positions. Set --config.max_length to at most 32" in long.errors
    )
    without = bert_jax_here("evaluate", whole, "--config.max_length=16")
    assert without.code == 2 and "no config to override. Add the task's config" in without.errors


def test_the_error_explains_relative_paths(whole, toy, bert_jax_here, tmp_path):
    glue = dict(json.loads((whole / "config.json").read_text())["glue"], directory="reviews")
    moved = copy_with(whole, tmp_path / "moved", glue=glue)
    refused = bert_jax_here("evaluate", moved)
    assert refused.code == 2 and "reviews" in refused.errors
    assert f"the run was started from; the current directory is {Path.cwd()}" in refused.errors
    evaluated_elsewhere = bert_jax_here("evaluate", moved, "--data", toy.root / "reviews")
    assert evaluated_elsewhere.code == 0, evaluated_elsewhere.errors
