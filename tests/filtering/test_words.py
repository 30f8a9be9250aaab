import re
import unicodedata

import numpy as np
import pytest

from bert_jax.filtering import words as words_module
from bert_jax.filtering.words import all_shingles, ngram_hashes, shingles, word_hashes

MIXED = (
    "The QUICK—brown fox, isn't it?  L'été\tdernier: STRAẞE = Straße.\n"
    "Το Σίσυφος ΣΊΣΥΦΟΣ और हिन्दी में — 3.14 + x²\n\n東京タワーは高い ไทย ok"
)


def reference_words(text: str) -> list[str]:
    """Split a text character by character, as the documentation of `word_hashes` describes."""
    found, word = [], ""
    for character in text + " ":
        folds = [character.casefold(), character.lower(), character]
        character = next(fold for fold in folds if len(fold) == 1)
        name = unicodedata.name(character, "")
        alone = re.match("CJK UNIFIED|HIRAGANA|KATAKANA|THAI|LAO|KHMER|MYANMAR", name)
        if character.isspace() or (alone and unicodedata.category(character)[0] in "LMN"):
            found += [word] if word else []
            word = ""
            found += [] if character.isspace() else [character]
        elif unicodedata.category(character)[0] in "LMN":
            word += character
    return found


def test_hashes_are_equal_only_for_equal_words(pytestconfig: pytest.Config) -> None:
    text = MIXED + (pytestconfig.rootpath / "README.md").read_text(encoding="utf-8")
    expected, hashes = reference_words(text), word_hashes(text).tolist()
    assert len(hashes) == len(expected) > 500
    assert len(set(hashes)) == len(set(expected)) == len(set(zip(hashes, expected, strict=True)))


def test_hashes_are_the_same_on_every_machine() -> None:
    assert word_hashes("A word").tolist() == [5996397368024119505, 2838337341240376175]
    assert ngram_hashes(word_hashes("a b c"), 2).tolist() == [
        14511395507369835870,
        669237609597712478,
    ]


def test_slices_do_not_change_the_words(monkeypatch: pytest.MonkeyPatch) -> None:
    text = MIXED * 3
    whole = word_hashes(text)
    monkeypatch.setattr(words_module, "_GROUP", 23)
    np.testing.assert_array_equal(word_hashes(text), whole)
    monkeypatch.setattr(words_module, "_SLICE", 17)
    np.testing.assert_array_equal(word_hashes(text), whole)


def test_the_hash_of_a_word_is_a_polynomial() -> None:
    """Compute the hash with Python integers, for a word at the end of a text."""
    word, modulus = "straße", 1 << 64
    values = [int(x) for x in words_module._coefficients()[[ord(each) for each in word]]]
    total = sum(x * pow(0x9E3779B97F4A7C15, power, modulus) for power, x in enumerate(values))
    # This is the final step of MurmurHash3.
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        total = (total % modulus ^ total % modulus >> 33) * factor % modulus
    assert word_hashes("…! one, two " * 9 + word)[-1] == total ^ total >> 33


def test_ngrams_depend_on_the_order_of_the_words() -> None:
    first, second = (ngram_hashes(word_hashes(text), 3) for text in ("a b c d", "b c d a"))
    assert first[1] == second[0]
    assert len({*first.tolist(), *second.tolist()}) == 3
    assert len(ngram_hashes(word_hashes("a b"), 3)) == 0


def test_a_short_text_is_a_single_shingle() -> None:
    assert len(shingles("only three words", 5)) == 1
    assert len(shingles("one two three four five six", 5)) == 2
    assert len(shingles(" … !", 5)) == 0


@pytest.mark.parametrize("group", [1, 40, 1 << 15])
def test_hashing_texts_together_does_not_change_the_shingles(
    group: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(words_module, "_GROUP", group)
    texts = [MIXED, "", "one", "…", "a b c d e", " a b c d ", "x" * 99, *MIXED.split("\n"), "東京"]
    hashes, counts = all_shingles(texts, 5)
    assert counts.sum() == len(hashes)
    parts = np.split(hashes, np.cumsum(counts)[:-1])
    for text, found in zip(texts, parts, strict=True):
        np.testing.assert_array_equal(found, shingles(text, 5))
    assert [len(each) for each in all_shingles([], 5)] == [0, 0]
