"""Score a pretraining run's model on texts, minimal pairs and downstream tasks."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

from jax.sharding import Mesh

from bert_jax.language_scores.evaluation_set import (
    EvaluationSet,
    LanguageMetrics,
    read_evaluation_set,
)
from bert_jax.language_scores.text_rows import SPECIAL_TOKENS
from bert_jax.models.compute_config import ComputeConfig
from bert_jax.models.model import ModelConfig, define_model
from bert_jax.models.replaced_token import pair_names
from bert_jax.pretraining.config import PretrainConfig
from bert_jax.pretraining.step_setup import StepSetup
from bert_jax.runs.locations import WorkDir
from bert_jax.tokenizers.tokenizer import Tokenizer
from bert_jax.training.distributed import StopRequest
from bert_jax.training.loop import AfterSave
from bert_jax.training.reports import OnReport


class Downstream(Protocol):
    """The tasks in `evaluation.downstream`, on which a run's checkpoints are fine-tuned."""

    def check(self, model: ModelConfig, tokenizer: Tokenizer, place: WorkDir) -> None:
        """Read the tasks' data, and raise ValueError if it does not fit the run's model."""
        ...

    def scoring(
        self, place: WorkDir, stop: StopRequest, report: OnReport
    ) -> AbstractContextManager[AfterSave]:
        """Return a context manager for a function that fine-tunes a checkpoint.

        Args:
          place: the run's work directory.
          stop: a request to stop.
          report: called with a message after each fine-tuning run.
        """
        ...


# Evaluations during a run use the compute settings of `evaluate`, so that the scores do not depend
# on the run's compute settings.
SCORING_COMPUTE = ComputeConfig(dtype="float32", attention="xla")


def open_evaluation_set(config: PretrainConfig, tokenizer: Tokenizer) -> EvaluationSet | None:
    """Read the texts and minimal pairs that a run evaluates; return None if it has none.

    Raises:
      ValueError: the run does not train a masked-LM head, `evaluation.text_length` is out of range,
        or the data cannot be used; see `read_evaluation_set`.
    """
    evaluation, positions = config.evaluation, config.model.max_positions
    if not evaluation.scores_language:
        return None
    key = "texts" if evaluation.texts else "minimal_pairs"
    if not config.trains_masked_lm:
        raise ValueError(
            f"evaluation.{key}: its scores need a masked-LM head, which is not trained if "
            "distillation.mlm_weight=0 and soft_weight=0. Remove this key, or set one of the "
            "weights to a positive value."
        )
    shortest = min(phase.sequence_length for phase in config.phases.values())
    length = evaluation.text_length or shortest
    if evaluation.texts and not SPECIAL_TOKENS < length <= positions:
        raise ValueError(
            f"evaluation.text_length={length}: expected {SPECIAL_TOKENS + 1} to {positions:,}, the "
            "model's number of positions."
        )
    return read_evaluation_set(
        evaluation.texts,
        evaluation.minimal_pairs,
        tokenizer,
        text_length=length,
        max_sentences=evaluation.max_sentences,
        max_pairs=evaluation.max_pairs,
        max_positions=positions,
    )


def language_metrics(data: EvaluationSet, setup: StepSetup, mesh: Mesh) -> LanguageMetrics:
    """Return the scores of a run's model, or of its generator if it detects replaced tokens.

    Args:
      data: the texts and minimal pairs.
      setup: the settings of the run's train step.
      mesh: the device mesh.
    """
    if setup.generator is None:
        definition = define_model(setup.model_config, SCORING_COMPUTE)
        return LanguageMetrics(data, definition, setup.model, mesh)
    definition = define_model(ModelConfig(setup.generator, "masked_lm"), SCORING_COMPUTE)
    names = pair_names(definition.shapes)
    return LanguageMetrics(data, definition, setup.generator, mesh, names)
