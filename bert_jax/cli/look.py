"""Implement the commands that look inside models and batches, or compare and prune models."""

import argparse
import sys
from typing import get_args

from bert_jax.argument_parser import ArgumentParser, option_names
from bert_jax.cli.arguments import add_config_argument, add_text_arguments, add_work_dir_argument
from bert_jax.cli.output import report_result
from bert_jax.html_pages import check_page_path
from bert_jax.interpretability.compare import compare
from bert_jax.interpretability.head_pruning import prune_heads
from bert_jax.interpretability.look import look
from bert_jax.interpretability.probe import Target, probe
from bert_jax.recipes.command_line import evaluation_config
from bert_jax.recipes.show_batch import show_batch
from bert_jax.runs.runtime import enable_compilation_cache
from bert_jax.terminal import ProgressLine, shows_color, use_utf8
from bert_jax.validation import renamed_in_errors


def add_look_at_text_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `look`."""
    add_work_dir_argument(parser)
    add_text_arguments(parser)
    parser.add_number("--step", "step of the checkpoint (default: the best one, or the newest)")
    parser.add_output_file("--output", "HTML file to write", required=True)


def look_at_text(args: argparse.Namespace) -> int:
    """Write a web page that shows what happens inside a model when it reads a text.

        bert-jax look runs/mine "I love my pet Python" "Python is a language" --output page.html

    The page shows the attention of every head. Depending on the model's head, it also shows the
    guesses for [MASK] at every layer, the tags, the answer to a question (the first text) in a
    passage (the second), or how much every word contributes to a classification. The page loads
    nothing from the network.
    """
    check_page_path(args.output, "--output")
    enable_compilation_cache()
    page = look(args.work_dir, args.text, args.second, max_length=args.max_length, step=args.step)
    page.save(args.output)
    print("\n".join([*page.notes, f"{args.output}: {len(page.html.encode()):,} bytes"]))
    return 0


def add_show_rows_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `show-batch`."""
    work_dir = "work directory of a pretraining run, instead of --config"
    parser.add_argument("work_dir", nargs="?", metavar="WORKDIR", help=work_dir)
    add_config_argument(parser, required=False)
    parser.add_number("--step", "step of the run, counted from 0", default=0)
    parser.add_number("--rows", "number of rows to show", default=4)


def show_rows(args: argparse.Namespace) -> int:
    """Show a batch of a pretraining run, with its masked and replaced tokens and its pair labels.

    bert-jax show-batch runs/mine --step 100
    bert-jax show-batch --config tiny --config.phases.phase1.corpus=corpora/mine
    """
    if (args.work_dir is None) == (args.config is None):
        raise ValueError("expected either a work directory or --config RECIPE.")
    source = args.work_dir or args.config
    view = show_batch(source, args.config_overrides, step=args.step, num_rows=args.rows)
    use_utf8(sys.stdout)
    print("\n".join(view.lines(color=shows_color(sys.stdout))))
    return 0


