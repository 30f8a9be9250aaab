"""Test that token windows match Hugging Face's tokens and score each word once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from transformers import BertTokenizerFast

from bert_jax.labeled_data.tag_features import TagFeatures, tag_features, word_tags
from bert_jax.labeled_data.tags import TagFiles, TagSentences, collect_labels, read_tags
from bert_jax.tokenizers.tokenizer import Tokenizer

SETS = {
    "wnut17": ("ner_wnut17/emerging.dev.conll", "columns"),
    "ud_ewt": ("ud_ewt/en_ewt-ud-dev.conllu", "conllu"),
}


def dev_set(shared_data: Path, name: str) -> TagSentences:
    path, kind = SETS[name]
    files = TagFiles(validation=str(shared_data / path), kind=kind)  # type: ignore[arg-type]
    return read_tags(files, "validation", labeled=True)


def window(features: TagFeatures, number: int) -> slice:
    starts = features.features.sequences.starts
    return slice(int(starts[number]), int(starts[number + 1]))


def check_words_and_windows(
    features: TagFeatures, sentences: TagSentences, max_length: int
) -> None:
    """Check that windows are short enough and that each word is scored once, with its tag."""
    assert sentences.tags is not None
    assert features.features.lengths.max() <= max_length
    scored = sorted(zip(features.sentences.tolist(), features.words.tolist(), strict=True))
    expected = [(s, w) for s, words in enumerate(sentences.words) for w in range(len(words))]
    assert scored == expected
    targets = features.features.token_targets
    assert targets["label_weights"].sum() == len(expected)
    assert word_tags(features, targets["labels"]) == sentences.tags


@pytest.mark.parametrize("name", SETS)
def test_first_tokens_of_words_match_hugging_face(shared_data: Path, name: str) -> None:
    sentences = dev_set(shared_data, name)
    vocabulary = shared_data / "vocab/bert-base-uncased/vocab.txt"
    features = tag_features(
        sentences,
        Tokenizer.load(vocabulary),
        512,
        collect_labels(sentences),
        document_context=False,
    )
    check_words_and_windows(features, sentences, 512)
    # No sentence is longer than 512 tokens, so each one has a single window.
    assert len(features.features) == len(sentences)
    hf_tokenizer = BertTokenizerFast(vocab=str(vocabulary))
    encoded = hf_tokenizer(sentences.words, is_split_into_words=True)
    weights = features.features.token_targets["label_weights"]
    ids = features.features.sequences.token_ids
    without_tokens = 0
    for number, words in enumerate(sentences.words):
        word_ids = encoded.word_ids(number)
        firsts = {word: index for index, word in reversed(list(enumerate(word_ids)))}
        firsts.pop(None)
        tokens = window(features, number)
        expected_ids = encoded["input_ids"][number]
        if len(firsts) == len(words):
            assert ids[tokens].tolist() == expected_ids
            scored = np.flatnonzero(weights[tokens]).tolist()
            assert scored == [firsts[word] for word in range(len(words))]
        else:  # A word without tokens is scored at an [UNK].
            without_tokens += len(words) - len(firsts)
            unknown = hf_tokenizer.unk_token_id
            kept = [token for token in ids[tokens].tolist() if token != unknown]
            assert kept == [token for token in expected_ids if token != unknown]
    assert without_tokens < 10


@pytest.mark.parametrize("context", [False, True])
@pytest.mark.parametrize("max_length", [3, 4, 9, 24, 64])
def test_each_word_is_scored_once_for_all_lengths(
    shared_data: Path, max_length: int, context: bool
) -> None:
    sentences = dev_set(shared_data, "ud_ewt")
    tokenizer = Tokenizer.load(shared_data / "vocab/bert-base-uncased/vocab.txt")
    labels = collect_labels(sentences)
    features = tag_features(sentences, tokenizer, max_length, labels, document_context=context)
    check_words_and_windows(features, sentences, max_length)


def test_context_is_as_much_of_the_document_as_fits(shared_data: Path) -> None:
    sentences = dev_set(shared_data, "ud_ewt")
    assert sentences.documents is not None
    vocabulary = shared_data / "vocab/bert-base-uncased/vocab.txt"
    features = tag_features(
        sentences, Tokenizer.load(vocabulary), 64, collect_labels(sentences), document_context=True
    )
    hf_tokenizer = BertTokenizerFast(vocab=str(vocabulary))
    documents: dict[int, list[str]] = {}
    for document, words in zip(sentences.documents, sentences.words, strict=True):
        documents.setdefault(document, []).extend(words)
    texts = {
        document: hf_tokenizer(words, is_split_into_words=True, add_special_tokens=False).input_ids
        for document, words in documents.items()
    }
    sentence_of = dict(zip(features.positions.tolist(), features.sentences.tolist(), strict=True))
    weights = features.features.token_targets["label_weights"]
    num_unscored = 0
    for number in range(len(features.features)):
        tokens = window(features, number)
        scored = tokens.start + np.flatnonzero(weights[tokens])
        # A window also contains neighboring sentences, but scores only one sentence.
        (sentence,) = {sentence_of[position] for position in scored.tolist()}
        text = texts[sentences.documents[sentence]]
        ids = features.features.sequences.token_ids[tokens][1:-1].tolist()
        assert len(ids) == min(62, len(text))
        starts = range(len(text) - len(ids) + 1)
        assert any(text[start : start + len(ids)] == ids for start in starts)
        num_unscored += tokens.stop - tokens.start - 2 - len(scored)
    assert num_unscored > 0.5 * len(weights)


@pytest.fixture
def tokenizer(tmp_path: Path) -> Tokenizer:
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join("[PAD] [UNK] [CLS] [SEP] [MASK] a ##a b c d e f".split()))
    return Tokenizer.load(path)


def sentences_of(*texts: str, documents: list[int] | None = None) -> TagSentences:
    words = [text.split(" ") for text in texts]
    locations = [[f"f:{number}"] * len(sentence) for number, sentence in enumerate(words, 1)]
    return TagSentences(words, None, locations, documents)


def windows_of(features: TagFeatures) -> list[tuple[list[int], list[int]]]:
    ids, weights = (
        features.features.sequences.token_ids,
        features.features.token_targets["label_weights"],
    )
    return [
        (ids[window(features, n)].tolist(), weights[window(features, n)].tolist())
        for n in range(len(features.features))
    ]


def test_long_sentences_are_split_into_parts_with_context(tokenizer: Tokenizer) -> None:
    sentences = sentences_of("b c d e f", "f")
    features = tag_features(sentences, tokenizer, 6, ("X", "Y"), document_context=False)
    assert windows_of(features) == [
        ([2, 7, 8, 9, 10, 3], [0, 1, 1, 0, 0, 0]),
        ([2, 8, 9, 10, 11, 3], [0, 0, 1, 1, 0, 0]),
        ([2, 8, 9, 10, 11, 3], [0, 0, 0, 0, 1, 0]),
        ([2, 11, 3], [0, 1, 0]),
    ]
    predicted = np.zeros(21, np.int32)
    predicted[[8, 16, 19]] = 1
    assert word_tags(features, predicted) == [["X", "X", "Y", "X", "Y"], ["Y"]]


def test_context_comes_from_both_sides_of_the_same_document(
    tokenizer: Tokenizer,
) -> None:
    sentences = sentences_of("a b", "c", "d e", "f", documents=[1, 1, 1, 2])
    features = tag_features(sentences, tokenizer, 5, ("X",), document_context=True)
    assert windows_of(features) == [
        ([2, 5, 7, 8, 3], [0, 1, 1, 0, 0]),
        ([2, 7, 8, 9, 3], [0, 0, 1, 0, 0]),
        ([2, 8, 9, 10, 3], [0, 0, 1, 1, 0]),
        ([2, 11, 3], [0, 1, 0]),
    ]


def test_words_without_tokens_and_long_words_are_handled(tokenizer: Tokenizer) -> None:
    sentences = sentences_of("b \u200b aaaaaa c")
    features = tag_features(sentences, tokenizer, 6, ("X",), document_context=False)
    assert windows_of(features) == [
        ([2, 7, 1, 5, 6, 3], [0, 1, 1, 0, 0, 0]),
        ([2, 5, 6, 6, 6, 3], [0, 1, 0, 0, 0, 0]),
        ([2, 6, 6, 6, 8, 3], [0, 0, 0, 0, 1, 0]),
    ]
    assert set(features.features.token_targets) == {"label_weights"}


def test_invalid_arguments_are_rejected(tokenizer: Tokenizer) -> None:
    sentences = sentences_of("b c")
    with pytest.raises(ValueError, match="f: document_context=True, but no line marks"):
        tag_features(sentences, tokenizer, 8, ("X",), document_context=True)
    # Evaluation ignores document_context, so the same sentences do not cause an error there.
    with_context, without_context = (
        tag_features(sentences, tokenizer, 8, ("X",), document_context=context, for_evaluation=True)
        for context in (True, False)
    )
    assert windows_of(with_context) == windows_of(without_context)
    with pytest.raises(ValueError, match="max_length=2: expected at least 3"):
        tag_features(sentences, tokenizer, 2, ("X",), document_context=False)
    sentences.tags = [["X", "Z"]]
    with pytest.raises(ValueError, match="f:1: tag 'Z' is not one of 'X'"):
        tag_features(sentences, tokenizer, 8, ("X",), document_context=False)


def test_unknown_tags_have_no_weight_in_evaluations(tokenizer: Tokenizer) -> None:
    sentences = sentences_of("b c d")
    sentences.tags = [["Y", "Z", "X"]]
    labels = ("X", "Y")
    features = tag_features(
        sentences, tokenizer, 8, labels, document_context=False, for_evaluation=True
    )
    assert windows_of(features) == [([2, 7, 8, 9, 3], [0, 1, 0, 1, 0])]
    assert features.features.token_targets["labels"].tolist() == [0, 1, 0, 0, 0]
    assert word_tags(features, np.array([0, 1, 1, 0, 0])) == [["Y", "Y", "X"]]
