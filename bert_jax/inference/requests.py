"""Run the predictor that suits a model's head on input lines as they arrive."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

from bert_jax.inference.input_lines import Fields, InputLine, UnusableLine, read_input
from bert_jax.inference.input_stream import Format, Input, chunks, open_input
from bert_jax.inference.predict_tasks import PredictTask, default_task, with_prompt
from bert_jax.inference.predictor import Predictor, UnusableText
from bert_jax.models.options import DTypeName
from bert_jax.runs.model_location import local_model
from bert_jax.runs.work_dir import read_model


def answers(
    task: PredictTask,
    predictor: Predictor,
    lines: Sequence[InputLine | UnusableLine],
    top_k: int,
    *,
    report: bool,
) -> Iterator[tuple[InputLine | UnusableLine, Any]]:
    """Yield each line with its result, in order; an unusable line's result is an `UnusableLine`.

    Raises:
      UnusableLine: a text cannot be used, and `report` is false.
    """
    results: dict[int, Any] = {}
    pending: list[tuple[int, InputLine]] = []
    for number, line in enumerate(lines):
        if isinstance(line, InputLine):
            pending.append((number, line))
        else:
            results[number] = line
    while pending:
        try:
            predicted = task.predict(predictor, [line.value for _, line in pending], top_k)
        except UnusableText as error:
            for index, reason in error.reasons.items():
                number, line = pending[index]
                unusable = UnusableLine(line.place, reason, has_id=line.has_id, id=line.id)
                if not report:
                    raise unusable from error
                results[number] = unusable
            pending = [each for index, each in enumerate(pending) if index not in error.reasons]
        else:
            results |= dict(zip((number for number, _ in pending), predicted, strict=True))
            break
    for number, line in enumerate(lines):
        yield line, results[number]


# Lines are sorted by length within groups of this many batches.
_BATCHES_AT_ONCE = 32
_PAIR = ("first", "second")
Answer = tuple[InputLine | UnusableLine, Any]


@dataclass(frozen=True)
class LineRequest:
    """A task to perform on every line of an input, and the model to use for it.

    Attributes:
      work_dir: the model's work directory.
      task: the task to perform on every line.
      top_k: how many alternatives to return; 0 for tasks without alternatives.
    """

    work_dir: Path
    task: PredictTask
    top_k: int

    @classmethod
    def resolve(
        cls,
        work_dir: str | os.PathLike[str],
        tasks: Mapping[str, PredictTask],
        *,
        name: str | None = None,
        top_k: int | None = None,
        prompt_name: str | None = None,
    ) -> LineRequest:
        """Choose the task and check the options that depend on it, without loading the model.

        Args:
          work_dir: the model's work directory.
          tasks: all tasks, keyed by name.
          name: the name of the task; None for the task that uses the model's head.
          top_k: how many alternatives to return; None for the task's default.
          prompt_name: the name of a prompt stored with a sentence-transformers model; None for the
            model's default prompt.

        Raises:
          ValueError: there is no such model, or an option does not apply to the task.
        """
        work_dir = local_model(work_dir)
        config, _ = read_model(work_dir)
        task = tasks[name] if name else default_task(config.head, tasks)
        if prompt_name is not None:
            task = with_prompt(task, work_dir, prompt_name)
        if task.top_k is None and top_k is not None:
            others = " and ".join(each.name for each in tasks.values() if each.top_k is not None)
            raise ValueError(
                f"--top-k={top_k}: {task.name} returns no alternatives. Only {others} take --top-k"
            )
        return cls(work_dir, task, task.top_k or 0 if top_k is None else top_k)

    def prompt(self, form: Format) -> str:
        """Return the message that prompts the user to type input in the terminal."""
        if form == "text" or (form == "auto" and ("text",) in self.task.fields):
            line = "one text per line"
        else:
            groups = (" and ".join(f'"{name}"' for name in names) for names in self.task.fields)
            line = f"one JSON object per line with the fields {' or '.join(groups)}"
        return f"{self.task.name}: waiting for {line} from the terminal. Ctrl-D ends the input."

    def open(self, path: str | None, form: Format, batch_size: int) -> Input:
        """Open a file, or standard input if `path` is None or "-"; see `open_input`."""
        return open_input(path, form, _BATCHES_AT_ONCE * batch_size)

    def load(self, *, batch_size: int, max_length: int | None, dtype: DTypeName) -> Predictor:
        """Load the model; see `Predictor`."""
        return self.task.predictor(
            self.work_dir, batch_size=batch_size, max_length=max_length, dtype=dtype
        )

    def answer(
        self,
        predictor: Predictor,
        source: Input,
        form: Format,
        batch_size: int,
        *,
        report: bool = False,
    ) -> Iterator[list[Answer]]:
        """Yield the input's lines with their results, in order, in increasingly large parts.

        A part ends early if no further line is waiting.

        Args:
          predictor: the model from `load`.
          source: the input from `open`.
          form: the format of the input.
          batch_size: the number of sequences to compute at once.
          report: whether to yield an `UnusableLine` as the line's result instead of raising it.

        Raises:
          UnusableLine: a line cannot be used, and `report` is false.
        """
        lines = read_input(
            source, form, self._fields(predictor), self.task.list_fields, report=report
        )
        parts: Iterator[list[InputLine | UnusableLine]] = chunks(
            lines, batch_size, _BATCHES_AT_ONCE * batch_size, lambda line: line.num_bytes
        )
        for part in parts:
            yield list(answers(self.task, predictor, part, self.top_k, report=report))

    def _fields(self, predictor: Predictor) -> Fields:
        """Return the fields that a line may have, starting with the fields used in training."""
        pairs = predictor.defaults is not None and predictor.defaults.pairs
        by_use = sorted(self.task.fields, key=lambda names: names != _PAIR)
        return by_use if pairs else self.task.fields


def progress_texts(predictor: Predictor) -> Callable[[int], str]:
    """Start a timer, and return a function that describes the progress for a number of lines."""
    start = time.monotonic()

    def describe(num_lines: int) -> str:
        speed = num_lines / (time.monotonic() - start)
        return f"{num_lines:,} lines, {speed:,.0f} lines/s, shapes compiled: {predictor.num_shapes}"

    return describe


def json_line(line: InputLine | UnusableLine, result: Any) -> str:
    """Format a line's result as JSON, with the line's id if it has one."""
    content = {"error": str(result)} if isinstance(result, UnusableLine) else _plain(result)
    if line.has_id:
        content = {"id": line.id} | content
    return json.dumps(content, ensure_ascii=False) + "\n"


def _plain(value: Any) -> Any:
    """Convert a result to dicts, lists, strings and numbers."""
    if is_dataclass(value):
        return {each.name: _plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    return value.tolist() if hasattr(value, "tolist") else value


def work_dir_and_sentences(option: str | None, words: Sequence[str]) -> tuple[str, list[str]]:
    """Return a model's work directory and the sentences for `fill-mask`.

    Args:
      option: the work directory given as an option; None if it is the first positional argument.
      words: the positional arguments.

    Raises:
      ValueError: there is no sentence.
    """
    given = [*([] if option is None else [option]), *words]
    if len(given) < 2:
        raise ValueError(
            "expected a work directory and at least one sentence: "
            'bert-jax fill-mask WORKDIR "The [MASK] of the sea."'
        )
    return given[0], given[1:]
