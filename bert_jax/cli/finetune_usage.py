"""What a fine-tuning run tells those who use its model."""

from __future__ import annotations

from bert_jax.finetuning.config import FinetuneConfig
from bert_jax.finetuning.spans import SpansConfig
from bert_jax.finetuning.task_data import TaskData
from bert_jax.inference.usage import SpanUsage, Usage


def usage_of(config: FinetuneConfig, data: TaskData) -> Usage:
    """How the run reads texts, and what its one label is not."""
    spans = None if config.spans is None else _of_spans(config.spans)
    pairs = None
    if data.head.head == "classification":
        (sequences, *_) = (each.features.sequences for each in data.validation.values())
        pairs = bool((sequences.second_starts < sequences.lengths).any())
    return Usage(config.max_length, spans, data.head.negative, pairs)


def _of_spans(config: SpansConfig) -> SpanUsage:
    return SpanUsage(config.doc_stride, config.max_query_length, config.max_answer_length)
