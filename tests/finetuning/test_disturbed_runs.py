"""Compare runs that are stopped, killed or ended early with an uninterrupted run."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest

from bert_jax import Classify
from bert_jax.finetuning.scoring import ValidationMetrics
from bert_jax.runs.default_checkpoint import default_checkpoint_step
from bert_jax.training.reporting import Reporter

from .conftest import WHOLE, history, parameters, scores

pytestmark = pytest.mark.slow

TOTAL = 36


class Killed(BaseException):
    """An exception that no code catches, used to simulate SIGKILL."""


@pytest.fixture
def disturbed(monkeypatch, bert_jax_here):
    """Return a function that runs a command and stops or kills it when a step is reported."""

    def run(words: list, step: int, *, kill: bool = False):
        original = Reporter.train

        def train(self, reported: int, *args, **details) -> None:
            original(self, reported, *args, **details)
            if reported == step:
                if kill:
                    raise Killed
                os.kill(os.getpid(), signal.SIGTERM)

        with monkeypatch.context() as patch:
            patch.setattr(Reporter, "train", train)
            if not kill:
                return bert_jax_here(*words)
            with pytest.raises(Killed):
                bert_jax_here(*words)
            return None

    return run


def assert_same_parameters(result: dict, expected: dict) -> None:
    assert result.keys() == expected.keys()
    for name in result:
        np.testing.assert_array_equal(result[name], expected[name], err_msg=name)


def test_a_disturbed_run_matches_an_uninterrupted_run_exactly(
    toy, whole, disturbed, bert_jax_here, tmp_path
):
    work_dir = tmp_path / "run"
    words = toy.words("glue", work_dir, *WHOLE)
    # A step is reported while the next one is running. At step 6, an evaluation is also due.
    for stop_step in (3, 5):
        finished = disturbed(words, stop_step)
        assert finished.code == 143, finished.errors
        assert f"stopped: saved step {stop_step + 1}" in finished.output
        assert not (work_dir / "scores.json").exists()
    disturbed(words, 15, kill=True)
    finished = bert_jax_here(*words)
    assert finished.code == 0, finished.errors
    assert "this run's checkpoint at step 12" in finished.output

    logged = history(work_dir)
    assert list(logged) and logged == history(whole)
    assert [step for kind, step in logged if kind == "evaluation"] == list(range(6, TOTAL + 1, 6))
    result, expected = scores(work_dir), scores(whole)
    for file, other in zip(result.pop("predictions"), expected.pop("predictions"), strict=True):
        assert Path(file).read_bytes() == Path(other).read_bytes()
    assert result == expected
    for step in {result["step"], TOTAL}:
        assert_same_parameters(parameters(work_dir, step), parameters(whole, step))


@pytest.fixture
def worsening(toy, whole, tmp_path) -> list:
    """Return the arguments of a run with wrong labels, so that its first evaluation is the best."""
    return toy.words(
        "glue",
        tmp_path / "run",
        f"glue.directory={toy.root}/flipped",
        "evaluations_per_epoch=6",
        "best_metric=loss",
        "patience=3",
        "optimizer.peak_learning_rate=5e-3",
        init=whole,
    )


def test_a_run_ends_early_and_its_best_checkpoint_is_kept_and_used(
    worsening, bert_jax_here, tmp_path
):
    work_dir = tmp_path / "run"
    finished = bert_jax_here(*worsening)
    assert finished.code == 0, finished.errors
    # The classifier is kept, since the labels are the same.
    assert "start      the parameters of" in finished.output
    assert "randomly initialized" not in finished.output
    steps = sorted(int(path.name) for path in (work_dir / "checkpoints").iterdir())
    # Step 2 is the best, and the run ends at step 8, after three evaluations without improvement.
    assert steps == [2, 8]
    best, last = steps
    assert scores(work_dir)["step"] == best
    assert json.loads((work_dir / "model.json").read_text())["best_step"] == best
    evaluations = {step: e for (kind, step), e in history(work_dir).items() if kind != "train"}
    assert list(evaluations) == list(range(2, last + 1, 2))
    assert evaluations[best]["accuracy"] == 1.0 > evaluations[last]["accuracy"]

    again = bert_jax_here(*worsening)
    assert f"checkpoint at step {last} (finished: nothing to do)" in again.output

    output, predictions = tmp_path / "scores.json", tmp_path / "predictions"
    for step in (best, last):
        words = ("--output", output, *(() if step == best else ("--step", step)))
        words += ("--predictions", predictions) if step == best else ()
        assert bert_jax_here("evaluate", work_dir, *words).code == 0
        result = json.loads(output.read_text())
        assert result["step"] == step
        assert evaluations[step] == {"step": step} | result["sets"]["validation"]["scores"]
    rows = (predictions / "validation.tsv").read_text().splitlines()[1:]
    lines = (Path(worsening[2]).parent / "flipped/dev.tsv").read_text().splitlines()[1:]
    predicted = Classify(work_dir)([line.split("\t")[0] for line in lines])
    names = {"0": "negative", "1": "positive"}
    assert [names[row.split("\t")[1]] for row in rows] == [each.label for each in predicted]
    words = ("--format", "huggingface", "--output", tmp_path / "exported")
    assert bert_jax_here("export", work_dir, *words).code == 0
    card = (tmp_path / "exported/README.md").read_text()
    assert "- task: glue (SST-2), from flipped\n- at most 3 epochs" in card
    assert f"after step {best} (on the validation set)" in card
    from safetensors.numpy import load_file

    exported = load_file(tmp_path / "exported/model.safetensors")["classifier.weight"]
    np.testing.assert_array_equal(exported.T, parameters(work_dir, best)["classifier.kernel"])
    assert not np.array_equal(exported.T, parameters(work_dir, last)["classifier.kernel"])


@pytest.mark.slow
def test_a_run_with_a_damaged_best_checkpoint_uses_the_next_best(
    worsening, disturbed, bert_jax_here, tmp_path
):
    work_dir = tmp_path / "run"
    assert disturbed(worsening, 5).code == 143
    (work_dir / "checkpoints/2/params/_METADATA").unlink()
    finished = bert_jax_here(*worsening)
    assert finished.code == 0, finished.errors
    assert "step 2: params/_METADATA is missing" in finished.output
    assert "the best checkpoint so far (step 2) is missing" in finished.output
    step = scores(work_dir)["step"]
    assert step >= 4 and (work_dir / "checkpoints" / str(step)).is_dir()
    assert json.loads((work_dir / "model.json").read_text())["best_step"] == step
    again = bert_jax_here(*worsening)
    assert "(finished: nothing to do)" in again.output
    assert f"is missing; the next best is step {step}" in again.output


def test_the_best_checkpoint_is_kept_if_the_run_was_stopped_before_its_evaluation(
    worsening, disturbed, bert_jax_here, tmp_path
):
    finished = disturbed(worsening, 1)
    assert finished.code == 143 and "saved step 2" in finished.output
    finished = bert_jax_here(*worsening)
    assert finished.code == 0, finished.errors
    best = scores(tmp_path / "run")["step"]
    assert best == 2
    assert (tmp_path / "run/checkpoints" / str(best)).is_dir()


def test_the_best_checkpoint_of_a_killed_run_is_used(worsening, disturbed, bert_jax_here, tmp_path):
    work_dir = tmp_path / "run"
    disturbed(worsening, 5, kill=True)
    steps = sorted(int(path.name) for path in (work_dir / "checkpoints").iterdir())
    assert steps == [2, 4]
    # The newest checkpoint has a worse score than this one.
    assert default_checkpoint_step(work_dir) == 2
    finished = bert_jax_here("evaluate", work_dir)
    assert finished.code == 0 and "run, step 2\n" in finished.output, finished.errors
    (work_dir / "metrics.jsonl").unlink()  # Without the log, the best step is unknown.
    assert default_checkpoint_step(work_dir) == 4


def test_a_run_killed_while_training_for_longer_has_a_usable_checkpoint(
    toy, whole, disturbed, tmp_path
):
    work_dir = tmp_path / "run"
    shutil.copytree(whole, work_dir)
    disturbed(toy.words("glue", work_dir, *WHOLE, "num_epochs=4"), 43, kill=True)
    assert (work_dir / "checkpoints" / str(default_checkpoint_step(work_dir))).is_dir()
    assert json.loads((work_dir / "model.json").read_text())["best_step"] is None


def test_the_best_checkpoint_is_kept_if_its_step_is_no_longer_evaluated(
    worsening, disturbed, bert_jax_here, tmp_path
):
    # Step 2, which will be the best, is saved first and evaluated only after the restart.
    for stop_step in (1, 3):
        stopped = disturbed(worsening, stop_step)
        assert stopped.code == 143 and f"saved step {stop_step + 1}" in stopped.output
    fewer = [
        str(word).replace("evaluations_per_epoch=6", "evaluations_per_epoch=1")
        for word in worsening
    ]
    assert fewer != [str(word) for word in worsening]
    finished = bert_jax_here(*fewer)
    assert finished.code == 0, finished.errors
    assert scores(tmp_path / "run")["step"] == 2
    assert bert_jax_here("evaluate", tmp_path / "run").code == 0


def test_a_run_with_fewer_epochs_is_evaluated_at_its_end(toy, disturbed, bert_jax_here, tmp_path):
    work_dir = tmp_path / "run"
    stopped = disturbed(toy.words("glue", work_dir, *WHOLE), 11)
    assert stopped.code == 143 and "saved step 12" in stopped.output
    finished = bert_jax_here(*toy.words("glue", work_dir, *WHOLE, "num_epochs=1"))
    assert finished.code == 0, finished.errors
    assert max(step for kind, step in history(work_dir) if kind == "evaluation") == 12
    assert scores(work_dir)["step"] in (6, 12)


def test_a_run_stopped_during_its_last_evaluation_repeats_it(
    toy, whole, bert_jax_here, monkeypatch, tmp_path
):
    # The run has already ended once, with fewer epochs, so it has scores and a best step.
    work_dir = tmp_path / "run"
    shutil.copytree(whole, work_dir)
    words = toy.words("glue", work_dir, *WHOLE, "num_epochs=4")
    evaluate, evaluated = ValidationMetrics.__call__, []

    def stop_step(*args):
        evaluated.append(args)
        if len(evaluated) == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return evaluate(*args)

    with monkeypatch.context() as patch:
        patch.setattr(ValidationMetrics, "__call__", stop_step)
        stopped = bert_jax_here(*words)
    assert stopped.code == 143, stopped.errors
    assert "stopped: saved step 48" in stopped.output
    assert max(step for kind, step in history(work_dir) if kind == "evaluation") == 42
    finished = bert_jax_here(*words)
    assert finished.code == 0 and "nothing to do" not in finished.output, finished.errors
    assert max(step for kind, step in history(work_dir) if kind == "evaluation") == 48
    assert "nothing to do" in bert_jax_here(*words).output


def test_a_run_stopped_while_predicting_resumes_predicting(
    toy, whole, bert_jax_here, stopped_while_predicting, tmp_path
):
    work_dir = tmp_path / "run"
    shutil.copytree(whole, work_dir)
    words = toy.words("glue", work_dir, *WHOLE)
    (work_dir / "predictions/SST-2.tsv").unlink()
    stopped = stopped_while_predicting(*words)
    assert stopped.code == 143, stopped.errors
    assert "stopped after training; run the same command to write the predictions" in stopped.output
    assert not (work_dir / "predictions/SST-2.tsv").exists()
    finished = bert_jax_here(*words)
    assert finished.code == 0, finished.errors
    expected = (whole / "predictions/SST-2.tsv").read_text()
    assert (work_dir / "predictions/SST-2.tsv").read_text() == expected
