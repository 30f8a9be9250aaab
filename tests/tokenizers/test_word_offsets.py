"""Test that slicing a text at its word offsets gives its words, for every supported pipeline.

A pipeline is a combination of a normalizer, a pre-tokenizer and a post-processor.
"""

from __future__ import annotations

import random
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from tokenizers import models, normalizers, processors
from tokenizers import pre_tokenizers as splitters

from bert_jax.labeled_data.answers import best_answers
from bert_jax.labeled_data.span_windows import span_windows
from bert_jax.labeled_data.squad import SpanExample
from bert_jax.tokenizers.tokenizer import Tokenizer
from bert_jax.tokenizers.words import split_words

BYTES = sorted(splitters.ByteLevel.alphabet())
# Words that no pipeline splits: Latin with composed and combining marks, letters whose bytes look
# like punctuation to a pre-tokenizer after ByteLevel, other scripts, an emoji, and a symbol.
WORDS = [
    *("Amsterdam", "is", "a", "reële", "lágrimas", "Çà", "naïve", "Cafe\u0301s", "e\u0301"),
    *("Москва", "पत्नी", "मेरे", "한국", "\u1112\u1161\u11ab", "中", "が", "か\u3099", "🙂", "§", "x"),
]
MARKS = [",", ".", "!", "«", "…", "、"]
SPACES = [" ", "  ", "\n", "\t", " \n ", "\u00a0", "\u3000", "\r\n"]

NORMALIZERS = {
    "none": None,
    "nfc": normalizers.NFC(),
    "nfd": normalizers.NFD(),
    "nfkc": normalizers.NFKC(),
    "stripped": normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents()]),
    "lower": normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()]),
}


def byte_level(prefix: bool, regex: bool = True) -> Any:
    return splitters.ByteLevel(add_prefix_space=prefix, use_regex=regex)


BYTE_SPLITTERS = {
    "byte level only": lambda prefix: byte_level(prefix),
    "robbert": lambda prefix: splitters.Sequence(
        [splitters.Whitespace(), byte_level(prefix), splitters.Punctuation()]
    ),
    "whitespace before": lambda prefix: splitters.Sequence(
        [splitters.WhitespaceSplit(), byte_level(prefix)]
    ),
    "punctuation before": lambda prefix: splitters.Sequence(
        [splitters.Punctuation(), byte_level(prefix)]
    ),
    "nested": lambda prefix: splitters.Sequence(
        [
            splitters.Sequence([splitters.Digits(individual_digits=True), byte_level(prefix)]),
            splitters.Sequence([splitters.Punctuation(), splitters.Digits()]),
        ]
    ),
    "bert before, no words": lambda prefix: splitters.Sequence(
        [splitters.BertPreTokenizer(), byte_level(prefix, regex=False)]
    ),
}
POST = {
    "trim": lambda prefix: processors.RobertaProcessing(
        ("</s>", 2), ("<s>", 0), trim_offsets=True, add_prefix_space=prefix
    ),
    "keep": lambda prefix: processors.RobertaProcessing(
        ("</s>", 2), ("<s>", 0), trim_offsets=False, add_prefix_space=prefix
    ),
    "none": lambda prefix: None,
}


def loaded(backend: tokenizers.Tokenizer, directory: Path) -> Tokenizer:
    backend.save(str(directory / "tokenizer.json"))
    return Tokenizer.load(directory)


def byte_bpe(
    directory: Path, splitter: Any, normalizer: Any = None, post_processor: Any = None
) -> Tokenizer:
    entries = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", *BYTES, "is", "Ġis"]
    vocabulary = {entry: number for number, entry in enumerate(entries)}
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, [("i", "s"), ("Ġ", "is")]))
    backend.pre_tokenizer = splitter
    if normalizer is not None:
        backend.normalizer = normalizer
    if post_processor is not None:
        backend.post_processor = post_processor
    return loaded(backend, directory)


