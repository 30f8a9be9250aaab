"""Answer streamed lines with the predictor of a model's head.

`TASKS` names what each predictor reads and returns.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from bert_jax.inference.answer_question import AnswerQuestion
from bert_jax.inference.classify import Choose, Classify
from bert_jax.inference.embed import Embed
from bert_jax.inference.fill_mask import FillMask, NextSentence
from bert_jax.inference.input_lines import Document, Fields, InputLine, UnusableLine, read_input
from bert_jax.inference.input_stream import Format, Input, chunks, open_input
from bert_jax.inference.predictor import Predictor, UnusableText, refuse
from bert_jax.inference.tag import Tag, TaggedText, check_words
from bert_jax.models.config import DTypeName
from bert_jax.models.model import Head
from bert_jax.models.sentence_embedding import SentenceEmbedding
from bert_jax.runs.work_dir import read_model, read_sentence_embedding

# Of a predictor, the values of some lines, and how many alternatives to give: a result a line.
Predict = Callable[[Any, list[Any], int], list[Any]]


@dataclass(frozen=True)
class PredictTask:
    """One thing to do with lines.

    top_k: how many alternatives it gives by default; None if it gives none.
    """

    predictor: type[Predictor]
    fields: Fields
    predict: Predict
    top_k: int | None = None


@dataclass(frozen=True)
class TaggedDocument:
    """The sentences of one document with their tags."""

    sentences: tuple[TaggedText, ...]


TASKS: Mapping[str, PredictTask] = {
    "fill-mask": PredictTask(FillMask, [("text",)], lambda model, texts, k: model(texts, k), 5),
    "next-sentence": PredictTask(
        NextSentence, [("first", "second")], lambda model, pairs, _: model(*_columns(pairs))
    ),
    "classify": PredictTask(
        Classify, [("text",), ("first", "second")], lambda model, texts, _: model(texts)
    ),
    "choose": PredictTask(
        Choose, [("context", "choices")], lambda model, pairs, _: model(*_columns(pairs))
    ),
    "tag": PredictTask(
        Tag, [("words",), ("sentences",), ("text",)], lambda model, values, _: _tag(model, values)
    ),
    "answer": PredictTask(
        AnswerQuestion,
        [("question", "context")],
        lambda model, pairs, k: model(*_columns(pairs), k),
        1,
    ),
    "embed": PredictTask(Embed, [("text",)], lambda model, texts, _: model.sentences(texts)),
}


def with_prompt(name: str, work_dir: Path, prompt_name: str) -> PredictTask:
    """Return the task with one of the prompts of the model in `work_dir` prepended to every text.

    Raises:
      ValueError: the model has no such prompt, or the task does not embed texts.
    """
    if name != "embed":
        raise ValueError(
            f"--prompt-name={prompt_name}: {name} does not take a prompt. Add --task embed, or "
            "leave the prompt out"
        )
    settings = read_sentence_embedding(work_dir) or SentenceEmbedding()
    prompt = settings.prompt_for(prompt_name, None)

    def predict(model: Embed, texts: list[Any], _: int) -> list[Any]:
        return model.sentences(texts, prompt=prompt)

    return replace(TASKS[name], predict=predict)


def default_task(head: Head) -> str:
    """What a model is for by its head.

    Raises:
      ValueError: nothing of this; its encoder still embeds.
    """
    if head == "encoder":
        return "embed"
    for name, task in TASKS.items():
        if name != "embed" and head in task.predictor.heads:
            return name
    raise ValueError(
        f"a model with the head {head!r} has no task of its own here; --task embed gives the "
        "vectors of its encoder"
    )


def _tag(model: Tag, values: list[Any]) -> list[Any]:
    """Texts are tagged together, each of the documents by itself."""
    texts = [index for index, value in enumerate(values) if not isinstance(value, Document)]
    documents = {i: value for i, value in enumerate(values) if isinstance(value, Document)}
    # All are looked at before the first is tagged.
    reasons = {}
    for index, document in documents.items():
        try:
            check_words(document.sentences)
        except UnusableText as error:
            reasons[index] = f"sentence {error.index}: {error.reason}"
    refuse(reasons, len(values))
    try:
        tagged = model([values[index] for index in texts])
    except UnusableText as error:
        told = {texts[index]: reason for index, reason in error.reasons.items()}
        raise UnusableText(told, len(values)) from None
    found: dict[int, Any] = dict(zip(texts, tagged, strict=True))
    for index, document in documents.items():
        found[index] = TaggedDocument(tuple(model.document(document.sentences)))
    return [found[index] for index in range(len(values))]


def _columns(pairs: list[tuple[Any, Any]]) -> tuple[list[Any], list[Any]]:
    return [first for first, _ in pairs], [second for _, second in pairs]


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


# Lines are sorted by length among the lines of this many batches.
_BATCHES_AT_ONCE = 32
_PAIR = ("first", "second")
Answer = tuple[InputLine | UnusableLine, Any]


@dataclass(frozen=True)
class LineRequest:
    """A task to do with every line of an input, and the model to do it with.

    work_dir: the model's work directory. name: the task's name in `TASKS`. top_k: number of
    alternatives, 0 for tasks that have none.
    """

    work_dir: Path
    name: str
    task: PredictTask
    top_k: int

    @classmethod
    def resolve(
        cls,
        work_dir: str | os.PathLike[str],
        *,
        name: str | None = None,
        top_k: int | None = None,
        prompt_name: str | None = None,
    ) -> LineRequest:
        """Choose the task, and check the options that depend on it; loads no parameters.

        Args:
          work_dir: the model's work directory.
          name: the task; None for the task of the model's head.
          top_k: number of alternatives; None for the task's default.
          prompt_name: name of a prompt of a sentence-transformers model; None for its default.

        Raises:
          ValueError: there is no such model, or an option does not apply to the task.
        """
        config, _ = read_model(Path(work_dir))
        name = name or default_task(config.head)
        task = TASKS[name]
        if prompt_name is not None:
            task = with_prompt(name, Path(work_dir), prompt_name)
        if task.top_k is None and top_k is not None:
            having = " and ".join(other for other, task in TASKS.items() if task.top_k is not None)
            raise ValueError(f"--top-k is {top_k}, but {name} gives no alternatives; {having} do")
        return cls(Path(work_dir), name, task, task.top_k or 0 if top_k is None else top_k)

    def open(self, path: str | None, form: Format, batch_size: int) -> Input:
        """Begin to read a file, or standard input for None and "-"; see `open_input`."""
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
        """Yield the lines of an input with their results, in order and in parts of growing size.

        A part ends early when no further line is waiting.

        Args:
          predictor: the model from `load`.
          source: the input from `open`.
          form: the format of the input.
          batch_size: number of sequences computed at once.
          report: whether an unusable line is its own result instead of an error.

        Raises:
          UnusableLine: a line cannot be used, and `report` is false.
        """
        lines = read_input(source, form, self._fields(predictor), report=report)
        parts: Iterator[list[InputLine | UnusableLine]] = chunks(
            lines, batch_size, _BATCHES_AT_ONCE * batch_size, lambda line: line.num_bytes
        )
        for part in parts:
            yield list(answers(self.task, predictor, part, self.top_k, report=report))

    def _fields(self, predictor: Predictor) -> Fields:
        """Return the fields that a line may have, starting with the fields of the training data."""
        pairs = predictor.defaults is not None and predictor.defaults.pairs
        by_use = sorted(self.task.fields, key=lambda names: names != _PAIR)
        return by_use if pairs else self.task.fields


def json_line(line: InputLine | UnusableLine, result: Any) -> str:
    """Return the result of a line as JSON, with the line's id if it has one."""
    content = {"error": str(result)} if isinstance(result, UnusableLine) else _plain(result)
    if line.has_id:
        content = {"id": line.id} | content
    return json.dumps(content, ensure_ascii=False) + "\n"


def _plain(value: Any) -> Any:
    """Return a result as dicts, lists and numbers."""
    if is_dataclass(value):
        return {each.name: _plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    return value.tolist() if hasattr(value, "tolist") else value
