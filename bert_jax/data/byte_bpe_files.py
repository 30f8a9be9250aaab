"""Byte-level BPE as RoBERTa's release keeps it: vocab.json and merges.txt."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors

from bert_jax.data.special_tokens import ROBERTA
from bert_jax.data.vocabulary_checks import check_ids, check_merges, read_json, read_text

VOCABULARY_NAME = "vocab.json"
MERGES_NAME = "merges.txt"
SPACE = "Ġ"  # how the byte of a space is written in a vocabulary


def byte_bpe_backend(
    vocabulary: Mapping[str, int],
    merges: Sequence[tuple[str, str]],
    *,
    add_prefix_space: bool = False,
) -> Any:
    """RoBERTa's tokenizer: pieces of bytes, a word's space in front of it being one of its bytes.

    add_prefix_space: a text's first word is written as if a space stood before it.

    Source: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", section
    2.2; Liu et al. 2019, "RoBERTa", section 4.4.
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
    """The backend of a vocab.json with a merges.txt beside it.

    ValueError if one is missing, damaged, or not RoBERTa's kind.
    """
    merges_file = file.with_name(MERGES_NAME)
    if not merges_file.is_file():
        raise ValueError(f"{file}: expected a {MERGES_NAME} beside it")
    vocabulary = read_json(file)
    if not isinstance(vocabulary, dict):
        raise ValueError(f"{file}: expected a JSON object of pieces and their ids")
    try:
        check_ids(vocabulary.items())
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error
    missing = [token for token in ROBERTA.tokens if token not in vocabulary]
    if missing:
        raise ValueError(f"{file}: not RoBERTa's vocabulary: it lacks {', '.join(missing)}")
    merges = _read_merges(merges_file)
    try:
        check_merges(vocabulary, merges)
    except ValueError as error:
        raise ValueError(f"{merges_file}: does not fit {file.name}: {error}") from error
    try:
        return byte_bpe_backend(vocabulary, merges, add_prefix_space=add_prefix_space)
    except Exception as error:  # what the library raises is a bare Exception
        raise ValueError(f"{merges_file}: does not fit {file.name}: {error}") from error


def with_prefix_space(state: Mapping[str, Any], add: bool) -> dict[str, Any]:
    """A tokenizer as tokenizer.json describes it that writes, or not, a first word with a space."""
    changed = dict(state)
    for part in ("pre_tokenizer", "post_processor"):
        changed[part] = _with_prefix_space(state[part], add)
    return changed


def _with_prefix_space(part: Any, add: bool) -> Any:
    if isinstance(part, list):
        return [_with_prefix_space(each, add) for each in part]
    if not isinstance(part, dict):
        return part
    found = {name: _with_prefix_space(value, add) for name, value in part.items()}
    return found | ({"add_prefix_space": add} if "add_prefix_space" in part else {})


def adds_prefix_space(state: Mapping[str, Any]) -> bool:
    """Whether a tokenizer, as tokenizer.json describes it, writes a first word with a space."""
    splitter = state["pre_tokenizer"]
    parts = splitter.get("pretokenizers", [splitter])
    return any(part.get("add_prefix_space") for part in parts if part["type"] == "ByteLevel")


def write_byte_bpe(model: Mapping[str, Any]) -> dict[str, str]:
    """The contents of the files, by name, of a model as tokenizer.json describes it."""
    merges = "".join(f"{left} {right}\n" for left, right in model["merges"])
    return {
        VOCABULARY_NAME: json.dumps(model["vocab"], ensure_ascii=False),
        MERGES_NAME: f"#version: 0.2\n{merges}",
    }


def _read_merges(file: Path) -> list[tuple[str, str]]:
    merges = []
    for number, line in enumerate(read_text(file).split("\n"), start=1):
        if not line or (number == 1 and line.startswith("#version")):
            continue
        pair = line.rstrip("\r").split(" ")
        if len(pair) != 2 or not all(pair):
            raise ValueError(f"{file}:{number}: expected two pieces with a space between: {line!r}")
        merges.append((pair[0], pair[1]))
    return merges
