"""Find the words that a tokenizer splits a text into.

Also report words that become unknown tokens or lose their accents.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice, zip_longest
from typing import NamedTuple, assert_never

import numpy as np
from numpy.typing import NDArray
from tokenizers.pre_tokenizers import BertPreTokenizer

from bert_jax.tokenizers.tokenizer import Tokenizer
from bert_jax.tokenizers.tokenizer_json import Kind
from bert_jax.tokenizers.wordpiece_files import has_upper_case


class Word(NamedTuple):
    """A word or punctuation mark, with its start and (exclusive) end in the text."""

    text: str
    start: int
    end: int


def split_words(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[Word]]:
    """Return each text's words in order; accents after a word's last letter belong to the word.

    Punctuation marks are separate words, as in datasets that have a tag for each word. This applies
    even to SentencePiece, whose own words include punctuation.
    """
    match tokenizer.kind:
        case "sentencepiece":
            tokens = tokenizer.encode_with_offsets(texts, specials_as_text=True)
            located = [
                _split_at_punctuation(text, located_tokens.offsets)
                for text, located_tokens in zip(texts, tokens, strict=True)
            ]
        case "wordpiece" | "byte_bpe":
            located = tokenizer.word_offsets(texts)
        case _:
            assert_never(tokenizer.kind)
    return [
        [
            Word(text[start:end], start, end)
            for start, end in _with_marks(text, offsets.tolist(), split=tokenizer.splits_at_marks)
        ]
        for text, offsets in zip(texts, located, strict=True)
    ]


def _with_marks(
    text: str, spans: Sequence[tuple[int, int]], *, split: bool
) -> list[tuple[int, int]]:
    """Extend the spans of words to include the marks that follow them.

    Args:
      text: the text that contains the words.
      spans: the spans of the words in the text.
      split: whether the tokenizer splits words at marks. If so, marks and the letters after them
        must be rejoined with their word.
    """
    words: list[tuple[int, int]] = []
    for (start, last), following in zip_longest(spans, spans[1:]):
        begin = start
        if split and words:
            begin = max(start, words[-1][1])
            if begin >= last:
                continue
            after_mark = _is_mark(unicodedata.normalize("NFD", text[begin - 1])[-1])
            if words[-1][1] == begin and after_mark and text[begin].isalpha():
                begin = words.pop()[0]
        end = end_of_marks(text, last)
        words.append((begin, min(end, following[0]) if following and not split else end))
    return words


def _split_at_punctuation(text: str, tokens: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return the spans [words, 2] of BERT's pre-tokenizer that contain at least one token."""
    split = BertPreTokenizer().pre_tokenize_str(text)
    words = np.array([span for _, span in split], np.int32).reshape(-1, 2)
    starts, ends = tokens[tokens[:, 0] < tokens[:, 1]].T
    # The tokens are in order, so it is enough to check one token per word: the first one that ends
    # after the word's start. The word contains a token if this token begins before the word's end.
    first = np.searchsorted(ends, words[:, 0], side="right")
    begin = np.append(starts, len(text))[first]
    return words[begin < words[:, 1]]


def find_words(tokenizer: Tokenizer, text: str, phrase: str) -> list[tuple[int, int]]:
    """Return the spans of all occurrences of a word or phrase in a text.

    Words match if they are equal after normalization. For example, an uncased tokenizer finds
    "python" in "Python".
    """
    words, phrase_words = split_words(tokenizer, [text, phrase])
    normalized = [tokenizer.normalize(word.text) for word in words]
    target = [tokenizer.normalize(word.text) for word in phrase_words]
    count = len(target)
    return [
        (words[first].start, words[first + count - 1].end)
        for first in range(len(words) - count + 1)
        if count and normalized[first : first + count] == target
    ]


def end_of_marks(text: str, end: int) -> int:
    """Return the position after any marks at `end`, which belong to the letter before them.

    Marks are accents, vowel signs, and the vowels and final consonants of a Hangul syllable.
    Tokenizers strip marks or combine them with their letter.
    """
    while end < len(text) and _is_mark(text[end]):
        end += 1
    return end


