r"""Score a fine-tuned model, as its run did, on the validation set or another file of the task.

    bert-jax evaluate runs/sst2
    bert-jax evaluate runs/wnut17 --data emerging.test.annotated --output scores.json
    bert-jax evaluate runs/mnli --unlabelled --predictions submission
    bert-jax evaluate models/theirs --config configs/finetune/sst2.py \
      --config.glue.directory=data/SST-2

The last scores a model that was fine-tuned elsewhere and imported; its labels are found by name.
--config also scores a run's model on a table in another format, with --config.sentences.files.*.
The checkpoint is the one that did best. Classes, labels and types of entities have a row each.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import jax

from bert_jax.cli.arguments import add_config_argument, add_distributed_argument, add_override
from bert_jax.corpus.workspace import check_outside_corpora
from bert_jax.files import write_file
from bert_jax.finetuning.config import FinetuneConfig
from bert_jax.finetuning.evaluation import EvaluationResult, evaluate
from bert_jax.json_files import read_json
from bert_jax.local_paths import make_directory
from bert_jax.recipes.load import load_config
from bert_jax.runs.runtime import enable_compilation_cache
from bert_jax.training import distributed
from bert_jax.training.progress import format_metric

# What a file of scores holds, by which it is known for one.
_CONTENT = {"work_dir", "step", "data", "sets"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `evaluate`."""
    parser.add_argument("work_dir", metavar="WORKDIR", help="of `finetune`, or with --config any")
    add_config_argument(parser, required=False)
    parser.add_argument(
        "--data",
        metavar="FILE",
        help="in place of the validation file, in its form; of GLUE also a directory",
    )
    parser.add_argument(
        "--unlabelled",
        action="store_true",
        help="nothing is scored: predictions for the task's test files, or --data, without labels",
    )
    parser.add_argument(
        "--step", type=int, metavar="N", help="of the checkpoint (default: the best)"
    )
    parser.add_argument("--output", metavar="FILE", help="for the scores, as JSON")
    parser.add_argument(
        "--predictions", metavar="DIR", help="for what was predicted, under the name of its set"
    )
    add_distributed_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Score, print, and write what was asked for."""
    distributed.join(force=args.distributed)
    enable_compilation_cache()
    if args.unlabelled and (args.output or not args.predictions):
        raise ValueError(
            "--unlabelled gives predictions and no scores: expected --predictions DIR, no --output"
        )
    if args.config_overrides and not args.config:
        raise ValueError(
            f"{args.config_overrides[0]}: there is no config to change. Add the task's config, for "
            "example --config configs/finetune/table.py"
        )
    output = None if args.output is None else Path(args.output)
    if output is not None:
        check_outside_corpora(output, "--output")
        _check_replaceable(output, args.predictions)
    work_dir = Path(args.work_dir)
    task = given_task(work_dir, args.config, args.config_overrides) if args.config else None
    result = evaluate(
        work_dir,
        data=args.data,
        step=args.step,
        labeled=not args.unlabelled,
        predictions=args.predictions or None,
        config=task,
    )
    if jax.process_index() != 0:
        return 0
    print("\n".join(_lines(result)))
    if output is not None:
        make_directory(output.parent)
        write_file(output, json.dumps(_content(result, args.data), indent=2) + "\n")
    return 0


def _lines(result: EvaluationResult) -> list[str]:
    lines = [
        f"model      {result.work_dir}, step {result.step:,}",
        f"devices    {result.devices}",
        *result.notes,
    ]
    for name, scores in result.sets.items():
        lines.append(f"{name}: {scores.examples:,} example{'s' * (scores.examples != 1)}")
        lines += [
            f"  {metric:28s} {format_metric(metric, x)}" for metric, x in scores.scores.items()
        ]
        lines += _table(scores.by_type, scores.type_is)
        lines += [f"predictions: {file}" for file in scores.files]
    return lines


def _table(rows: Mapping[str, Mapping[str, float]], title: str) -> list[str]:
    if not rows:
        return []
    columns = list(next(iter(rows.values())))
    lines = [f"  {title:28s}" + "".join(f" {column:>9s}" for column in columns)]
    for kind, row in rows.items():
        cells = [f"{x:9.3f}" if isinstance(x, float) else f"{x:9,d}" for x in row.values()]
        lines.append(f"  {kind:28s} {' '.join(cells)}")
    return lines


def _check_replaceable(output: Path, predictions: str | None) -> None:
    """Refuses to write scores over a file that holds anything else, such as the labels."""
    if predictions and output.resolve().parent == Path(predictions).resolve():
        raise ValueError(
            f"--output {output} is in {predictions}, whose files are named after the sets that are "
            "predicted, and could be one of them: put it elsewhere"
        )
    if not output.exists():
        return
    if not output.is_file():  # a pipe would be waited for
        raise ValueError(
            f"--output {output}: not a regular file, to which JSON could be written. Leave the "
            "option out to print the scores only"
        )
    if not output.stat().st_size:  # as mktemp makes them
        return
    try:
        before = read_json(output)
    except (OSError, ValueError):
        before = None
    if not isinstance(before, dict) or before.keys() != _CONTENT:
        raise ValueError(
            f"--output {output} exists and was not written by `evaluate`, so it is not replaced. "
            "Give another name"
        )


def _content(result: EvaluationResult, data: str | None) -> dict[str, object]:
    sets = {
        name: {
            "examples": scores.examples,
            "scores": scores.scores,
            **({"types": scores.by_type} if scores.by_type else {}),
        }
        for name, scores in result.sets.items()
    }
    return {"work_dir": str(result.work_dir), "step": result.step, "data": data, "sets": sets}


def given_task(work_dir: Path, file: str, overrides: Sequence[str]) -> FinetuneConfig:
    """The config of a fine-tuning run of the model in `work_dir`, which is only to be judged."""
    for key in ("init_from", "work_dir"):
        overrides = add_override(overrides, key, str(work_dir), "WORKDIR")
    return load_config(file, overrides, kind="finetune")
