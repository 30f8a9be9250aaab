"""Read and write RoBERTa's vocab.json and merges.txt, and build its byte-level BPE tokenizer."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors

from bert_jax.tokenizers.special_tokens import ROBERTA
from bert_jax.tokenizers.vocabulary_files import check_ids, check_merges, read_json, read_text

BYTE_BPE_VOCABULARY_NAME = "vocab.json"
BYTE_BPE_MERGES_NAME = "merges.txt"
# In a vocabulary, this letter stands for a space byte.
BYTE_BPE_SPACE = "Ġ"


def byte_bpe_backend(
    vocabulary: Mapping[str, int],
    merges: Sequence[tuple[str, str]],
    *,
    add_prefix_space: bool = False,
) -> Any:
    """Build RoBERTa's tokenizer, whose pieces are byte strings and include leading spaces.

    Source: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", section 2.2;
    Liu et al. 2019, "RoBERTa", section 4.4.

    Args:
      vocabulary: the tokens and their ids.
      merges: the pairs of pieces to merge, in order of priority.
      add_prefix_space: whether the first word of a text is encoded with a space before it.
    """
    backend = tokenizers.Tokenizer(models.BPE(dict(vocabulary), list(merges), fuse_unk=False))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    backend.decoder = decoders.ByteLevel()
    backend.post_processor = processors.RobertaProcessing(
        (ROBERTA.sep, vocabulary[ROBERTA.sep]),
        (ROBERTA.cls, vocabulary[ROBERTA.cls]),
        trim_offsets=True,
        add_prefix_space=add_prefix_space,
    )
    return backend


def read_byte_bpe(file: Path, *, add_prefix_space: bool) -> Any:
    """Build a backend from a vocab.json and the merges.txt in the same directory.

    Raises:
      ValueError: a file is missing or damaged, or does not belong to a RoBERTa vocabulary.
    """
    merges_file = file.with_name(BYTE_BPE_MERGES_NAME)
    if not merges_file.is_file():
        raise ValueError(f"{file}: expected a {BYTE_BPE_MERGES_NAME} in the same directory.")
    vocabulary = read_json(file)
    if not isinstance(vocabulary, dict):
        raise ValueError(f"{file}: expected a JSON object that maps pieces to ids.")
    try:
        check_ids(vocabulary.items())
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error
    missing = [token for token in ROBERTA.tokens if token not in vocabulary]
    if missing:
        raise ValueError(f"{file}: not RoBERTa's vocabulary: it lacks {', '.join(missing)}.")
    merges = _read_merges(merges_file)
    try:
        check_merges(vocabulary, merges)
    except ValueError as error:
        raise ValueError(f"{merges_file}: does not match {file.name}: {error}") from error
    try:
        return byte_bpe_backend(vocabulary, merges, add_prefix_space=add_prefix_space)
    except Exception as error:  # the library raises no more specific type
        raise ValueError(f"{merges_file}: does not match {file.name}: {error}") from error


def with_prefix_space(state: Mapping[str, Any], add: bool) -> dict[str, Any]:
    """Return a copy of a tokenizer.json's content with add_prefix_space set to `add`."""
    changed = dict(state)
    for part in ("pre_tokenizer", "post_processor"):
        changed[part] = _with_prefix_space(state[part], add)
    return changed


def _with_prefix_space(part: Any, add: bool) -> Any:
    if isinstance(part, list):
        return [_with_prefix_space(item, add) for item in part]
    if not isinstance(part, dict):
        return part
    changed = {name: _with_prefix_space(value, add) for name, value in part.items()}
    return changed | ({"add_prefix_space": add} if "add_prefix_space" in part else {})


def adds_prefix_space(state: Mapping[str, Any]) -> bool:
    """Return whether a tokenizer, in tokenizer.json's format, adds a space before each text."""
    splitter = state["pre_tokenizer"]
    parts = splitter.get("pretokenizers", [splitter])
    return any(part.get("add_prefix_space") for part in parts if part["type"] == "ByteLevel")


def write_byte_bpe(model: Mapping[str, Any]) -> dict[str, str]:
    """Return the contents of vocab.json and merges.txt for a model in tokenizer.json's format."""
    merges = "".join(f"{left} {right}\n" for left, right in model["merges"])
    return {
        BYTE_BPE_VOCABULARY_NAME: json.dumps(model["vocab"], ensure_ascii=False),
        BYTE_BPE_MERGES_NAME: f"#version: 0.2\n{merges}",
    }


def _read_merges(file: Path) -> list[tuple[str, str]]:
    merges = []
    for number, line in enumerate(read_text(file).split("\n"), start=1):
        if not line or (number == 1 and line.startswith("#version")):
            continue
        pair = line.rstrip("\r").split(" ")
        if len(pair) != 2 or not all(pair):
            raise ValueError(
                f"{file}:{number}: {line!r}: expected two pieces separated by a space."
            )
        merges.append((pair[0], pair[1]))
    return merges
