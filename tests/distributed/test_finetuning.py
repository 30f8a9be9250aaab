"""Test that two processes fine-tune and evaluate a model just as a single process does."""

from __future__ import annotations

import json

import pytest

from ..finetuning.conftest import history, make_source, scores, source, toy  # noqa: F401

pytestmark = pytest.mark.slow

COMPARED = ("loss", "accuracy", "gradient_norm")


def test_two_processes_train_and_score_like_one(toy, bert_jax, tmp_path):  # noqa: F811
    one, two = tmp_path / "one", tmp_path / "two"
    short = ("num_epochs=1", "optimizer.peak_learning_rate=1e-3", "evaluation_batch_size=16")
    bert_jax(*toy.words("glue", one, *short))
    output = bert_jax(*toy.words("glue", two, *short), launcher=2, devices=2).output
    assert output.count("best checkpoint by ") == 1  # Only one process reports its progress.
    actual, expected = history(two), history(one)
    assert actual.keys() == expected.keys()
    for key, entry in expected.items():
        metrics = {name: entry[name] for name in COMPARED if name in entry}
        assert {name: actual[key][name] for name in metrics} == pytest.approx(metrics, rel=1e-4), (
            key
        )
    written = [json.dumps(scores(each)["step"]) for each in (one, two)]
    assert written[0] == written[1]
    predictions = [(each / "predictions/SST-2.tsv").read_text() for each in (one, two)]
    assert predictions[0] == predictions[1]
    file = tmp_path / "scores.json"
    bert_jax("evaluate", two, "--output", file, launcher=2, devices=2)
    sets = json.loads(file.read_text())["sets"]
    assert sets["validation"]["scores"] == scores(two)["scores"]


def test_processes_with_other_configs_are_refused(toy, bert_jax, tmp_path):  # noqa: F811
    """Let only one process start from scratch, although all processes must read the source."""
    config = tmp_path / "apart.py"
    recipe = (toy.root / "glue.py").read_text()
    config.write_text(
        f"import os\n{recipe}\nwhole = get_config\n\n\ndef get_config():\n    config = whole()\n"
        '    config.from_scratch = os.environ["JAX_PROCESS_ID"] == "1"\n    return config\n'
    )
    words = ["finetune", "--config", config, "--init", toy.source]
    words += [f"--config.work_dir={tmp_path / 'run'}"]
    refused = bert_jax(*words, launcher=2, devices=2, code=2)
    assert "the config: process 1" in refused.errors
