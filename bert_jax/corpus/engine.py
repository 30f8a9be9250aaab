"""Choose how a preparation is distributed over processes and machines."""

from __future__ import annotations

from dataclasses import dataclass

from bert_jax.corpus.parts import Part
from bert_jax.field_options import option


@dataclass(frozen=True)
class Engine:
    """The way in which a preparation is distributed. By default, one machine does all the work.

    Attributes:
      part: the part to prepare, as "INDEX/COUNT"; None to prepare the whole corpus.
      merge: whether to turn finished parts into a corpus.
      runner: the Apache Beam runner that does the work; None for processes on this machine.
      runner_args: options for the runner, separated by spaces as in a shell.
    """

    part: str | None = option(
        None,
        "prepare only part I of N on this machine, with I from 0 to N - 1. The parts share the "
        "output directory",
        metavar="I/N",
    )
    merge: bool = option(False, "turn the finished parts into a corpus")
    runner: str | None = option(
        None,
        "Apache Beam runner to prepare the corpus with, such as DirectRunner or DataflowRunner "
        "(needs the extra `beam`)",
        metavar="NAME",
    )
    runner_args: str = option(
        "",
        "options for the runner, such as --runner-args='--direct_num_workers=4'",
        metavar="'ARGS'",
        any_text=True,
    )

    def __post_init__(self) -> None:
        if self.part is not None:
            Part.parse(self.part)
        chosen = {"part": self.part is not None, "merge": self.merge, "runner": bool(self.runner)}
        names = [name for name, is_chosen in chosen.items() if is_chosen]
        if len(names) > 1:
            raise ValueError(
                f"{names[0]}={vars(self)[names[0]]}: cannot be combined with {names[1]}. Use only "
                "one of them."
            )
        if self.runner_args and not self.runner:
            raise ValueError(f"runner_args={self.runner_args}: no runner is set. Set runner.")
