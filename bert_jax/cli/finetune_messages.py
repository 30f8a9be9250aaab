"""What `finetune` says before its first step and after its last."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from bert_jax.cli.finetune_outcome import read_outcome
from bert_jax.cli.matrix_instructions import dtype_hint
from bert_jax.finetuning.scoring import LOSS, padding
from bert_jax.models.parameters import count
from bert_jax.training.progress import format_metric
from bert_jax.training.state import learned

if TYPE_CHECKING:
    from bert_jax.cli.finetune_run import FinetuneRun

# Of the 106,296 tokens of WNUT-17's tweets none are unknown to BERT's vocabulary.
_MANY_UNKNOWN = 0.05
_BY_CHANCE = (
    "can be had without reading the text: on few examples that happens, and another seed or rate "
    "(bert-jax sweep), or more epochs, may do better"
)


def changes(told: Sequence[str]) -> list[str]:
    """What `keep_config` says, and what follows from another number of epochs."""
    lines = list(told)
    if any(line.startswith("  num_epochs:") for line in lines) and lines[0].startswith("changed"):
        lines.append("  (the learning rate follows the new number of steps from here on)")
    return lines


def describe(run: FinetuneRun) -> list[str]:
    """Lines: the model and how much of it learns, the examples, the batches."""
    shapes, train = run.task.definition.shapes, run.data.train
    assert train is not None
    learning = count(learned(shapes, run.programs.tuning.learns))
    each = ", ".join(map(str, run.row_lengths))
    sets = {**run.data.validation, **run.data.test}
    held = [f"{examples.num_examples:,} {name}" for name, examples in sets.items()]
    kind = "windows of passages " if run.model.head == "span" else ""
    epochs = run.config.num_epochs
    held += [] if run.data.test else ["no test set"]
    return [
        *_unknown(run),
        f"model      {count(shapes):,} parameters, {learning:,} of them learn; "
        f"{run.compute.dtype}, {run.compute.attention} attention",
        *dtype_hint(run.config.compute, run.mesh.devices.flat[0].platform),
        f"examples   {len(train):,} {kind}to learn from, {', '.join(held)}",
        f"batches    {run.total_steps:,} of {run.config.batch_size} in "
        f"{epochs} epoch{'s' * (epochs > 1)}, rows of {each} tokens, "
        f"{padding(train, run.plan):.1%} padding",
    ]


def _unknown(run: FinetuneRun) -> list[str]:
    """A line where much of what is learned from is the unknown token to the model."""
    assert run.data.train is not None
    token_ids = run.data.train.sequences.token_ids
    share = np.count_nonzero(token_ids == run.tokenizer.unk_id) / len(token_ids)
    if share <= _MANY_UNKNOWN:
        return []
    return [
        f"NOTE  {share:.1%} of the tokens to learn from are unknown ({run.tokenizer.specials.unk}) "
        f"to the tokenizer of {run.config.init_from}, which has {run.tokenizer.vocab_size:,} "
        "entries: is it this model's, and for the language of the texts?"
    ]


def conclude(run: FinetuneRun) -> list[str]:
    """Lines: the scores of the best checkpoint, and where things are."""
    found = read_outcome(run.work_dir)
    assert found is not None
    lines = [f"best after step {found.step:,} by {run.best_metric}:"]
    lines += [f"  {name:28s} {format_metric(name, x)}" for name, x in found.scores.items()]
    judged = run.data.best_metric if run.best_metric.endswith(LOSS) else run.best_metric
    score, chance = found.scores[judged], run.data.chance(judged)
    if score <= chance:
        reached, had = format_metric(judged, score), format_metric(judged, chance)
        lines.append(f"NOTE  {judged} is {reached}; {had} {_BY_CHANCE}")
    return [*lines, *(f"predictions: {file}" for file in found.predictions)]
