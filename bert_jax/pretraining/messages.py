"""Write the messages that a pretraining run prints before its first step and after its last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import jax
from jax.sharding import Mesh

from bert_jax.corpus.corpus import unigram_cross_entropy
from bert_jax.corpus.inputs import SPLIT_KEY
from bert_jax.models.config import EncoderConfig
from bert_jax.models.heads import GENERATOR, TRAINING_ONLY
from bert_jax.models.parameters import count
from bert_jax.objectives import SentencePairs
from bert_jax.pretraining.attention_text import attention_lines, attention_reason
from bert_jax.pretraining.evaluation_config import EvaluationConfig
from bert_jax.pretraining.phase_config import PhaseConfig
from bert_jax.pretraining.phases import PhaseCorpus
from bert_jax.pretraining.step_setup import StepSetup
from bert_jax.runs.runtime import dtype_hint
from bert_jax.training.learning_rates import describe_optimizer
from bert_jax.training.optimizer import OptimizerConfig
from bert_jax.training.reporting import CURVES_NAME
from bert_jax.training.sharding import undivided

# A token table with up to this many extra rows is assumed to be padded to a convenient size.
_MAX_PADDING = 1_023
# A run prints a note if the fraction of documents with enough sentences for a pair is below
# this value.
_MIN_PAIRED = 0.5
# With fewer held-out tokens than this, the metrics are too inaccurate. Of 1,000 tokens, about 150
# are masked, so a measured accuracy of 0.3 already has a standard deviation of 0.04.
_MIN_HELD_OUT_TOKENS = 1_000
# At this learning rate or above, a run with Muon prints a note. Jordan et al. (2024) use 0.02. With
# the scaling used here, even 0.008 was too high for small models; see experiments/modern.
_ANOTHER_MUON = 0.01
_HELD_OUT = "heldout_fraction"
_PREPARE_ALIKE = "Prepare both with the same --held-out, or the same --held-out-input"


def describe(
    setup: StepSetup,
    mesh: Mesh,
    corpora: Sequence[PhaseCorpus],
    evaluation: EvaluationConfig,
    state_bytes: int,
    *,
    chooses_size: bool,
) -> list[str]:
    """Describe the model, devices, optimizer and corpora of a run, with notes on anything unusual.

    Args:
      setup: the train-step settings, with the teacher.
      mesh: the device mesh.
      corpora: the corpora of the phases.
      evaluation: the evaluation on held-out text.
      state_bytes: the size of the training state on one device, in bytes.
      chooses_size: whether the vocabulary size can still be changed in the config.
    """
    definition, compute = setup.task.definition, setup.compute
    axes = " x ".join(f"{size} {axis}" for axis, size in mesh.shape.items() if size > 1)
    shapes = {n: s for n, s in definition.shapes.items() if not n.startswith(TRAINING_ONLY)}
    lines = [
        f"model      {count(shapes):,} parameters, {compute.summary}",
        f"devices    {mesh.size} x {mesh.devices.flat[0].device_kind}"
        + (f" ({axes})" if axes else "")
        + f", {state_bytes / 2**20:,.0f} MiB of state on each",
    ]
    if setup.generator is not None:
        lines.insert(1, generator_line(setup.generator, definition.shapes))
    total_steps = sum(corpus.config.num_steps for corpus in corpora)
    lines.append(f"optimizer  {describe_optimizer(setup.optimizer, total_steps)}")
    lines += rate_of_another_muon(setup.optimizer)
    longest = max(corpus.config.sequence_length for corpus in corpora)
    reason = attention_reason(setup, mesh.devices.flat[0], longest)
    lines += attention_lines(compute.attention, reason, width=11)
    lines += dtype_hint(setup.requested_compute, mesh.devices.flat[0].platform)
    lines += [f"  {line}" for line in undivided(definition.shapes, definition.logical_axes, mesh)]
    for corpus in corpora:
        lines += _describe_phase(setup, evaluation, corpus)
    if chooses_size:
        lines += surplus_rows(corpora[0].tokenizer.vocab_size, setup.model.vocab_size)
    lines += [*few_pairs(setup.sentence_pairs, corpora), *leaks(corpora)]
    return lines + teacher_lines(setup, [(corpus.name, corpus.config) for corpus in corpora])


def rate_of_another_muon(optimizer: OptimizerConfig) -> list[str]:
    """Return a note if the learning rate is probably meant for a different scaling of updates."""
    rate = optimizer.peak_learning_rate
    if optimizer.name != "muon" or rate < _ANOTHER_MUON:
        return []
    return [
        f"NOTE       optimizer.peak_learning_rate={rate:g} is high: rates like this are meant for "
        "Muon with a different scaling of its updates. Here, they are scaled to the size of "
        "AdamW's (Liu et al. 2025, section 2.2), so start with a rate that works for AdamW, such "
        "as 1e-3"
    ]


def generator_line(
    generator: EncoderConfig, shapes: Mapping[str, jax.ShapeDtypeStruct], width: int = 11
) -> str:
    """Describe the generator of a run that detects replaced tokens.

    Args:
      generator: the generator's encoder.
      shapes: the shapes of the run's parameters.
      width: the width of the label column.
    """
    own = count({name: shape for name, shape in shapes.items() if name.startswith(GENERATOR)})
    return (
        f"{'generator':{width}}{own:,} more parameters: {generator.num_layers} layers of "
        f"{generator.hidden_dim} features, {generator.num_heads} heads"
    )


def _describe_phase(
    setup: StepSetup, evaluation: EvaluationConfig, corpus: PhaseCorpus
) -> list[str]:
    phase, info = corpus.config, corpus.train.info
    epochs = phase.num_sequences / len(corpus.train)
    flops = setup.training_flops(phase, corpus.train.manifest.max_fragments)
    line = (
        f"{corpus.name:10s} {phase.num_steps:,} steps of {phase.batch_size} x "
        f"{phase.sequence_length} tokens, {flops:.3g} FLOPs per step; {phase.corpus}: "
        f"{info.num_tokens:,} tokens in {info.num_records:,} records, {epochs:.1f} epochs"
    )
    lines = [line, *rotary_line(phase)]
    if phase.warmup_batch_sizes:
        sizes = ", ".join(f"{size:,}" for size in phase.warmup_batch_sizes)
        lines.append(
            f"{'':10s} batch-size warm-up: {phase.warmup_batch_steps:,} steps each with {sizes} "
            "sequences"
        )
    return [*lines, *_describe_held_out(evaluation, corpus)]


def rotary_line(phase: PhaseConfig, width: int = 11) -> list[str]:
    """Return a line about a phase's rotary angles, or [] if it uses the model's."""
    return [f"{'':{width}}rotary_theta {phase.rotary_theta:,.0f}"] if phase.rotary_theta else []


def _describe_held_out(evaluation: EvaluationConfig, corpus: PhaseCorpus) -> list[str]:
    if not evaluation.every_steps:
        return [f"{'':10s} not evaluated"]
    info, max_records = corpus.held_out.info, evaluation.max_records
    scored = f", {max_records:,} of them scored" if 0 < max_records < info.num_records else ""
    lines = [
        f"{'':10s} held out: {info.num_tokens:,} tokens in {info.num_records:,} records{scored}"
    ]
    if info.num_tokens < _MIN_HELD_OUT_TOKENS:
        lines.append(
            f"NOTE       {corpus.name}: metrics on only {info.num_tokens:,} held-out tokens are "
            "mostly noise. Hold out more text"
        )
    return lines


def few_pairs(sentence_pairs: SentencePairs, corpora: Sequence[PhaseCorpus]) -> list[str]:
    """Return a note for each phase whose documents or rows are mostly too short for a pair."""
    if sentence_pairs == "none":
        return []
    lines = []
    for corpus in corpora:
        train = corpus.train.manifest.train
        ordered = sentence_pairs == "sentence_order"
        # Byte-level BPE tokens reveal which sentence is the first in a document, so the first
        # sentence is not swapped.
        fixed = 1 if ordered and corpus.tokenizer.spaces_are_text else 0
        # At most this fraction of documents can have a pair, because a document with a pair has at
        # least 1 + fixed sentences after its first one.
        share = (train.num_sentences - train.num_documents) / train.num_documents / (1 + fixed)
        if share < _MIN_PAIRED:
            lines.append(
                f"NOTE       {corpus.name}: at most {share:.1%} of the documents in "
                f"{corpus.config.corpus} have {('two', 'three')[fixed]} sentences. With "
                f"sentence_pairs={sentence_pairs!r}, shorter documents have no effect. Prepare "
                "longer documents, or set sentence_pairs='none'"
            )
            continue
        mean = train.num_tokens / train.num_sentences
        if ordered and corpus.config.sequence_length < 3 * mean:
            lines.append(
                f"NOTE       {corpus.name}: rows have {corpus.config.sequence_length} tokens, and "
                f"sentences have {mean:.0f} on average, so most rows do not contain two whole "
                "sentences whose order could be predicted. Prepare a corpus with longer rows"
            )
    return lines


def leaks(corpora: Sequence[PhaseCorpus]) -> list[str]:
    """Return a note for each phase whose held-out text an earlier phase may have trained on."""
    lines = []
    recorded = [corpus for corpus in corpora if _HELD_OUT in corpus.train.manifest.options]
    for number, corpus in enumerate(recorded):
        earlier = recorded[:number]
        lines += _held_out_files_trained_on(corpus, earlier)
        share = _held_out_share(corpus)
        least = min(earlier, key=_held_out_share, default=corpus)
        if share > _held_out_share(least):
            lines.append(
                f"NOTE       {corpus.name}: {corpus.config.corpus} holds out {share:.2%} of its "
                f"documents, but {least.config.corpus} holds out only "
                f"{_held_out_share(least):.2%}. If the corpora share documents, {least.name} "
                f"trains on some documents that {corpus.name} is evaluated on. {_PREPARE_ALIKE}"
            )
    return lines


def _held_out_files_trained_on(corpus: PhaseCorpus, earlier: Sequence[PhaseCorpus]) -> list[str]:
    held_out = _held_out_files(corpus)
    for trained in earlier:
        files = sorted(held_out - _held_out_files(trained))
        if files:
            return [
                f"NOTE       {corpus.name}: {files[0]} is held out in {corpus.config.corpus} but "
                f"not in {trained.config.corpus}. If both corpora contain its documents, "
                f"{trained.name} trains on them. {_PREPARE_ALIKE}"
            ]
    return []


def _held_out_files(corpus: PhaseCorpus) -> set[str]:
    sources = corpus.train.manifest.sources
    return {source["path"] for source in sources if SPLIT_KEY in source}


def _held_out_share(corpus: PhaseCorpus) -> float:
    return float(corpus.train.manifest.options[_HELD_OUT])


def surplus_rows(tokenizer_size: int, vocab_size: int) -> list[str]:
    """Return a note if the token table is larger than the tokenizer's vocabulary plus padding."""
    if vocab_size - tokenizer_size <= _MAX_PADDING:
        return []
    return [
        f"NOTE       model.vocab_size={vocab_size:,}, but the tokenizer has only "
        f"{tokenizer_size:,} tokens. The remaining rows of the token table are never used, but "
        "they cost memory and time. Set "
        f"--config.model.vocab_size={tokenizer_size}"
    ]


