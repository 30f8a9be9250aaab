"""Vectors of texts and of the words in them, layer by layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import overload

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from bert_jax.data.finetuning.features import Features, sequences_of
from bert_jax.data.tokenizer import LocatedTokens, Tokenizer
from bert_jax.data.words import find_words
from bert_jax.inference.batch_runner import Outputs
from bert_jax.inference.predictor import Predictor
from bert_jax.inference.texts import check_strings, cut_texts, listed
from bert_jax.models.inference import infer
from bert_jax.models.model import HEADS, Model
from bert_jax.tasks.protocol import Batch

FloatArray = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Embedding:
    """A text as an encoder sees it.

    tokens: `[CLS]`, word-pieces, `[SEP]`. offsets: int32 [tokens, 2], their characters in `text`,
    (0, 0) of `[CLS]` and `[SEP]`. hidden_states: float32 [layers + 1, tokens, hidden_dim], the
    embeddings and what every layer gives. truncated: whether the text was cut as too long.
    """

    text: str
    tokens: tuple[str, ...]
    offsets: NDArray[np.int32] = field(repr=False)
    hidden_states: FloatArray = field(repr=False)
    truncated: bool
    tokenizer: Tokenizer = field(repr=False)

    @property
    def cls(self) -> FloatArray:
        """[hidden_dim] the last layer's vector of `[CLS]`."""
        return self.hidden_states[-1, 0]

    @property
    def mean(self) -> FloatArray:
        """[hidden_dim] the mean of the last layer's vectors, those of `[CLS]` and `[SEP]` too.

        Source: Reimers and Gurevych 2019 ("Sentence-BERT"), section 3.
        """
        return self.hidden_states[-1].mean(axis=0)

    def word(self, word: str, occurrence: int = 0) -> FloatArray:
        """[layers + 1, hidden_dim] the vector of a word in its context: the mean of its pieces'.

        Args:
          word: one word of the text or several in a row; of an uncased model in any case.
          occurrence: which, where it stands there more than once, from 0.

        Raises:
          ValueError: it does not stand in the text so often, or where the text was cut off, or
            it is a part of a special token that the text spells out, as "mask" of "[MASK]".
        """
        places = find_words(self.tokenizer, self.text, word)
        if not 0 <= occurrence < len(places):
            lower = find_words(self.tokenizer, self.text.lower(), word.lower())
            otherwise = bool(lower and not places)
            raise ValueError(
                f"{word!r} stands {len(places)} times in {self.text[:80]!r}; occurrence "
                f"{occurrence} (counted from 0) is not among them"
                + ("; write it as there: the model tells capitals from small letters" * otherwise)
            )
        start, end = places[occurrence]
        if self.truncated and end > self.offsets.max():
            raise ValueError(
                f"{word!r} stands at character {start}, behind the model's last position: the text "
                f"was cut at character {self.offsets.max()}"
            )
        begins, ends = self.offsets.T
        # A SentencePiece may reach beyond the word, to the mark beside it.
        pieces = np.flatnonzero((begins < end) & (start < ends) & (begins < ends))
        specials = self.tokenizer.specials
        for piece in pieces:
            # What the vocabulary lacks is no token that one could ask for.
            special = self.tokens[piece] in {*specials.tokens} - {specials.unk}
            if special and not start <= begins[piece] < ends[piece] <= end:
                raise ValueError(
                    f"{word!r} at character {start} is a part of {self.tokens[piece]!r}, which the "
                    "model reads as one token: ask for that"
                )
        return self.hidden_states[:, pieces].mean(axis=1)


@dataclass(frozen=True, eq=False)
class SentenceVectors:
    """`Embedding.cls` and `.mean` alone: float32 [hidden_dim]."""

    cls: FloatArray
    mean: FloatArray
    truncated: bool


