"""What a fine-tuning run tells those who use its model."""

from __future__ import annotations

from bert_jax.finetuning.config import FinetuneConfig
from bert_jax.finetuning.spans import SpansConfig
from bert_jax.finetuning.task_data import HeadConfig
from bert_jax.inference.usage import SpanUsage, Usage


def usage_of(config: FinetuneConfig, head: HeadConfig) -> Usage:
    """How the run reads texts, and what its one label is not."""
    spans = None if config.spans is None else _of_spans(config.spans)
    return Usage(config.max_length, spans, head.negative)


def _of_spans(config: SpansConfig) -> SpanUsage:
    return SpanUsage(config.doc_stride, config.max_query_length, config.max_answer_length)
