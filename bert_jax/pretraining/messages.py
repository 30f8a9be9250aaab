"""What `pretrain` says before its first step and after its last."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from jax.sharding import Mesh

from bert_jax.corpus.corpus import unigram_cross_entropy
from bert_jax.corpus.inputs import SPLIT_KEY
from bert_jax.models.heads import TRAINING_ONLY
from bert_jax.models.parameters import count
from bert_jax.objectives import SentencePairs
from bert_jax.pretraining.phases import PhaseCorpus
from bert_jax.pretraining.sections import EvaluationConfig, PhaseConfig
from bert_jax.pretraining.step_setup import StepSetup
from bert_jax.runs.runtime import dtype_hint
from bert_jax.training.reporting import CURVES_NAME
from bert_jax.training.sharding import undivided

# Surplus rows of a token table that someone may have wanted, for a round or divisible number.
_MOST_PADDING = 1_023
# Below this share of documents that can be paired, a run is told so.
_FEW_PAIRED = 0.5
# Of so many tokens some 150 are guessed: an accuracy of 0.3 has a standard deviation of 0.04.
_FEW_HELD_OUT = 1_000
_HELD_OUT = "heldout_fraction"
_ALIKE = "Prepare both with the same --held-out, or the same --held-out-input"


def describe(
    setup: StepSetup,
    mesh: Mesh,
    corpora: Sequence[PhaseCorpus],
    evaluation: EvaluationConfig,
    state_bytes: int,
) -> list[str]:
    """Return lines about the model, the devices with their state, and the phases' corpora."""
    definition, compute = setup.task.definition, setup.compute
    axes = " x ".join(f"{size} {axis}" for axis, size in mesh.shape.items() if size > 1)
    kept = {n: s for n, s in definition.shapes.items() if not n.startswith(TRAINING_ONLY)}
    lines = [
        f"model      {count(kept):,} parameters, {compute.dtype}, {compute.attention} attention",
        f"devices    {mesh.size} x {mesh.devices.flat[0].device_kind}"
        + (f" ({axes})" if axes else "")
        + f", {state_bytes / 2**20:,.0f} MiB of state on each",
    ]
    lines += dtype_hint(setup.requested_compute, mesh.devices.flat[0].platform)
    lines += [f"  {line}" for line in undivided(definition.shapes, definition.logical_axes, mesh)]
    for corpus in corpora:
        phase, info = corpus.config, corpus.train.info
        epochs = phase.num_steps * phase.batch_size / len(corpus.train)
        flops = setup.training_flops(phase, corpus.train.manifest.max_pieces)
        lines.append(
            f"{corpus.name:10s} {phase.num_steps:,} steps of {phase.batch_size} x "
            f"{phase.sequence_length} tokens, {flops:.3g} FLOPs a step; {phase.corpus}: "
            f"{info.num_tokens:,} tokens in {info.num_records:,} records, {epochs:.1f} epochs"
        )
        lines += _held_out(evaluation, corpus)
    return lines


def _held_out(evaluation: EvaluationConfig, corpus: PhaseCorpus) -> list[str]:
    """Return lines about the held-out text of a phase, and whether it is too little."""
    if not evaluation.every_steps:
        return [f"{'':10s} not evaluated"]
    info, most = corpus.held_out.info, evaluation.max_records
    scored = f", {most:,} of them scored" if 0 < most < info.num_records else ""
    lines = [
        f"{'':10s} held out: {info.num_tokens:,} tokens in {info.num_records:,} records{scored}"
    ]
    if info.num_tokens < _FEW_HELD_OUT:
        lines.append(
            f"NOTE       {corpus.name}: what {info.num_tokens:,} held-out tokens tell is mostly "
            "chance: hold out more"
        )
    return lines


def few_pairs(sentence_pairs: SentencePairs, corpora: Sequence[PhaseCorpus]) -> list[str]:
    """Return a line for every phase in which most documents or rows have nothing to pair."""
    if sentence_pairs == "none":
        return []
    lines = []
    for corpus in corpora:
        train = corpus.train.manifest.train
        ordered = sentence_pairs == "sentence_order"
        # Byte-level BPE's tokens tell a document's first sentence, which keeps its place.
        kept = 1 if ordered and corpus.tokenizer.spaces_are_text else 0
        # Each document that has a second sentence has at least one beyond its first.
        most = (train.num_sentences - train.num_documents) / train.num_documents / (1 + kept)
        if most < _FEW_PAIRED:
            lines.append(
                f"NOTE       {corpus.name}: at most {most:.1%} of the documents of "
                f"{corpus.config.corpus} have {('two', 'three')[kept]} sentences; the others teach "
                f"sentence_pairs={sentence_pairs!r} nothing: prepare longer documents, or "
                "set 'none'"
            )
            continue
        mean = train.num_tokens / train.num_sentences
        if ordered and corpus.config.sequence_length < 3 * mean:
            lines.append(
                f"NOTE       {corpus.name}: rows of {corpus.config.sequence_length} tokens, where "
                f"a sentence has {mean:.0f} in the mean: most hold no two whole sentences, without "
                "which there is no order to learn: prepare a corpus of longer rows"
            )
    return lines


