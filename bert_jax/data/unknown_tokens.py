"""Measure a text's share of unknown tokens, name the likely cause, and refuse too large a share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bert_jax.data.tokenizer import Tokenizer
from bert_jax.data.wordpiece_files import has_upper_case

# With BERT's uncased vocabulary, none of the 213,300 tokens of WikiText-2's validation set is
# unknown.
WARNED_SHARE = 0.01
REFUSED_SHARE = 0.20
# Fewer tokens say little about a corpus, so the check waits for more, if need be until the end.
_ENOUGH_TOKENS = 10_000
# Fewer tokens are a quick trial, in which a single word may be a fifth of the tokens.
_LEAST_REFUSED = 100
_SAMPLE_CHARACTERS = 1 << 18
_MOST_WORDS = 5


class TooManyUnknownError(ValueError):
    """More than `REFUSED_SHARE` of the tokens are unknown.

    first: whether this was the first check, so that little work is lost.
    """

    def __init__(self, unknown: int, tokens: int, *, first: bool) -> None:
        super().__init__(f"{unknown:,} of {tokens:,} tokens are unknown")
        self.unknown, self.tokens, self.first = unknown, tokens, first


@dataclass
class UnknownCounts:
    """The numbers of tokens and of unknown tokens so far.

    allowed: whether any share of unknown tokens is accepted.
    """

    allowed: bool
    tokens: int = 0
    unknown: int = 0
    checks: int = 0

    @property
    def share(self) -> float:
        """The share of unknown tokens; 0 without tokens."""
        return self.unknown / max(1, self.tokens)

    def add(self, tokens: int, unknown: int | None) -> None:
        """Add the next tokens; they are ignored if `unknown`, the number of unknown ones, is None.

        Raises:
            TooManyUnknownError: there are enough tokens for a check, and too many are unknown.
        """
        if unknown is None:
            self.checks += 1  # finished work of an earlier version, which a refusal keeps
            return
        self.tokens += tokens
        self.unknown += unknown
        if self.tokens >= _ENOUGH_TOKENS:
            self.check()

    @property
    def too_many(self) -> bool:
        """Whether there are 100 tokens or more, and more than `REFUSED_SHARE` are unknown."""
        return self.share > REFUSED_SHARE and self.tokens >= _LEAST_REFUSED

    def check(self) -> None:
        """Raise TooManyUnknownError if too many tokens are unknown."""
        if self.too_many and not self.allowed:
            raise TooManyUnknownError(self.unknown, self.tokens, first=self.checks == 0)
        self.checks += 1


def count_unknown(token_ids: NDArray[np.integer], tokenizer: Tokenizer) -> UnknownCounts:
    """Return the counts of token ids, leaving out [CLS] and [SEP]."""
    ids = (tokenizer.cls_id, tokenizer.sep_id, tokenizer.unk_id)
    cls, sep, unknown = (int(np.count_nonzero(token_ids == token_id)) for token_id in ids)
    return UnknownCounts(allowed=True, tokens=len(token_ids) - cls - sep, unknown=unknown)


def complaint(
    tokenizer: Tokenizer, unknown: int, tokens: int, texts: Iterable[str] = (), where: str = ""
) -> str:
    """Return a message with the share of unknown tokens, some examples and the likely cause.

    Args:
        texts: the texts of the tokens, of which up to 256 K characters are read for examples.
        where: the source of the tokens, such as " of train".
    """
    words = unknown_words(tokenizer, texts)
    such_as = f", such as {', '.join(map(repr, words))}" if words else ""
    return (
        f"{unknown / max(1, tokens):.1%} of {tokens:,} tokens{where} are unknown to the tokenizer "
        f"({tokenizer.specials.unk}){such_as}. {_likely_cause(tokenizer)}"
    )


def unknown_words(tokenizer: Tokenizer, texts: Iterable[str]) -> list[str]:
    """Return the five most frequent unknown words of the first 256 K characters of `texts`."""
    left = _SAMPLE_CHARACTERS
    words: Counter[str] = Counter()
    for text in texts:
        text = text[:left]
        left -= len(text)
        (located,) = tokenizer.encode_with_offsets([text], specials_as_text=True)
        for start, end in located.offsets[located.ids == tokenizer.unk_id].tolist():
            words[text[start:end]] += 1
        if left <= 0:
            break
    return [word for word, _ in words.most_common(_MOST_WORDS)]


def _likely_cause(tokenizer: Tokenizer) -> str:
    entries = tokenizer.vocabulary
    if not tokenizer.lowercase and not has_upper_case(entries):
        return (
            "The vocabulary has no capital letters, but the tokenizer does not lower-case text. "
            "Make it lower-case (leave --cased out; do_lower_case in tokenizer_config.json)."
        )
    spaced = sum(entry != entry.strip() for entry in entries)
    if spaced > len(entries) // 10:
        return (
            f"{spaced:,} of {len(entries):,} vocabulary entries begin or end with white space, so "
            "they match no word. Remove the white space."
        )
    return "Check that the vocabulary is for the text's language and script."
