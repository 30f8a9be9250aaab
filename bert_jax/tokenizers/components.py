"""Inspect and adapt the parts of a tokenizer.

The normalizer rewrites characters, the pre-tokenizer splits text into words and records their
offsets, and the post-processor adds special tokens to a text or a pair of texts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers import normalizers, processors

from bert_jax.tokenizers.byte_bpe_files import adds_prefix_space
from bert_jax.tokenizers.special_tokens import SpecialTokens


def lowercases(normalizer: Any) -> bool:
    """Return whether a normalizer (in tokenizer.json's format) lowercases text."""
    if isinstance(normalizer, list):
        return any(map(lowercases, normalizer))
    if not isinstance(normalizer, dict):
        return False
    kind = normalizer.get("type")
    return (
        kind == "Lowercase"
        or (kind == "BertNormalizer" and normalizer["lowercase"])
        or lowercases(normalizer.get("normalizers"))
    )


def strips_accents(normalizer: Any) -> bool:
    """Return whether a normalizer (in tokenizer.json's format) strips accents."""
    if isinstance(normalizer, list):
        return any(map(strips_accents, normalizer))
    if not isinstance(normalizer, dict):
        return False
    if normalizer.get("type") == "BertNormalizer":
        stripped = normalizer["strip_accents"]
        return bool(normalizer["lowercase"] if stripped is None else stripped)
    return normalizer.get("type") == "StripAccents" or strips_accents(normalizer.get("normalizers"))


def lowercasing(backend: Any) -> Any:
    """Return a copy of a `tokenizers.Tokenizer` that lowercases text before anything else."""
    copy = tokenizers.Tokenizer.from_str(backend.to_str())
    steps = [normalizers.Lowercase(), *([copy.normalizer] if copy.normalizer else [])]
    copy.normalizer = normalizers.Sequence(steps)
    return copy


# The number of [SEP]s between the two texts of a pair, for tokenizers that do not define it
# themselves. RoBERTa's release uses `<s> A </s></s> B </s>`.
DEFAULT_SEPARATORS = {"wordpiece": 1, "byte_bpe": 2, "sentencepiece": 1}


def separators_between(backend: Any, specials: SpecialTokens) -> int | None:
    """Return how many [SEP]s separate the texts of a pair, or None if pairs get no special tokens.

    Raises:
      ValueError: the backend does not encode a text as `[CLS] A [SEP]` and a pair as `[CLS] A [SEP]
        B [SEP]` (with one or more [SEP]s between the texts).
    """
    if backend.num_special_tokens_to_add(is_pair=False):
        _special_tokens_around(backend, ("a",), specials)
    if not backend.num_special_tokens_to_add(is_pair=True):
        return None
    _, between, _ = _special_tokens_around(backend, ("a", "b"), specials)
    return len(between)


def with_layout(backend: Any, specials: SpecialTokens, kind: str, *, segments: bool) -> Any:
    """Return a backend that adds special tokens to texts and to pairs of texts.

    A backend that already does so is returned unchanged.

    Args:
      backend: a `tokenizers.Tokenizer`.
      specials: the tokenizer's special tokens.
      kind: the tokenizer's kind, which determines the layout if the backend does not define one.
      segments: whether the second text of a pair must have segment id 1.
    """
    separators = separators_between(backend, specials)
    if separators is not None and (not segments or 1 in backend.encode("a", "b").type_ids):
        return backend
    if separators is None:
        separators = DEFAULT_SEPARATORS[kind]
    second = int(segments or kind != "byte_bpe")
    between = " ".join([specials.sep] * separators)
    template = processors.TemplateProcessing(
        single=f"{specials.cls} $A {specials.sep}",
        pair=f"{specials.cls} $A {between} $B:{second} {specials.sep}:{second}",
        special_tokens=[(token, backend.token_to_id(token)) for token in specials.bounds],
    )
    changed = tokenizers.Tokenizer.from_str(backend.to_str())
    changed.post_processor = template
    if kind == "byte_bpe":
        prefix_space = adds_prefix_space(json.loads(backend.to_str()))
        offsets = processors.ByteLevel(trim_offsets=True, add_prefix_space=prefix_space)
        changed.post_processor = processors.Sequence([offsets, template])
    return changed


def _special_tokens_around(
    backend: Any, texts: tuple[str, ...], specials: SpecialTokens
) -> list[list[str]]:
    """Return the special tokens before, between and after the texts."""
    encoding = backend.encode(*texts)
    for token, token_id in zip(encoding.tokens, encoding.ids, strict=True):
        if token in specials.bounds and token_id != backend.token_to_id(token):
            raise ValueError(
                f"post_processor: {token} has id {token_id}, but its id in the vocabulary is "
                f"{backend.token_to_id(token)}. Use the vocabulary's id."
            )
    parts: list[list[str]] = [[]]
    for token, text in zip(encoding.tokens, encoding.sequence_ids, strict=True):
        if text is None:
            parts[-1].append(token)
        elif len(parts) == text + 1:
            parts.append([])
    first, *rest = parts
    supported = len(rest) == len(texts) and first == [specials.cls] and len(rest[-1]) == 1
    if not supported or any(set(part) != {specials.sep} for part in rest):
        layout = f"{specials.cls} A {specials.sep}" + f" B {specials.sep}" * (len(texts) - 1)
        raise ValueError(
            f"post_processor: it turns {' and '.join(texts)} into {' '.join(encoding.tokens)}. "
            f"Expected {layout}, the input format of BERT models."
        )
    return parts


_LAST_SPACE = 0x3000
_IS_SPACE = np.array([chr(code).isspace() for code in range(_LAST_SPACE + 2)])
# The pattern that ByteLevel uses to find words before it maps bytes to letters. If ByteLevel adds a
# space before a text, it does not recognize a suffix such as "'s" at the beginning of the text.
_SUFFIXES = "'s|'t|'re|'ve|'m|'ll|'d"
_BYTE_LEVEL_WORDS = r"| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
# Pre-tokenizers that split text the same way before and after ByteLevel, except at non-ASCII
# punctuation and digits.
_AFTER_BYTE_LEVEL = ("BertPreTokenizer", "Digits", "Punctuation", "Whitespace", "WhitespaceSplit")


def with_raw_offsets(backend: Any) -> Any:
    """Return a backend whose post-processor does not change offsets.

    If the backend's own post-processor already leaves offsets unchanged, the backend itself is
    returned. If a token begins with a space, the post-processors of byte-level BPE exclude its
    first character from its offsets, even if the text has no such space.
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
    described["pre_tokenizer"] = splitting_characters(state["pre_tokenizer"])
    finder = tokenizers.Tokenizer.from_str(json.dumps(described))
    added = backend.get_added_tokens_decoder().values()
    finder.add_tokens([token for token in added if not token.special])
    return finder


def splitting_characters(splitter: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return an equivalent pre-tokenizer that splits characters instead of bytes.

    Both pre-tokenizers are in tokenizer.json's format. A pre-tokenizer that runs after ByteLevel
    processes letters that stand for bytes. For example, it treats the second byte of "á" as
    punctuation.

    Raises:
      ValueError: a pre-tokenizer that runs after ByteLevel has no equivalent for characters.
    """
    if splitter is None:
        return None
    parts, after_byte_level = list(_flat(splitter)), False
    split: list[Mapping[str, Any]] = []
    for part, following in zip(parts, [*parts[1:], None], strict=True):
        if after_byte_level and part["type"] not in _AFTER_BYTE_LEVEL:
            raise ValueError(
                f"pre_tokenizer: {part['type']} comes after ByteLevel and splits bytes, so the "
                "character positions of words are unknown. Put it before ByteLevel."
            )
        after_byte_level = after_byte_level or part["type"] == "ByteLevel"
        if part["type"] != "ByteLevel" or following is None:
            split.append(part)
        elif part.get("use_regex", True):
            split.append(_byte_level_words(part["add_prefix_space"]))
    return {"type": "Sequence", "pretokenizers": split}


def offsets_of(encoding: Any) -> NDArray[np.int32]:
    """Return an encoding's offsets as an int32 array [tokens, 2]."""
    return np.fromiter(chain.from_iterable(encoding.offsets), np.int32).reshape(-1, 2)


def without_spaces(offsets: NDArray[np.int32], text: str) -> NDArray[np.int32]:
    """Return offsets [tokens, 2] that exclude white space at the beginning and end of tokens.

    A token that consists only of white space gets an empty span at its end.
    """
    codes = np.frombuffer(f"{text}.".encode("utf-32-le"), np.uint32)
    is_space = _IS_SPACE[np.minimum(codes, _LAST_SPACE + 1)]
    if not (is_space[offsets[:, 0]].any() or is_space[offsets[:, 1] - 1].any()):
        return offsets
    positions = np.arange(len(is_space), dtype=np.int32)
    # For each position, find the first non-space character at or after it, and the end of the last
    # non-space character before it.
    next_start = np.minimum.accumulate(np.where(is_space, len(text), positions)[::-1])[::-1]
    last_ends = np.maximum.accumulate(np.where(is_space, 0, positions + 1))
    previous_end = np.concatenate([[0], last_ends[:-1]])
    starts = np.minimum(next_start[offsets[:, 0]], offsets[:, 1])
    ends = np.maximum(previous_end[offsets[:, 1]], starts)
    return np.stack([starts, ends], axis=1).astype(np.int32)


def words_of(offsets: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return the nonempty spans among `offsets`, without overlaps, as [words, 2].

    A normalizer may turn one character into multiple words; for example, it may turn an ellipsis
    into three dots. The character then belongs to the first of these words.
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
