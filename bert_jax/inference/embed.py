"""Compute vectors for texts and the words in them, layer by layer."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import overload

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from bert_jax.inference.predictor import (
    Outputs,
    Predictor,
    Program,
    Row,
    as_list,
    check_strings,
    refuse,
    truncate_texts,
)
from bert_jax.labeled_data.features import Features, build_sequences
from bert_jax.local_paths import naming_urls
from bert_jax.models.model import Model, infer
from bert_jax.models.options import DTypeName
from bert_jax.models.sentence_embedding import SentenceEmbedding, sentence_vectors
from bert_jax.runs.model_location import local_model
from bert_jax.runs.work_dir import read_sentence_embedding
from bert_jax.tasks.task import Batch
from bert_jax.tokenizers.tokenizer import LocatedTokens, Tokenizer
from bert_jax.tokenizers.words import find_words

FloatArray = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Embedding:
    """The vectors of a text and its tokens.

    Attributes:
      text: the text without a prompt.
      vector: float32 [dimension], the model's sentence embedding, pooled as specified in the
        model's work directory (by default, the mean).
      tokens: `[CLS]`, the word pieces, and `[SEP]`.
      offsets: int32 [tokens, 2], where each token starts and ends in `text`, in characters; (0, 0)
        for `[CLS]`, `[SEP]` and the tokens of a prompt.
      hidden_states: float32 [layers + 1, tokens, hidden_dim], the embeddings and each layer's
        output.
      truncated: whether the text was truncated.
      tokenizer: the model's tokenizer.
    """

    text: str
    vector: FloatArray = field(repr=False)
    tokens: tuple[str, ...]
    offsets: NDArray[np.int32] = field(repr=False)
    hidden_states: FloatArray = field(repr=False)
    truncated: bool
    tokenizer: Tokenizer = field(repr=False)

    @property
    def cls(self) -> FloatArray:
        """The last layer's vector for `[CLS]`, [hidden_dim]."""
        return self.hidden_states[-1, 0]

    @property
    def mean(self) -> FloatArray:
        """The mean of the last layer's vectors, [hidden_dim].

        The mean is over all tokens, including `[CLS]` and `[SEP]`, as in Reimers and Gurevych 2019
        ("Sentence-BERT"), section 3.
        """
        return self.hidden_states[-1].mean(axis=0)

    def word(self, word: str, occurrence: int = 0) -> FloatArray:
        """Return a word's contextual vector at every layer, [layers + 1, hidden_dim].

        A word's vector is the mean of its pieces' vectors.

        Args:
          word: a word in the text, or several consecutive words; an uncased model ignores case.
          occurrence: which occurrence to use if the text contains the word more than once, counted
            from 0.

        Raises:
          ValueError: the text does not contain the word that many times, or the word was cut off. A
            word is also rejected if it is part of a special token that is spelled out in the text,
            such as "mask" in "[MASK]".
        """
        places = find_words(self.tokenizer, self.text, word)
        if not 0 <= occurrence < len(places):
            raise ValueError(self._not_found(word, occurrence, len(places)))
        start, end = places[occurrence]
        if self.truncated and end > self.offsets.max():
            raise ValueError(
                f"{word!r} at character {start} is after the model's last position: the text was "
                f"truncated at character {self.offsets.max()}. Shorten the text before the word"
            )
        begins, ends = self.offsets.T
        # A SentencePiece piece may include the punctuation mark next to the word.
        pieces = np.flatnonzero((begins < end) & (start < ends) & (begins < ends))
        specials = self.tokenizer.specials
        for piece in pieces:
            # Make an exception for [UNK], since it replaces words that have no token of their own.
            special = self.tokens[piece] in {*specials.tokens} - {specials.unk}
            if special and not start <= begins[piece] < ends[piece] <= end:
                raise ValueError(
                    f"{word!r} at character {start} is part of {self.tokens[piece]!r}, which is a "
                    "single token. Request the whole token"
                )
        return self.hidden_states[:, pieces].mean(axis=1)

    def _not_found(self, word: str, occurrence: int, count: int) -> str:
        """Return the error message for a word that occurs only `count` times in the text."""
        text = repr(self.text[:80])
        if count:
            times = "once" if count == 1 else f"{count} times"
            return (
                f"occurrence={occurrence}: {text} contains {word!r} only {times}. Occurrences are "
                "numbered from 0"
            )
        message = f"{text} does not contain the word {word!r}"
        if find_words(self.tokenizer, self.text.lower(), word.lower()):
            message += ". Match the case of the text, since the model is cased"
        return message


