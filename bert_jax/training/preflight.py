"""Check a run against its corpora before step 0, so that mistakes are reported immediately."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jax.sharding import Mesh

from bert_jax.models.config import EncoderConfig
from bert_jax.objectives import SentencePairs
from bert_jax.training.sharding import batch_extent


@dataclass(frozen=True)
class PhaseFacts:
    """A phase's requirements and the properties of its corpus.

    Documents and sentences without tokens are not counted.

    Attributes:
      name: the phase's name.
      corpus: the path of its corpus, for messages.
      sequence_length: the number of tokens per sequence.
      batch_size: the number of sequences per step.
      warmup_batch_sizes: the smaller batch sizes at the start of the phase.
      evaluation_batch_size: the number of sequences per batch of held-out text.
      corpus_length: the maximum number of tokens per record.
      corpus_vocab_size: the size of the corpus's vocabulary.
      corpus_documents: the number of documents in the training split.
      held_out_documents: the number of documents in the held-out split.
      corpus_sentences: the number of sentences in the training split.
      held_out_sentences: the number of sentences in the held-out split.
      corpus_kind: the kind of vocabulary that the corpus uses.
      num_records: the number of records in the training split.
      held_out_records: the number of records in the held-out split.
      corpus_tokenizer_fingerprint: the fingerprint of the tokenizer that the corpus was prepared
        with.
      tokenizer_fingerprint: the fingerprint of the tokenizer in the corpus, which the run copies.
    """

    name: str
    corpus: str
    sequence_length: int
    batch_size: int
    warmup_batch_sizes: tuple[int, ...]
    evaluation_batch_size: int
    corpus_length: int
    corpus_vocab_size: int
    corpus_documents: int
    held_out_documents: int
    corpus_sentences: int
    held_out_sentences: int
    corpus_kind: str
    num_records: int
    held_out_records: int
    corpus_tokenizer_fingerprint: str
    tokenizer_fingerprint: str


def check(
    model: EncoderConfig,
    phases: Sequence[PhaseFacts],
    mesh: Mesh,
    *,
    accumulation_steps: int,
    sentence_pairs: SentencePairs,
    vocabulary: str = "any",
    evaluates: bool = True,
) -> None:
    """Check that a run is compatible with its corpora and its mesh.

    Args:
      model: the encoder.
      phases: the properties of each phase.
      mesh: the device mesh.
      accumulation_steps: the number of micro-batches per batch.
      sentence_pairs: the kind of sentence pairs.
      vocabulary: the kind of vocabulary that the corpora must have; "any" for all kinds.
      evaluates: whether the held-out split is used.

    Raises:
      ValueError: the run has problems; the message lists all of them, one per line, with fixes.
    """
    problems = []
    if len({phase.corpus_tokenizer_fingerprint for phase in phases}) > 1:
        problems.append(
            "the phases' corpora were prepared with different tokenizers ("
            + ", ".join(f"{p.corpus}: {p.corpus_tokenizer_fingerprint[:12]}" for p in phases)
            + "): prepare all of them with the same tokenizer"
        )
    if sentence_pairs != "none" and model.num_segments < 2:
        problems.append(
            f"sentence_pairs={sentence_pairs!r} needs model.num_segments >= 2, not "
            f"{model.num_segments}: segment ids distinguish the sentences of a pair"
        )
    for phase in phases:
        if vocabulary not in ("any", phase.corpus_kind):
            problems.append(
                f"phase {phase.name}: {phase.corpus} has a {phase.corpus_kind!r} vocabulary, but "
                f"the config requires {vocabulary!r}: prepare the corpus with a tokenizer of that "
                "kind, or set vocabulary='any'"
            )
        problems += [
            f"phase {phase.name}: {problem}"
            for problem in _phase_problems(
                model, phase, mesh, accumulation_steps, sentence_pairs, evaluates
            )
        ]
    if problems:
        raise ValueError("this run cannot start:\n  " + "\n  ".join(problems))


def _phase_problems(
    model: EncoderConfig,
    phase: PhaseFacts,
    mesh: Mesh,
    accumulation_steps: int,
    sentence_pairs: SentencePairs,
    evaluates: bool,
) -> list[str]:
    problems = []
    if phase.tokenizer_fingerprint != phase.corpus_tokenizer_fingerprint:
        problems.append(
            f"the tokenizer in {phase.corpus} ({phase.tokenizer_fingerprint[:12]}) is not the one "
            f"that the corpus was prepared with ({phase.corpus_tokenizer_fingerprint[:12]}): "
            "restore the original tokenizer, or prepare the corpus again"
        )
    if phase.corpus_vocab_size > model.vocab_size:
        problems.append(
            f"{phase.corpus} contains token ids up to {phase.corpus_vocab_size - 1}, but "
            f"model.vocab_size is {model.vocab_size}: set it to at least {phase.corpus_vocab_size}"
        )
    if phase.sequence_length > model.max_positions:
        problems.append(
            f"sequence_length={phase.sequence_length} is greater than "
            f"model.max_positions={model.max_positions}: shorten the sequences or raise "
            "model.max_positions"
        )
    if phase.sequence_length != phase.corpus_length:
        problems.append(
            f"sequence_length={phase.sequence_length}, but {phase.corpus} was prepared with "
            f"--max-length {phase.corpus_length}: prepare the corpus again or change "
            "sequence_length"
        )
    parts = batch_extent(mesh) * accumulation_steps
    if phase.batch_size % parts:
        problems.append(
            f"batch_size={phase.batch_size} is not divisible by {parts} "
            f"({batch_extent(mesh)} parts of the mesh x accumulation_steps={accumulation_steps}). "
            f"Set it to a multiple of {parts}"
        )
    problems += [
        f"warmup_batch_sizes={phase.warmup_batch_sizes}: {size} is not divisible by {parts} "
        f"({batch_extent(mesh)} parts of the mesh x accumulation_steps={accumulation_steps}). Use "
        f"multiples of {parts}"
        for size in phase.warmup_batch_sizes
        if size % parts
    ]
    if evaluates and phase.evaluation_batch_size % batch_extent(mesh):
        problems.append(
            f"evaluation batches of {phase.evaluation_batch_size} sequences are not divisible by "
            f"the {batch_extent(mesh)} parts of the mesh: change evaluation.batch_size"
        )
    if phase.num_records < phase.batch_size:
        problems.append(
            f"{phase.corpus} has {phase.num_records} training records, fewer than one batch of "
            f"{phase.batch_size}: use more text or a smaller batch_size"
        )
    splits = {"training": (phase.corpus_documents, phase.corpus_sentences)}
    if evaluates:
        splits["held-out"] = (phase.held_out_documents, phase.held_out_sentences)
    if evaluates and phase.held_out_records == 0:
        problems.append(
            f"{phase.corpus} has no held-out records to evaluate on: prepare it with a larger "
            "--held-out, or with --held-out-input; or set evaluation.every_steps=0 and "
            "checkpoint.keep_best=0"
        )
    for split, (documents, sentences) in splits.items():
        if sentence_pairs != "none" and documents and sentences == documents:
            problems.append(
                f"{sentence_pairs} splits documents between sentences, but no document in the "
                f"{split} split of {phase.corpus} has a second sentence: prepare documents with "
                "more sentences, or set sentence_pairs='none'"
            )
        if sentence_pairs == "next_sentence" and documents == 1:
            problems.append(
                f"next_sentence takes second segments from other documents, but the {split} split "
                f"of {phase.corpus} has only one document: separate documents by blank lines, hold "
                "out a larger fraction, or set sentence_pairs to 'none' or 'sentence_order'"
            )
    return problems
