"""Test how finished runs handle new or missing files, and which changes are rejected."""

from __future__ import annotations

import json
import shutil

from .conftest import WHOLE, history, scores

TOTAL = 36


def test_a_finished_run_does_nothing(toy, whole, bert_jax_here):
    before = {path: path.stat().st_mtime_ns for path in whole.rglob("*")}
    finished = bert_jax_here(*toy.words("glue", whole, *WHOLE))
    assert finished.code == 0
    assert f"checkpoint at step {TOTAL} (finished: nothing to do)" in finished.output
    assert "best checkpoint by " in finished.output
    assert f"work directory: {whole}" in finished.output
    assert {path: path.stat().st_mtime_ns for path in whole.rglob("*")} == before


def test_a_test_set_that_is_added_later_changes_only_the_predictions(
    toy, whole, bert_jax_here, tmp_path
):
    """Add a test set in which some texts are longer than all training texts."""
    work_dir, data = tmp_path / "run", tmp_path / "reviews"
    shutil.copytree(whole, work_dir)
    shutil.copytree(toy.root / "reviews", data)
    before = scores(work_dir)
    long = "index\tsentence\n" + "".join(f"{i}\t{'warm ' * (i + 1)}\n" for i in range(12))
    (data / "test.tsv").write_text(long)
    words = toy.words("glue", work_dir, *WHOLE, f"glue.directory={data}")
    finished = bert_jax_here(*words)
    assert finished.code == 0, finished.errors
    assert f"checkpoint at step {TOTAL}; compiling" in finished.output
    after = scores(work_dir)
    assert {**after, "tests": 0, "predictions": 0} == {**before, "tests": 0, "predictions": 0}
    assert after["tests"] != before["tests"]
    assert (work_dir / "predictions/SST-2.tsv").read_text().count("\n") == 13
    assert "nothing to do" in bert_jax_here(*words).output


def test_missing_predictions_and_those_with_other_ids_are_written_again(
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


def test_a_finished_run_reports_changes_of_its_config(toy, whole, bert_jax_here):
    before = (whole / "config.json").read_text()
    finished = bert_jax_here(*toy.words("glue", whole, *WHOLE, "patience=9"))
    assert finished.code == 0 and "nothing to do" in finished.output
    assert "the run finished with a different config" in finished.output
    assert "  patience: 0 -> 9\n" in finished.output
    assert (whole / "config.json").read_text() == before


def test_files_that_no_run_wrote_are_not_overwritten(toy, bert_jax_here, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    refused = bert_jax_here(*toy.words("glue", tmp_path))
    assert refused.code == 2 and "contains a config.json that no run wrote" in refused.errors
    assert (tmp_path / "config.json").read_text() == "{}"
    (tmp_path / "config.json").unlink()
    (tmp_path / "tokenizer").mkdir()
    (tmp_path / "tokenizer/vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n")
    refused = bert_jax_here(*toy.words("glue", tmp_path))
    assert refused.code == 2 and "contains a different tokenizer" in refused.errors


def test_another_run_in_its_work_directory_is_refused(toy, whole, bert_jax_here):
    finished = bert_jax_here(*toy.words("glue", whole, *WHOLE, "seed=1", "batch_size=8"))
    assert finished.code == 2
    assert "belongs to another run" in finished.errors
    assert "batch_size: 16 -> 8" in finished.errors and "seed: 0 -> 1" in finished.errors
    # With this batch size, the run would also end before the step of its checkpoint, but the error
    # message should mention the batch size.
    finished = bert_jax_here(*toy.words("glue", whole, *WHOLE, "batch_size=32"))
    assert finished.code == 2 and "batch_size: 16 -> 32" in finished.errors


def test_a_changed_training_file_is_refused(toy, whole, bert_jax_here):
    other = f"glue.directory={toy.root / 'flipped'}"
    finished = bert_jax_here(*toy.words("glue", whole, *WHOLE, other))
    assert finished.code == 2
    assert "training examples (their file, its columns, max_length): " in finished.errors


def test_a_run_resumes_for_more_epochs(toy, whole, bert_jax_here, tmp_path):
    work_dir = tmp_path / "run"
    shutil.copytree(whole, work_dir)
    words = toy.words("glue", work_dir, *WHOLE, "num_epochs=4")
    finished = bert_jax_here(*words)
    assert finished.code == 0, finished.errors
    assert f"checkpoint at step {TOTAL}; compiling the first step\n" in finished.output
    told = (
        "  num_epochs: 3 -> 4\n  (from now on, the learning rate follows the new number of steps)"
    )
    assert told in finished.output
    assert json.loads((work_dir / f"config-until-{TOTAL}.json").read_text())["num_epochs"] == 3
    assert json.loads((work_dir / "config.json").read_text())["num_epochs"] == 4
    assert max(step for _, step in history(work_dir)) == 48


def test_a_finished_run_is_refused_for_other_hyperparameters(toy, whole, bert_jax_here, tmp_path):
    work_dir = tmp_path / "run"
    shutil.copytree(whole, work_dir)
    before = (work_dir / "model.json").read_text(), (work_dir / "config.json").read_text()
    for other, words in {
        "num_epochs=1": "Set num_epochs to at least its previous value",
        "optimizer.weight_decay=0.3": "optimizer.weight_decay: 0.01 -> 0.3",
        "best_metric=loss": "best_metric: ",
    }.items():
        refused = bert_jax_here(*toy.words("glue", work_dir, *WHOLE, other))
        assert refused.code == 2 and words in refused.errors, refused.errors
    assert before == ((work_dir / "model.json").read_text(), (work_dir / "config.json").read_text())
