"""Import a model, export it to Hugging Face and ONNX, and check that their outputs agree.

    python examples/export_and_verify.py google-bert/bert-base-uncased models/base

The source is the name of a model on the Hugging Face Hub, or a directory. A work directory written
by `bj.pretrain` or `bj.finetune` can be exported in the same way, without importing it first. This
example requires the torch and onnx extras.
"""

import sys
from pathlib import Path

import bert_jax as bj


def main(source: str, directory: str) -> None:
    """Create the subdirectories `imported`, `huggingface` and `onnx` in the given directory."""
    imported = bj.import_model(source, Path(directory, "imported"))
    print(f"{imported.family}, {imported.config.encoder.num_layers} layers: {imported.work_dir}")
    exports = [
        bj.export(imported.work_dir, Path(directory, "huggingface"), format="huggingface"),
        bj.export(imported.work_dir, Path(directory, "onnx"), format="onnx", hidden_states=True),
    ]
    for exported in exports:
        comparison = bj.verify(imported.work_dir, exported.path, tolerance=1e-4)
        print(f"{exported.path}, {exported.num_bytes / 2**20:.1f} MiB: {comparison.verdict}")
        if not comparison.passed:
            raise SystemExit(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