def _is_mark(character: str) -> bool:
    return unicodedata.category(character) in ("Mn", "Mc") or "\u1160" <= character <= "\u11ff"


# With BERT's uncased vocabulary, none of the 213,300 tokens in WikiText-2's validation set is
# unknown.
WARNED_SHARE = 0.01
REFUSED_SHARE = 0.20
# Below this number of tokens, the fraction of unknown tokens says little about a corpus, so the
# check waits for more tokens or the end of the corpus.
_MIN_CHECKED_TOKENS = 10_000
# A corpus with fewer tokens than this is just a quick trial, in which a single word may make up a
# fifth of the tokens.
_MIN_REFUSED_TOKENS = 100
_SAMPLE_CHARACTERS = 1 << 18
_MAX_WORDS = 5


class TooManyUnknownError(ValueError):
    """More than `REFUSED_SHARE` of the tokens are unknown.

    Attributes:
      unknown: the number of unknown tokens.
      tokens: the total number of tokens.
      first: whether this was the first check. If so, little work is lost.
    """

    def __init__(self, unknown: int, tokens: int, *, first: bool) -> None:
        super().__init__(f"{unknown:,} of {tokens:,} tokens are unknown")
        self.unknown, self.tokens, self.first = unknown, tokens, first


@dataclass
class UnknownCounts:
    """Running counts of tokens and unknown tokens.

    Attributes:
      allowed: whether any fraction of unknown tokens is accepted.
      tokens: the number of tokens.
      unknown: the number of unknown tokens.
      checks: how many times the fraction of unknown tokens has been checked.
    """

    allowed: bool
    tokens: int = 0
    unknown: int = 0
    checks: int = 0

    @property
    def share(self) -> float:
        """The fraction of tokens that are unknown, or 0 if there are no tokens."""
        return self.unknown / max(1, self.tokens)

    def add(self, tokens: int, unknown: int | None) -> None:
        """Add more tokens to the counts; `unknown` is None if unknown tokens were not counted.

        Raises:
          TooManyUnknownError: there are enough tokens for a check, and too many are unknown.
        """
        if unknown is None:
            # These tokens were produced by an earlier version, which did not count unknown tokens.
            self.keep_finished_work()
            return
        self.tokens += tokens
        self.unknown += unknown
        if self.tokens >= _MIN_CHECKED_TOKENS:
            self.check()

    @property
    def too_many(self) -> bool:
        """Whether there are at least 100 tokens and more than `REFUSED_SHARE` are unknown."""
        return self.share > REFUSED_SHARE and self.tokens >= _MIN_REFUSED_TOKENS

    def keep_finished_work(self) -> None:
        """Record that finished work would be lost if the next check failed.

        That check then does not count as the first one.
        """
        self.checks += 1

    def check(self) -> None:
        """Raise TooManyUnknownError if too many tokens are unknown."""
        if self.too_many and not self.allowed:
            raise TooManyUnknownError(self.unknown, self.tokens, first=self.checks == 0)
        self.checks += 1


def count_unknown(token_ids: NDArray[np.integer], tokenizer: Tokenizer) -> UnknownCounts:
    """Count tokens and unknown tokens, excluding [CLS] and [SEP]."""
    ids = (tokenizer.cls_id, tokenizer.sep_id, tokenizer.unk_id)
    cls, sep, unknown = (int(np.count_nonzero(token_ids == token_id)) for token_id in ids)
    return UnknownCounts(allowed=True, tokens=len(token_ids) - cls - sep, unknown=unknown)


def describe_unknown(
    tokenizer: Tokenizer, unknown: int, tokens: int, texts: Iterable[str] = (), where: str = ""
) -> str:
    """Return a message with the percentage of unknown tokens, some examples and the likely cause.

    Args:
      tokenizer: the tokenizer that produced the tokens.
      unknown: the number of unknown tokens.
      tokens: the number of tokens.
      texts: the texts that the tokens come from. At most 262,144 characters are searched for
        examples.
      where: a phrase that describes where the tokens come from, such as " of train".
    """
    words = unknown_words(tokenizer, texts)
    examples = f", such as {', '.join(map(repr, words))}" if words else ""
    return (
        f"{unknown / max(1, tokens):.1%} of {tokens:,} tokens{where} are unknown to the tokenizer "
        f"({tokenizer.specials.unk}){examples}. {_likely_cause(tokenizer)}"
    )