@dataclass(frozen=True, eq=False)
class SentenceVectors:
    """Vectors that represent a whole text.

    Attributes:
      vector: float32 [dimension]; see `Embedding.vector`.
      cls: float32 [hidden_dim]; see `Embedding.cls`.
      mean: float32 [hidden_dim]; see `Embedding.mean`.
      truncated: whether the text was truncated.
    """

    vector: FloatArray
    cls: FloatArray
    mean: FloatArray
    truncated: bool


class Embed(Predictor):
    """Computes vectors for texts, using a model with any head or none.

    Attributes:
      sentence_embedding: the settings for `vector`; mean pooling unless the model has its own
        settings.

    Compare "python" in two sentences, layer by layer:

    >>> embed = Embed("runs/mine")                                            # doctest: +SKIP
    >>> pet, code = embed(["I love my pet Python", "I love coding in Python"])  # doctest: +SKIP
    >>> cosine_similarity(pet.word("python"), code.word("python"))            # doctest: +SKIP
    array([1.  , 0.93, 0.84, ...], dtype=float32)
    """

    heads = None
    made_by = "`bj.pretrain`"

    @naming_urls()
    def __init__(
        self,
        work_dir: str | os.PathLike[str],
        *,
        batch_size: int = 32,
        max_length: int | None = None,
        dtype: DTypeName = "auto",
    ):
        """Load the best checkpoint in a work directory, or the newest if none is marked best.

        Args:
          work_dir: the work directory of a run or of `bert-jax import`.
          batch_size: the maximum number of sequences to compute at once.
          max_length: the maximum number of tokens in a sequence, including special tokens. Defaults
            to the maximum stored with an imported sentence-transformers model or used in a
            fine-tuning run; other models use all their positions.
          dtype: the dtype to compute in; see `FillMask`.
        """
        work_dir = local_model(work_dir)
        settings = read_sentence_embedding(work_dir)
        if max_length is None and settings is not None:
            max_length = settings.max_length
        super().__init__(work_dir, batch_size=batch_size, max_length=max_length, dtype=dtype)
        self.sentence_embedding = settings or SentenceEmbedding()

    @overload
    def __call__(
        self, text: str, *, prompt_name: str | None = ..., prompt: str | None = ...
    ) -> Embedding: ...
    @overload
    def __call__(
        self, text: list[str], *, prompt_name: str | None = ..., prompt: str | None = ...
    ) -> list[Embedding]: ...
    @naming_urls()
    def __call__(
        self, text: str | list[str], *, prompt_name: str | None = None, prompt: str | None = None
    ) -> Embedding | list[Embedding]:
        """Return all vectors for a text, or for each text in a list.

        With BERT-base, the vectors for 100 tokens take up 4 MB.

        Args:
          text: a text or a list of texts.
          prompt_name: the name of the prompt to prepend to every text; None for the model's default
            prompt.
          prompt: a text to prepend to every text instead of a named prompt; "" for no prompt.

        Raises:
          ValueError: `text` is neither a string nor a list, or the prompt does not exist.
          UnusableText: a text is not a string or is not valid Unicode.
        """
        prefix = self.sentence_embedding.prompt_for(prompt_name, prompt)
        embedded = self._embed([text] if isinstance(text, str) else as_list(text), prefix)
        return embedded[0] if isinstance(text, str) else embedded

    def sentences(
        self, texts: Sequence[str], *, prompt_name: str | None = None, prompt: str | None = None
    ) -> list[SentenceVectors]:
        """Return only the vectors for whole texts, to save memory if there are many texts.

        Args:
          texts: the texts to embed.
          prompt_name: the name of the prompt to prepend to every text; see `__call__`.
          prompt: a text to prepend to every text instead of a named prompt; see `__call__`.

        Raises:
          ValueError: `texts` is not a list, or the prompt does not exist.
          UnusableText: a text is not a string or is not valid Unicode.
        """
        prefix = self.sentence_embedding.prompt_for(prompt_name, prompt)
        texts = as_list(texts, "a list of strings")
        check_strings([[text, prefix] for text in texts])
        inputs = truncate_texts(self.tokenizer, [prefix + text for text in texts], self.max_length)
        rows = self._run(self._program(_sentence_vectors, prefix, inputs.features), inputs.features)
        return [
            # Copy, since a view would keep the whole batch in memory.
            SentenceVectors(row["vector"].copy(), row["cls"].copy(), row["mean"].copy(), truncated)
            for row, truncated in zip(rows, inputs.truncated, strict=True)
        ]

    def _embed(self, texts: Sequence[str], prompt: str) -> list[Embedding]:
        check_strings([[text, prompt] for text in texts])
        located = self.tokenizer.encode_with_offsets([prompt + text for text in texts])
        capacity = self.max_length - 2
        ids = [each.ids[:capacity].tolist() for each in located]
        features = Features(build_sequences(self.tokenizer, ids, [None] * len(ids)))
        rows = self._run(self._program(_hidden_states, prompt, features), features)
        return [
            self._embedding(text, len(prompt), ids, each, row)
            for text, each, ids, row in zip(texts, located, ids, rows, strict=True)
        ]

    def _embedding(
        self, text: str, start: int, ids: Sequence[int], located: LocatedTokens, row: Row
    ) -> Embedding:
        """Return the embedding of a text that follows a prompt of `start` characters."""
        with_specials = [self.tokenizer.cls_id, *ids, self.tokenizer.sep_id]
        offsets = np.zeros((len(with_specials), 2), np.int32)
        offsets[1:-1] = np.maximum(located.offsets[: len(ids)] - start, 0)
        return Embedding(
            text,
            row["vector"].copy(),
            tuple(str(self.tokenizer.id_to_token(token_id)) for token_id in with_specials),
            offsets,
            row["hidden_states"][:, : len(with_specials)].copy(),
            len(ids) < len(located.ids),
            self.tokenizer,
        )

    def _program(self, program: Callable[..., Outputs], prompt: str, features: Features) -> Program:
        """Return `program` set up for the model's pooling and for texts that begin with `prompt`.

        Raises:
          UnusableText: the prompt is excluded from pooling, and a text has no tokens of its own.
        """
        settings, skipped = self.sentence_embedding, 0
        if prompt and not settings.include_prompt:
            (tokens,) = self.tokenizer.encode_batch([prompt])
            skipped = 1 + min(len(tokens), self.max_length - 2)  # including [CLS]
            short = np.flatnonzero(features.sequences.lengths <= skipped)
            reason = f"no tokens are left to pool after the prompt ({prompt!r})"
            refuse({int(index): reason for index in short}, len(features))
        return partial(program, skipped=np.int32(skipped), settings=settings)


