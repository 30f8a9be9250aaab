"""The sections of a pretraining run's config: phases, evaluation, reporting, data loading."""

from __future__ import annotations

from dataclasses import dataclass

from bert_jax.corpus.inputs import MAX_LENGTH
from bert_jax.local_paths import LocalPath

_MOST = 2**63 - 1  # the largest integer that every library accepts


def check_at_least(minimum: int, section: str, **values: int) -> None:
    """Raise ValueError for an integer that is below `minimum` or too large for the libraries.

    section: the beginning of the key in the message, such as "reporting.".
    """
    for name, value in values.items():
        if value < minimum:
            raise ValueError(f"{section}{name}={value}: must be at least {minimum}")
        if value > _MOST:
            raise ValueError(f"{section}{name}={str(value)[:30]}...: must be at most {_MOST:,}")


@dataclass(frozen=True)
class PhaseConfig:
    """A stretch of the run on one corpus.

    corpus: a directory made by `bert-jax prepare`.
    sequence_length: tokens, as the corpus was prepared with (`--max-length`).
    batch_size: sequences a step, over all devices.
    """

    corpus: LocalPath
    num_steps: int
    sequence_length: int = 128
    batch_size: int = 256

    def __post_init__(self) -> None:
        check_at_least(1, "phase ", num_steps=self.num_steps, batch_size=self.batch_size)
        check_at_least(8, "phase ", sequence_length=self.sequence_length)
        if self.sequence_length > MAX_LENGTH:
            raise ValueError(
                f"phase sequence_length={self.sequence_length}: expected at most {MAX_LENGTH:,}, "
                "the maximum length of a corpus's records"
            )


@dataclass(frozen=True)
class EvaluationConfig:
    """every_steps: between evaluations on the held-out split (and one at the end); 0 makes none.

    batch_size: sequences a batch; 0 takes what a train step has at once: the phase's batch_size
      over accumulation_steps. max_records: that are scored, the same every time, drawn at random
      from a large split; 0 takes all.
    """

    every_steps: int = 1_000
    batch_size: int = 0
    max_records: int = 0

    def __post_init__(self) -> None:
        sizes = {"batch_size": self.batch_size, "max_records": self.max_records}
        check_at_least(0, "evaluation.", every_steps=self.every_steps, **sizes)


@dataclass(frozen=True)
class ReportingConfig:
    """every_steps: between progress lines. tensorboard: write event files too.

    profile_steps: so many steps, after the first ten of a start, are traced into the work
      directory's `profile`, for XProf and its TensorBoard plugin (0: none).
    """

    every_steps: int = 50
    tensorboard: bool = True
    profile_steps: int = 0

    def __post_init__(self) -> None:
        check_at_least(1, "reporting.", every_steps=self.every_steps)
        check_at_least(0, "reporting.", profile_steps=self.profile_steps)


@dataclass(frozen=True)
class LoaderConfig:
    """num_workers: processes that make batches; 0 makes them in a thread of this process.

    prefetch: batches made ahead of the step. Held-out batches are made in a thread in any case.
    """

    num_workers: int = 0
    prefetch: int = 4

    def __post_init__(self) -> None:
        check_at_least(0, "loader.", num_workers=self.num_workers)
        check_at_least(1, "loader.", prefetch=self.prefetch)