def unknown_words(tokenizer: Tokenizer, texts: Iterable[str]) -> list[str]:
    """Return the five most frequent unknown words in the first 262,144 characters of `texts`."""
    remaining = _SAMPLE_CHARACTERS
    words: Counter[str] = Counter()
    for text in texts:
        text = text[:remaining]
        remaining -= len(text)
        (located,) = tokenizer.encode_with_offsets([text], specials_as_text=True)
        for start, end in located.offsets[located.ids == tokenizer.unk_id].tolist():
            words[text[start:end]] += 1
        if remaining <= 0:
            break
    return [word for word, _ in words.most_common(_MAX_WORDS)]


def _likely_cause(tokenizer: Tokenizer) -> str:
    entries = tokenizer.vocabulary
    if not tokenizer.lowercase and not has_upper_case(entries):
        return (
            "The vocabulary has no capital letters, but the tokenizer does not lowercase text. "
            "Enable lowercasing (omit --cased, or set do_lower_case in tokenizer_config.json)."
        )
    spaced = sum(entry != entry.strip() for entry in entries)
    if spaced > len(entries) // 10:
        return (
            f"{spaced:,} of {len(entries):,} tokens in the vocabulary begin or end with white "
            "space, so they match no word. Remove the white space."
        )
    return "Check that the vocabulary was made for the text's language and script."


MARKS_WARNED_SHARE = 0.1
_DOCUMENT_CHARACTERS = 2_000
_TOTAL_CHARACTERS = 1 << 22
_SAMPLED_DOCUMENTS = 200
_MAX_EXAMPLES = 3


class MarkedWords:
    """Counts how many of the distinct words in a text sample would lose marks.

    The sample is the first 2,000 characters of every document, up to about 4 million characters in
    total.
    """

    def __init__(self, kind: Kind):
        """Create a counter for a given kind of tokenizer.

        BERT's normalizer strips fewer marks than SentencePiece's.
        """
        self._marks = ("Mn",) if kind == "wordpiece" else ("Mn", "Mc", "Me")
        self._left = _TOTAL_CHARACTERS
        self._words: set[str] = set()

    def add(self, document: str) -> None:
        """Add the words of a document to the sample, unless it is full."""
        if self._left > 0:
            sample = document[:_DOCUMENT_CHARACTERS]
            self._left -= len(sample)
            self._words.update(sample.lower().split())

    def warning(self) -> str | None:
        """Return a warning if more than a tenth of the words lose marks, or None otherwise."""
        marked = sorted(word for word in self._words if self._stripped(word) != _composed(word))
        share = len(marked) / max(1, len(self._words))
        if share <= MARKS_WARNED_SHARE:
            return None
        examples = ", ".join(f"{w!r} becomes {self._stripped(w)!r}" for w in marked[:_MAX_EXAMPLES])
        return (
            f"{len(marked):,} of {len(self._words):,} distinct words ({share:.1%}) lose accents, "
            f"vowel signs or voicing marks, so that different words may become identical: "
            f"{examples}. To lowercase text but keep its marks, train the tokenizer with `bert-jax "
            "train-tokenizer --keep-accents`."
        )

    def _stripped(self, word: str) -> str:
        if word.isascii():
            return word
        parts = unicodedata.normalize("NFD", word)
        kept = (char for char in parts if unicodedata.category(char) not in self._marks)
        return _composed("".join(kept))


def _composed(word: str) -> str:
    return unicodedata.normalize("NFC", word)


def marks_warning(kind: Kind, documents: Iterable[str]) -> str | None:
    """Return a warning if many words in the first 200 documents lose marks, or None otherwise."""
    marked = MarkedWords(kind)
    for document in islice(documents, _SAMPLED_DOCUMENTS):
        marked.add(document)
    return marked.warning()
