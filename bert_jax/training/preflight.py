"""Check a run before step 0, so that mistakes are reported in its first seconds.

Memory is estimated arithmetically, before anything is traced.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import jax
from jax.sharding import Mesh

from bert_jax.analysis.chips import chip
from bert_jax.analysis.counts import parameter_counts
from bert_jax.models.config import ComputeConfig, EncoderConfig
from bert_jax.models.layers import compute_dtype
from bert_jax.models.model import ModelConfig
from bert_jax.objectives import SentencePairs
from bert_jax.processes import format_bytes, memory_bytes
from bert_jax.training.sharding import batch_extent

_FLOAT = _INT = 4  # bytes; parameters, moments and gradients are float32, ids are int32
_MOMENTS = 2  # in Adam and in LAMB
# XLA counts an array's bytes in 63 bits and aborts beyond that; an eighth exceeds any cluster.
MAX_TRACEABLE_BYTES = 1 << 60


@dataclass(frozen=True)
class Part:
    """The memory for one purpose on one device, and the config keys that determine it.

    Attributes:
      name: the purpose.
      bytes: the size in bytes.
      keys: the config keys and their values, for messages.
    """

    name: str
    bytes: int
    keys: str


def state_parts(
    mesh: Mesh, parameters: int, trained: int, *, all_gradients: bool, keys: str
) -> list[Part]:
    """Return the least memory the state needs on one device.

    Args:
      mesh: the devices.
      parameters: the number of parameters.
      trained: the number of trainable parameters.
      all_gradients: whether all gradients exist at the same time, as for clipping by norm.
      keys: the config keys of the model's sizes, for messages.
    """
    shards = mesh.shape["fsdp"] * mesh.shape["tensor"]
    sizes = {"parameters": parameters, "optimizer state": _MOMENTS * trained}
    if all_gradients:
        sizes["gradients"] = trained
    return [Part(name, _FLOAT * size // shards, keys) for name, size in sizes.items()]


def batch_part(
    mesh: Mesh,
    encoder: EncoderConfig,
    compute: ComputeConfig,
    *,
    name: str,
    rows: int,
    rows_at_once: int,
    length: int,
    arrays: int,
    keys: str,
) -> Part:
    """Return the least memory of one batch on one device: its ids and one layer's activations.

    Args:
      mesh: the devices.
      encoder: the encoder.
      compute: the compute settings, with every "auto" resolved.
      name: the purpose of the memory, for messages.
      rows: the number of rows of the batch, on all devices.
      rows_at_once: the number of rows that are computed together.
      length: the number of tokens per row.
      arrays: the number of integers per token of a batch.
      keys: the config keys of the batch's sizes, for messages.
    """
    parts, tensor = batch_extent(mesh), mesh.shape["tensor"]
    itemsize = compute_dtype(compute).itemsize
    ids = rows * length * arrays * _INT
    tokens = rows_at_once * length
    widest = max(encoder.hidden_dim, encoder.ffn_dim // tensor)
    if compute.attention == "xla":  # stores full rows of scores; cuDNN's kernel does not
        widest = max(widest, encoder.num_heads * length // tensor)
    return Part(name, (ids + tokens * widest * itemsize) // parts, keys)


def check_traceable(parts: list[Part], mesh: Mesh) -> None:
    """Raise ValueError for sizes that overflow the compiler's counters on any hardware."""
    total = mesh.size * sum(part.bytes for part in parts)
    if total > MAX_TRACEABLE_BYTES:
        raise ValueError(
            f"this run needs at least {format_bytes(total)} on all devices ({_listed(parts)} on "
            f"each), but a step can be compiled only up to {format_bytes(MAX_TRACEABLE_BYTES)}. "
            f"Lower {_excess(parts, MAX_TRACEABLE_BYTES // mesh.size).keys}."
        )


def check_fits(parts: list[Part], mesh: Mesh) -> None:
    """Raise ValueError if this process's devices cannot hold the parts, even with nothing else.

    CPU devices share the machine's memory. Devices that do not report their memory are not checked.
    """
    on_one = sum(part.bytes for part in parts)
    local = [x for x in mesh.devices.flat if x.process_index == jax.process_index()]
    device, number = local[0], 1
    memory = _device_memory(device)
    if device.platform == "cpu":
        number, memory = len(local), memory_bytes()
    if memory is None or on_one * number <= memory:
        return
    per_device = f" on each of {number} devices" if number > 1 else ""
    has = "this machine has" if device.platform == "cpu" else f"a {device.device_kind} has"
    or_shard = "" if device.platform == "cpu" else ", or shard the state with mesh.fsdp"
    raise ValueError(
        f"this run does not fit in memory: it needs at least {format_bytes(on_one)}{per_device} "
        f"({_listed(parts)}), but {has} {format_bytes(memory)}. "
        f"Lower {_excess(parts, memory // number).keys}{or_shard}."
    )


def check_ahead(key: str, batches: int, batch_bytes: int) -> None:
    """Refuse prefetched batches that cannot fit into this machine's memory.

    Args:
      key: the config key and its value, for the message.
      batches: the number of batches.
      batch_bytes: the size of a batch.

    Raises:
      ValueError: the batches do not fit.
    """
    needed, memory = batches * batch_bytes, memory_bytes()
    if needed > memory:
        raise ValueError(
            f"{key}: {batches:,} prefetched batches take {format_bytes(needed)}, but this machine "
            f"has {format_bytes(memory)}. A few batches are enough to keep the device busy."
        )


