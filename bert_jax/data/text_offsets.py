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
# ByteLevel's pattern for words, applied before it maps bytes to letters. If it adds a space at the
# beginning of a text, a suffix at the beginning is not recognized.
_SUFFIXES = "'s|'t|'re|'ve|'m|'ll|'d"
_BYTE_LEVEL_WORDS = r"| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
# Pre-tokenizers that split words in the same way before and after ByteLevel, except at punctuation
# and digits beyond ASCII.
_AFTER_BYTE_LEVEL = ("BertPreTokenizer", "Digits", "Punctuation", "Whitespace", "WhitespaceSplit")


def with_raw_offsets(backend: Any) -> Any:
    """Return a backend whose post-processor does not change offsets, the same one if it does not.

    Byte-level BPE's post-processors cut the first character off a token that begins with a space,
    even if the text has no such space.
    """
    state = json.loads(backend.to_str())
    if not _trims(state["post_processor"]):
        return backend
    return tokenizers.Tokenizer.from_str(json.dumps(state | {"post_processor": None}))


def word_finder(backend: Any) -> Any:
    """Return a backend whose tokens are the words into which `backend` splits a text."""
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
    """Return a pre-tokenizer, in tokenizer.json's form, that splits characters instead of bytes.

    A pre-tokenizer after ByteLevel sees letters that stand for bytes and takes the second byte of
    "á" for punctuation.

    Raises:
        ValueError: a pre-tokenizer after ByteLevel has no equivalent that splits characters.
    """
    if splitter is None:
        return None
    parts, seen = list(_flat(splitter)), False
    split: list[Mapping[str, Any]] = []
    for part, following in zip(parts, [*parts[1:], None], strict=True):
        if seen and part["type"] not in _AFTER_BYTE_LEVEL:
            raise ValueError(
                f"pre_tokenizer: {part['type']} comes after ByteLevel and splits bytes, so the "
                "characters of its words are unknown. Put it before ByteLevel."
            )
        seen = seen or part["type"] == "ByteLevel"
        if part["type"] != "ByteLevel" or following is None:
            split.append(part)
        elif part.get("use_regex", True):
            split.append(_byte_level_words(part["add_prefix_space"]))
    return {"type": "Sequence", "pretokenizers": split}


def offsets_of(encoding: Any) -> NDArray[np.int32]:
    """Return an encoding's offsets as int32 [tokens, 2]."""
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
    """Return the nonempty offsets [words, 2], without overlaps.

    A normalizer may make several words of one character, such as three dots of an ellipsis; the
    character then belongs to the first.
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