def teacher_lines(
    setup: StepSetup, phases: Sequence[tuple[str, PhaseConfig]], width: int = 11
) -> list[str]:
    """Describe the teacher, its relative cost, and the outputs that are compared.

    Args:
      setup: the train-step settings, with the teacher.
      phases: (name, config) for each phase.
      width: the width of the label column.
    """
    teacher = setup.teacher
    if teacher is None:
        return []
    costs = []
    for name, phase in phases:
        forward = setup.teacher_flops(phase)
        share = forward / setup.training_flops(phase, documents_per_row=1)
        costs.append(f"{forward:.3g} FLOPs per step of {name}, {share:.0%} extra")
    lines = [
        f"{'teacher':{width}}{teacher.config.teacher}: "
        f"{count(teacher.teacher.definition.shapes):,} parameters, {teacher.compute.dtype}, "
        f"{teacher.compute.attention} attention, forward {'; '.join(costs)}"
    ]
    layers = ", ".join(map(str, teacher.teacher.layers))
    if teacher.config.hidden_weight:
        dim, teacher_dim = setup.model.hidden_dim, teacher.model.encoder.hidden_dim
        maps = f", through trained maps from {dim} to {teacher_dim} features"
        maps = maps if dim != teacher_dim else ""
        lines.append(f"{'':{width}}hidden states: embeddings and teacher layers {layers}{maps}")
    if teacher.config.attention_weight:
        lines.append(f"{'':{width}}attention scores: teacher layers {layers}")
    return lines


def conclude(
    work_dir: Path, last: PhaseCorpus, loss: float | None, before: float | None = None
) -> list[str]:
    """Compare the final held-out loss with the loss of a model that ignores context.

    Args:
      work_dir: the run's work directory.
      last: the corpus of the last phase.
      loss: the held-out masked-LM loss; None if it was not evaluated or no loss trains the
        masked-LM head.
      before: the loss on the same text before the first step; None if it was not evaluated.
    """
    if loss is None:
        return [f"curves: {work_dir / CURVES_NAME}"]
    special_ids = last.tokenizer.special_ids
    unigram = unigram_cross_entropy(last.train, last.held_out, special_ids)
    lines = [f"held-out MLM loss                    {loss:.3f} nats per token"]
    if before is not None:
        lines.insert(0, f"held-out MLM loss before training    {before:.3f} nats per token")
    return [
        *lines,
        f"unigram cross-entropy of that text   {unigram:.3f} nats per token (ignoring context)",
        f"gain from context                    {unigram - loss:.3f} nats per token"
        + ("" if loss < unigram else " (none yet)"),
        f"curves: {work_dir / CURVES_NAME}",
    ]
