"""Compare linear CKA with its definition in terms of Gram matrices."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from bert_jax.interpretability.similarity import compare_layers, linear_cka
from bert_jax.labeled_data.treebank import ParsedSentence, Treebank, read_treebank

SENTENCES = [("it", "rains", "on", "roads"), ("the", "dog", "runs"), ("rain", "falls", ".")]


@pytest.fixture(scope="module")
def treebank(tmp_path_factory) -> Treebank:
    sentences = [
        ParsedSentence(words, np.zeros(len(words), int), ("dep",) * len(words), ("X",) * len(words))
        for words in SENTENCES
    ]
    return Treebank(tmp_path_factory.mktemp("treebank"), sentences, 0, 0)


def cka_of_gram_matrices(x: np.ndarray, y: np.ndarray) -> float:
    """Compute linear CKA with equations 2 and 3 of Kornblith et al. 2019."""
    center = np.eye(len(x)) - 1 / len(x)

    def hsic(k: np.ndarray, other: np.ndarray) -> float:
        return float(np.trace(k @ center @ other @ center))

    k, other = x @ x.T, y @ y.T
    return hsic(k, other) / np.sqrt(hsic(k, k) * hsic(other, other))


def test_cka_equals_its_definition():
    rng = np.random.default_rng(0)
    left, right = rng.normal(size=(2, 20, 5)), rng.normal(size=(3, 20, 7))
    expected = [[cka_of_gram_matrices(x, y) for y in right] for x in left]
    np.testing.assert_allclose(linear_cka(left, right), expected, rtol=1e-10)


def test_cka_ignores_rotations_and_scales():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1, 30, 6))
    rotation = np.linalg.qr(rng.normal(size=(6, 6)))[0]
    np.testing.assert_allclose(linear_cka(x, 3 * x @ rotation + 1), 1, rtol=1e-10)


def test_a_model_is_most_similar_to_itself(import_pair, treebank, tmp_path):
    work_dir = import_pair("Bert", "encoder")[1]
    same = compare_layers(work_dir, work_dir, treebank)
    assert same.num_words == 10
    np.testing.assert_allclose(np.diag(same.cka), 1, rtol=1e-6)
    other = compare_layers(work_dir, import_pair("Albert", "encoder")[1], treebank)
    assert other.cka.shape == (3, 3) and (other.cka < 1).all() and (other.cka >= 0).all()
    *_, names, words = other.lines()
    assert len(list(other.lines())) == 7
    assert names == f"rows: {other.first}; columns: {other.second}"
    assert words == f"linear CKA of 10 word vectors in 3 sentences of {treebank.path}"
    other.save(tmp_path / "cka.json")
    saved = json.loads((tmp_path / "cka.json").read_text(encoding="utf-8"))
    assert saved["rows"] == saved["columns"] == ["embeddings", "1", "2"]
    assert saved["first"] == {"work_dir": str(work_dir), "step": 0}
    assert saved["treebank"] == str(treebank.path)
    assert (saved["sentences"], saved["words"]) == (3, 10)
    with pytest.raises(ValueError, match="^max_sentences=0: expected at least 1"):
        compare_layers(work_dir, work_dir, treebank, max_sentences=0)


def test_models_are_named_by_the_parts_of_their_paths_that_differ(
    import_pair, treebank, tmp_path, monkeypatch
):
    for name in "ab":
        shutil.copytree(import_pair("Bert", "encoder")[1], tmp_path / name / "best")
    monkeypatch.chdir(tmp_path)
    compared = compare_layers("a/best", "b/best", treebank)
    assert "rows: a/best, step 0; columns: b/best, step 0" in list(compared.lines())
    assert compared.to_json()["second"]["work_dir"] == str(tmp_path / "b" / "best")


@pytest.fixture
def file(tmp_path):
    lines = [
        f"{number}\t{word}\t_\tX\t_\t_\t{number - 1}\tdep\t_\t_"
        for number, word in enumerate(SENTENCES[0], 1)
    ]
    path = tmp_path / "en-ud-test.conllu"
    path.write_text("\n".join([*lines, "", *lines]) + "\n\n", encoding="utf-8")
    return path


def test_the_command_compares_two_models(bert_jax_here, import_pair, file, tmp_path):
    models = import_pair("Bert", "encoder")[1], import_pair("Albert", "encoder")[1]
    words = ["--treebank", file, "--plot", tmp_path / "plot.png", "--output", tmp_path / "x.json"]
    printed = bert_jax_here("compare", *models, *words)
    assert printed.code == 0, printed.errors
    expected = compare_layers(*models, read_treebank(file))
    assert printed.output == f"{expected}\n" and "8 word vectors" in printed.output
    assert json.loads((tmp_path / "x.json").read_text(encoding="utf-8")) == expected.to_json()
    assert (tmp_path / "plot.png").is_file()
    one = bert_jax_here("compare", models[0], "--treebank", file.parent, "--max-sentences", "1")
    assert one.code == 0 and "linear CKA of 4 word vectors" in one.output, one.errors
    assert one.output.splitlines()[1].split()[:2] == ["emb.", "1.00"]


def test_the_command_rejects_options_that_contradict_each_other(bert_jax_here, import_pair, file):
    model = import_pair("Bert", "encoder")[1]
    refused = bert_jax_here(
        "compare", model, "--treebank", file, "--every-checkpoint", "--other-step", "1"
    )
    assert refused.code == 2
    assert "--every-checkpoint=True: this compares all checkpoints of one run." in refused.errors
    refused = bert_jax_here("compare", model, "--treebank", file, "--step", "7")
    assert refused.code == 2 and "no checkpoint at step 7." in refused.errors
