"""Offsets of tokens and words in a text, counted in its own characters."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

import numpy as np
import tokenizers
from numpy.typing import NDArray

_LAST_SPACE = 0x3000
_IS_SPACE = np.array([chr(code).isspace() for code in range(_LAST_SPACE + 2)])
# How ByteLevel finds words, before it writes their bytes as letters. The space that it may write in
# front of a text keeps a suffix there from being one.
_SUFFIXES = "'s|'t|'re|'ve|'m|'ll|'d"
_BYTE_LEVEL_WORDS = r"| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
# What splits words alike whether it sees them before or after ByteLevel, punctuation and digits
# beyond ASCII aside.
_AFTER_BYTE_LEVEL = ("BertPreTokenizer", "Digits", "Punctuation", "Whitespace", "WhitespaceSplit")


def with_raw_offsets(backend: Any) -> Any:
    """Return a backend that leaves offsets as its pre-tokenizer made them; itself if it does.

    The post-processors of byte-level BPE drop the first character of a token that begins with a
    space, even if the text has no such space.
    """
    state = json.loads(backend.to_str())
    if not _trims(state["post_processor"]):
        return backend
    return tokenizers.Tokenizer.from_str(json.dumps(state | {"post_processor": None}))


def word_finder(backend: Any) -> Any:
    """Return a backend whose tokens are the words that `backend` splits a text into."""
    state = json.loads(backend.to_str())
    finder = tokenizers.Tokenizer(tokenizers.models.WordLevel({"": 0}, unk_token=""))
    described = json.loads(finder.to_str())
    described["normalizer"] = state["normalizer"]
    described["pre_tokenizer"] = in_characters(state["pre_tokenizer"])
    finder = tokenizers.Tokenizer.from_str(json.dumps(described))
    added = backend.get_added_tokens_decoder().values()
    finder.add_tokens([token for token in added if not token.special])
    return finder


def in_characters(splitter: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return a pre-tokenizer, as tokenizer.json describes it, that splits characters, not bytes.

    A pre-tokenizer behind ByteLevel sees letters that stand for bytes: the second byte of "á" is
    punctuation to it.

    Raises:
        ValueError: a pre-tokenizer behind ByteLevel may see anything in bytes.
    """
    if splitter is None:
        return None
    parts, seen = list(_flat(splitter)), False
    split: list[Mapping[str, Any]] = []
    for part, following in zip(parts, [*parts[1:], None], strict=True):
        if seen and part["type"] not in _AFTER_BYTE_LEVEL:
            raise ValueError(
                f"pre_tokenizer: {part['type']} comes after ByteLevel and splits bytes, so no word "
                "is known by its characters. Put it before ByteLevel."
            )
        seen = seen or part["type"] == "ByteLevel"
        if part["type"] != "ByteLevel" or following is None:
            split.append(part)
        elif part.get("use_regex", True):
            split.append(_byte_level_words(part["add_prefix_space"]))
    return {"type": "Sequence", "pretokenizers": split}


def offsets_of(encoding: Any) -> NDArray[np.int32]:
    """Return int32 [tokens, 2] of an encoding of the library."""
    return np.fromiter(chain.from_iterable(encoding.offsets), np.int32).reshape(-1, 2)


def without_spaces(offsets: NDArray[np.int32], text: str) -> NDArray[np.int32]:
    """Offsets [tokens, 2] of tokens that neither begin nor end in white space of the text.

    A token of white space alone stands, empty, behind it.
    """
    codes = np.frombuffer(f"{text}.".encode("utf-32-le"), np.uint32)
    space = _IS_SPACE[np.minimum(codes, _LAST_SPACE + 1)]
    if not (space[offsets[:, 0]].any() or space[offsets[:, 1] - 1].any()):
        return offsets
    places = np.arange(len(space), dtype=np.int32)
    # The next character from each on that is none, and the end of the last before each.
    after = np.minimum.accumulate(np.where(space, len(text), places)[::-1])[::-1]
    before = np.concatenate([[0], np.maximum.accumulate(np.where(space, 0, places + 1))[:-1]])
    starts = np.minimum(after[offsets[:, 0]], offsets[:, 1])
    ends = np.maximum(before[offsets[:, 1]], starts)
    return np.stack([starts, ends], axis=1).astype(np.int32)


def words_of(offsets: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return the offsets [words, 2] that are not empty, none of which share a character.

    A normalizer may make several words of a character, such as three dots of an ellipsis. The
    first of them keeps it.
    """
    ends = np.maximum.accumulate(offsets[:, 1])
    starts = np.maximum(offsets[:, 0], np.concatenate([[0], ends])[: len(ends)])
    words = np.stack([starts, offsets[:, 1]], axis=1).astype(np.int32)
    return words[words[:, 0] < words[:, 1]]


def _trims(processor: Any) -> bool:
    if not isinstance(processor, dict):
        return False
    return bool(processor.get("trim_offsets")) or any(map(_trims, processor.get("processors", ())))


def _flat(splitter: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    if splitter["type"] != "Sequence":
        yield splitter
    for part in splitter.get("pretokenizers", ()):
        yield from _flat(part)


def _byte_level_words(add_prefix_space: bool) -> dict[str, Any]:
    suffixes = f"(?!\\A)(?:{_SUFFIXES})" if add_prefix_space else _SUFFIXES
    pattern = {"Regex": suffixes + _BYTE_LEVEL_WORDS}
    return {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}
