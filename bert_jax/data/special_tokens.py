"""What the tokens are called that are no text, in the vocabularies of the BERT family."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import asdict, astuple, dataclass


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
