"""What `finetune` says before its first step and after its last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from bert_jax.cli.finetune_outcome import read_outcome
from bert_jax.cli.matrix_instructions import dtype_hint
from bert_jax.data.finetuning.features import Features
from bert_jax.data.tokenizer import Tokenizer
from bert_jax.data.unknown_tokens import WARNED_SHARE, complaint, count_unknown
from bert_jax.finetuning.scoring import LOSS, padding
from bert_jax.models.parameters import count
from bert_jax.training.progress import format_metric
from bert_jax.training.state import learned

if TYPE_CHECKING:
    from bert_jax.cli.finetune_run import FinetuneRun

_BY_CHANCE = (
    "is possible without reading the text. This can happen with few examples; try another seed or "
    "learning rate (bert-jax sweep), or more epochs"
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
        f"model      {count(shapes):,} parameters, {learning:,} trainable; "
        f"{run.compute.dtype}, {run.compute.attention} attention",
        *dtype_hint(run.config.compute, run.mesh.devices.flat[0].platform),
        f"examples   {len(train):,} {kind}for training, {', '.join(held)}",
        *unknown_lines(run.data.features, run.tokenizer),
        f"batches    {run.total_steps:,} of {run.config.batch_size} in "
        f"{epochs} epoch{'s' * (epochs > 1)}, rows of {each} tokens, "
        f"{padding(train, run.plan):.1%} padding",
    ]


def unknown_lines(features: Mapping[str, Features], tokenizer: Tokenizer) -> list[str]:
    """Return a line with the share of unknown tokens in every set, and a warning above 1 %."""
    sets = {
        name: count_unknown(rows.sequences.token_ids, tokenizer) for name, rows in features.items()
    }
    shares = ", ".join(f"{counts.share:.2%} of {name}" for name, counts in sets.items())
    lines = [f"unknown    {shares} ({tokenizer.specials.unk})"]
    name, worst = max(sets.items(), key=lambda item: item[1].share)
    if worst.share > WARNED_SHARE:
        warning = complaint(tokenizer, worst.unknown, worst.tokens, where=f" of {name}")
        lines.append(f"WARNING    {warning}")
    return lines


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
