"""Attribute a prediction to the input tokens with integrated gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, assert_never

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from numpy.typing import NDArray

from bert_jax.inference.predictor import Outputs
from bert_jax.interpretability.notebook import Shaded, paragraph, words
from bert_jax.labeled_data.tokenized_text import TextWord
from bert_jax.models.encoder import Encoder
from bert_jax.models.model import Model, Problem
from bert_jax.models.pretraining_models import PretrainingModel
from bert_jax.tasks.task import Batch

Baseline = Literal["mask", "zero"]
# The number of path points to compute at once. A larger number is faster but needs more memory.
_POINTS_AT_ONCE = 8


@dataclass(frozen=True, eq=False)
class Attribution:
    """The contribution of every input token to a prediction.

    Printing this object shows a table; Jupyter displays the words in color.

    Attributes:
      target: the label or token whose score is explained.
      score: the score of the text: a probability or, for regression, the predicted number.
      baseline_score: the score of the baseline, which hides every word.
      tokens: all tokens, including `[CLS]` and `[SEP]`.
      words: the words and special tokens.
      scores: float32 [tokens]; a token with a positive score raises `score`. The sum of all scores
        is about `score - baseline_score`. Special tokens have the score 0, because the baseline
        keeps them.
      error: the absolute difference between the sum of `scores` and `score - baseline_score`.
        Increase `steps` to reduce it.
    """

    target: str
    score: float
    baseline_score: float
    tokens: tuple[str, ...]
    words: tuple[TextWord, ...] = field(repr=False)
    scores: NDArray[np.float32] = field(repr=False)
    error: float

    @property
    def word_scores(self) -> NDArray[np.float32]:
        """Each word's score, float32 [words]: the sum of the scores of its tokens."""
        scores: NDArray[np.float32] = np.add.reduceat(
            self.scores, [word.start for word in self.words]
        )
        return scores

    @property
    def summary(self) -> str:
        """A sentence that states the scores of the text and of the baseline."""
        return (
            f"Score of {self.target!r}: {self.score:.3f}; with every word hidden: "
            f"{self.baseline_score:.3f} (error of the contributions: {self.error:.0e})"
        )

    def lines(self) -> Iterator[str]:
        """Yield a table with the contribution of each word."""
        width = max(len(word.text) for word in self.words)
        yield self.summary
        yield ""
        for word, score in zip(self.words, self.word_scores, strict=True):
            yield f"{word.text:{width}}  {score:+.3f}"

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def _repr_html_(self) -> str:
        scores = self.word_scores.tolist()
        largest = max((abs(score) for score in scores), default=0.0) or 1.0
        shown = [
            Shaded(word.text, score / largest, f"{word.text}: {score:+.3f}")
            for word, score in zip(self.words, scores, strict=True)
        ]
        key = [Shaded("raises the score", 1.0), Shaded("lowers the score", -1.0)]
        return paragraph(self.summary) + words(shown) + words(key)


@partial(jax.jit, static_argnames=("problem", "steps"))
def attribute_label(model: Model, batch: Batch, *, problem: Problem, steps: int) -> Outputs:
    """Attribute the score of one label of a sequence classifier to the tokens.

    Args:
      model: a model with a sequence classifier.
      batch: `token_ids`, `segment_ids` and `attention_mask` of one row; `label` [1], the index of
        the label; and `kept` and `baseline_ids`, as described in `_integrate`.
      problem: the kind of prediction, which determines how logits become scores.
      steps: the number of points on the path.

    Returns:
      See `_integrate`.
    """

    def score(hidden: jax.Array) -> jax.Array:
        logits = model.read_out(hidden, batch["attention_mask"])["logits"][0]
        match problem:
            case "single_label":
                scores = jax.nn.softmax(logits)
            case "multi_label":
                scores = jax.nn.sigmoid(logits)
            case "regression":
                scores = logits
            case _:
                assert_never(problem)
        return scores[batch["label"][0]]

    return _integrate(model.encoder, score, batch, steps)


@partial(jax.jit, static_argnames=("vocab_size", "steps"))
def attribute_token(
    model: PretrainingModel, batch: Batch, *, vocab_size: int, steps: int
) -> Outputs:
    """Attribute the probability of a token at a mask to the tokens of the text.

    Args:
      model: a model with a masked-LM head.
      batch: the same arrays as for `attribute_label`, with the token's id as `label`, plus
        `masked_position` [1].
      vocab_size: the number of tokens in the vocabulary.
      steps: the number of points on the path.

    Returns:
      See `_integrate`.
    """

    def score(hidden: jax.Array) -> jax.Array:
        at_mask = hidden[:, batch["masked_position"][0]][:, None]
        logits = model.masked_lm(at_mask, model.encoder.embeddings)[0, 0, :vocab_size]
        return jax.nn.softmax(logits)[batch["label"][0]]

    return _integrate(model.encoder, score, batch, steps)


def _integrate(
    encoder: Encoder, score: Callable[[jax.Array], jax.Array], batch: Batch, steps: int
) -> Outputs:
    """Integrate gradients along the straight path from a baseline to the token embeddings.

    Position and segment embeddings are not changed. The integral is approximated by the mean over
    the midpoints of `steps` equal intervals (Sundararajan et al. 2017, "Axiomatic Attribution for
    Deep Networks", section 5).

    Args:
      encoder: the encoder.
      score: a function from the encoder's output [1, length, hidden_dim] to the score to explain.
      batch: one row, which includes `kept` and `baseline_ids`. `kept` [1, length] is 1 for tokens
        that the baseline keeps. `baseline_ids` [1] is the id of the token that replaces all other
        tokens, or -1 to replace their embeddings with zeros.
      steps: the number of points on the path.

    Returns:
      A dict with `scores` [1, length], `score` [1] and `baseline_score` [1].
    """
    token_ids = batch["token_ids"]
    graph, state = nnx.split(encoder)
    table = encoder.embeddings.token[...]
    inputs = jnp.take(table, token_ids[0], axis=0)
    replaced = jnp.where(
        batch["baseline_ids"] >= 0,
        jnp.take(table, jnp.maximum(batch["baseline_ids"], 0), axis=0),
        0,
    )
    baseline = jnp.where(batch["kept"][0][:, None] > 0, inputs, replaced)

    def score_of(embeddings: jax.Array) -> jax.Array:
        # Use a token table with one row per position, so that every position can have its own
        # embedding.
        by_position = nnx.merge(graph, state)
        by_position.embeddings.token = nnx.Param(embeddings)
        ids = jnp.arange(token_ids.shape[1])[None]
        hidden = by_position(
            ids, batch["segment_ids"], None, batch["attention_mask"], packed=False
        ).hidden
        return score(hidden)

    points = (jnp.arange(steps) + 0.5) / steps
    gradients = jax.lax.map(
        lambda point: jax.grad(score_of)(baseline + point * (inputs - baseline)),
        points,
        batch_size=min(_POINTS_AT_ONCE, steps),
    )
    scores = jnp.sum(jnp.mean(gradients, axis=0) * (inputs - baseline), axis=-1)
    return {
        "scores": scores[None],
        "score": score_of(inputs)[None],
        "baseline_score": score_of(baseline)[None],
    }