def add_probe_model_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `probe`."""
    add_work_dir_argument(parser)
    treebank = "directory of a treebank in CoNLL-U files or, with --target heads, a single file"
    parser.add_option("--treebank", "PATH", treebank, required=True)
    target = "what to probe: attention heads for relations, or layers for tags or relations"
    parser.add_choice("--target", get_args(Target), target, default="heads")
    count = "minimum number of occurrences of a relation to list (only for heads; default: 100)"
    parser.add_number("--min-count", count)
    parser.add_number("--step", "step of the checkpoint (default: the best or newest one)")
    parser.add_flag("--every-checkpoint", "probe the heads of every checkpoint of a run")
    parser.add_output_file("--plot", "PNG image of the accuracies at every checkpoint")
    parser.add_output_file("--output", "JSON file for all accuracies")


def probe_model(args: argparse.Namespace) -> int:
    """Find out what a model's attention heads and layers know about syntax.

        bert-jax probe runs/mine --treebank UD_English-EWT
        bert-jax probe runs/mine --treebank UD_English-EWT --target tags

    With --target heads, the command prints the attention head that best predicts each dependency
    relation in the treebank's test set, and compares the head's accuracy with the accuracy of the
    best fixed offset (Clark et al. 2019, section 4.2). Layers and heads are counted from 1. With
    --target tags or relations, it trains linear classifiers of the word vectors at every layer on
    the training set. It prints their accuracy on the test set, and for comparison the accuracy with
    random weights and with shuffled labels. With --every-checkpoint, the output shows when the
    heads of a run began to follow the relations.
    """
    enable_compilation_cache()
    names = ("target", "step", "every_checkpoint", "plot", "min_count")
    options = {name: getattr(args, name) for name in names}
    line = ProgressLine(sys.stderr)
    with renamed_in_errors(option_names("target", "every_checkpoint", "plot", "min_count")):
        probed = probe(args.work_dir, args.treebank, **options, on_progress=line.show_text)
    line.end()
    print("\n".join(probed.lines))
    if args.output:
        probed.result.save(args.output)
    return 0


def add_compare_models_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `compare`."""
    add_work_dir_argument(parser)
    other = "work directory of another model (default: the same model)"
    parser.add_argument("other", nargs="?", metavar="OTHER", help=other)
    treebank = "directory of a treebank in CoNLL-U files, or a single file"
    parser.add_option("--treebank", "PATH", treebank, required=True)
    parser.add_number("--step", "step of WORKDIR's checkpoint (default: the best or newest one)")
    parser.add_number("--other-step", "step of OTHER's checkpoint (default: best or newest)")
    parser.add_flag("--every-checkpoint", "compare every checkpoint of a run with its last one")
    sentences = "maximum number of sentences to read"
    parser.add_number("--max-sentences", sentences, default=500, minimum=1)
    _add_result_arguments(parser, "similarities")


def compare_models(args: argparse.Namespace) -> int:
    """Compare the layers of two models, or all checkpoints of a run with its last one.

        bert-jax compare models/mini runs/mine --treebank UD_English-EWT
        bert-jax compare runs/mine --step 1000 --treebank UD_English-EWT
        bert-jax compare runs/mine --every-checkpoint --treebank UD_English-EWT --plot cka.png

    The command prints how similar the word vectors are in every pair of layers, from 0 to 1, as
    linear centered kernel alignment (CKA; Kornblith et al. 2019). CKA ignores rotations and scales,
    so the models may differ in size. The words come from the treebank's test set. With
    --every-checkpoint, each layer is compared with the same layer in the run's last checkpoint.
    """
    enable_compilation_cache()
    names = ("step", "other_step", "every_checkpoint", "max_sentences")
    options = {name: getattr(args, name) for name in names}
    line = ProgressLine(sys.stderr)
    with renamed_in_errors(option_names("every_checkpoint", "max_sentences")):
        compared = compare(
            args.work_dir, args.other, args.treebank, **options, on_progress=line.show_text
        )
    return report_result(compared, args, line)


def add_prune_model_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `prune-heads`."""
    add_work_dir_argument(parser, "work directory of `finetune`, or with --config any model")
    add_config_argument(parser, required=False)
    data = "labeled file to use instead of the validation file, in the same format"
    parser.add_option("--data", "FILE", data)
    parser.add_option("--set-name", "NAME", "validation set to use, for a task with several")
    _add_result_arguments(parser, "scores")


def prune_model(args: argparse.Namespace) -> int:
    """Measure how many of its attention heads a fine-tuned model needs for its task.

        bert-jax prune-heads runs/sst2 --plot pruning.png

    The command prints the score without each head, and the score as the heads are pruned one by
    one, the least important first (Michel et al. 2019). It evaluates the model twice per head. The
    model itself does not change.
    """
    enable_compilation_cache()
    config = evaluation_config(args.config, args.config_overrides, args.work_dir)
    line = ProgressLine(sys.stderr)
    options = {"data": args.data, "set_name": args.set_name, "config": config}
    with renamed_in_errors(option_names("set_name")):
        pruning = prune_heads(args.work_dir, **options, on_progress=line.show_text)
    return report_result(pruning, args, line)


def _add_result_arguments(parser: ArgumentParser, values: str) -> None:
    parser.add_output_file("--plot", f"PNG image of the {values}")
    parser.add_output_file("--output", f"JSON file for all {values}")
