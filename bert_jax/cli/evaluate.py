r"""Score a model: a fine-tuned one on its task, or a pretrained one on text or minimal pairs.

    bert-jax evaluate runs/mine --text novel.txt
    bert-jax evaluate runs/mine --minimal-pairs blimp.jsonl.xz --plot blimp.png
    bert-jax evaluate runs/sst2
    bert-jax evaluate runs/wnut17 --data emerging.test.annotated --output scores.json
    bert-jax evaluate runs/mnli --unlabelled --predictions submission
    bert-jax evaluate models/imported --config configs/finetune/sst2.py \
      --config.glue.directory=data/SST-2

With --text, the command prints the masked-LM loss, accuracy and pseudo-perplexity of a pretrained
model (Salazar et al. 2020). With --minimal-pairs, it prints how often the model finds the better of
two sentences more probable, from files with the fields of BLiMP (Warstadt et al. 2020).

A fine-tuned model is scored on its validation set or another file, in the same way as by its run.
The last command scores an imported model that was fine-tuned with another library; its labels are
matched by name. With --config and --config.sentences.files.*, a run's model can also be scored on a
table in a different format. The printed table has one row per class, label or entity type.

By default, a fine-tuning run's best checkpoint is used, or a pretraining run's newest one.
"""

import argparse
import sys
from pathlib import Path

import jax

from bert_jax.argument_parser import ArgumentParser, free_text, option_names
from bert_jax.cli.arguments import (
    add_config_argument,
    add_distributed_argument,
    add_work_dir_argument,
)
from bert_jax.cli.output import report_result
from bert_jax.finetuning.evaluation import evaluate
from bert_jax.finetuning.score_report import check_outputs, lines, write_scores
from bert_jax.language_scores.request import check_options, score_pretrained
from bert_jax.language_scores.text_scores import MAX_SENTENCES
from bert_jax.recipes.command_line import evaluation_config
from bert_jax.runs.runtime import enable_compilation_cache
from bert_jax.terminal import ProgressLine
from bert_jax.training import distributed
from bert_jax.validation import renamed_in_errors


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `evaluate`."""
    add_work_dir_argument(
        parser,
        "work directory made by `finetune` or, with --config, --text or --minimal-pairs, by any "
        "command",
    )
    add_config_argument(parser, required=False)
    parser.add_option(
        "--data",
        "FILE",
        "file to use instead of the validation file, in the same format; for GLUE, it can be a "
        "directory",
    )
    parser.add_flag(
        "--unlabelled",
        "predict without scoring, for the task's test files or for --data without labels",
    )
    parser.add_number(
        "--step",
        "step of the checkpoint (default: the best of a fine-tuning run, the newest of any other)",
    )
    parser.add_output_file("--output", "JSON file for the scores")
    predictions = "directory for the predictions, in files named after the data sets"
    parser.add_option("--predictions", "DIR", predictions)
    add_distributed_argument(parser)
    _add_language_arguments(parser)


def _add_language_arguments(parser: ArgumentParser) -> None:
    text = "text files, directories, patterns or tfds:NAME/CONFIG:SPLIT, in any format of `prepare`"
    parser.add_list("--text", "PATH", text)
    field = "JSON field, Parquet column or TFDS feature that contains the text (default: text)"
    parser.add_option("--text-field", "NAME", field, kind=free_text)
    length = "maximum number of tokens in a row of text (default: the model's number of positions)"
    parser.add_number("--max-length", length)
    sentences = "maximum number of sentences for the pseudo-perplexity, a fixed sample (default: "
    parser.add_number("--max-sentences", f"{sentences}{MAX_SENTENCES})", minimum=1)
    pairs = "minimal pairs, a JSON Lines file with BLiMP's fields, or a directory of such files"
    parser.add_option("--minimal-pairs", "PATH", pairs)
    words = "mask each token along with the tokens that follow it in its word"
    parser.add_flag("--whole-words", words)
    sample = "maximum number of pairs from each paradigm, a fixed sample (default: all)"
    parser.add_number("--max-pairs", sample, minimum=1)
    parser.add_output_file("--plot", "PNG image of the accuracies on minimal pairs")


def run(args: argparse.Namespace) -> int:
    """Score the model, print the scores, and write the requested files."""
    check_options(vars(args))
    if args.text or args.minimal_pairs:
        return _score_pretrained(args)
    distributed.join(force=args.distributed)
    enable_compilation_cache()
    output = None if args.output is None else Path(args.output)
    check_outputs(output, args.predictions, labeled=not args.unlabelled)
    result = evaluate(
        args.work_dir,
        data=args.data,
        step=args.step,
        labeled=not args.unlabelled,
        predictions=args.predictions or None,
        config=evaluation_config(args.config, args.config_overrides, args.work_dir),
    )
    if jax.process_index() == 0:
        print("\n".join(lines(result)))
        if output is not None:
            write_scores(output, result, args.data)
    return 0


def _score_pretrained(args: argparse.Namespace) -> int:
    enable_compilation_cache()
    line = ProgressLine(sys.stderr)
    names = ("text_field", "max_length", "max_sentences", "whole_words", "max_pairs", "step")
    options = {name: getattr(args, name) for name in names}
    with renamed_in_errors(option_names("max_length", "max_sentences", "max_pairs")):
        scores = score_pretrained(
            args.work_dir, args.text, args.minimal_pairs, **options, on_progress=line.show_text
        )
    return report_result(scores, args, line)