def _device_memory(device: object) -> int | None:
    stats = getattr(device, "memory_stats", lambda: None)()
    if stats and "bytes_limit" in stats:
        return int(stats["bytes_limit"])
    figures = chip(str(getattr(device, "device_kind", "")))
    return figures.memory_bytes if figures else None


def _listed(parts: list[Part]) -> str:
    return ", ".join(f"{part.name} {format_bytes(part.bytes)}" for part in parts)


def _excess(parts: list[Part], memory: int) -> Part:
    """Return the first part that no longer fits."""
    totals = itertools.accumulate(part.bytes for part in parts)
    return next(part for part, total in zip(parts, totals, strict=True) if total > memory)


# Integers per token of a batch: token, segment, position and document; a fine-tuning batch has a
# mask instead of positions and documents.
PRETRAINING_ARRAYS, FINETUNING_ARRAYS = 4, 3
# Sizes of BERT-large, by the names of EncoderConfig's fields.
_OF_BERT_LARGE = {
    "hidden_dim": 1024,
    "embedding_dim": 1024,
    "ffn_dim": 4096,
    "num_layers": 24,
    "vocab_size": 30_522,
    "max_positions": 512,
}


def model_size_keys(encoder: EncoderConfig) -> str:
    """Return the keys that size the embeddings or the layers, whichever have more parameters.

    Keys that are no larger than in BERT-large are left out, unless all of them are.
    """
    counts = parameter_counts(ModelConfig(encoder, "encoder", pooler=False))
    names = ["hidden_dim", "ffn_dim", "num_layers"]
    if counts.embeddings > counts.layers:
        dim = "hidden_dim" if encoder.embedding_dim is None else "embedding_dim"
        names = ["vocab_size", "max_positions", dim]
    large = [name for name in names if getattr(encoder, name) > _OF_BERT_LARGE[name]]
    return ", ".join(f"model.{name}={getattr(encoder, name)}" for name in large or names)


@dataclass(frozen=True)
class PhaseFacts:
    """The requirements of a phase and the properties of its corpus.

    Documents and sentences without tokens are not counted.

    Attributes:
      name: the phase's name.
      corpus: the path of its corpus, for messages.
      sequence_length: the tokens per sequence.
      batch_size: the sequences per step.
      evaluation_batch_size: the sequences per batch of held-out text.
      corpus_length: the largest number of tokens of a record.
      corpus_vocab_size: the size of the corpus's vocabulary.
      corpus_documents: the documents of the training split.
      held_out_documents: the documents of the held-out split.
      corpus_sentences: the sentences of the training split.
      held_out_sentences: the sentences of the held-out split.
      corpus_kind: the kind of the corpus's vocabulary.
      num_records: the records of the training split.
      held_out_records: the records of the held-out split.
      corpus_tokenizer_fingerprint: the fingerprint of the tokenizer that the corpus was prepared
        with.
      tokenizer_fingerprint: the fingerprint of the tokenizer in the corpus, which the run copies.
    """

    name: str
    corpus: str
    sequence_length: int
    batch_size: int
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
    """Refuse a run that cannot work.

    Args:
      model: the encoder.
      phases: the facts about all phases.
      mesh: the devices.
      accumulation_steps: the number of parts of a batch.
      sentence_pairs: the kind of sentence pairs.
      vocabulary: the kind of vocabulary that the corpora must have; "any" for all kinds.
      evaluates: whether the held-out split is used.

    Raises:
      ValueError: lists all problems, one per line, with fixes.
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
                f"phase {phase.name}: {phase.corpus} has a vocabulary of the kind "
                f"{phase.corpus_kind!r}, the config requires {vocabulary!r}: prepare it with such "
                "a tokenizer, or set vocabulary='any'"
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
            f"it was prepared with ({phase.corpus_tokenizer_fingerprint[:12]}): restore that one, "
            "or prepare the corpus again"
        )
    if phase.corpus_vocab_size > model.vocab_size:
        problems.append(
            f"{phase.corpus} contains token ids up to {phase.corpus_vocab_size - 1}, "
            f"model.vocab_size is {model.vocab_size}: set it to at least {phase.corpus_vocab_size}"
        )
    if phase.sequence_length > model.max_positions:
        problems.append(
            f"sequence_length={phase.sequence_length} is longer than "
            f"model.max_positions={model.max_positions}: raise the latter"
        )
    if phase.sequence_length != phase.corpus_length:
        problems.append(
            f"sequence_length={phase.sequence_length}, but {phase.corpus} was prepared with "
            f"--max-length {phase.corpus_length}: prepare it again or change sequence_length"
        )
    parts = batch_extent(mesh) * accumulation_steps
    if phase.batch_size % parts:
        problems.append(
            f"batch_size={phase.batch_size} is not divisible by {parts} "
            f"({batch_extent(mesh)} parts of the mesh x accumulation_steps={accumulation_steps}). "
            f"Set it to a multiple of {parts}"
        )
    if evaluates and phase.evaluation_batch_size % batch_extent(mesh):
        problems.append(
            f"evaluation batches of {phase.evaluation_batch_size} are not divisible by the "
            f"{batch_extent(mesh)} parts of the mesh: set evaluation.batch_size"
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
                f"{sentence_pairs} splits documents between sentences, and no document of the "
                f"{split} split of {phase.corpus} has a second sentence: prepare documents with "
                "more sentences, or set sentence_pairs='none'"
            )
        if sentence_pairs == "next_sentence" and documents == 1:
            problems.append(
                f"next_sentence takes second segments from other documents, and the {split} split "
                f"of {phase.corpus} has only one document: separate documents by blank lines, hold "
                "out a larger share, or set sentence_pairs to 'none' or 'sentence_order'"
            )
    return problems