def leaks(corpora: Sequence[PhaseCorpus]) -> list[str]:
    """A line for each phase that may be judged on text which one before it was trained on."""
    lines = []
    told = [corpus for corpus in corpora if _HELD_OUT in corpus.train.manifest.options]
    for number, corpus in enumerate(told):
        lines += _trained_on_before(corpus, told[:number])
        share = _held_out_share(corpus)
        least = min(told[:number], key=_held_out_share, default=corpus)
        if share > _held_out_share(least):
            lines.append(
                f"NOTE       {corpus.name}: {share:.2%} of the documents of {corpus.config.corpus} "
                f"are held out, {_held_out_share(least):.2%} of those of {least.config.corpus}: of "
                f"what both have, {least.name} trains on some that {corpus.name} is judged on. "
                f"{_ALIKE}"
            )
    return lines


def _trained_on_before(corpus: PhaseCorpus, before: Sequence[PhaseCorpus]) -> list[str]:
    judged = _held_out_files(corpus)
    for earlier in before:
        others = sorted(judged - _held_out_files(earlier))
        if others:
            return [
                f"NOTE       {corpus.name}: {others[0]} is held out in {corpus.config.corpus} and "
                f"not in {earlier.config.corpus}: what of it is in both, {earlier.name} trains on. "
                f"{_ALIKE}"
            ]
    return []


def _held_out_files(corpus: PhaseCorpus) -> set[str]:
    sources = corpus.train.manifest.sources
    return {each["path"] for each in sources if SPLIT_KEY in each}


def _held_out_share(corpus: PhaseCorpus) -> float:
    return float(corpus.train.manifest.options[_HELD_OUT])


def surplus_rows(words: int, vocab_size: int) -> list[str]:
    """A line where a token table has more rows than its tokenizer has words, beyond padding."""
    if vocab_size - words <= _MOST_PADDING:
        return []
    return [
        f"NOTE       the tokenizer has {words:,} entries, model.vocab_size is {vocab_size:,}: all "
        "the model can learn of the rest is that they never occur, which costs steps, memory and "
        f"time; --config.model.vocab_size={words} fits"
    ]


def teacher_lines(
    setup: StepSetup, phases: Sequence[tuple[str, PhaseConfig]], width: int = 11
) -> list[str]:
    """Return lines about the teacher, its cost relative to the student's, and what it shows.

    width: of the title before each line.
    """
    teacher = setup.teacher
    if teacher is None:
        return []
    shares = []
    for name, phase in phases:
        forward = setup.teacher_flops(phase)
        share = forward / setup.training_flops(phase, pieces=1)
        shares.append(f"{forward:.3g} FLOPs a step of {name}, {share:.0%} on top")
    lines = [
        f"{'teacher':{width}}{teacher.config.teacher}: "
        f"{count(teacher.teacher.definition.shapes):,} parameters, {teacher.compute.dtype}, "
        f"{teacher.compute.attention} attention, forward {'; '.join(shares)}"
    ]
    layers = ", ".join(map(str, teacher.teacher.layers))
    if teacher.config.hidden_weight:
        here, there = setup.model.hidden_dim, teacher.model.encoder.hidden_dim
        maps = f", through learned maps from {here} to {there} features" * (here != there)
        lines.append(f"{'':{width}}hidden states: embeddings and its layers {layers}{maps}")
    if teacher.config.attention_weight:
        lines.append(f"{'':{width}}attention scores: its layers {layers}")
    return lines


def conclude(work_dir: Path, last: PhaseCorpus, loss: float | None) -> list[str]:
    """Return lines about the last held-out loss and the loss of a model that ignores context.

    loss: of masked tokens; None if it was not evaluated, or its head is not trained.
    """
    if loss is None:
        return [f"curves: {work_dir / CURVES_NAME}"]
    special_ids = last.tokenizer.special_ids
    unigram = unigram_cross_entropy(last.train, last.held_out, special_ids)
    return [
        f"held-out MLM loss                    {loss:.3f} nats a token",
        f"unigram cross-entropy of that text   {unigram:.3f} nats a token (ignoring context)",
        f"learned from context                 {unigram - loss:.3f} nats a token"
        + ("" if loss < unigram else " (nothing yet)"),
        f"curves: {work_dir / CURVES_NAME}",
    ]
