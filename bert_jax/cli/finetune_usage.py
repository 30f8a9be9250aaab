"""What a fine-tuning run tells those who use its model."""

from __future__ import annotations

from pathlib import Path

from bert_jax.data.tokenizer import Tokenizer
from bert_jax.finetuning.config import FinetuneConfig
from bert_jax.finetuning.spans import SpansConfig
from bert_jax.finetuning.task_data import TaskData
from bert_jax.inference.usage import SpanUsage, Usage
from bert_jax.inference.work_dir import Comparison, write_model
from bert_jax.models.model import ModelConfig


def describe_model(
    config: FinetuneConfig,
    data: TaskData,
    model: ModelConfig,
    tokenizer: Tokenizer,
    compared_by: Comparison,
    best_step: int | None,
) -> None:
    """Writes the run's `model.json`; best_step None before its end."""
    named = "sizes and tokenizer of" if config.from_scratch else "source"
    origin = {"command": "bert-jax finetune", named: config.init_from}
    directory, usage = Path(config.work_dir), usage_of(config, data)
    write_model(
        model,
        origin,
        directory,
        tokenizer=tokenizer,
        best_step=best_step,
        compared_by=compared_by,
        usage=usage,
    )


def usage_of(config: FinetuneConfig, data: TaskData) -> Usage:
    """How the run reads texts, and what its one label is not."""
    spans = None if config.spans is None else _of_spans(config.spans)
    pairs = None
    if data.head.head == "classification":
        (sequences, *_) = (each.features.sequences for each in data.validation.values())
        pairs = bool((sequences.second_starts < sequences.lengths).any())
    context = config.tags is not None and config.tags.document_context
    return Usage(config.max_length, spans, data.head.negative, pairs, context)


def _of_spans(config: SpansConfig) -> SpanUsage:
    return SpanUsage(config.doc_stride, config.max_query_length, config.max_answer_length)
