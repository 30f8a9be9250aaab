r"""Run a trained model on texts, and write one JSON result per line of input, in order.

bert-jax predict runs/sst2 --input reviews.txt --output sentiments.jsonl
echo '{"question": "Where does Matt live?", "context": "Matt lives in Canada."}' \
    | bert-jax predict runs/squad

The input is either plain text with one text per line, or JSON Lines. A JSON object has the field
"text", or the fields that its task needs: "first" and "second" (next-sentence, classify), "words",
or "sentences" for a whole document (tag), "context" and "choices" (choose), "question" and
"context" (answer). An "id" is copied to the result. A blank line is an empty text in plain text,
but is skipped in JSON Lines. A line that cannot be used, such as one longer than 2 MiB, ends the
command. With --unusable report, its result is instead an object with the field "error". Results are
written whenever no more input is waiting, so another program can send one line at a time. The first
line may be blank only if --format is given.

The words of a "text" end at every space and punctuation mark. Files of tagged words are often split
less finely; in that case, pass "words" split as in the files. A choice is everything that follows
the context: in SWAG, sent2 and the ending.

In addition to the "id", results have these fields:
"""

import argparse
import sys
from typing import get_args

from bert_jax.argument_parser import ArgumentParser, free_text
from bert_jax.cli.arguments import add_work_dir_argument
from bert_jax.finetuning.registry import predict_tasks
from bert_jax.inference.fill_mask import FillMask
from bert_jax.inference.input_lines import UnusableLine
from bert_jax.inference.input_stream import FORMATS
from bert_jax.inference.output_file import open_output, unusable_note, write_answers
from bert_jax.inference.predict_tasks import result_lines
from bert_jax.inference.requests import LineRequest, progress_texts, work_dir_and_sentences
from bert_jax.models.options import DTypeName
from bert_jax.runs.runtime import enable_compilation_cache
from bert_jax.terminal import ProgressLine, use_utf8


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `predict`."""
    add_work_dir_argument(parser)
    tasks = predict_tasks()
    results = "\n".join(result_lines(tasks.values()))
    parser.description = f"{parser.description}{results}"
    parser.add_choice(
        "--task", tasks, "kind of prediction (default: the kind that fits the model's head)"
    )
    _add_stream_arguments(parser)
    _add_model_arguments(parser)
    parser.add_number(
        "--top-k",
        "number of guesses for fill-mask (default: 5) or of candidates for answer (default: 1)",
    )
    parser.add_option(
        "--prompt-name",
        "NAME",
        "name of the prompt to prepend to every text, for an imported sentence-transformers model "
        "(default: the model's default prompt, if it has one)",
    )
    parser.add_choice(
        "--unusable",
        ("error", "report"),
        "how to handle a line that cannot be used: stop with an error, or write an object with the "
        "reason as its result",
        default="error",
    )


def _add_stream_arguments(parser: ArgumentParser) -> None:
    parser.add_option(
        "--input",
        "FILE",
        "input file, which may be compressed, or a pipe (default: -, standard input)",
    )
    parser.add_choice(
        "--format",
        FORMATS,
        "format of the input; auto: JSON Lines if FILE is .jsonl or the first line that is not "
        'blank begins with "{"',
        default="auto",
    )
    output = "output file, named FILE.partial until it is complete (default: -, standard output)"
    parser.add_output_file("--output", output)


def _add_model_arguments(parser: ArgumentParser) -> None:
    parser.add_number("--batch-size", "number of sequences in a batch", default=32)
    parser.add_number(
        "--max-length",
        "maximum number of tokens in a sequence (default: as in the fine-tuning run, or else the "
        "model's number of positions, but at most 384 for questions; for embed, the "
        "sentence-transformers model's own maximum)",
    )
    parser.add_choice(
        "--dtype",
        get_args(DTypeName),
        "floating-point type to compute in; auto: bfloat16 on accelerators that support it, else "
        "float32",
        default="auto",
    )


def run(args: argparse.Namespace) -> int:
    """Write a result for each line of the input."""
    try:
        num_lines, num_unusable = _predict(args)
    except UnusableLine as error:
        raise ValueError(
            f"{error} (--unusable report writes the error to the output and continues)"
        ) from error
    if num_unusable:
        print(unusable_note(num_lines, num_unusable), file=sys.stderr)
    return 0


def _predict(args: argparse.Namespace) -> tuple[int, int]:
    """Write the results, and return the number of lines and of unusable lines."""
    request = LineRequest.resolve(
        args.work_dir,
        predict_tasks(),
        name=args.task,
        top_k=args.top_k,
        prompt_name=args.prompt_name,
    )
    # From here on, input lines are read in the background while the model is loading.
    source = request.open(args.input, args.format, args.batch_size)
    if args.input in (None, "-") and sys.stdin.isatty():
        print(request.prompt(args.format), file=sys.stderr, flush=True)
    enable_compilation_cache()
    predictor = request.load(
        batch_size=args.batch_size, max_length=args.max_length, dtype=args.dtype
    )
    line, progress = ProgressLine(sys.stderr), progress_texts(predictor)
    report = args.unusable == "report"
    parts = request.answer(predictor, source, args.format, args.batch_size, report=report)
    with open_output(args.output, source, sys.stdout) as output:
        counts = write_answers(parts, output, lambda count: line.show(lambda: progress(count)))
    line.end()
    return counts


def add_fill_mask_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `fill-mask`."""
    parser.add_argument(
        "work_dir",
        nargs="?",
        type=free_text,
        metavar="WORKDIR",
        help="work directory, or a small model such as mini-bert",
    )
    parser.add_argument(
        "sentence",
        nargs="*",
        type=free_text,
        metavar="SENTENCE",
        help="sentence with one or more [MASK] tokens, or <mask> with a RoBERTa vocabulary",
    )
    parser.add_argument(
        "--work-dir",
        dest="work_dir_option",
        metavar="DIR",
        help="work directory, given as an option instead of as the first argument",
    )
    guesses = "number of guesses for each mask (default: 5)"
    parser.add_argument(
        "--top", "--top-k", dest="top_k", type=int, default=5, metavar="N", help=guesses
    )
    _add_model_arguments(parser)


def fill_mask(args: argparse.Namespace) -> int:
    """Predict the masked words in sentences with a pretrained model.

    bert-jax fill-mask runs/demo "The capital of France is [MASK]."
    """
    words = [*([] if args.work_dir is None else [args.work_dir]), *args.sentence]
    work_dir, sentences = work_dir_and_sentences(args.work_dir_option, words)
    fill = FillMask(
        work_dir, batch_size=args.batch_size, max_length=args.max_length, dtype=args.dtype
    )
    filled = fill(sentences, top_k=args.top_k)
    use_utf8(sys.stdout)
    for sentence, text in zip(sentences, filled, strict=True):
        print("\n".join(["", sentence, *(f"  {line}" for line in text.lines(fill.mask))]))
    return 0
