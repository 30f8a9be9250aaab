"""Describe the model that was measured."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bert_jax.models.compute_config import ComputeConfig
from bert_jax.runs.checkpoints import load_model_parameters
from bert_jax.runs.default_checkpoint import default_checkpoint_step
from bert_jax.runs.work_dir import TOKENIZER_NAME, read_model
from bert_jax.tokenizers.tokenizer import Tokenizer
from bert_jax.training.metrics_log import read_metrics
from bert_jax.training.state import fingerprint


def describe(model: Path) -> dict[str, Any]:
    """Describe a model: its sizes, checksums and, if known, how it was pretrained.

    If the model was initialized from another model, the description identifies the other model only
    by its path.

    Raises:
      SystemExit: the model was fine-tuned.
    """
    config, _ = read_model(model)
    params = load_model_parameters(model, config, ComputeConfig(dtype="float32", attention="xla"))
    step = default_checkpoint_step(model)
    description = {
        "encoder": asdict(config.encoder),
        "tokenizer": Tokenizer.load(model / TOKENIZER_NAME).fingerprint,
        "step": step,
        "parameters": fingerprint(params),
        "corpora": {
            file.stem: hashlib.sha256(file.read_bytes()).hexdigest()
            for file in sorted(model.glob("manifest-*.json"))
        },
    }
    run, log = model / "config.json", model / "metrics.jsonl"
    if run.is_file() and log.is_file():
        values = json.loads(run.read_text(encoding="utf-8"))
        if "phases" not in values:
            raise SystemExit(f"{model} was fine-tuned. Use a pretrained or imported model")
        evaluations = [
            entry
            for entry in read_metrics(log)
            if entry["kind"] == "evaluation" and entry["step"] <= step
        ]
        description["started_from"] = values["init_from"]
        description["phases"] = values["phases"]
        description |= {"held_out": evaluations[-1]} if evaluations else {}
    return json.loads(json.dumps(description))
