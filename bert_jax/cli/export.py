"""Take a model out: a directory or file that other frameworks load.

    bert-jax export runs/mine --format huggingface --output exported/mine
    bert-jax export runs/mine --format huggingface --head encoder --output exported/encoder

huggingface: config.json, model.safetensors, the tokenizer and a model card, for
`AutoModelForPreTraining.from_pretrained` and its like.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from bert_jax.cli.model_card import model_card
from bert_jax.cli.new_directory import new_directory
from bert_jax.cli.work_dir import TOKENIZER_NAME, load_for_export, read_model
from bert_jax.data.tokenizer import Tokenizer
from bert_jax.interop.huggingface_export import write_directory
from bert_jax.models.model import HEADS, ModelConfig
from bert_jax.models.parameters import Parameters

Writer = Callable[[ModelConfig, Parameters, Tokenizer, Path], None]
FORMATS: dict[str, Writer] = {"huggingface": write_directory}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `export`."""
    parser.add_argument("work_dir", metavar="WORKDIR", help="of `pretrain` or `import`")
    parser.add_argument("--format", required=True, choices=FORMATS, help="what to write")
    parser.add_argument("--output", required=True, metavar="DIR", help="the directory to make")
    parser.add_argument(
        "--head", choices=HEADS, help="export a part of the model only (default: all its heads)"
    )


def run(args: argparse.Namespace) -> int:
    """Write the directory, whole or not at all."""
    work_dir, output = Path(args.work_dir), Path(args.output)
    config, step, parameters = load_for_export(work_dir, args.head)
    tokenizer = Tokenizer.load(work_dir / TOKENIZER_NAME)
    origin = read_model(work_dir)[1]
    with new_directory(output) as target:
        FORMATS[args.format](config, parameters, tokenizer, target)
        card = model_card(work_dir, config, origin, step)
        (target / "README.md").write_text(card, encoding="utf-8")
    size = sum(file.stat().st_size for file in output.iterdir())
    print(f"{output}: a BERT with the head {config.head!r}, {size / 2**20:,.1f} MiB")
    return 0
