"""Special tokens of the BERT family, and the token ids that making examples needs."""

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
    """The five special tokens by role."""

    pad: str
    unk: str
    cls: str
    sep: str
    mask: str

    @property
    def named(self) -> dict[str, str]:
        """By the names of tokenizer_config.json: "pad_token", ..."""
        return {f"{role}_token": token for role, token in asdict(self).items()}

    @property
    def bounds(self) -> tuple[str, str]:
        """Those around a text."""
        return (self.cls, self.sep)

    @property
    def tokens(self) -> tuple[str, ...]:
        """In the order of the fields."""
        return astuple(self)


BERT = SpecialTokens("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
ALBERT = SpecialTokens("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")
ROBERTA = SpecialTokens("<pad>", "<unk>", "<s>", "</s>", "<mask>")


def special_tokens_of(vocabulary: Container[str]) -> SpecialTokens | None:
    """Those of the family that are all in a vocabulary; None if none are."""
    for specials in (BERT, ALBERT, ROBERTA):
        if all(token in vocabulary for token in specials.tokens):
            return specials
    return None


def broken(text: str, tokens: tuple[str, ...]) -> str:
    """The text with a space in each of `tokens` that it spells, in letters of either case."""
    return _spelled(tokens).sub(lambda match: f"{match[0][0]} {match[0][1:]}", text)


def unbroken(offsets: NDArray[np.int32], text: str, tokens: tuple[str, ...]) -> NDArray[np.int32]:
    """Offsets [tokens, 2] in `broken(text)` as those in `text`."""
    starts = [match.start() for match in _spelled(tokens).finditer(text)]
    if not starts:
        return offsets
    spaces = np.array(starts) + 1 + np.arange(len(starts))
    return (offsets - np.searchsorted(spaces, offsets)).astype(np.int32)


@lru_cache
def _spelled(tokens: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, tokens)), re.IGNORECASE)


class TokenizerIds(Protocol):
    """The part of a tokenizer that is looked at."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def pad_id(self) -> int: ...
    @property
    def cls_id(self) -> int: ...
    @property
    def sep_id(self) -> int: ...
    @property
    def mask_id(self) -> int: ...
    @property
    def special_ids(self) -> Sequence[int]: ...
    @property
    def random_ids(self) -> NDArray[np.integer]: ...
    @property
    def continuation_ids(self) -> NDArray[np.integer]: ...
    @property
    def spaces_are_text(self) -> bool: ...


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """Token ids by role.

    Attributes:
        vocab_size: one more than the largest id.
        special_ids: ids that are never masked: padding, [CLS], [SEP], [MASK] and [UNK].
        random_ids: ids a random replacement is drawn from.
        continuation_ids: ids of tokens that go on with the word of the token before them.
        spaces_are_text: whether a word's tokens tell if there was a space before it.
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
            raise ValueError(f"token ids {ids.min()}..{ids.max()} outside 0..{self.vocab_size - 1}")
        if not len(self.random_ids):
            raise ValueError("the vocabulary has no entry that a random replacement could draw")

    @classmethod
    def of(cls, tokenizer: TokenizerIds) -> Vocabulary:
        """Returns the ids of `tokenizer`."""
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
        """Returns [vocab_size], True where a token may be chosen for prediction."""
        table = np.ones(self.vocab_size, bool)
        table[list(self.special_ids)] = False
        return table

    def continues_word(self) -> NDArray[np.bool_]:
        """Returns [vocab_size], True where a token goes on with the word before it."""
        table = np.zeros(self.vocab_size, bool)
        table[self.continuation_ids] = True
        return table
