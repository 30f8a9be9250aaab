"""Convert a model to a directory that other frameworks load.

    bert-jax export runs/mine --format huggingface --output exported/mine
    bert-jax export runs/mine --format onnx --head encoder --output exported/encoder

huggingface: for `from_pretrained`: config.json, model.safetensors and, for an imported
  sentence-transformers model, the files that library needs; half the size with --dtype float16 or
  bfloat16. transformers 5 computes in the stored precision unless `from_pretrained` is called with
  dtype=torch.float32, and `verify` then needs a --tolerance as large as the rounding error.
onnx: model.onnx and its weights model.onnx.data, any batch and length, for ONNX Runtime and others.
stablehlo: a program of jax.export for CPU, CUDA and TPU, any batch and length, and its weights.
savedmodel: TensorFlow's format, through jax2tf, any batch and length.

Each directory also has the tokenizer's files and a model card, which begins with the code that
loads the model. No format records how a fine-tuning run read its texts, nor, if two labels have one
score, the name of the negative label. The programs return token vectors; their model card describes
how a sentence-transformers model pools them.
"""

from __future__ import annotations

import argparse

from bert_jax.argument_parser import ArgumentParser
from bert_jax.cli.arguments import add_work_dir_argument
from bert_jax.interop.export import export
from bert_jax.interop.formats import DTYPES, FORMATS
from bert_jax.models.model import head_names
from bert_jax.validation import renamed_in_errors


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `export`."""
    add_work_dir_argument(parser)
    parser.add_choice("--format", FORMATS, "format to write", required=True)
    parser.add_option("--output", "DIR", "directory to make", required=True)
    parser.add_choice("--head", head_names(), "head to export (default: all heads)")
    dtype = "type of the parameters in the file, only for huggingface (default: float32)"
    parser.add_choice("--dtype", DTYPES, dtype)
    parser.add_flag(
        "--hidden-states",
        "additional outputs: the embeddings and the output of every layer; not for huggingface",
    )


def run(args: argparse.Namespace) -> int:
    """Export the model, and print notes and the size of the directory."""
    options = {
        "hidden_states=True": "--hidden-states",
        "dtype": "--dtype",
        "format='huggingface'": "--format huggingface",
    }
    with renamed_in_errors(options):
        result = export(
            args.work_dir,
            args.output,
            format=args.format,
            head=args.head,
            dtype=args.dtype,
            hidden_states=args.hidden_states,
        )
    for note in result.notes:
        print(f"NOTE  {note}")
    print(
        f"{result.path}: {result.family} with the head {result.config.head!r}, "
        f"{result.num_bytes / 2**20:,.1f} MiB"
    )
    return 0
