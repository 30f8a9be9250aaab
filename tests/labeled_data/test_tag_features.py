"""Windows of tagged sentences: Hugging Face's tokens and words, every word scored once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from transformers import BertTokenizerFast

from bert_jax.labeled_data.tag_features import TagFeatures, tag_features, tags_of
from bert_jax.labeled_data.tags import TagFiles, TagSentences, collect_labels, read_tags
from bert_jax.tokenizers.tokenizer import Tokenizer

SETS = {
    "wnut17": ("ner_wnut17/emerging.dev.conll", "columns"),
    "ud_ewt": ("ud_ewt/en_ewt-ud-dev.conllu", "conllu"),
}


def dev_set(shared_data: Path, name: str) -> TagSentences:
    path, kind = SETS[name]
    files = TagFiles(validation=str(shared_data / path), kind=kind)  # type: ignore[arg-type]
    return read_tags(files, "validation", labelled=True)


def window(features: TagFeatures, number: int) -> slice:
    starts = features.features.sequences.starts
    return slice(int(starts[number]), int(starts[number + 1]))


def check_bookkeeping(features: TagFeatures, sentences: TagSentences, max_length: int) -> None:
    """Every word scored once, each with its tag, in windows that are short enough."""
    assert sentences.tags is not None
    assert features.features.lengths.max() <= max_length
    scored = sorted(zip(features.sentences.tolist(), features.words.tolist(), strict=True))
    expected = [(s, w) for s, words in enumerate(sentences.words) for w in range(len(words))]
    assert scored == expected
    targets = features.features.token_targets
    assert targets["label_weights"].sum() == len(expected)
    assert tags_of(features, targets["labels"]) == sentences.tags


@pytest.mark.parametrize("name", SETS)
def test_first_word_pieces_are_those_of_hugging_face(shared_data: Path, name: str) -> None:
    sentences = dev_set(shared_data, name)
    vocabulary = shared_data / "vocab/bert-base-uncased/vocab.txt"
    features = tag_features(
        sentences,
        Tokenizer.load(vocabulary),
        512,
        collect_labels(sentences),
        document_context=False,
    )
    check_bookkeeping(features, sentences, 512)
    assert len(features.features) == len(sentences)  # none is longer than 512 tokens
    theirs = BertTokenizerFast(vocab=str(vocabulary))
    encoded = theirs(sentences.words, is_split_into_words=True)
    weights = features.features.token_targets["label_weights"]
    ids = features.features.sequences.token_ids
    without_pieces = 0
    for number, words in enumerate(sentences.words):
        word_ids = encoded.word_ids(number)
        firsts = {word: place for place, word in reversed(list(enumerate(word_ids)))}
        firsts.pop(None)
        here = window(features, number)
        if len(firsts) == len(words):
            assert ids[here].tolist() == encoded["input_ids"][number]
            assert np.flatnonzero(weights[here]).tolist() == [firsts[w] for w in range(len(words))]
        else:  # words without a word-piece: we score an [UNK] in their place
            without_pieces += len(words) - len(firsts)
            kept = [token for token in ids[here].tolist() if token != theirs.unk_token_id]
            assert kept == [t for t in encoded["input_ids"][number] if t != theirs.unk_token_id]
    assert without_pieces < 10


@pytest.mark.parametrize("context", [False, True])
@pytest.mark.parametrize("max_length", [3, 4, 9, 24, 64])
def test_every_word_is_scored_once_whatever_the_length(
    shared_data: Path, max_length: int, context: bool
) -> None:
    sentences = dev_set(shared_data, "ud_ewt")
    tokenizer = Tokenizer.load(shared_data / "vocab/bert-base-uncased/vocab.txt")
    labels = collect_labels(sentences)
    features = tag_features(sentences, tokenizer, max_length, labels, document_context=context)
    check_bookkeeping(features, sentences, max_length)


def test_context_is_all_of_the_document_that_fits(shared_data: Path) -> None:
    sentences = dev_set(shared_data, "ud_ewt")
    assert sentences.documents is not None
    vocabulary = shared_data / "vocab/bert-base-uncased/vocab.txt"
    features = tag_features(
        sentences, Tokenizer.load(vocabulary), 64, collect_labels(sentences), document_context=True
    )
    theirs = BertTokenizerFast(vocab=str(vocabulary))
    documents: dict[int, list[str]] = {}
    for document, words in zip(sentences.documents, sentences.words, strict=True):
        documents.setdefault(document, []).extend(words)
    texts = {
        document: theirs(words, is_split_into_words=True, add_special_tokens=False)["input_ids"]
        for document, words in documents.items()
    }
    owner_of = dict(zip(features.positions.tolist(), features.sentences.tolist(), strict=True))
    weights = features.features.token_targets["label_weights"]
    outside = 0
    for number in range(len(features.features)):
        here = window(features, number)
        scored = here.start + np.flatnonzero(weights[here])
        owners = {owner_of[place] for place in scored.tolist()}
        assert len(owners) == 1  # one sentence is scored, its neighbours are not
        text = texts[sentences.documents[owners.pop()]]
        inside = features.features.sequences.token_ids[here][1:-1].tolist()
        assert len(inside) == min(62, len(text))
        runs = range(len(text) - len(inside) + 1)
        assert any(text[start : start + len(inside)] == inside for start in runs)
        outside += here.stop - here.start - 2 - len(scored)
    assert outside > 0.5 * len(weights)


@pytest.fixture
def tokenizer(tmp_path: Path) -> Tokenizer:
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join("[PAD] [UNK] [CLS] [SEP] [MASK] a ##a b c d e f".split()))
    return Tokenizer.load(path)


def sentences_of(*texts: str, documents: list[int] | None = None) -> TagSentences:
    words = [text.split(" ") for text in texts]
    places = [[f"f:{number}" for _ in each] for number, each in enumerate(words, 1)]
    return TagSentences(words, None, places, documents)


def windows_of(features: TagFeatures) -> list[tuple[list[int], list[int]]]:
    ids, weights = (
        features.features.sequences.token_ids,
        features.features.token_targets["label_weights"],
    )
    return [
        (ids[window(features, n)].tolist(), weights[window(features, n)].tolist())
        for n in range(len(features.features))
    ]


def test_long_sentences_are_taken_by_parts_in_their_own_context(tokenizer: Tokenizer) -> None:
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
    assert tags_of(features, predicted) == [["X", "X", "Y", "X", "Y"], ["Y"]]


def test_context_comes_from_both_sides_and_never_from_another_document(
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


def test_words_without_pieces_and_words_too_long(tokenizer: Tokenizer) -> None:
    sentences = sentences_of("b \u200b aaaaaa c")
    features = tag_features(sentences, tokenizer, 6, ("X",), document_context=False)
    assert windows_of(features) == [
        ([2, 7, 1, 5, 6, 3], [0, 1, 1, 0, 0, 0]),
        ([2, 5, 6, 6, 6, 3], [0, 1, 0, 0, 0, 0]),
        ([2, 6, 6, 6, 8, 3], [0, 0, 0, 0, 1, 0]),
    ]
    assert set(features.features.token_targets) == {"label_weights"}


def test_what_cannot_be_is_said(tokenizer: Tokenizer) -> None:
    sentences = sentences_of("b c")
    with pytest.raises(ValueError, match="f: document_context is True, but no line says"):
        tag_features(sentences, tokenizer, 8, ("X",), document_context=True)
    # What is judged has no context then.
    judged, alone = (
        tag_features(sentences, tokenizer, 8, ("X",), document_context=context, judged=True)
        for context in (True, False)
    )
    assert windows_of(judged) == windows_of(alone)
    with pytest.raises(ValueError, match="max_length is 2; expected at least 3"):
        tag_features(sentences, tokenizer, 2, ("X",), document_context=False)
    sentences.tags = [["X", "Z"]]
    with pytest.raises(ValueError, match="f:1: tag 'Z'; expected one of 'X'"):
        tag_features(sentences, tokenizer, 8, ("X",), document_context=False)


def test_tags_that_were_not_learned_have_no_weight_where_they_are_judged(
    tokenizer: Tokenizer,
) -> None:
    sentences = sentences_of("b c d")
    sentences.tags = [["Y", "Z", "X"]]
    labels = ("X", "Y")
    features = tag_features(sentences, tokenizer, 8, labels, document_context=False, judged=True)
    assert windows_of(features) == [([2, 7, 8, 9, 3], [0, 1, 0, 1, 0])]
    assert features.features.token_targets["labels"].tolist() == [0, 1, 0, 0, 0]
    assert tags_of(features, np.array([0, 1, 1, 0, 0])) == [["Y", "Y", "X"]]
