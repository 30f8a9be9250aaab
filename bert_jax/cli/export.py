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

from bert_jax.interop.export import export
from bert_jax.interop.formats import DTYPES, FORMATS
from bert_jax.models.model import HEADS
from bert_jax.validation import renamed_in_errors


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