def cosine_similarity(first: FloatArray, second: FloatArray) -> FloatArray:
    """Return the cosine similarity between vectors.

    Args:
      first: [..., hidden_dim].
      second: vectors with the same shape.

    Returns:
      float32 [...], the similarity of each pair of vectors.
    """
    product = np.sum(first * second, axis=-1)
    return product / (np.linalg.norm(first, axis=-1) * np.linalg.norm(second, axis=-1))


@partial(jax.jit, static_argnames="settings")
def _hidden_states(
    model: Model, batch: Batch, *, skipped: jax.Array, settings: SentenceEmbedding
) -> Outputs:
    mask = batch["attention_mask"]
    states = model.encoder(
        batch["token_ids"],
        batch["segment_ids"],
        None,
        mask,
        packed=False,
        return_hidden_states=True,
    ).hidden_states
    assert states is not None
    return {
        "hidden_states": jnp.stack(states, axis=1).astype(jnp.float32),
        "vector": sentence_vectors(states[-1], mask, skipped, settings),
    }


@partial(jax.jit, static_argnames="settings")
def _sentence_vectors(
    model: Model, batch: Batch, *, skipped: jax.Array, settings: SentenceEmbedding
) -> Outputs:
    mask = batch["attention_mask"]
    hidden = infer(model, batch["token_ids"], batch["segment_ids"], mask)["hidden"]
    return {
        "vector": sentence_vectors(hidden, mask, skipped, settings),
        "cls": hidden[:, 0].astype(jnp.float32),
        "mean": sentence_vectors(hidden, mask, 0, SentenceEmbedding()),
    }
