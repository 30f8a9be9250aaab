"""Add words to the vocabulary of a trained model."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import jax
import numpy as np

from bert_jax.local_paths import naming_urls
from bert_jax.models.compute_config import ComputeConfig
from bert_jax.models.model import ModelConfig, define_model
from bert_jax.runs.checkpoints import load_model_parameters
from bert_jax.runs.default_checkpoint import default_checkpoint_step
from bert_jax.runs.model_location import local_model
from bert_jax.runs.outputs import check_new_directory, new_directory
from bert_jax.runs.work_dir import (
    CHECKPOINTS_NAME,
    TOKENIZER_NAME,
    read_inference_defaults,
    read_model,
    read_sentence_embedding,
    read_tokenizer,
    write_model,
)
from bert_jax.storage.urls import Location, parse_location
from bert_jax.tokenizers.new_words import NewWord, with_words
from bert_jax.training.checkpoint_parameters import save_parameters

_COMPUTE = ComputeConfig(dtype="float32", attention="xla")
_VOCABULARY = "vocab"  # Parameters with one row per token have this logical axis.


@dataclass(frozen=True)
class AddedWords:
    """The result of adding words to a model's vocabulary.

    Attributes:
      work_dir: the new work directory.
      config: the model's config, whose `vocab_size` may have grown.
      words: the added words and their ids.
      known: the number of words that were skipped because they were already one token or were
        repeated in the list.
    """

    work_dir: Location
    config: ModelConfig
    words: tuple[NewWord, ...]
    known: int

    def __fspath__(self) -> str:
        """Return the path, so that the result can be passed wherever a path is expected."""
        return os.fspath(self.work_dir)

    def lines(self) -> Iterator[str]:
        """Yield lines that describe where the words are in the vocabulary."""
        replaced = sum(bool(word.replaced) for word in self.words)
        pieces = np.mean([len(word.pieces) for word in self.words])
        yield (
            f"{self.work_dir}: {len(self.words):,} new words, which were split into {pieces:.1f} "
            f"tokens on average: {replaced:,} instead of [unused] tokens, "
            f"{len(self.words) - replaced:,} with new ids; {self.known:,} words were already known"
        )
        yield (
            f"the vocabulary has {self.config.encoder.vocab_size:,} rows. Prepare corpora again "
            f"with --tokenizer {self.work_dir / TOKENIZER_NAME}"
        )


@naming_urls()
def add_words(
    model: str | os.PathLike[str], words: Sequence[str], output: str | os.PathLike[str]
) -> AddedWords:
    """Add words to the vocabulary of a model, and write the model to a new work directory.

    The new tokenizer encodes each of the words as one token. The words first replace [unusedN]
    tokens, and then get new rows in the token table. A new word's embedding is the mean of the
    embeddings of the tokens that it was split into before. Its bias in the masked-LM head is
    averaged in the same way, so its logit is the mean of these tokens' logits. All other parameters
    are unchanged.

    Args:
      model: the work directory of a model with a WordPiece tokenizer.
      words: the words. Words that are already one token are left out.
      output: the work directory to create.

    Raises:
      ValueError: the tokenizer does not use WordPiece or cannot keep one of the words together, all
        words are already known, or `output` already exists.
      OSError: a file cannot be read or written.
    """
    source, output = local_model(model), parse_location(output, "--output")
    check_new_directory(output)
    step = default_checkpoint_step(source)
    config, origin = read_model(source, step)
    tokenizer, added = with_words(read_tokenizer(source, config.encoder), words)
    if not added:
        raise ValueError(
            f"words: the tokenizer of {source} already has a token for each of the {len(words)} "
            "words. Use the model as it is."
        )
    rows = max(config.encoder.vocab_size, tokenizer.vocab_size)
    larger = replace(config, encoder=replace(config.encoder, vocab_size=rows))
    axes = define_model(config, _COMPUTE).logical_axes
    loaded = jax.device_get(load_model_parameters(source, config, _COMPUTE, step))
    parameters = {
        name: _with_rows(np.asarray(value), added, rows) if _VOCABULARY in axes[name] else value
        for name, value in loaded.items()
    }
    origin = {**origin, "added words": f"{len(added)}, to the model in {source.name}"}
    with new_directory(output) as target:
        save_parameters(target / CHECKPOINTS_NAME, parameters, origin)
        tokenizer.save(target / TOKENIZER_NAME)
        write_model(
            larger,
            origin,
            target,
            tokenizer=tokenizer,
            inference_defaults=read_inference_defaults(source),
            sentence_embedding=read_sentence_embedding(source),
        )
    return AddedWords(output, larger, tuple(added), len(words) - len(added))


def _with_rows(table: np.ndarray, words: Sequence[NewWord], num_rows: int) -> np.ndarray:
    """Return a table with one row per token, in which each new word has the mean of its pieces.

    Rows beyond the tokenizer's vocabulary are padding. No padding rows are added, since there are
    no gaps between the new ids.
    """
    larger = np.zeros((num_rows, *table.shape[1:]), table.dtype)
    larger[: len(table)] = table
    for word in words:
        larger[word.token_id] = table[list(word.pieces)].mean(axis=0)
    return larger
