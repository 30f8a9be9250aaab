"""Format the parameters and FLOPs of a pretraining config as tables."""

from __future__ import annotations

from collections.abc import Iterator

from bert_jax.analysis.tables import flops_table, parameter_table
from bert_jax.models.config import ComputeConfig
from bert_jax.recipes.load import Overrides, Source, load_config
from bert_jax.tasks.pretraining import Pretraining

# Parameters and FLOPs do not depend on how a model is computed.
_COMPUTE = ComputeConfig(dtype="float32", attention="xla")


def config_tables(source: Source, overrides: Overrides = ()) -> Iterator[str]:
    """Yield the lines of a parameter table, followed by a FLOP table for each phase.

    Args:
      source: the config; see `load_config`.
      overrides: the keys to change; see `load_config`.

    Raises:
      ValueError: `load_config` fails.
    """
    config = load_config(source, overrides, kind="pretrain")
    task = Pretraining(config.model, _COMPUTE, sentence_pairs=config.sentence_pairs)
    yield from parameter_table(task.definition.shapes)
    for name, _, phase in config.ordered_phases():
        yield ""
        yield from flops_table(
            config.model,
            name,
            length=phase.sequence_length,
            batch_size=phase.batch_size,
            num_steps=phase.num_steps,
            predictions=config.masking.max_predictions(phase.sequence_length),
            next_sentence=config.sentence_pairs != "none",
        )
