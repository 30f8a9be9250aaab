"""Define the configs of the phases of a pretraining run, and of its loader."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from bert_jax.corpus.inputs import MAX_LENGTH
from bert_jax.corpus.shard_files import DEFAULT_CACHE_GIB, corpus_cache
from bert_jax.local_paths import LocalPath, PathOrUrl
from bert_jax.models.config import EncoderConfig
from bert_jax.storage.cache import Cache
from bert_jax.validation import check_at_least


@dataclass(frozen=True)
class Stage:
    """A part of a phase in which the batch size is constant.

    Attributes:
      first_step: the stage's first step, counted from the start of the phase.
      num_steps: the number of steps in the stage.
      batch_size: the global batch size.
      first_sequence: the number of sequences in all earlier batches of the phase.
    """

    first_step: int
    num_steps: int
    batch_size: int
    first_sequence: int


@dataclass(frozen=True)
class PhaseConfig:
    """A part of the run that uses one corpus and sequence length.

    Attributes:
      corpus: a directory made by `bert-jax prepare`, or its URL in a bucket.
      num_steps: the number of optimizer steps.
      sequence_length: the number of tokens per sequence, equal to the corpus's `--max-length`.
      batch_size: the global batch size: the number of sequences per step across all devices.
      warmup_batch_sizes: smaller batch sizes at the start of the phase, in ascending order
        (batch-size warm-up; Warner et al. 2024, "ModernBERT", section 2.2.2). Each size needs its
        own compilation. () for a constant batch size.
      warmup_batch_steps: the number of steps with each of these sizes.
      rotary_theta: the base of the rotary angles in this phase, instead of `model.rotary_theta`
        (Warner et al. 2024, "ModernBERT", section 2.2: 160,000 for the phase with 8,192 tokens).
        0 for `model.rotary_theta`.
    """

    corpus: PathOrUrl
    num_steps: int
    sequence_length: int = 128
    batch_size: int = 256
    warmup_batch_sizes: tuple[int, ...] = ()
    warmup_batch_steps: int = 0
    rotary_theta: float = 0.0

    def __post_init__(self) -> None:
        check_at_least(1, "phase ", num_steps=self.num_steps, batch_size=self.batch_size)
        check_at_least(8, "phase ", sequence_length=self.sequence_length)
        if self.sequence_length > MAX_LENGTH:
            raise ValueError(
                f"phase sequence_length={self.sequence_length}: expected at most {MAX_LENGTH:,}, "
                "the maximum length of a corpus record."
            )
        if not 0 <= self.rotary_theta < math.inf:
            raise ValueError(
                f"phase rotary_theta={self.rotary_theta}: must be positive and finite, or 0 for "
                "model.rotary_theta."
            )
        self._check_warmup()

    def _check_warmup(self) -> None:
        sizes, steps = self.warmup_batch_sizes, self.warmup_batch_steps
        check_at_least(0, "phase ", warmup_batch_steps=steps)
        if bool(sizes) != bool(steps):
            raise ValueError(
                f"phase warmup_batch_sizes={sizes} with warmup_batch_steps={steps}: a batch-size "
                "warm-up needs both. Set the other one too."
            )
        if sizes and (sizes[0] < 1 or list(self.batch_sizes) != sorted(set(self.batch_sizes))):
            raise ValueError(
                f"phase warmup_batch_sizes={sizes}: expected positive, ascending sizes below "
                f"batch_size={self.batch_size}."
            )
        if len(sizes) * steps >= self.num_steps:
            raise ValueError(
                f"phase warmup_batch_steps={steps}: with {len(sizes)} warmup_batch_sizes, the "
                f"warm-up takes {len(sizes) * steps} steps, but the phase has only "
                f"{self.num_steps}. Lower warmup_batch_steps."
            )

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """All batch sizes of the phase, in order."""
        return (*self.warmup_batch_sizes, self.batch_size)

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The parts of the phase in which the batch size is constant, in order."""
        stages, first_step, sequences = [], 0, 0
        for size in self.batch_sizes:
            steps = self.warmup_batch_steps
            if size == self.batch_size:
                steps = self.num_steps - first_step
            stages.append(Stage(first_step, steps, size, sequences))
            first_step, sequences = first_step + steps, sequences + steps * size
        return tuple(stages)

    def encoder(self, model: EncoderConfig) -> EncoderConfig:
        """Return the run's encoder with the rotary angles of this phase."""
        if not self.rotary_theta:
            return model
        return dataclasses.replace(model, rotary_theta=self.rotary_theta)

    def stage_at(self, step: int) -> Stage:
        """Return the stage of a step, counted from the start of the phase."""
        return next(stage for stage in reversed(self.stages) if stage.first_step <= step)

    @property
    def num_sequences(self) -> int:
        """The number of sequences in all batches of the phase."""
        return sum(stage.num_steps * stage.batch_size for stage in self.stages)


@dataclass(frozen=True)
class LoaderConfig:
    """The settings for making batches.

    Attributes:
      num_workers: the number of processes that make training batches; 0 makes them in a thread of
        the main process. Held-out batches are always made in a thread.
      prefetch: the number of batches that the thread, or each process, keeps ready.
      cache_dir: the directory for copies of the shards of corpora in buckets; "" for
        ~/.cache/bert_jax/corpora. Processes on the same host share it.
      cache_gib: the size of this directory in GiB. If a corpus is larger, shards are copied again
        and again.
    """

    num_workers: int = 0
    prefetch: int = 4
    cache_dir: LocalPath = ""
    cache_gib: float = DEFAULT_CACHE_GIB

    def __post_init__(self) -> None:
        check_at_least(0, "loader.", num_workers=self.num_workers)
        check_at_least(1, "loader.", prefetch=self.prefetch)
        if not 0 < self.cache_gib < math.inf:
            raise ValueError(f"loader.cache_gib={self.cache_gib}: must be positive and finite.")

    @property
    def cache(self) -> Cache:
        """The cache that contains shards of corpora stored in buckets."""
        return corpus_cache(self.cache_dir, self.cache_gib)
