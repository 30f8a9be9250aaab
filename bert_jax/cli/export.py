"""Convert a model to a directory that other frameworks can load.

    bert-jax export runs/mine --format huggingface --output exported/mine
    bert-jax export runs/mine --format onnx --head encoder --output exported/encoder

huggingface: config.json and model.safetensors for `from_pretrained` and, for an imported
  sentence-transformers model, the files that library needs. --dtype float16 or bfloat16 halves the
  size, but `verify` then needs a --tolerance as large as the rounding error. transformers 5
  computes in the stored precision unless `from_pretrained` is called with dtype=torch.float32.
onnx: model.onnx and its weights in model.onnx.data, for ONNX Runtime and other runtimes; any batch
  size and length.
stablehlo: a jax.export program for CPU, CUDA and TPU, and its weights; any batch size and length.
savedmodel: TensorFlow's format, converted with jax2tf; any batch size and length.

Each directory also contains the tokenizer files and a model card, which begins with code that loads
the model. No format records how a fine-tuning run read its texts or, if two labels share one score,
the name of the negative label. The exported programs return token vectors; their model card
describes how a sentence-transformers model pools them.
"""

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
    parser.add_option("--output", "DIR", "directory to create", required=True)
    parser.add_choice("--head", head_names(), "head to export (default: all heads)")
    dtype = "dtype of the stored parameters, only for huggingface (default: float32)"
    parser.add_choice("--dtype", DTYPES, dtype)
    parser.add_flag(
        "--hidden-states",
        "also output the embeddings and every layer's hidden states; not for huggingface",
    )


def run(args: argparse.Namespace) -> int:
    """Export the model, and print notes and the size of the new directory."""
    options = {
        "hidden_states=True": "--hidden-states",
        "dtype": "--dtype",
        "set head": "set --head",
        f"head={args.head!r}": f"--head {args.head}",
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
        f"{result.path}: {result.family} ({result.config.head!r} head), "
        f"{result.num_bytes / 2**20:,.1f} MiB"
    )
    return 0
