"""What a model answers to some lines, and which of them it cannot."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from bert_jax.cli.predict_lines import InputLine, UnusableLine
from bert_jax.cli.predict_tasks import PredictTask
from bert_jax.inference.predictor import Predictor
from bert_jax.inference.texts import UnusableText


def answers(
    task: PredictTask,
    predictor: Predictor,
    lines: Sequence[InputLine | UnusableLine],
    top_k: int,
    *,
    report: bool,
) -> Iterator[tuple[InputLine | UnusableLine, Any]]:
    """Yields each line with its result, in order; with an `UnusableLine` if there is none.

    Raises:
      UnusableLine: a text cannot be used, and `report` is off.
    """
    results: dict[int, Any] = {}
    asked: list[tuple[int, InputLine]] = []
    for number, line in enumerate(lines):
        if isinstance(line, InputLine):
            asked.append((number, line))
        else:
            results[number] = line
    while asked:
        try:
            found = task.predict(predictor, [line.value for _, line in asked], top_k)
        except UnusableText as error:
            for index, reason in error.reasons.items():
                number, line = asked[index]
                unusable = UnusableLine(line.place, reason, has_id=line.has_id, id=line.id)
                if not report:
                    raise unusable from error
                results[number] = unusable
            asked = [each for index, each in enumerate(asked) if index not in error.reasons]
        else:
            results |= dict(zip((number for number, _ in asked), found, strict=True))
            break
    for number, line in enumerate(lines):
        yield line, results[number]
