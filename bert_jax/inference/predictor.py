"""What all models that take text share: how they are loaded, and what they refuse."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from bert_jax.data.finetuning.features import Features
from bert_jax.inference.batch_runner import BatchRunner, Program, Row
from bert_jax.inference.usage import Usage
from bert_jax.inference.work_dir import load_trained, read_model, read_usage
from bert_jax.models.config import DTypeName
from bert_jax.models.model import Head


class Predictor:
    """A trained model on this process's first device that takes text.

    heads: those it can work with. made_by: what makes a model that has one, in words.
    unsaid: how a model is used of which its work directory does not say it.
    """

    heads: ClassVar[tuple[Head, ...]]
    made_by: ClassVar[str]
    unsaid: ClassVar[Usage | None] = None

    def __init__(
        self,
        work_dir: str | Path,
        *,
        batch_size: int = 32,
        max_length: int | None = None,
        dtype: DTypeName = "auto",
    ):
        """Loads the checkpoint of a work directory that did best, or else the newest.

        Args:
          work_dir: of a run, or of `bert-jax import`. A fine-tuned model reads as in its run.
          batch_size: the most sequences that are computed at once.
          max_length: the most tokens of a sequence, special ones included; None for those of
            the fine-tuning run, or of another model for all its positions (questions: at most 384).
          dtype: of the computation: "auto" is bfloat16 on accelerators that have it, else float32;
            on a CPU "bfloat16" is faster where the processor multiplies it (AMX, AVX-512's).

        Raises:
          ValueError: no such model, one without the head, or numbers out of range.
        """
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}; expected 1 or more")
        config, origin = read_model(Path(work_dir))
        head, positions = config.head, config.encoder.max_positions
        if head not in self.heads:
            raise ValueError(
                f"{work_dir}: its model has the head {head!r}, with which "
                f"{type(self).__name__} cannot work; expected "
                f"{' or '.join(map(repr, self.heads))}: {self.made_by} makes one"
            )
        self.check_origin(work_dir, origin)
        trained = load_trained(str(work_dir), dtype)
        self.config = trained.config
        self.tokenizer = trained.tokenizer
        shortest = self.tokenizer.specials_of_pair + 2  # a token of either text
        if max_length is not None and not shortest <= max_length <= positions:
            raise ValueError(
                f"max_length is {max_length}; expected {shortest} up to the model's {positions} "
                "positions"
            )
        self.usage = read_usage(Path(work_dir)) or self.unsaid
        usual = positions if self.usage is None else min(self.usage.max_length, positions)
        if max_length is None and usual < shortest:
            raise ValueError(
                f"{work_dir}: damaged: its usage has max_length={usual}; expected {shortest} or "
                "more. Restore model.json from a copy, or set max_length"
            )
        self.max_length = max_length or usual
        self._runner = BatchRunner(trained.model, self.max_length, batch_size)

    @classmethod
    def check_origin(cls, work_dir: str | Path, origin: Mapping[str, str]) -> None:
        """Raises ValueError where a model has the head but learned something else with it."""

    @property
    def num_shapes(self) -> int:
        """Shapes of batches computed so far, each of which was compiled once."""
        return len(self._runner.shapes)

    def _run(self, program: Program, features: Features) -> list[Row]:
        return self._runner(program, features)
