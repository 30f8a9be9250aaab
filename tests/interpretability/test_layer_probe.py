"""Compare linear probes with scikit-learn, and test the control experiments."""

from __future__ import annotations

import json

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from bert_jax.interpretability.layer_probe import probe_layers
from bert_jax.interpretability.word_states import WordStates
from bert_jax.labeled_data.treebank import ParsedSentence, Treebank

NOUNS = ["rain", "road", "wales", "tail", "dog"]
VERBS = ["falls", "runs", "ends", "gets"]


@pytest.fixture(scope="module")
def treebanks(tmp_path_factory) -> tuple[Treebank, Treebank]:
    """Return a training and a test treebank with sentences such as "the rain falls"."""
    rng = np.random.default_rng(0)
    directory = tmp_path_factory.mktemp("treebanks")

    def make(name: str, count: int) -> Treebank:
        sentences = [
            ParsedSentence(
                ("the", str(rng.choice(NOUNS)), str(rng.choice(VERBS)), "."),
                np.array([1, 2, -1, 2]),
                ("det", "nsubj", "root", "punct"),
                ("DET", "NOUN", "VERB", "PUNCT"),
            )
            for _ in range(count)
        ]
        return Treebank(directory / name, sentences, 0, 0)

    return make("train", 200), make("test", 50)


def vectors_and_tags(work_dir, treebank):
    pairs = list(WordStates(work_dir)(treebank.sentences))
    tags = [tag for sentence, _ in pairs for tag in sentence.tags]
    return np.concatenate([vectors for _, vectors in pairs], axis=1), np.array(tags)


def test_probes_are_as_accurate_as_scikit_learn(import_pair, treebanks):
    work_dir = import_pair("Bert", "encoder")[1]
    train, test = treebanks
    probe = probe_layers(work_dir, train, test, num_seeds=2)
    assert set(probe.labels) == {"DET", "NOUN", "VERB", "PUNCT"}
    assert (probe.num_train, probe.num_test) == (800, 200)
    assert probe.most_frequent == 0.25
    vectors, tags = vectors_and_tags(work_dir, train)
    test_vectors, test_tags = vectors_and_tags(work_dir, test)
    for layer in range(3):
        mean, scale = vectors[layer].mean(axis=0), vectors[layer].std(axis=0)
        classifier = LogisticRegression(max_iter=1000).fit((vectors[layer] - mean) / scale, tags)
        expected = classifier.score((test_vectors[layer] - mean) / scale, test_tags)
        np.testing.assert_allclose(probe.accuracies[0, layer], expected, atol=0.03)


def test_controls_are_less_accurate_and_seeds_are_reproducible(import_pair, treebanks, tmp_path):
    work_dir = import_pair("Bert", "encoder")[1]
    first, again = (probe_layers(work_dir, *treebanks, num_seeds=2) for _ in range(2))
    np.testing.assert_array_equal(first.accuracies, again.accuracies)
    trained, _, shuffled = first.accuracies
    assert shuffled.mean() < trained.mean()
    first.save(tmp_path / "probe.json")
    saved = json.loads((tmp_path / "probe.json").read_text(encoding="utf-8"))
    np.testing.assert_allclose(saved["accuracies"]["trained"], trained, atol=1e-4)


def test_random_weights_depend_only_on_the_seed(import_pair, treebanks):
    states = WordStates(import_pair("Bert", "encoder")[1])
    sentences = treebanks[0].sentences[:1]

    def vectors(source: WordStates) -> np.ndarray:
        ((_, array),) = source(sentences)
        return array

    first, again, other = (vectors(states.with_random_weights(seed)) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    for different in (other, vectors(states)):
        assert first.shape == different.shape and not np.allclose(first, different)


def test_relations_can_be_probed_too(import_pair, treebanks):
    probe = probe_layers(
        import_pair("Bert", "encoder")[1], *treebanks, target="relations", num_seeds=1
    )
    assert set(probe.labels) == {"det", "nsubj", "root", "punct"}


def test_requests_that_make_no_sense_are_rejected(import_pair, treebanks):
    work_dir = import_pair("Bert", "encoder")[1]
    with pytest.raises(ValueError, match="^target='words': expected one of 'tags', 'relations'"):
        probe_layers(work_dir, *treebanks, target="words")
    with pytest.raises(ValueError, match="^num_seeds=0: expected at least 1"):
        probe_layers(work_dir, *treebanks, num_seeds=0)


def test_the_command_prints_the_accuracies(bert_jax_here, import_pair, tmp_path):
    rows = ["1\tit\t_\tPRON\t_\t_\t2\tnsubj\t_\t_", "2\train\t_\tVERB\t_\t_\t0\troot\t_\t_", ""]
    for split in ("train", "test"):
        text = "\n".join(rows * 20) + "\n"
        (tmp_path / f"en-ud-{split}.conllu").write_text(text, encoding="utf-8")
    work_dir = import_pair("Bert", "encoder")[1]
    printed = bert_jax_here("probe", work_dir, "--treebank", tmp_path, "--target", "tags")
    assert printed.code == 0, printed.errors
    assert "shuffled labels" in printed.output
    assert "2 tags; 40 training words, 40 test words" in printed.output
    refused = bert_jax_here(
        *("probe", work_dir, "--treebank", tmp_path, "--target", "tags", "--min-count", "5")
    )
    assert refused.code == 2 and "--min-count=5: applies only to" in refused.errors
