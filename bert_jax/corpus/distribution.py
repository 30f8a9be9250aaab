"""Choose how a preparation is distributed over processes and machines."""

from __future__ import annotations

from dataclasses import dataclass

from bert_jax.corpus.parts import Part
from bert_jax.field_options import option


@dataclass(frozen=True)
class Distribution:
    """How a preparation is distributed. By default, one machine does all the work.

    Attributes:
      part: the part to prepare, as "INDEX/COUNT"; None to prepare the whole corpus.
      merge: whether to turn finished parts into a corpus.
    """

    part: str | None = option(
        None,
        "prepare only part I of N on this machine, with I from 0 to N - 1. The parts share the "
        "output directory",
        metavar="I/N",
    )
    merge: bool = option(False, "turn the finished parts into a corpus")

    def __post_init__(self) -> None:
        if self.part is not None:
            Part.parse(self.part)
            if self.merge:
                raise ValueError(
                    f"part={self.part}: cannot be combined with merge. Prepare all parts, and then "
                    "merge them."
                )