class Embed(Predictor):
    """Gives vectors of texts, whatever head the model has.

    How alike "python" is in two sentences, at each layer:

    >>> embed = Embed("runs/mine")                                            # doctest: +SKIP
    >>> pet, code = embed(["I love my pet Python", "I love coding in Python"])  # doctest: +SKIP
    >>> cosine_similarity(pet.word("python"), code.word("python"))            # doctest: +SKIP
    array([1.  , 0.93, 0.84, ...], dtype=float32)
    """

    heads = HEADS
    made_by = "`bert-jax pretrain`"

    @overload
    def __call__(self, text: str) -> Embedding: ...
    @overload
    def __call__(self, text: list[str]) -> list[Embedding]: ...
    def __call__(self, text: str | list[str]) -> Embedding | list[Embedding]:
        """All vectors of a text, or of each of several: 4 MB a 100 tokens of BERT-base.

        Raises:
          ValueError: neither a string nor a list.
          UnusableText: no Unicode text.
        """
        embedded = self._embed([text] if isinstance(text, str) else listed(text))
        return embedded[0] if isinstance(text, str) else embedded

    def sentences(self, texts: Sequence[str]) -> list[SentenceVectors]:
        """The vectors of whole texts alone: for many texts.

        Raises:
          ValueError: not a list.
          UnusableText: no Unicode text.
        """
        texts = listed(texts, "a list of strings")
        check_strings([[text] for text in texts])
        cut = cut_texts(self.tokenizer, texts, self.max_length)
        rows = self._run(_sentence_vectors, cut.features)
        return [
            # Copies: a view would keep all of its batch.
            SentenceVectors(row["cls"].copy(), row["mean"].copy(), truncated)
            for row, truncated in zip(rows, cut.truncated, strict=True)
        ]

    def _embed(self, texts: Sequence[str]) -> list[Embedding]:
        check_strings([[text] for text in texts])
        located = self.tokenizer.encode_with_offsets(texts)
        capacity = self.max_length - 2
        ids = [each.ids[:capacity].tolist() for each in located]
        sequences = sequences_of(self.tokenizer, ids, [None] * len(ids))
        rows = self._run(_hidden_states, Features(sequences))
        return [
            self._embedding(text, ids, each, row["hidden_states"])
            for text, each, ids, row in zip(texts, located, ids, rows, strict=True)
        ]

    def _embedding(
        self, text: str, ids: Sequence[int], located: LocatedTokens, hidden_states: FloatArray
    ) -> Embedding:
        around = [self.tokenizer.cls_id, *ids, self.tokenizer.sep_id]
        offsets = np.zeros((len(around), 2), np.int32)
        offsets[1:-1] = located.offsets[: len(ids)]
        return Embedding(
            text,
            tuple(str(self.tokenizer.id_to_token(token_id)) for token_id in around),
            offsets,
            hidden_states[:, : len(around)].copy(),
            len(ids) < len(located.ids),
            self.tokenizer,
        )


def cosine_similarity(first: FloatArray, second: FloatArray) -> FloatArray:
    """The cosine of the angle between vectors [..., hidden_dim]: [...]."""
    product = np.sum(first * second, axis=-1)
    return product / (np.linalg.norm(first, axis=-1) * np.linalg.norm(second, axis=-1))


@jax.jit
def _hidden_states(model: Model, batch: Batch) -> Outputs:
    states = model.encoder(
        batch["token_ids"],
        batch["segment_ids"],
        None,
        batch["attention_mask"],
        packed=False,
        return_hidden_states=True,
    ).hidden_states
    assert states is not None
    return {"hidden_states": jnp.stack(states, axis=1).astype(jnp.float32)}


@jax.jit
def _sentence_vectors(model: Model, batch: Batch) -> Outputs:
    outputs = infer(model, batch["token_ids"], batch["segment_ids"], batch["attention_mask"])
    hidden = outputs["hidden"].astype(jnp.float32)
    weights = batch["attention_mask"].astype(jnp.float32)[..., None]
    mean = (hidden * weights).sum(axis=1) / jnp.maximum(weights.sum(axis=1), 1)
    return {"cls": hidden[:, 0], "mean": mean}