def wordpiece(directory: Path, splitter: Any, normalizer: Any) -> Tokenizer:
    entries = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "is", "a", "x", "##x", "am"]
    backend = tokenizers.Tokenizer(models.WordPiece(dict(zip(entries, range(10), strict=True))))
    backend.pre_tokenizer = splitter
    if normalizer is not None:
        backend.normalizer = normalizer
    return loaded(backend, directory)


def unigram(directory: Path, splitter: Any, normalizer: Any) -> Tokenizer:
    entries = ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]", "▁", "▁is", "▁a", "a", "s", "x"]
    backend = tokenizers.Tokenizer(models.Unigram([(e, -1.0) for e in entries], unk_id=1))
    backend.pre_tokenizer = splitter
    if normalizer is not None:
        backend.normalizer = normalizer
    return loaded(backend, directory)


def random_text(seed: int, *, marks: bool = True) -> tuple[str, list[str]]:
    """Return (text, words): a random text, and the words and marks that it consists of."""
    rng = random.Random(seed)
    text = rng.choice(["", *SPACES])
    words: list[str] = []
    for _ in range(rng.randint(1, 9)):
        word = rng.choice(WORDS)
        words.append(word)
        text += word
        if marks and word[-1].isalpha() and rng.random() < 0.3:
            mark = rng.choice(MARKS)
            words.append(mark)
            text += mark
        text += rng.choice(SPACES)
    return text.rstrip() if rng.random() < 0.5 else text, words


def check_words(tokenizer: Tokenizer, *, marks: bool = True) -> None:
    texts, expected = zip(*(random_text(seed, marks=marks) for seed in range(60)), strict=True)
    for text, strings, words in zip(texts, expected, split_words(tokenizer, texts), strict=True):
        assert [text[word.start : word.end] for word in words] == strings, repr(text)
        assert all(word.text == text[word.start : word.end] for word in words)


def check_tokens(tokenizer: Tokenizer) -> None:
    """Check that tokens are in order and cover every character except white space and marks."""
    texts = [random_text(seed)[0] for seed in range(60)]
    for text, located in zip(texts, tokenizer.encode_with_offsets(texts), strict=True):
        starts, ends = located.offsets.T
        assert (
            (np.diff(starts) >= 0).all() and (np.diff(ends) >= 0).all() and (starts <= ends).all()
        )
        covered = {place for start, end in located.offsets.tolist() for place in range(start, end)}
        for place, character in enumerate(text):
            if not character.isspace() and unicodedata.category(character)[0] != "M":
                # NFC merges these characters into one syllable.
                jamo = "\u1160" <= character <= "\u11ff"
                assert place in covered or jamo, (text, place)
        for start, end in located.offsets.tolist():
            assert text[start:end] == text[start:end].strip()


@pytest.mark.parametrize("prefix", [True, False])
@pytest.mark.parametrize("post_processor", POST)
@pytest.mark.parametrize("splitter", BYTE_SPLITTERS)
def test_words_of_byte_level_bpe(splitter, post_processor, prefix, tmp_path):
    for normalizer in NORMALIZERS.values():
        processor = POST[post_processor](prefix)
        tokenizer = byte_bpe(tmp_path, BYTE_SPLITTERS[splitter](prefix), normalizer, processor)
        check_words(tokenizer)
        check_tokens(tokenizer)


@pytest.mark.parametrize("normalizer", [*NORMALIZERS, "bert", "bert with accents", "cased"])
def test_words_of_wordpiece(normalizer, tmp_path):
    text_normalizer = NORMALIZERS.get(normalizer) or {
        "bert": normalizers.BertNormalizer(lowercase=True),
        "bert with accents": normalizers.BertNormalizer(lowercase=True, strip_accents=False),
        "cased": normalizers.BertNormalizer(lowercase=False),
    }.get(normalizer)
    for splitter, marks in (
        (splitters.BertPreTokenizer(), True),
        (splitters.Sequence([splitters.WhitespaceSplit(), splitters.Punctuation()]), True),
        (splitters.Whitespace(), True),
        (splitters.WhitespaceSplit(), False),
        (splitters.Sequence([splitters.WhitespaceSplit(), splitters.Metaspace()]), False),
        (splitters.Sequence([byte_level(True), splitters.Punctuation()]), True),
    ):
        tokenizer = wordpiece(tmp_path, splitter, text_normalizer)
        check_words(tokenizer, marks=marks)
        check_tokens(tokenizer)


