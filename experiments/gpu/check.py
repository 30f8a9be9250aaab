r"""Check on an NVIDIA GPU what the tests can check only on a CPU.

    python experiments/gpu/check.py --work runs/gpu

The script prints one line of JSON per check:
- parity: float32 logits of the model in experiments/finetuning/bert-mini, compared with those of
  Hugging Face Transformers on the CPU;
- attention: outputs and gradients of attention by cuDNN, by this package's kernels and by XLA, all
  in bfloat16, compared with XLA's in float32;
- local_attention: the same comparison for attention over a sliding window;
- resume: a run that is stopped and resumed, compared bit for bit with an uninterrupted run.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # Make an uninstalled checkout importable.

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from flax import nnx  # noqa: E402

from bert_jax.interop.import_model import import_model  # noqa: E402
from bert_jax.models import local_attention as local  # noqa: E402
from bert_jax.models.attention import (  # noqa: E402
    View,
    cudnn_attention,
    scaled_scores,
    xla_attention,
)
from bert_jax.models.flash_attention import flash_attention  # noqa: E402
from bert_jax.runs.checkpoints import load_model  # noqa: E402
from bert_jax.training.checkpoint_files import steps_in  # noqa: E402

MINI = ROOT / "experiments/finetuning/bert-mini"
TEXT = "The [MASK] of the river was steep, and the water was [MASK]."


def parity(work: Path) -> Iterator[dict[str, Any]]:
    """Compare logits with Transformers."""
    import torch
    from transformers import AutoTokenizer, BertForPreTraining

    if not (work / "mini").exists():
        import_model(MINI, work / "mini")
    loaded = load_model(work / "mini", dtype="float32")
    inputs = AutoTokenizer.from_pretrained(MINI)(TEXT, return_tensors="pt")
    reference = BertForPreTraining.from_pretrained(MINI, dtype=torch.float32).eval()
    with torch.no_grad():
        expected = reference(**inputs).prediction_logits.numpy()
    token_ids = jnp.asarray(inputs.input_ids.numpy())
    everywhere = jnp.arange(token_ids.shape[1])[None]
    for precision in ("default", "highest"):
        with jax.default_matmul_precision(precision):
            output = loaded.model(
                token_ids, None, None, None, everywhere, jnp.zeros((1, 1), int), packed=False
            )
        difference = np.abs(np.asarray(output.token_logits) - expected).max()
        yield {
            "check": "parity",
            "matmul_precision": precision,
            "largest_difference": float(difference),
            "largest_logit": float(np.abs(expected).max()),
        }


def attention(_: Path) -> Iterator[dict[str, Any]]:
    """Compare the attention implementations in bfloat16 with XLA's in float32."""
    for length, head_dim, packed in (
        *((128, 64, True), (128, 64, False), (512, 64, True)),
        *((512, 64, False), (500, 64, True), (512, 128, True), (512, 32, True)),
    ):
        case = _AttentionCase(length, head_dim, packed)
        yield {"check": "attention"} | _compare(case, ("xla", "cudnn", "flash_gpu"))
        case = case._replace(dropout=0.1)
        yield {"check": "attention"} | _compare(case, ("xla", "flash_gpu"))


def local_attention(_: Path) -> Iterator[dict[str, Any]]:
    """Compare the implementations of local attention in bfloat16 with XLA's in float32."""
    for length, head_dim, packed, window in (
        *((8192, 64, True, 129), (8192, 64, False, 129), (1001, 64, True, 129)),
        *((512, 128, True, 129), (512, 32, False, 65), (101, 64, True, 129)),
    ):
        case = _AttentionCase(length, head_dim, packed, window)
        yield {"check": "local_attention"} | _compare(case, ("xla", "cudnn", "flash_gpu"))


def _compare(case: _AttentionCase, backends: Sequence[str]) -> dict[str, Any]:
    """Return the case and the relative errors of the implementations."""
    expected = case.run("xla", jnp.float32)
    errors = {
        backend: {
            name: round(float(np.linalg.norm(value - expected[name]) / norm), 5)
            for name, value in case.run(backend, jnp.bfloat16).items()
            if (norm := np.linalg.norm(expected[name]))
        }
        for backend in backends
    }
    shape = {name: value for name, value in case._asdict().items() if value is not None}
    return shape | errors


class _AttentionCase(NamedTuple):
    length: int
    head_dim: int
    packed: bool
    window: int | None = None
    dropout: float = 0.0

    def run(self, backend: str, dtype: Any) -> dict[str, np.ndarray]:
        """Return the attention output, and the gradients of a random projection of this output."""
        *inputs, weights = (
            jax.random.normal(key, (8, self.length, 4, self.head_dim))
            for key in jax.random.split(jax.random.key(self.length + self.head_dim), 4)
        )
        documents = (_packed if self.packed else _single)(8, self.length)
        view = View(documents, self.packed)

        def loss(*inputs: jax.Array) -> tuple[jax.Array, jax.Array]:
            query, key, value = (x.astype(dtype) for x in inputs)
            rows = (query, key, value, documents, self.packed)
            drop = (self.dropout, jax.random.key(1))
            if backend == "flash_gpu":
                attended = flash_attention("flash_gpu", *rows, self.window, *drop)
            elif self.window is not None and backend == "cudnn":
                attended = local.cudnn_local_attention(*rows, self.window)
            elif self.window is not None:
                attended = local.local_attention(*rows, self.window, 0.0, None)
            elif backend == "cudnn":
                attended = cudnn_attention(query, key, value, view)
            else:
                scores = scaled_scores(query, key)
                attended = xla_attention(scores, value, view, *drop)
            attended = jnp.where((documents != 0)[:, :, None, None], attended, 0)
            attended = attended.astype(jnp.float32)
            return (attended * weights).sum(), attended

        with jax.default_matmul_precision("highest"):
            step = jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True))
            (_, attended), gradients = step(*inputs)
        names = ("output", "query_gradient", "key_gradient", "value_gradient")
        values = map(np.asarray, (attended, *gradients))
        return dict(zip(names, values, strict=True))


