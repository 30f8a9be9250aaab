"""Runs stopped, killed, ended early and done: what they leave is that of a run in one piece."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest

from bert_jax import Classify
from bert_jax.inference.work_dir import chosen_step
from bert_jax.training.reporting import Reporter

from .conftest import WHOLE, history, parameters, scores

TOTAL = 36


class Killed(BaseException):
    """Nothing handles it, as nothing handles SIGKILL."""


@pytest.fixture
def disturbed(monkeypatch, bert_jax_here):
    """A function that runs a command and, when a step is told of, stops or kills it."""

    def run(words: list, step: int, *, kill: bool = False):
        whole = Reporter.train

        def train(self, told: int, *args, **details) -> None:
            whole(self, told, *args, **details)
            if told == step:
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


def assert_same_parameters(found: dict, expected: dict) -> None:
    assert found.keys() == expected.keys()
    for name in found:
        np.testing.assert_array_equal(found[name], expected[name], err_msg=name)


def test_a_disturbed_run_is_the_run_in_one_piece_bit_for_bit(
    toy, whole, disturbed, bert_jax_here, tmp_path
):
    work_dir = tmp_path / "run"
    words = toy.words("glue", work_dir, *WHOLE)
    # Told of while the next step is under way; step 6 is also where it was to be evaluated.
    for signalled in (3, 5):
        finished = disturbed(words, signalled)
        assert finished.code == 143, finished.errors
        assert f"told to stop: saved after step {signalled + 1}" in finished.output
        assert not (work_dir / "scores.json").exists()
    disturbed(words, 15, kill=True)
    finished = bert_jax_here(*words)
    assert finished.code == 0, finished.errors
    assert "this run's checkpoint of step 12" in finished.output

    told = history(work_dir)
    assert list(told) and told == history(whole)
    assert [step for kind, step in told if kind == "evaluation"] == list(range(6, TOTAL + 1, 6))
    found, expected = scores(work_dir), scores(whole)
    for file, other in zip(found.pop("predictions"), expected.pop("predictions"), strict=True):
        assert Path(file).read_bytes() == Path(other).read_bytes()
    assert found == expected
    for step in {found["step"], TOTAL}:
        assert_same_parameters(parameters(work_dir, step), parameters(whole, step))


def test_a_finished_run_does_nothing(toy, whole, bert_jax_here):
    before = {path: path.stat().st_mtime_ns for path in whole.rglob("*")}
    finished = bert_jax_here(*toy.words("glue", whole, *WHOLE))
    assert finished.code == 0
    assert f"checkpoint of step {TOTAL} (finished: nothing to do)" in finished.output
    assert "best after step" in finished.output
    assert {path: path.stat().st_mtime_ns for path in whole.rglob("*")} == before


def test_a_test_set_that_comes_later_changes_nothing_but_the_predictions(
    toy, whole, bert_jax_here, tmp_path
):
    """Its texts are longer than all the model has learned from."""
    work_dir, data = tmp_path / "run", tmp_path / "reviews"
    shutil.copytree(whole, work_dir)
    shutil.copytree(toy.root / "reviews", data)
    before = scores(work_dir)
    long = "index\tsentence\n" + "".join(f"{i}\t{'warm ' * (i + 1)}\n" for i in range(12))
    (data / "test.tsv").write_text(long)
    words = toy.words("glue", work_dir, *WHOLE, f"glue.directory={data}")
    finished = bert_jax_here(*words)
    assert finished.code == 0, finished.errors
    assert f"checkpoint of step {TOTAL}; compiling" in finished.output
    after = scores(work_dir)
    assert {**after, "tests": 0, "predictions": 0} == {**before, "tests": 0, "predictions": 0}
    assert after["tests"] != before["tests"]
    assert (work_dir / "predictions/SST-2.tsv").read_text().count("\n") == 13
    assert "nothing to do" in bert_jax_here(*words).output


def test_predictions_that_are_gone_or_of_other_ids_are_written_again(
    toy, whole, bert_jax_here, tmp_path
):
    work_dir, data = tmp_path / "run", tmp_path / "reviews"
    shutil.copytree(whole, work_dir)
    shutil.copytree(toy.root / "reviews", data)
    words = toy.words("glue", work_dir, *WHOLE, f"glue.directory={data}")
    assert bert_jax_here(*words).code == 0
    predicted = work_dir / "predictions/SST-2.tsv"
    before = predicted.read_text()
    predicted.unlink()
    assert "nothing to do" not in bert_jax_here(*words).output
    assert predicted.read_text() == before
    lines = (data / "test.tsv").read_text().splitlines()
    others = [f"{100 + int(line.split()[0])}\t{line.partition(chr(9))[2]}" for line in lines[1:]]
    (data / "test.tsv").write_text("\n".join([lines[0], *others]) + "\n")
    assert "nothing to do" not in bert_jax_here(*words).output
    rows = [line.split("\t") for line in before.splitlines()[1:]]
    expected = "".join(f"{100 + int(index)}\t{label}\n" for index, label in rows)
    assert predicted.read_text() == "index\tprediction\n" + expected


def test_a_finished_run_tells_what_is_not_as_it_was(toy, whole, bert_jax_here):
    before = (whole / "config.json").read_text()
    finished = bert_jax_here(*toy.words("glue", whole, *WHOLE, "patience=9"))
    assert finished.code == 0 and "nothing to do" in finished.output
    assert "the run ended with another config" in finished.output
    assert "  patience: 0 -> 9\n" in finished.output
    assert (whole / "config.json").read_text() == before


def test_what_is_not_a_runs_own_stays(toy, bert_jax_here, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    refused = bert_jax_here(*toy.words("glue", tmp_path))
    assert refused.code == 2 and "has a config.json, which no run wrote" in refused.errors
    assert (tmp_path / "config.json").read_text() == "{}"
    (tmp_path / "config.json").unlink()
    (tmp_path / "tokenizer").mkdir()
    (tmp_path / "tokenizer/vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n")
    refused = bert_jax_here(*toy.words("glue", tmp_path))
    assert refused.code == 2 and "has another tokenizer in it than the run's" in refused.errors


def test_another_run_in_its_work_directory_is_refused(toy, whole, bert_jax_here):
    finished = bert_jax_here(*toy.words("glue", whole, *WHOLE, "seed=1", "batch_size=8"))
    assert finished.code == 2
    assert "belongs to another run" in finished.errors
    assert "batch_size: 16 -> 8" in finished.errors and "seed: 0 -> 1" in finished.errors
    # It would end before the checkpoint, which is not what is wrong.
    finished = bert_jax_here(*toy.words("glue", whole, *WHOLE, "batch_size=32"))
    assert finished.code == 2 and "batch_size: 16 -> 32" in finished.errors


def test_a_training_file_that_has_changed_is_told(toy, whole, bert_jax_here):
    other = f"glue.directory={toy.root / 'flipped'}"
    finished = bert_jax_here(*toy.words("glue", whole, *WHOLE, other))
    assert finished.code == 2
    assert "training examples (their file, its columns, max_length): " in finished.errors


@pytest.fixture
def spoiled(toy, whole, tmp_path) -> list:
    """The words of a run that unlearns what `whole` knows: the first evaluation is the best."""
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


def test_the_best_checkpoint_is_kept_and_used_and_the_run_ends_early(
    spoiled, bert_jax_here, tmp_path
):
    work_dir = tmp_path / "run"
    finished = bert_jax_here(*spoiled)
    assert finished.code == 0, finished.errors
    # The classifier of the same labels is a beginning too.
    assert "start      the parameters of" in finished.output
    assert "drawn anew" not in finished.output
    steps = sorted(int(path.name) for path in (work_dir / "checkpoints").iterdir())
    assert steps == [2, 8]  # three evaluations that were no better
    best, last = steps
    assert scores(work_dir)["step"] == best
    assert json.loads((work_dir / "model.json").read_text())["best_step"] == best
    evaluations = {step: e for (kind, step), e in history(work_dir).items() if kind != "train"}
    assert list(evaluations) == list(range(2, last + 1, 2))
    assert evaluations[best]["accuracy"] == 1.0 > evaluations[last]["accuracy"]

    again = bert_jax_here(*spoiled)
    assert f"checkpoint of step {last} (finished: nothing to do)" in again.output

    output, predictions = tmp_path / "scores.json", tmp_path / "predictions"
    for step in (best, last):
        words = ("--output", output, *(() if step == best else ("--step", step)))
        words += ("--predictions", predictions) if step == best else ()
        assert bert_jax_here("evaluate", work_dir, *words).code == 0
        found = json.loads(output.read_text())
        assert found["step"] == step
        assert evaluations[step] == {"step": step} | found["sets"]["validation"]["scores"]
    rows = (predictions / "validation.tsv").read_text().splitlines()[1:]
    lines = (Path(spoiled[2]).parent / "flipped/dev.tsv").read_text().splitlines()[1:]
    predicted = Classify(work_dir)([line.split("\t")[0] for line in lines])
    names = {"0": "negative", "1": "positive"}
    assert [names[row.split("\t")[1]] for row in rows] == [each.label for each in predicted]
    words = ("--format", "huggingface", "--output", tmp_path / "exported")
    assert bert_jax_here("export", work_dir, *words).code == 0
    card = (tmp_path / "exported/README.md").read_text()
    assert "- task: glue (SST-2), from flipped\n- 3 epochs at most" in card
    assert f"after step {best} (on the validation set)" in card
    from safetensors.numpy import load_file

    exported = load_file(tmp_path / "exported/model.safetensors")["classifier.weight"]
    np.testing.assert_array_equal(exported.T, parameters(work_dir, best)["classifier.kernel"])
    assert not np.array_equal(exported.T, parameters(work_dir, last)["classifier.kernel"])


def test_the_best_checkpoint_is_kept_where_the_run_was_stopped_before_its_evaluation(
    spoiled, disturbed, bert_jax_here, tmp_path
):
    finished = disturbed(spoiled, 1)
    assert finished.code == 143 and "saved after step 2" in finished.output
    finished = bert_jax_here(*spoiled)
    assert finished.code == 0, finished.errors
    best = scores(tmp_path / "run")["step"]
    assert best == 2
    assert (tmp_path / "run/checkpoints" / str(best)).is_dir()


def test_the_best_checkpoint_so_far_is_used_where_a_run_was_killed(
    spoiled, disturbed, bert_jax_here, tmp_path
):
    work_dir = tmp_path / "run"
    disturbed(spoiled, 5, kill=True)
    steps = sorted(int(path.name) for path in (work_dir / "checkpoints").iterdir())
    assert steps == [2, 4]
    assert chosen_step(work_dir) == 2  # where the newest is worse
    finished = bert_jax_here("evaluate", work_dir)
    assert finished.code == 0 and "run, step 2\n" in finished.output, finished.errors
    (work_dir / "metrics.jsonl").unlink()  # who takes the directory without it has no more
    assert chosen_step(work_dir) == 4


def test_a_run_that_is_killed_after_it_was_to_go_on_names_a_checkpoint_that_is_there(
    toy, whole, disturbed, tmp_path
):
    work_dir = tmp_path / "run"
    shutil.copytree(whole, work_dir)
    disturbed(toy.words("glue", work_dir, *WHOLE, "num_epochs=4"), 43, kill=True)
    assert (work_dir / "checkpoints" / str(chosen_step(work_dir))).is_dir()
    assert json.loads((work_dir / "model.json").read_text())["best_step"] is None


def test_a_run_goes_on_for_more_epochs(toy, whole, bert_jax_here, tmp_path):
    work_dir = tmp_path / "run"
    shutil.copytree(whole, work_dir)
    words = toy.words("glue", work_dir, *WHOLE, "num_epochs=4")
    finished = bert_jax_here(*words)
    assert finished.code == 0, finished.errors
    assert f"checkpoint of step {TOTAL}; compiling the first step\n" in finished.output
    told = "  num_epochs: 3 -> 4\n  (the learning rate follows the new number of steps"
    assert told in finished.output
    assert json.loads((work_dir / f"config-until-{TOTAL}.json").read_text())["num_epochs"] == 3
    assert json.loads((work_dir / "config.json").read_text())["num_epochs"] == 4
    assert max(step for _, step in history(work_dir)) == 48


def test_a_finished_run_is_not_taken_for_another(toy, whole, bert_jax_here, tmp_path):
    work_dir = tmp_path / "run"
    shutil.copytree(whole, work_dir)
    before = (work_dir / "model.json").read_text(), (work_dir / "config.json").read_text()
    for other, words in {
        "num_epochs=1": "set num_epochs to what it was or more",
        "optimizer.weight_decay=0.3": "optimizer.weight_decay: 0.01 -> 0.3",
        "best_metric=loss": "best_metric: ",
    }.items():
        refused = bert_jax_here(*toy.words("glue", work_dir, *WHOLE, other))
        assert refused.code == 2 and words in refused.errors, refused.errors
    assert before == ((work_dir / "model.json").read_text(), (work_dir / "config.json").read_text())
