"""Score a pretrained model on text: masked-LM loss, accuracy and pseudo-perplexity."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bert_jax.corpus.inputs import InputPaths, input_names
from bert_jax.language_scores.batch_limits import TEXT_TOKENS
from bert_jax.language_scores.masked_lm import MaskedLM, NotFinite
from bert_jax.language_scores.progress import OnProgress, progress_line
from bert_jax.language_scores.pseudo_likelihood import PseudoLikelihood, SentenceScorer
from bert_jax.language_scores.text_rows import TextRows, masked_batches, read_text_rows
from bert_jax.local_paths import naming_urls
from bert_jax.pipeline.masking import MaskingConfig
from bert_jax.runs.named_checkpoint import NamedCheckpoint, name_checkpoints
from bert_jax.storage.uploads import write_json
from bert_jax.text.sources import SourceOptions, expand_inputs
from bert_jax.tokenizers.tokenizer import Tokenizer

# The default number of sentences in the sample for the pseudo-perplexity.
MAX_SENTENCES = 1000


@dataclass(frozen=True)
class TextScores:
    """A model's scores on a text, which print as a few lines.

    Attributes:
      checkpoint: the checkpoint that was scored.
      data: the inputs.
      documents: the number of documents.
      tokens: the number of tokens, without special tokens.
      predictions: the number of tokens that were masked for `mlm_loss` and `mlm_accuracy`.
      mlm_loss: the mean cross-entropy at the masked tokens, in nats.
      mlm_accuracy: the fraction of masked tokens that are predicted correctly.
      num_sentences: the number of sentences in the text.
      scored_sentences: the number of sentences in the sample for the pseudo-perplexity; a sentence
        that was split counts once for each part.
      scored_tokens: the number of tokens in the sample.
      num_split: the number of sentences in the sample that were split because they are longer than
        a row.
      pseudo_perplexity: the exponential of the mean negative log-probability of each token in the
        sample, given the rest of its sentence (Salazar et al. 2020, equation 4). It is only
        comparable between models with the same tokenizer.
    """

    checkpoint: NamedCheckpoint
    data: tuple[str, ...]
    documents: int
    tokens: int
    predictions: int
    mlm_loss: float
    mlm_accuracy: float
    num_sentences: int
    scored_sentences: int
    scored_tokens: int
    num_split: int
    pseudo_perplexity: float

    @property
    def mlm_perplexity(self) -> float:
        """The exponential of `mlm_loss`."""
        return perplexity(self.mlm_loss)

    def lines(self) -> Iterator[str]:
        """Yield the lines that describe the model, the text and the scores."""
        yield f"model              {self.checkpoint}"
        data = " ".join(self.data)
        yield f"data               {data}: {self.documents:,} documents, {self.tokens:,} tokens"
        yield f"masked-LM loss     {self.mlm_loss:.3f} (perplexity {self.mlm_perplexity:,.2f})"
        yield (f"masked-LM accuracy {self.mlm_accuracy:.1%} of {self.predictions:,} masked tokens")
        sample = f"{self.scored_sentences:,} of {self.num_sentences:,} sentences"
        yield (
            f"pseudo-perplexity  {self.pseudo_perplexity:,.2f} ({sample}, "
            f"{self.scored_tokens:,} tokens)"
        )
        if self.num_split:
            yield f"split              {self.num_split:,} sentences that are longer than a row"

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def to_json(self) -> dict[str, Any]:
        """Return all scores as plain JSON values."""
        values = {name: value for name, value in vars(self).items() if name != "checkpoint"}
        return {
            "checkpoint": self.checkpoint.to_json(),
            **values,
            "data": list(self.data),
            "mlm_perplexity": self.mlm_perplexity,
        }

    def save(self, path: str | Path) -> None:
        """Write all scores to a JSON file."""
        write_json(path, self.to_json())


def perplexity(loss: float) -> float:
    """Return the exponential of a loss in nats, with losses above 700 capped to fit a float."""
    return math.exp(min(loss, 700.0))


@naming_urls()
def score_text(
    work_dir: str | os.PathLike[str],
    inputs: InputPaths,
    *,
    max_length: int | None = None,
    max_sentences: int | None = MAX_SENTENCES,
    seed: int = 0,
    step: int | None = None,
    language: str = "en",
    sources: SourceOptions | None = None,
    on_progress: OnProgress | None = None,
) -> TextScores:
    """Score a pretrained model on text.

    For the loss and the accuracy, the documents are split into rows, and 15% of the tokens are
    masked as in BERT's pretraining; the masks depend only on the text and the seed. For the
    pseudo-perplexity, each token of a sentence is masked in turn (Salazar et al. 2020).

    Args:
      work_dir: the work directory of a pretraining run or of `bert-jax import`.
      inputs: a file in any format that `prepare` reads, or a list of files, directories, patterns
        and TFDS datasets.
      max_length: the maximum number of tokens in a row; defaults to the model's number of
        positions. For a fair score, use rows of the same length as in training.
      max_sentences: the maximum number of sentences in the random sample for the pseudo-perplexity;
        None for all sentences.
      seed: the seed of the masks and of the sample.
      step: the step of the checkpoint; if None, the best or newest one.
      language: the language (ISO 639-1) of the rules for splitting the text into sentences.
      sources: the options for reading the inputs, such as `text_field`.
      on_progress: called with progress messages.

    Raises:
      ValueError: the model has no masked-LM head, or an input is missing, unreadable or empty.
    """
    if max_sentences is not None and max_sentences < 1:
        raise ValueError(
            f"max_sentences={max_sentences}: expected 1 or more, or None for all sentences."
        )
    names = input_names(inputs)
    expand_inputs(names)
    model = PseudoLikelihood(work_dir, max_length=max_length, step=step)
    (checkpoint,) = name_checkpoints([work_dir], [step])
    rows = read_text_rows(
        names,
        model.tokenizer,
        model.max_length,
        max_sentences=max_sentences,
        seed=seed,
        language=language,
        sources=sources or SourceOptions(),
    )
    scores = text_metrics(
        model.masked_lm, model.tokenizer, rows, seed=seed, on_progress=on_progress
    )
    return TextScores(
        checkpoint,
        tuple(names),
        rows.documents,
        rows.tokens,
        int(scores["predictions"]),
        scores["mlm_loss"],
        scores["mlm_accuracy"],
        rows.num_sentences,
        len(rows.sentences),
        rows.sentence_tokens,
        rows.num_split,
        scores["pseudo_perplexity"],
    )


def text_metrics(
    model: MaskedLM,
    tokenizer: Tokenizer,
    rows: TextRows,
    *,
    seed: int,
    on_progress: OnProgress | None = None,
) -> dict[str, float]:
    """Return `mlm_loss`, `mlm_accuracy`, `predictions` and `pseudo_perplexity` of a text.

    If `rows` contains no sentences, `pseudo_perplexity` is left out.

    Args:
      model: a model with a masked-LM head.
      tokenizer: the model's tokenizer.
      rows: the text.
      seed: the seed of the masks.
      on_progress: called with progress messages.

    Raises:
      NotFinite: a loss is not finite.
    """
    batches = masked_batches(
        rows.fragments,
        tokenizer,
        seed=seed,
        tokens=TEXT_TOKENS.here,
        limits=model.limits,
        masking=MaskingConfig(),
    )
    report = None if on_progress is None else progress_line("rows", on_progress)
    totals, done = np.zeros(3), 0
    for batch in batches:
        totals += np.asarray(model.loss_sums(batch), np.float64)
        done += int((batch["lengths"] > 1).sum())
        if report is not None:
            report(done, len(rows.fragments))
    if not np.isfinite(totals).all():
        raise NotFinite("the model's loss is not finite. Check whether its training diverged")
    loss, correct, weight = totals.tolist()
    scores = {"mlm_loss": loss / weight, "mlm_accuracy": correct / weight, "predictions": weight}
    if rows.sentences:
        report = None if on_progress is None else progress_line("tokens", on_progress)
        likelihoods = SentenceScorer(model, tokenizer)(rows.sentences, report)
        mean = float(likelihoods.sum()) / rows.sentence_tokens
        scores["pseudo_perplexity"] = perplexity(-mean)
    return scores