def _packed(rows: int, length: int) -> jax.Array:
    """Return document IDs for rows with three documents of different lengths and some padding."""
    numbers = np.zeros((rows, length), np.int32)
    for row in range(rows):
        ends = np.sort(np.random.default_rng(row).choice(length - 1, 3, replace=False)) + 1
        numbers[row, : ends[0]] = 1
        numbers[row, ends[0] : ends[1]] = 2
        numbers[row, ends[1] : ends[2]] = 3
    return jnp.asarray(numbers)


def _single(rows: int, length: int) -> jax.Array:
    """Return document IDs for rows that contain one document each, followed by padding."""
    lengths = np.linspace(1, length, rows).astype(np.int32)
    return jnp.asarray((np.arange(length)[None] < lengths[:, None]).astype(np.int32))


def resume(work: Path) -> Iterator[dict[str, Any]]:
    """Compare the checkpoint of a resumed run with that of an uninterrupted run."""
    corpus = work / "corpus"
    _bert_jax("demo-corpus", "--output", work / "docs.jsonl")
    tokenizer = MINI / "vocab.txt"
    _bert_jax(
        *("prepare", "--input", work / "docs.jsonl", "--tokenizer", tokenizer),
        *("--output", corpus, "--max-length", "128"),
    )
    for dropout in (0.0, 0.1):
        digests, stopped_at = [], []
        for name, parts in (("straight", (400,)), ("again", (400,)), ("resumed", (100, 400))):
            directory = work / f"{name}-{dropout}"
            for stop in parts:
                _pretrain(directory, corpus, dropout, stop)
                stopped = max(steps_in(directory / "checkpoints"))
                assert (stopped == 400) == (stop == 400), f"{directory}: stopped at {stopped}"
                stopped_at.append(stopped)
            digests.append(_digest(directory))
        yield {
            "check": "resume",
            "dropout": dropout,
            "stopped_at": min(stopped_at),
            "same_when_repeated": digests[0] == digests[1],
            "same_when_resumed": digests[0] == digests[2],
        }


def _pretrain(directory: Path, corpus: Path, dropout: float, stop: int) -> None:
    """Train until the checkpoint at step `stop`; the schedule always spans 400 steps."""
    command = [
        *("pretrain", "--config", ROOT / "configs/pretrain/demo.py"),
        f"--config.work_dir={directory}",
        f"--config.phases.phase1.corpus={corpus}",
        "--config.phases.phase1.num_steps=400",
        f"--config.model.hidden_dropout={dropout}",
        f"--config.model.attention_dropout={dropout}",
        "--config.optimizer.warmup_steps=40",
        "--config.checkpoint.every_steps=100",
        "--config.checkpoint.keep_every=100",
    ]
    _bert_jax(*command, until=directory / "checkpoints" / str(stop) if stop < 400 else None)


def _digest(directory: Path) -> dict[str, str]:
    """Return a hash of every parameter of the last checkpoint."""
    model = load_model(directory, dtype="float32", step=400).model
    return {
        "/".join(map(str, path)): hashlib.sha256(np.asarray(value[...]).tobytes()).hexdigest()
        for path, value in nnx.to_flat_state(nnx.state(model))
    }


def _bert_jax(*words: str | Path, until: Path | None = None) -> None:
    """Run a `bert-jax` command; stop it with SIGTERM once the path `until` exists."""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"}
    command = [sys.executable, "-m", "bert_jax.cli.main", *map(str, words)]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        stopped = False
        while until is not None and process.poll() is None and not stopped:
            if until.exists():
                process.terminate()
                stopped = True
            time.sleep(0.02)
        output = process.communicate()[0]
    if process.returncode != 0 and not stopped:
        raise SystemExit(f"{' '.join(command)} failed:\n{output}")


def main() -> None:
    """Run the checks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True, help="directory for runs; created")
    parser.add_argument("--checks", nargs="*", default=["parity", "attention", "resume"])
    arguments = parser.parse_args()
    if arguments.work.exists():
        parser.error(f"--work={arguments.work}: already exists. Choose a new directory")
    arguments.work.mkdir(parents=True)
    device = jax.devices()[0]
    print(json.dumps({"device": device.device_kind, "jax": jax.__version__}), flush=True)
    checks = {
        "parity": parity,
        "attention": attention,
        "local_attention": local_attention,
        "resume": resume,
    }
    for name in arguments.checks:
        for row in checks[name](arguments.work):
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
