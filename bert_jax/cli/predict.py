r"""Ask a trained model about texts: a result for every line, in order, as JSON Lines.

bert-jax predict runs/sst2 --input reviews.txt --output sentiments.jsonl
echo '{"question": "Where does Matt live?", "context": "Matt lives in Canada."}' \
    | bert-jax predict runs/squad

Input is plain text, a text a line, or JSON Lines: objects with the fields "text", "first" and
"second" (next-sentence, classify), "words" or, of one document, "sentences" (tag), "context" and
"choices" (choose) or "question" and "context" (answer). An "id" comes back with its result. Blank
lines of JSON Lines give nothing, each of plain text is a text. A line that cannot be used, such as
one longer than 2 MiB, ends the command; with --unusable report its result is an object with the
field "error". Results are written whenever no more input is waiting, so that another program can
send one line at a time (the first line may be blank only if --format is given).

Results have, beside the "id":
  classify       label, probability, scores (by label; the number of a model that predicts one),
                 truncated, labels (all above 0.5)
  tag            words (text, start, end, tag, probability), entities (type, text, start, end; null
                 where tags mark none); of a document sentences, each with these
  answer         text, start, end, probability, candidates (as these four), question_truncated
  choose         index, text, probability, probabilities, truncated
  fill-mask      masks (of each its guesses: token, probability), truncated
  next-sentence  probability, truncated
  embed          vector (a sentence-transformers model's own embedding, otherwise the mean), cls and
                 mean (vectors of the whole text's last layer), truncated
Words of a "text" end at every space and punctuation mark; files of tagged words often split less:
give "words" as they do. A choice is all that follows the context, of SWAG sent2 and the ending.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any, get_args

from bert_jax.cli.output import ProgressLine, output_to
from bert_jax.corpus.workspace import check_outside_corpora
from bert_jax.inference.input_lines import Fields, InputLine, UnusableLine, read_input
from bert_jax.inference.input_stream import FORMATS, chunks, open_input
from bert_jax.inference.predictor import Predictor
from bert_jax.inference.requests import TASKS, PredictTask, answers, default_task, with_prompt
from bert_jax.models.config import DTypeName
from bert_jax.runs.runtime import keep_programs
from bert_jax.runs.work_dir import read_model

# Lines are sorted by length among the lines of so many batches.
_BATCHES_AT_ONCE = 32
_PAIR = ("first", "second")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `predict`."""
    parser.add_argument("work_dir", metavar="WORKDIR", help="of a run, or of `import`")
    parser.add_argument(
        "--task", choices=TASKS, help="what to do (default: what the model's head is for)"
    )
    parser.add_argument(
        "--input", metavar="FILE", help="also packed, or a pipe (default: -, standard input)"
    )
    parser.add_argument(
        "--format",
        choices=FORMATS,
        default="auto",
        help="of the input; auto: JSON Lines if FILE is .jsonl or the first line that is not "
        'blank begins with "{" (default: auto)',
    )
    parser.add_argument(
        "--output",
        metavar="FILE",
        help="FILE.partial until all is written; - for standard output (default: that)",
    )
    parser.add_argument(
        "--batch-size", type=int, default=32, metavar="N", help="sequences at once (default: 32)"
    )
    parser.add_argument(
        "--max-length",
        type=int,
        metavar="N",
        help="most tokens of a sequence (default: those of the fine-tuning run, or the model's "
        "positions, at most 384 for questions; for embed, the sentence-transformers model's own "
        "length)",
    )
    parser.add_argument(
        "--dtype",
        choices=get_args(DTypeName),
        default="auto",
        help="of the computation (default: auto: bfloat16 on accelerators that have it, else "
        "float32)",
    )
    parser.add_argument(
        "--top-k",
        type=int,
        metavar="N",
        help="guesses of fill-mask (default: 5), candidates of answer (default: 1)",
    )
    parser.add_argument(
        "--prompt-name",
        metavar="NAME",
        help="name of a prompt of an imported sentence-transformers model to prepend to every text "
        "(default: the model's default prompt, if it has one)",
    )
    parser.add_argument(
        "--unusable",
        choices=("error", "report"),
        default="error",
        help="what a line that cannot be used is: an error, or in its place an object that says "
        "why (default: error)",
    )


def run(args: argparse.Namespace) -> int:
    """Write a line for every line read."""
    try:
        return _run(args)
    except UnusableLine as error:
        raise ValueError(
            f"{error} (--unusable report writes the error to the output and continues)"
        ) from error


def _run(args: argparse.Namespace) -> int:
    config, _ = read_model(Path(args.work_dir))
    name = args.task or default_task(config.head)
    task = TASKS[name]
    if args.prompt_name is not None:
        task = with_prompt(name, Path(args.work_dir), args.prompt_name)
    top_k = _top_k(args.top_k, name, task)
    if args.output not in (None, "-"):
        check_outside_corpora(Path(args.output), "--output")
    # From here on lines are read, those that are there while the model is loaded.
    most = _BATCHES_AT_ONCE * args.batch_size
    source = open_input(args.input, args.format, most)
    keep_programs()
    predictor = task.predictor(
        args.work_dir, batch_size=args.batch_size, max_length=args.max_length, dtype=args.dtype
    )
    report = args.unusable == "report"
    lines = read_input(source, args.format, _fields(task, predictor), report=report)
    progress, start, done, unusable = ProgressLine(), time.monotonic(), 0, 0
    with output_to(args.output, source) as output:
        parts: Iterator[list[InputLine | UnusableLine]] = chunks(
            lines, args.batch_size, most, lambda line: line.num_bytes
        )
        for part in parts:
            for line, result in answers(task, predictor, part, top_k, report=report):
                unusable += isinstance(result, UnusableLine)
                output.write(_json_line(line, result))
            output.flush()
            done += len(part)
            progress.show(partial(_progress, done, time.monotonic() - start, predictor.num_shapes))
    progress.end()
    if unusable:
        told = (
            f"NOTE  {unusable:,} of {done:,} lines could not be used; the output has their errors"
        )
        print(told, file=sys.stderr)
    return 0


def _fields(task: PredictTask, predictor: Predictor) -> Fields:
    """What a model has learned to read first: a line may have fields for more than one thing."""
    pairs = predictor.usage is not None and predictor.usage.pairs
    return sorted(task.fields, key=lambda names: names != _PAIR) if pairs else task.fields


def _progress(done: int, seconds: float, num_shapes: int) -> str:
    return f"{done:,} lines, {done / seconds:,.0f} lines/s, shapes compiled: {num_shapes}"


def _top_k(asked: int | None, name: str, task: PredictTask) -> int:
    if task.top_k is None and asked is not None:
        having = " and ".join(other for other, each in TASKS.items() if each.top_k is not None)
        raise ValueError(f"--top-k is {asked}, but {name} gives no alternatives; {having} do")
    return asked if asked is not None else task.top_k or 0


def _json_line(line: InputLine | UnusableLine, result: Any) -> str:
    content = {"error": str(result)} if isinstance(result, UnusableLine) else _plain(result)
    if line.has_id:
        content = {"id": line.id} | content
    return json.dumps(content, ensure_ascii=False) + "\n"


def _plain(value: Any) -> Any:
    """A result as JSON has it."""
    if is_dataclass(value):
        return {each.name: _plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    return value.tolist() if hasattr(value, "tolist") else value
