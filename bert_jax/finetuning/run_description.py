"""Describe a fine-tuning run: its model, trainable part, examples and batches."""

from __future__ import annotations

from bert_jax.finetuning.compiled_steps import unknown_lines
from bert_jax.finetuning.run import FinetuneRun
from bert_jax.finetuning.scoring import padding
from bert_jax.models.parameters import count
from bert_jax.training.state import trainable_part


def num_parameters(run: FinetuneRun) -> int:
    """Return the number of parameters of the run's model."""
    return count(run.compiled.task.definition.shapes)


def num_trainable(run: FinetuneRun) -> int:
    """Return the number of parameters that the run trains."""
    shapes = run.compiled.task.definition.shapes
    return count(trainable_part(shapes, run.compiled.tuning.is_trainable))


def describe(run: FinetuneRun) -> list[str]:
    """Return lines that describe the model, its trainable part, the examples and batches."""
    train = run.data.train
    assert train is not None
    lengths = ", ".join(map(str, run.row_lengths))
    sets = {**run.data.validation, **run.data.test}
    held_out = [f"{examples.num_examples:,} {name}" for name, examples in sets.items()]
    held_out += [] if run.data.test else ["no test set"]
    epochs = run.hyperparameters.num_epochs
    return [
        f"model      {num_parameters(run):,} parameters, {num_trainable(run):,} trainable; "
        f"{run.compute.summary}",
        *run.hints,
        f"examples   {len(train):,} {run.task.training_examples}, {', '.join(held_out)}",
        *unknown_lines(run.data.features, run.tokenizer),
        f"batches    {run.total_steps:,} of {run.hyperparameters.batch_size} in "
        f"{epochs} epoch{'s' * (epochs > 1)}, rows of {lengths} tokens, "
        f"{padding(train, run.plan):.1%} padding",
    ]
