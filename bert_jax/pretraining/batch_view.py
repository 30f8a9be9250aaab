"""Show the words in a batch: which ones are masked, replaced or kept, and how pairs are labeled."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, assert_never

import numpy as np

from bert_jax.objectives import SentencePairs
from bert_jax.pipeline.examples import Batch, ExampleConfig
from bert_jax.pretraining.phase_config import PhaseConfig
from bert_jax.pretraining.phases import PhaseCorpus, open_corpora, training_batches
from bert_jax.terminal import Color, colored
from bert_jax.tokenizers.tokenizer import Tokenizer

# The masker's treatment of a token. The model does not predict "context" tokens.
TokenState = Literal["context", "masked", "replaced", "kept"]


@dataclass(frozen=True)
class ShownToken:
    """A token of a batch.

    Attributes:
      text: the token as the model sees it.
      state: how the masker treated the token.
      label: the token that the model must predict; "" for a token that is not predicted.
    """

    text: str
    state: TokenState
    label: str = ""

    def __str__(self) -> str:
        match self.state:
            case "context":
                return self.text
            case "masked" | "replaced":
                return f"{self.text}({self.label})"
            case "kept":
                return f"{self.text}(=)"
            case _:
                assert_never(self.state)


@dataclass(frozen=True)
class ShownDocument:
    """A document in a row of a batch.

    Its tokens attend only to each other unless the documents in a row are joined.

    Attributes:
      tokens: the document's tokens.
      pair: the label of its sentence pair, such as "random"; "" for a document without a pair.
    """

    tokens: tuple[ShownToken, ...]
    pair: str


@dataclass(frozen=True)
class BatchView:
    """A part of a batch, printed as lines of text and displayed in color in Jupyter.

    Attributes:
      phase: the name of the phase.
      step: the step, counted over the whole run from 0.
      rows: the documents in each displayed row.
      num_rows: the number of rows in the whole batch.
      num_padding: the number of padding positions in the displayed rows.
    """

    phase: str
    step: int
    rows: tuple[tuple[ShownDocument, ...], ...] = field(repr=False)
    num_rows: int
    num_padding: int

    def lines(self, *, color: bool = False) -> Iterator[str]:
        """Yield the batch as lines of text, with ANSI colors if `color` is true."""
        yield (
            f"step {self.step:,} ({self.phase}): {len(self.rows)} of {self.num_rows} rows. Tokens "
            "to predict: [MASK](word) is masked, other(word) is replaced, word(=) is kept"
        )
        for number, row in enumerate(self.rows):
            yield ""
            yield f"row {number}"
            for document in row:
                words = (_painted(token, color=color) for token in document.tokens)
                yield f"  {_painted_pair(document.pair, color=color)}{' '.join(words)}"
        yield ""
        yield self.summary

    @property
    def summary(self) -> str:
        """A one-line summary of the predicted tokens and the padding.

        It contains the fraction of tokens that are predicted, the fractions of predicted tokens
        that were masked, replaced and kept, and the fraction of all positions that are padding.
        """
        tokens = [token for row in self.rows for document in row for token in document.tokens]
        states = Counter(token.state for token in tokens)
        predicted = len(tokens) - states["context"]
        shares = ", ".join(
            f"{states[state]:,} {state} ({states[state] / max(1, predicted):.0%})"
            for state in ("masked", "replaced", "kept")
        )
        positions = len(tokens) + self.num_padding
        return (
            f"{len(tokens):,} tokens, {predicted / max(1, len(tokens)):.1%} of them predicted: "
            f"{shares}; {self.num_padding / max(1, positions):.1%} of the positions are padding"
        )

    def __str__(self) -> str:
        return "\n".join(self.lines())

    @property
    def html(self) -> str:
        """The batch as colored HTML, for insertion into a page."""
        rows = []
        for number, row in enumerate(self.rows):
            documents = "".join(f"<p>{_document_html(document)}</p>" for document in row)
            rows.append(f"<h4>row {number}</h4>{documents}")
        return f"<p>{html.escape(self.summary)}</p>{_LEGEND}{''.join(rows)}"

    def _repr_html_(self) -> str:
        return self.html


_COLORS: dict[TokenState, Color] = {"masked": "blue", "replaced": "red", "kept": "green"}
_HUES: dict[TokenState, int] = {"masked": 220, "replaced": 10, "kept": 130}
# The labels of sentence pairs. Pairs with a second segment that continues the first one have one
# color, and all other pairs have another color.
_CONTINUES, _RANDOM, _IN_ORDER, _SWAPPED = "next", "random", "in order", "swapped"
_PAIR_COLORS: dict[str, Color] = {
    _CONTINUES: "cyan",
    _IN_ORDER: "cyan",
    _RANDOM: "magenta",
    _SWAPPED: "magenta",
}
_PAIR_HUES = {_CONTINUES: 190, _IN_ORDER: 190, _RANDOM: 300, _SWAPPED: 300}


def _painted(token: ShownToken, *, color: bool) -> str:
    painted = color and token.state in _COLORS
    return colored(str(token), _COLORS[token.state]) if painted else str(token)


def _painted_pair(pair: str, *, color: bool) -> str:
    if not pair:
        return ""
    return (colored(f"[{pair}]", _PAIR_COLORS[pair]) if color else f"[{pair}]") + " "


def _document_html(document: ShownDocument) -> str:
    pair = f"<b>{_marked(document.pair, _PAIR_HUES[document.pair])}</b> " if document.pair else ""
    words = (_marked(str(token), _HUES.get(token.state)) for token in document.tokens)
    return pair + " ".join(words)


def _marked(text: str, hue: int | None) -> str:
    style = "" if hue is None else f' style="background: hsl({hue} 80% 50% / 0.3)"'
    return f"<span{style}>{html.escape(text)}</span>"


_LEGEND = (
    f"<p>Tokens to predict: {_marked('[MASK](word)', _HUES['masked'])} is masked, "
    f"{_marked('other(word)', _HUES['replaced'])} is replaced, "
    f"{_marked('word(=)', _HUES['kept'])} is kept.</p>"
)


def view_batch(
    phases: Sequence[tuple[str, int, PhaseConfig]],
    examples: ExampleConfig,
    *,
    step: int = 0,
    num_rows: int = 4,
) -> BatchView:
    """Return the first few rows of the batch that a run trains on at a given step.

    Args:
      phases: (name, first step, config) for each phase, in running order.
      examples: the settings that determine the examples.
      step: the step, counted over the whole run from 0.
      num_rows: the number of rows to show.

    Raises:
      ValueError: the run has no such step, `num_rows` is not positive, or a corpus is missing,
        unfinished or damaged, or does not fit the settings.
    """
    run_steps = sum(phase.num_steps for _, _, phase in phases)
    if not 0 <= step < run_steps:
        raise ValueError(
            f"step={step}: the run has no such step. Choose one from 0 to {run_steps - 1:,}."
        )
    if num_rows < 1:
        raise ValueError(f"num_rows={num_rows}: expected at least 1.")
    begun = [phase for phase in phases if phase[1] <= step]
    corpus = open_corpora(begun, lambda phase: phase.batch_size)[-1]
    batch = _rows_of(corpus, examples, run_steps, step, num_rows)
    tokenizer = corpus.tokenizer
    rows = [
        tuple(_documents(batch, row, tokenizer, examples.sentence_pairs))
        for row in range(len(batch["token_ids"]))
    ]
    padding = int(np.count_nonzero(batch["document_ids"] == 0))
    stage = corpus.config.stage_at(step - corpus.first_step)
    return BatchView(corpus.name, step, tuple(rows), stage.batch_size, padding)


def _rows_of(
    corpus: PhaseCorpus, examples: ExampleConfig, run_steps: int, step: int, num_rows: int
) -> Batch:
    stage = corpus.config.stage_at(step - corpus.first_step)
    rows = np.arange(min(num_rows, stage.batch_size))
    source = training_batches(corpus, examples, stage, run_steps, rows)
    return source[step - corpus.first_step - stage.first_step]


def _documents(
    batch: Batch, row: int, tokenizer: Tokenizer, sentence_pairs: SentencePairs
) -> Iterator[ShownDocument]:
    """Yield the documents in a row of a batch."""
    labels = {
        int(position): int(label)
        for position, label, weight in zip(
            batch["masked_positions"][row],
            batch["masked_labels"][row],
            batch["masked_weights"][row],
            strict=True,
        )
        if weight
    }
    ids = batch["token_ids"][row].tolist()
    documents = batch["document_ids"][row]
    for number in range(1, int(documents.max(initial=0)) + 1):
        positions = np.flatnonzero(documents == number).tolist()
        tokens = tuple(_token(ids[p], labels.get(p), tokenizer) for p in positions)
        paired = bool(batch["pair_weights"][row, number - 1])
        label = int(batch["pair_labels"][row, number - 1])
        yield ShownDocument(tokens, _pair_name(label, sentence_pairs) if paired else "")


def _token(token_id: int, label: int | None, tokenizer: Tokenizer) -> ShownToken:
    text = tokenizer.readable(token_id)
    if label is None:
        return ShownToken(text, "context")
    if token_id == label:
        return ShownToken(text, "kept", text)
    state: TokenState = "masked" if token_id == tokenizer.mask_id else "replaced"
    return ShownToken(text, state, tokenizer.readable(label))


def _pair_name(label: int, sentence_pairs: SentencePairs) -> str:
    match sentence_pairs:
        case "next_sentence":
            return _RANDOM if label else _CONTINUES
        case "sentence_order":
            return _SWAPPED if label else _IN_ORDER
        case "none":
            return ""
        case _:
            assert_never(sentence_pairs)
