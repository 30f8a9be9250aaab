"""The tokenizer's files beside an exported model, with what of the model they must know."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from bert_jax.data.tokenizer import Tokenizer
from bert_jax.json_files import read_json_object
from bert_jax.models.config import EncoderConfig


def save_tokenizer(
    tokenizer: Tokenizer, target: Path, encoder: EncoderConfig, *, inputs: Sequence[str] = ()
) -> None:
    """Writes them. inputs: what the model takes of a tokenizer of transformers; () where no such
    tokenizer feeds it."""
    tokenizer.save(target, segments=encoder.num_segments > 1)
    file = target / "tokenizer_config.json"
    content = read_json_object(file)
    content["model_max_length"] = encoder.max_positions
    if inputs:
        content["model_input_names"] = list(inputs)
    file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
