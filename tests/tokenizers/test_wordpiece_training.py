import os
import subprocess
import sys

import numpy as np
import pytest

from bert_jax.tokenizers.byte_bpe_training import train_byte_bpe
from bert_jax.tokenizers.sentencepiece_training import train_sentencepiece
from bert_jax.tokenizers.training import WordLimit
from bert_jax.tokenizers.wordpiece_training import train_wordpiece

TEXT = [
    "The quick brown fox jumps over the lazy dog; the dog sleeps on and on.",
    "Training words, trained word pieces, trainers train wordpieces: a training text.",
    "Café, cafe\u0301, CAFÉ — naïve naïveté, déjà vu, 漢字 漢字, Ελληνικά Ελληνικά",
] * 20


def test_ids_are_in_berts_order():
    tokenizer = train_wordpiece(TEXT, vocab_size=400)
    entries = list(tokenizer.vocabulary)
    assert entries[0] == "[PAD]"
    assert entries[1:100] == [f"[unused{i}]" for i in range(99)]
    assert entries[100:104] == ["[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    assert list(tokenizer.vocabulary.values()) == list(range(len(entries)))
    tokenizer = train_wordpiece(TEXT, vocab_size=400, num_unused=0)
    assert list(tokenizer.vocabulary)[:5] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def test_the_vocabulary_has_the_requested_size_if_the_text_is_large_enough():
    generator = np.random.default_rng(0)
    syllables = [a + b for a in "bcdfghjklmnp" for b in "aeiou"]
    text = [" ".join("".join(generator.choice(syllables, 3)) for _ in range(500))] * 2
    for size in (300, 500):
        assert train_wordpiece(text, vocab_size=size).vocab_size == size


def test_frequent_words_are_entries_and_no_character_is_unknown():
    tokenizer = train_wordpiece(TEXT, vocab_size=1000)
    for word in ("the", "training", "wordpieces", "cafe", "naive", "ελληνικα"):
        assert word in tokenizer.vocabulary
    ids = tokenizer.encode_batch([*TEXT, "words that are not in it: zebra quokka"])
    assert tokenizer.unk_id not in {token_id for row in ids for token_id in row}
    cased = train_wordpiece(TEXT, vocab_size=1000, lowercase=False)
    for word in ("The", "the", "Training", "CAFÉ", "Ελληνικά"):
        assert word in cased.vocabulary
    assert "the" in cased.vocabulary and "The" not in tokenizer.vocabulary


def test_only_characters_that_can_continue_a_word_have_a_continuation():
    vocabulary = train_wordpiece(TEXT, vocab_size=1000).vocabulary
    assert {"漢", ",", ";", "a", "##a", "##κ"} <= vocabulary.keys()
    assert not {"##漢", "##,", "##;", "é", "\u0301"} & vocabulary.keys()


def test_rare_characters_are_excluded_and_the_alphabet_is_limited():
    assert "z" in train_wordpiece(["abc abc z"] * 2, vocab_size=204).vocabulary
    assert "z" not in train_wordpiece(["abc abc z"], vocab_size=204).vocabulary
    many = " ".join(map(chr, range(0x400, 0x460))) + " " + " ".join(map(chr, range(0x561, 0x586)))
    tokenizer = train_wordpiece([many, "the cat the cat"] * 3, vocab_size=105, num_unused=0)
    characters = [entry for entry in tokenizer.vocabulary if len(entry) == 1]
    assert len(characters) == 25


PROGRAM = """
import random
from bert_jax.tokenizers.wordpiece_training import train_wordpiece
generator = random.Random(0)
letters = "abcdefghij\u00e9\u4e2d"
words = ["".join(generator.choices(letters, k=generator.randint(1, 9))) for _ in range(3000)]
text = [" ".join(generator.choices(words, k=50)) for _ in range(2000)]
print(train_wordpiece(text, vocab_size=1500, lowercase=False).fingerprint)
"""


def test_the_vocabulary_is_reproducible_across_processes():
    fingerprints = {
        subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env=os.environ | {"PYTHONHASHSEED": str(seed), "TOKENIZERS_PARALLELISM": parallel},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed, parallel in enumerate(["true", "false", "true"])
    }
    assert len(fingerprints) == 1


def test_a_sample_is_spread_evenly_over_the_text():
    documents = [f"word{i:04d} " * 50 for i in range(1000)]
    tokens = train_wordpiece(documents, vocab_size=4000, max_bytes=45_000).vocabulary
    sampled = [i for i in range(1000) if f"word{i:04d}" in tokens]
    assert len(sampled) == 100
    assert np.diff(sampled).max() == np.diff(sampled).min() == 10
    tokens = train_wordpiece(documents, vocab_size=4000, max_bytes=450_000).vocabulary
    assert all(f"word{i:04d}" in tokens for i in range(1000))


def test_a_document_longer_than_a_chunk_is_split_between_words():
    words = [f"w{i:07d}" for i in range(40)]
    long = " ".join(words * 1000)
    tokens = train_wordpiece([long], vocab_size=1000, min_frequency=900).vocabulary
    assert {word for word in tokens if word.startswith("w0") and len(word) == 8} == set(words)


@pytest.mark.parametrize(
    ("documents", "arguments", "message"),
    [
        (iter(["a"]), {}, "documents: this is an iterator"),
        ([], {}, "documents: no text to train"),
        (["", " \u200b"], {}, "documents: no text to train"),
        (
            ["a a"],
            {"vocab_size": 150},
            "vocab_size=150: too small for 104 special and unused",
        ),
        (["a a"], {"num_unused": -1}, "num_unused=-1: expected at least 0"),
        (["a a"], {"min_frequency": 0}, "min_frequency=0: expected at least 1"),
        (["a a"], {"max_bytes": 0}, "max_bytes=0: expected at least 1"),
    ],
)
def test_invalid_arguments_are_refused(documents, arguments, message):
    with pytest.raises(ValueError, match=message):
        train_wordpiece(documents, **arguments)


def word_limit(total: int) -> WordLimit:
    inside = np.zeros(0x110000, bool)
    inside[[ord(character) for character in "abcdefghijklmnopqrstuvwxyzé😀"]] = True
    return WordLimit(
        inside, max_characters=1000, max_word_characters=10, max_total_characters=total
    )


def test_new_words_pass_only_until_the_limit():
    limit = word_limit(20)
    # These words have 10 of the 20 characters.
    assert limit("aaaaa bbbbb, aaaaa") == "aaaaa bbbbb, aaaaa"
    assert limit("aaaaa é😀é bbbbb") == "aaaaa é😀é bbbbb"  # The total is now 13.
    assert limit("seventh!") == "seventh!"  # The total reaches the limit of 20.
    assert limit("new,aaaaa other é😀é-seventh x") == "   ,aaaaa       é😀é-seventh  "


def test_words_over_the_maximum_length_never_pass():
    limit = word_limit(1000)
    assert limit("a" * 10 + " " + "b" * 11 + "." + "c" * 10) == (
        "a" * 10 + " " + " " * 11 + "." + "c" * 10
    )
    assert limit("") == ""


def test_different_words_are_distinguished():
    generator = np.random.default_rng(1)
    words = {"".join(generator.choice(list("abcdefgh"), 6)) for _ in range(2000)}
    first, second = sorted(words)[::2], sorted(words)[1::2]
    limit = word_limit(6 * len(first))
    for start in range(0, len(first), 100):
        text = " ".join(first[start : start + 100])
        assert limit(text) == text
    for word in first:
        assert limit(f"!{word}") == f"!{word}"
    assert sum(limit(word) == word for word in second) <= 1


@pytest.mark.parametrize(
    ("train", "sizes", "message"),
    [
        (train_wordpiece, {"vocab_size": 10**9}, "vocab_size=1000000000: expected at most 10,"),
        (train_byte_bpe, {"vocab_size": 10**9}, "vocab_size=1000000000: expected at most 10,"),
        (train_sentencepiece, {"vocab_size": 10**10}, "vocab_size=10000000000: expected at"),
        (train_wordpiece, {"num_unused": 10**12}, "num_unused=1000000000000: expected at most"),
        (train_wordpiece, {"min_frequency": 10**30}, "min_frequency=.*: expected at most"),
        (train_byte_bpe, {"max_bytes": 10**30}, "max_bytes=.*: expected at most"),
    ],
)
def test_sizes_that_make_libraries_panic_are_refused_before_reading(train, sizes, message):
    class Unread:
        def __iter__(self):
            yield from ()
            raise AssertionError("the text was read")

    texts = Unread()
    with pytest.raises(ValueError, match=message):
        train(texts, **sizes)
