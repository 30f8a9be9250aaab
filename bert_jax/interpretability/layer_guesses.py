"""Apply the masked-LM head to every layer, to see where a prediction takes shape."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import assert_never

import jax
import jax.numpy as jnp

from bert_jax.inference.fill_mask import Guess
from bert_jax.inference.predictor import Outputs, Row
from bert_jax.interpretability.notebook import Cell, Shaded, paragraph, table
from bert_jax.interpretability.traced_text import layer_names
from bert_jax.models.encoder import Encoder
from bert_jax.models.layers import select_rows
from bert_jax.models.pretraining_models import PretrainingModel
from bert_jax.tasks.task import Batch
from bert_jax.tokenizers.tokenizer import Tokenizer


@dataclass(frozen=True)
class MaskGuesses:
    """The most probable tokens for a mask, as predicted at every layer.

    The masked-LM head was trained on the last layer's output only. Its guesses at lower layers show
    how much of the answer those layers already contain, not what the model would predict.

    Attributes:
      position: the index of the mask among the tokens.
      layers: the guesses based on the embeddings and on the output of each layer, with the most
        probable guess first.
    """

    position: int
    layers: tuple[tuple[Guess, ...], ...]

    @property
    def title(self) -> str:
        """The title of the mask's table, which includes the mask's position, counted from 1."""
        return f"guesses for the mask at token {self.position + 1}"

    def lines(self) -> Iterator[str]:
        """Yield a table with one row for the embeddings and one for each layer."""
        yield self.title
        width = max(len(guess.token) for layer in self.layers for guess in layer)
        for name, layer in zip(layer_names(len(self.layers)), self.layers, strict=True):
            cells = (f"{guess.token:>{width}} {guess.probability:6.1%}" for guess in layer)
            yield f"{name:10}  {'  '.join(cells)}"

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def _repr_html_(self) -> str:
        rows: list[list[Cell]] = []
        for name, layer in zip(layer_names(len(self.layers)), self.layers, strict=True):
            cells = [
                Shaded(f"{guess.token} {guess.probability:.1%}", guess.probability**0.5)
                for guess in layer
            ]
            rows.append([name, *cells])
        header = ["layer", *(f"guess {number}" for number in range(1, len(rows[0])))]
        return paragraph(self.title) + table(header, rows)


class TextGuesses(list[MaskGuesses]):
    """A list of the guesses for each mask in a text, which Jupyter displays as tables."""

    def lines(self) -> Iterator[str]:
        """Yield a table for each mask."""
        for number, mask in enumerate(self):
            yield from [""] if number else []
            yield from mask.lines()

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def _repr_html_(self) -> str:
        return "".join(mask._repr_html_() for mask in self) or paragraph("The text has no masks.")


@partial(jax.jit, static_argnames=("vocab_size", "top_k"))
def guess_at_layers(
    model: PretrainingModel, batch: Batch, *, vocab_size: int, top_k: int
) -> Outputs:
    """Return the `top_k` best tokens from every layer at `masked_positions` [batch, masks].

    Returns:
      A dict of arrays [batch, masks, num_layers + 1, top_k]: `probabilities` and `token_ids`.
    """
    states = model.encoder(
        batch["token_ids"],
        batch["segment_ids"],
        None,
        batch["attention_mask"],
        packed=False,
        return_hidden_states=True,
    ).hidden_states
    assert states is not None
    at_masks = [select_rows(state, batch["masked_positions"]) for state in states]
    hidden = jnp.stack(_as_last_layer(model.encoder, at_masks), axis=2)
    flat = hidden.reshape(len(hidden), -1, hidden.shape[-1])
    logits = model.masked_lm(flat, model.encoder.embeddings)[..., :vocab_size]
    values, token_ids = jax.lax.top_k(jax.nn.softmax(logits, axis=-1), top_k)
    shape = (*hidden.shape[:3], top_k)
    return {"probabilities": values.reshape(shape), "token_ids": token_ids.reshape(shape)}


def _as_last_layer(encoder: Encoder, states: Sequence[jax.Array]) -> list[jax.Array]:
    """Apply the final norm, if any, to all states except the last, which is already normalized."""
    match encoder.config.norm:
        case "post":
            return list(states)
        case "pre":
            return [*(encoder.final_norm(state) for state in states[:-1]), states[-1]]
        case _:
            assert_never(encoder.config.norm)


def read_guesses(row: Row, positions: Sequence[int], tokenizer: Tokenizer) -> TextGuesses:
    """Convert a row of `guess_at_layers` outputs to guesses for the masks at `positions`."""
    return TextGuesses(
        MaskGuesses(
            position,
            tuple(
                tuple(
                    Guess(tokenizer.readable(token_id), probability)
                    for token_id, probability in zip(ids, probabilities, strict=True)
                )
                for ids, probabilities in zip(
                    row["token_ids"][number].tolist(),
                    row["probabilities"][number].tolist(),
                    strict=True,
                )
            ),
        )
        for number, position in enumerate(positions)
    )
