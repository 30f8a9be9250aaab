"""Take a model out: a directory that other frameworks load.

    bert-jax export runs/mine --format huggingface --output exported/mine
    bert-jax export runs/mine --format onnx --head encoder --output exported/encoder

huggingface: for `from_pretrained`: config.json, model.safetensors and, for an imported
  sentence-transformers model, the files that library needs; half the size with --dtype float16 or
  bfloat16. transformers 5 computes in the stored precision unless `from_pretrained` is called with
  dtype=torch.float32, and `verify` then needs a --tolerance as large as the rounding error.
onnx: model.onnx and its weights model.onnx.data, any batch and length, for ONNX Runtime and others.
stablehlo: a program of jax.export for CPU, CUDA and TPU, any batch and length, and its weights.
savedmodel: TensorFlow's, through jax2tf, any batch and length.

Each with the tokenizer's files and a model card, whose first lines of code load the model. None of
them holds how a fine-tuning run read its texts, nor, where two labels have one score, what the
negative one is called. The programs return token vectors; their model card describes how a
sentence-transformers model pools them.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from bert_jax.files import write_checksums
from bert_jax.interop.formats import DTYPES, FORMATS, library, usage, write
from bert_jax.interop.huggingface.config import PAIRS_KEY
from bert_jax.interop.huggingface.families import family_of
from bert_jax.interop.model_card import model_card
from bert_jax.json_files import read_json_object
from bert_jax.models.model import HEADS, ModelConfig
from bert_jax.runs.outputs import new_directory
from bert_jax.runs.work_dir import (
    PAIRS,
    load_for_export,
    read_model,
    read_sentence_embedding,
    read_tokenizer,
    read_usage,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `export`."""
    parser.add_argument("work_dir", metavar="WORKDIR", help="of `pretrain` or `import`")
    parser.add_argument("--format", required=True, choices=FORMATS, help="what to write")
    parser.add_argument("--output", required=True, metavar="DIR", help="the directory to make")
    parser.add_argument(
        "--head", choices=HEADS, help="export a part of the model only (default: all its heads)"
    )
    parser.add_argument(
        "--dtype",
        choices=DTYPES,
        help="huggingface alone: of the parameters in the file (default: float32)",
    )
    parser.add_argument(
        "--hidden-states",
        action="store_true",
        help="not huggingface: make the embeddings and every layer's output outputs too",
    )


def run(args: argparse.Namespace) -> int:
    """Write the directory, whole or not at all."""
    work_dir, output, form = Path(args.work_dir), Path(args.output), args.format
    if args.hidden_states and form == "huggingface":
        raise ValueError(
            "--hidden-states does not apply to --format huggingface. Leave it out: the model "
            "returns hidden states when called with output_hidden_states=True"
        )
    if args.dtype is not None and form != "huggingface":
        raise ValueError(
            f"--dtype is for --format huggingface; the programs of {form} compute in float32. "
            "Leave it out"
        )
    origin, dtype = read_model(work_dir)[1], args.dtype or "float32"
    settings = read_sentence_embedding(work_dir)
    with new_directory(output) as target:
        config, step, parameters = load_for_export(work_dir, args.head)
        if form == "huggingface" and config.head == "encoder" and config.pooler:
            config = _without_pooler(config, parameters)
        tokenizer = read_tokenizer(work_dir, config.encoder)
        write(
            form,
            config,
            parameters,
            tokenizer,
            target,
            hidden_states=args.hidden_states,
            dtype=dtype,
            sentence_embedding=settings,
        )
        if PAIRS in origin and config.head in ("pretraining", "next_sentence"):
            _tell_pairs(target, origin[PAIRS])
        said = read_usage(work_dir)
        code = usage(
            form,
            config,
            mask=tokenizer.specials.mask,
            pairs=said is not None and bool(said.pairs),
            sentences=settings is not None,
        )
        loader = library(form, config, settings is not None)
        card = model_card(work_dir, config, origin, step, loader, code, dtype, settings)
        write_checksums(target)
        # Not checked: people edit a model card.
        (target / "README.md").write_text(card, encoding="utf-8")
    size = sum(file.stat().st_size for file in output.rglob("*") if file.is_file())
    if settings is not None and form != "huggingface":
        print(
            "NOTE  the program returns token vectors; for the sentence embedding "
            f"(pooling {' + '.join(settings.pooling)}) see {output / 'README.md'}"
        )
    title = family_of(config.encoder).title
    print(f"{output}: {title} with the head {config.head!r}, {size / 2**20:,.1f} MiB")
    return 0


def _without_pooler(config: ModelConfig, parameters: dict[str, Any]) -> ModelConfig:
    """The bare encoder as a family has it that keeps its dense layer with a classifier alone."""
    family = family_of(config.encoder)
    if family.pooler:
        return config
    for name in [name for name in parameters if name.startswith("pooler.")]:
        del parameters[name]
    print(f"NOTE  the pooler is left out: {family.title}'s bare encoder has none")
    return replace(config, pooler=False)


def _tell_pairs(target: Path, pairs: str) -> None:
    """Adds to config.json what a head of pairs tells apart, which their classes do not ask."""
    file = target / "config.json"
    if file.is_file():
        content = read_json_object(file) | {PAIRS_KEY: pairs}
        file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
