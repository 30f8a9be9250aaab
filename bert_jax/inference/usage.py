"""How a fine-tuning run used its model: what a predictor does too unless it is told otherwise."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SpanUsage:
    """How passages were cut and answers bounded, in tokens (Devlin et al. 2019, section 4.2).

    doc_stride: from the beginning of a window to that of the next one. max_query_length: of a
      question, whose end is left out. max_answer_length: of an answer.
    """

    doc_stride: int
    max_query_length: int
    max_answer_length: int


@dataclass(frozen=True)
class Usage:
    """What the parameters of a fine-tuned model do not say.

    max_length: tokens of a sequence at most, special ones included.
    spans: of the head "span" alone.
    negative: of a model with one score, the probability of its one label: what it is called when
      that label does not hold; "" of the others.
    pairs: whether its texts were pairs; None where nobody said.
    document_context: whether sentences were tagged with those of the document around them.
    """

    max_length: int
    spans: SpanUsage | None = None
    negative: str = ""
    pairs: bool | None = None
    document_context: bool = False


# Of Devlin et al.'s release, for models that come from elsewhere.
SPANS_OF_RELEASE = Usage(384, SpanUsage(doc_stride=128, max_query_length=64, max_answer_length=30))