@pytest.mark.parametrize("normalizer", NORMALIZERS)
@pytest.mark.parametrize("scheme", ["always", "first", "never"])
def test_words_of_sentencepiece(normalizer, scheme, tmp_path):
    for splitter in (
        splitters.Sequence(
            [splitters.WhitespaceSplit(), splitters.Metaspace(prepend_scheme=scheme)]
        ),
        splitters.Metaspace(prepend_scheme=scheme),
    ):
        tokenizer = unigram(tmp_path, splitter, NORMALIZERS[normalizer])
        check_words(tokenizer)
        check_tokens(tokenizer)


def test_a_suffix_at_the_beginning_of_a_text_is_split_if_a_space_is_added(tmp_path):
    """Split "'s" at the beginning into two words if ByteLevel adds a space before it."""
    for prefix in (True, False):
        plain = byte_bpe(tmp_path, byte_level(prefix))
        sequence = byte_bpe(tmp_path, splitters.Sequence([byte_level(prefix), splitters.Digits()]))
        for text in ("'s is a's", "'tis", " 's"):
            assert split_words(plain, [text]) == split_words(sequence, [text])
        first = split_words(plain, ["'s is"])[0][0].text
        assert first == ("'" if prefix else "'s")


def test_answers_predicted_from_gold_tokens_are_the_gold_answers(tmp_path):
    """Keep the first letter of each answer, which a pipeline like RobBERT's once removed."""
    splitter = BYTE_SPLITTERS["robbert"](True)
    tokenizer = byte_bpe(tmp_path, splitter, post_processor=POST["trim"](True))
    context = "Amsterdam is a port, België een koninkrijk; (Çà) is elsewhere."
    gold = ["Amsterdam", "is", "port", "België", "Çà", "een koninkrijk", "elsewhere"]
    examples = [
        SpanExample(answer, "Which?", context, "", (answer,), (context.index(answer),))
        for answer in gold
    ]
    sizes = dict(max_length=160, doc_stride=32, max_query_length=16)
    windows = span_windows(examples, tokenizer, **sizes, labeled=True)
    length = int(windows.features.lengths.max())
    logits = []
    for side in ("start_positions", "end_positions"):
        logits.append(np.zeros((len(windows), length), np.float32))
        logits[-1][np.arange(len(windows)), windows.features.targets[side]] = 10
    answers = best_answers(windows, examples, *logits, n_best=1)
    assert [answer.candidates[0].text for answer in answers] == gold


@pytest.mark.parametrize(
    "following",
    [splitters.Split("Ġ", "isolated"), splitters.CharDelimiterSplit("i"), byte_level(False)],
    ids=["Split", "CharDelimiterSplit", "ByteLevel"],
)
def test_pre_tokenizers_that_split_bytes_are_refused(following, tmp_path):
    splitter = splitters.Sequence([byte_level(True), following])
    with pytest.raises(ValueError, match="comes after ByteLevel and splits bytes"):
        byte_bpe(tmp_path, splitter)


def test_an_added_token_is_a_word(tmp_path):
    byte_bpe(tmp_path, BYTE_SPLITTERS["robbert"](True))
    backend = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    backend.add_tokens(["covid-19"])
    (words,) = split_words(loaded(backend, tmp_path), ["a covid-19 x-ray <mask>"])
    assert [word.text for word in words] == [
        *("a", "covid-19", "x", "-", "ray", "<", "mask", ">"),
    ]  # fmt: skip
