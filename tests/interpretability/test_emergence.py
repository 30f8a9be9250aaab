"""Test probing every checkpoint of a run."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from bert_jax import Attention, load_config, look, pretrain
from bert_jax.interpretability.checkpoint_similarity import compare_checkpoints
from bert_jax.interpretability.emergence import Emergence, probe_checkpoints
from bert_jax.interpretability.head_probe import probe_heads
from bert_jax.interpretability.similarity import compare_layers
from bert_jax.labeled_data.treebank import read_treebank
from bert_jax.training.metrics_log import read_metrics

pytestmark = pytest.mark.slow

SENTENCE = [
    "1\tthe\t_\tDET\t_\t_\t2\tdet\t_\t_",
    "2\train\t_\tNOUN\t_\t_\t3\tnsubj\t_\t_",
    "3\tfalls\t_\tVERB\t_\t_\t0\troot\t_\t_",
    "",
]


@pytest.fixture(scope="module")
def run(tiny_config: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the work directory of a run that kept the checkpoints from steps 10, 20, 30 and 32."""
    work_dir = tmp_path_factory.mktemp("emergence") / "run"
    pretrain(load_config(tiny_config, {"work_dir": str(work_dir)}, kind="pretrain"))
    return work_dir


@pytest.fixture(scope="module")
def treebank(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("treebank") / "en-ud-test.conllu"
    file.write_text("\n".join(SENTENCE * 4) + "\n", encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def emergence(run: Path, treebank: Path) -> Emergence:
    return probe_checkpoints(run, read_treebank(treebank))


def test_every_checkpoint_is_probed(run, treebank, emergence):
    assert emergence.steps[:2] == (10, 20) and emergence.steps[-1] == 32
    sentences = read_treebank(treebank)
    for step, probe in zip(emergence.steps, emergence.probes, strict=True):
        expected = probe_heads(run, sentences, step=step)
        assert (probe.accuracies == expected.accuracies).all()
    for best in emergence.heads(1):
        assert emergence.history(best)[-1] == best.accuracy
    logged = {
        entry["step"]: entry["mlm_loss"]
        for entry in read_metrics(run / "metrics.jsonl")
        if entry["kind"] == "evaluation"
    }
    assert emergence.losses == logged and 32 in logged


def test_the_result_is_written_as_a_table_a_file_and_a_plot(emergence, tmp_path):
    header, *rows = emergence.lines(1)
    assert header.split()[:3] == ["relation", "head", "baseline"] and header.endswith("step 32")
    assert [row.split()[0] for row in rows] == [best.relation for best in emergence.heads(1)]
    emergence.save(tmp_path / "emergence.json")
    saved = json.loads((tmp_path / "emergence.json").read_text(encoding="utf-8"))
    assert list(saved["steps"]) == [str(step) for step in emergence.steps]
    emergence.plot(tmp_path / "emergence.png", 1)
    assert (tmp_path / "emergence.png").read_bytes().startswith(b"\x89PNG")


def test_the_command_probes_every_checkpoint(bert_jax_here, run, treebank, emergence, tmp_path):
    plot = tmp_path / "plot.png"
    words = ["--treebank", treebank, "--every-checkpoint", "--min-count", "1", "--plot", plot]
    printed = bert_jax_here("probe", run, *words)
    assert printed.code == 0, printed.errors
    assert printed.output == "\n".join(emergence.lines(1)) + "\n"
    assert plot.is_file()


def test_requests_that_make_no_sense_are_rejected(bert_jax_here, import_pair, run, treebank):
    given = ["--treebank", treebank]
    refused = bert_jax_here("probe", run, *given, "--plot", "x.png")
    assert (
        refused.code == 2 and "--plot=x.png: applies only with --every-checkpoint" in refused.errors
    )
    refused = bert_jax_here("probe", run, *given, "--every-checkpoint", "--step", "10")
    assert refused.code == 2 and "this probes heads at every checkpoint" in refused.errors
    work_dir = import_pair("Bert", "encoder")[1]
    refused = bert_jax_here("probe", work_dir, *given, "--every-checkpoint")
    assert (
        refused.code == 2
        and "at least two checkpoints are needed, but the run has kept 1." in refused.errors
    )


@pytest.mark.parametrize("function", [probe_checkpoints, compare_checkpoints])
def test_a_path_that_is_no_run_is_rejected(function, treebank, tmp_path):
    sentences = read_treebank(treebank)
    for path, advice in [(tmp_path / "no", " (there is no such directory)"), (tmp_path, "")]:
        message = f"{path}: contains no model.json{advice}. Specify a work directory"
        with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
            function(path, sentences)


def test_checkpoints_are_compared_with_the_last_one(run, treebank, emergence):
    sentences = read_treebank(treebank)
    compared = compare_checkpoints(run, sentences)
    assert compared.steps == emergence.steps and compared.num_words == sentences.num_words
    assert compared.num_sentences == 4 and compared.treebank == treebank
    assert list(compared.lines())[-1] == (
        f"linear CKA of 12 word vectors in 4 sentences of {treebank}, between each layer in a "
        f"checkpoint of {run} and the same layer at step 32"
    )
    assert compared.to_json()["work_dir"] == str(run)
    newest = compare_layers(run, run, sentences, second_step=10)
    assert (newest.first.step, newest.second.step) == (32, 10)
    for step, row in zip(compared.steps, compared.cka, strict=True):
        expected = compare_layers(run, run, sentences, first_step=step, second_step=32).cka
        np.testing.assert_allclose(row, np.diag(expected), rtol=1e-6)
    np.testing.assert_allclose(compared.cka[-1], 1, rtol=1e-6)
    assert (compared.cka[0] < 1).all()


def test_the_command_compares_every_checkpoint(bert_jax_here, run, treebank, tmp_path):
    plot = tmp_path / "plot.png"
    words = ["--treebank", treebank, "--every-checkpoint", "--plot", plot]
    printed = bert_jax_here("compare", run, *words)
    assert printed.code == 0, printed.errors
    assert printed.output == f"{compare_checkpoints(run, read_treebank(treebank))}\n"
    assert plot.is_file()


def test_any_checkpoint_of_a_run_can_be_looked_at(run, bert_jax_here, tmp_path):
    output = tmp_path / "page.html"
    finished = bert_jax_here("look", run, "the rain falls", "--step", "20", "--output", output)
    assert finished.code == 0, finished.errors
    page = output.read_text(encoding="utf-8")
    assert page == look(run, "the rain falls", step=20).html
    assert "run, step 20" in page and page == look(Attention(run, step=20), "the rain falls").html
    assert "run, step 32" in look(run, "the rain falls").html
    earlier = Attention(run, step=20)("the rain falls").attention
    assert np.abs(earlier - Attention(run)("the rain falls").attention).max() > 1e-4
    with pytest.raises(ValueError, match="step=20: cannot be changed for a loaded model"):
        look(Attention(run), "the rain falls", step=20)
    missing = bert_jax_here("look", run, "the rain falls", "--step", "15", "--output", output)
    assert missing.code == 2 and "15" in missing.errors
