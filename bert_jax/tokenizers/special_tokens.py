"""Define the BERT family's special tokens and the token ids that training examples need."""

from __future__ import annotations

import re
from collections.abc import Container, Sequence
from dataclasses import asdict, astuple, dataclass, field
from functools import lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class SpecialTokens:
    """A vocabulary's five special tokens, one for each role."""

    pad: str
    unk: str
    cls: str
    sep: str
    mask: str

    @property
    def named(self) -> dict[str, str]:
        """A dict from the keys of tokenizer_config.json, such as "pad_token", to the tokens."""
        return {f"{role}_token": token for role, token in asdict(self).items()}

    @property
    def bounds(self) -> tuple[str, str]:
        """The tokens that go before and after a text."""
        return (self.cls, self.sep)

    @property
    def tokens(self) -> tuple[str, ...]:
        """All five tokens, in the order of the fields."""
        return astuple(self)


BERT = SpecialTokens("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
ALBERT = SpecialTokens("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")
ROBERTA = SpecialTokens("<pad>", "<unk>", "<s>", "</s>", "<mask>")


def special_tokens_of(vocabulary: Container[str]) -> SpecialTokens | None:
    """Return a vocabulary's special tokens, or None if it does not contain a complete set.

    The recognized sets are those of BERT, ALBERT and RoBERTa.
    """
    for specials in (BERT, ALBERT, ROBERTA):
        if all(token in vocabulary for token in specials.tokens):
            return specials
    return None


def split_specials(text: str, tokens: tuple[str, ...]) -> str:
    """Insert a space into any of `tokens` that appear literally in a text, ignoring case."""
    return _spelled(tokens).sub(lambda match: f"{match[0][0]} {match[0][1:]}", text)


def unsplit_offsets(
    offsets: NDArray[np.int32], text: str, tokens: tuple[str, ...]
) -> NDArray[np.int32]:
    """Convert offsets [tokens, 2] in `split_specials(text)` to offsets in `text`."""
    starts = [match.start() for match in _spelled(tokens).finditer(text)]
    if not starts:
        return offsets
    spaces = np.array(starts) + 1 + np.arange(len(starts))
    return (offsets - np.searchsorted(spaces, offsets)).astype(np.int32)


@lru_cache
def _spelled(tokens: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, tokens)), re.IGNORECASE)


class TokenizerIds(Protocol):
    """The tokenizer properties needed to build a `Vocabulary`."""

    @property
    def vocab_size(self) -> int:
        """The largest id plus one."""

    @property
    def pad_id(self) -> int:
        """Id of [PAD]."""

    @property
    def cls_id(self) -> int:
        """Id of [CLS]."""

    @property
    def sep_id(self) -> int:
        """Id of [SEP]."""

    @property
    def mask_id(self) -> int:
        """Id of [MASK]."""

    @property
    def special_ids(self) -> Sequence[int]:
        """Ids that are never masked."""

    @property
    def random_ids(self) -> NDArray[np.integer]:
        """Ids that random replacements are drawn from."""

    @property
    def continuation_ids(self) -> NDArray[np.integer]:
        """Ids of tokens that continue the previous token's word."""

    @property
    def spaces_are_text(self) -> bool:
        """Whether a word's tokens depend on whether a space precedes it."""


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """A vocabulary's token ids, grouped by role.

    Attributes:
      vocab_size: the largest id plus one.
      pad_id: the id of [PAD].
      cls_id: the id of [CLS].
      sep_id: the id of [SEP].
      mask_id: the id of [MASK].
      special_ids: the ids that are never masked: [PAD], [CLS], [SEP], [MASK] and [UNK].
      random_ids: the ids that random replacements are drawn from.
      continuation_ids: the ids of tokens that continue the previous token's word.
      spaces_are_text: whether a word's tokens depend on whether a space precedes it.
    """

    vocab_size: int
    pad_id: int
    cls_id: int
    sep_id: int
    mask_id: int
    special_ids: tuple[int, ...]
    random_ids: NDArray[np.int32]
    continuation_ids: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    spaces_are_text: bool = False

    def __post_init__(self) -> None:
        missing = {self.pad_id, self.cls_id, self.sep_id, self.mask_id} - set(self.special_ids)
        assert not missing, f"special_ids lack {missing}"
        ids = np.concatenate([self.special_ids, self.random_ids, self.continuation_ids])
        if ids.min() < 0 or ids.max() >= self.vocab_size:
            raise ValueError(
                f"vocab_size={self.vocab_size}: token ids range from {ids.min()} to {ids.max()}. "
                f"Expected 0 to {self.vocab_size - 1}."
            )
        if not len(self.random_ids):
            raise ValueError(
                "The vocabulary has no tokens for random replacements: every token is either a "
                "special token or unused."
            )

    @classmethod
    def of(cls, tokenizer: TokenizerIds) -> Vocabulary:
        """Build the vocabulary of a tokenizer."""
        return cls(
            vocab_size=tokenizer.vocab_size,
            pad_id=tokenizer.pad_id,
            cls_id=tokenizer.cls_id,
            sep_id=tokenizer.sep_id,
            mask_id=tokenizer.mask_id,
            special_ids=tuple(tokenizer.special_ids),
            random_ids=np.asarray(tokenizer.random_ids, np.int32),
            continuation_ids=np.asarray(tokenizer.continuation_ids, np.int32),
            spaces_are_text=tokenizer.spaces_are_text,
        )

    def is_maskable(self) -> NDArray[np.bool_]:
        """Return a Boolean array [vocab_size] that marks the tokens that may be masked."""
        table = np.ones(self.vocab_size, bool)
        table[list(self.special_ids)] = False
        return table

    def continues_word(self) -> NDArray[np.bool_]:
        """Return a Boolean array [vocab_size] that marks the tokens that continue a word."""
        table = np.zeros(self.vocab_size, bool)
        table[self.continuation_ids] = True
        return table
