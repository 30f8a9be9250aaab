"""How a tokenizer's own post-processor lays out a text, and a pair of them."""

from __future__ import annotations

import json
from typing import Any

import tokenizers
from tokenizers import processors

from bert_jax.data.byte_bpe_files import adds_prefix_space
from bert_jax.data.special_tokens import SpecialTokens

# [SEP]s between the texts of a pair, of a tokenizer that says nothing of pairs. RoBERTa's release
# has `<s> A </s></s> B </s>`.
USUAL_SEPARATORS = {"wordpiece": 1, "byte_bpe": 2, "sentencepiece": 1}


def separators_between(backend: Any, specials: SpecialTokens) -> int | None:
    """[SEP]s between the texts of a pair; None if the backend puts no special tokens around them.

    Raises:
        ValueError: it lays out a text otherwise than `[CLS] A [SEP]`, or a pair otherwise than
            `[CLS] A [SEP] B [SEP]` with any number of [SEP] between.
    """
    if backend.num_special_tokens_to_add(is_pair=False):
        _parts(backend, ("a",), specials)
    if not backend.num_special_tokens_to_add(is_pair=True):
        return None
    _, between, _ = _parts(backend, ("a", "b"), specials)
    return len(between)


def with_layout(backend: Any, specials: SpecialTokens, kind: str, *, segments: bool) -> Any:
    """A backend that says what special tokens stand around texts, itself if it does.

    segments: whether it must tell the second text of a pair from the first, with 1.
    """
    found = separators_between(backend, specials)
    if found is not None and (not segments or 1 in backend.encode("a", "b").type_ids):
        return backend
    count = USUAL_SEPARATORS[kind] if found is None else found
    second = int(segments or kind != "byte_bpe")
    between = " ".join([specials.sep] * count)
    template = processors.TemplateProcessing(
        single=f"{specials.cls} $A {specials.sep}",
        pair=f"{specials.cls} $A {between} $B:{second} {specials.sep}:{second}",
        special_tokens=[(token, backend.token_to_id(token)) for token in specials.bounds],
    )
    changed = tokenizers.Tokenizer.from_str(backend.to_str())
    changed.post_processor = template
    if kind == "byte_bpe":
        spaced = adds_prefix_space(json.loads(backend.to_str()))
        offsets = processors.ByteLevel(trim_offsets=True, add_prefix_space=spaced)
        changed.post_processor = processors.Sequence([offsets, template])
    return changed


def _parts(backend: Any, texts: tuple[str, ...], specials: SpecialTokens) -> list[list[str]]:
    """The special tokens before, between and behind texts."""
    encoding = backend.encode(*texts)
    for token, token_id in zip(encoding.tokens, encoding.ids, strict=True):
        if token in specials.bounds and token_id != backend.token_to_id(token):
            raise ValueError(
                f"post_processor: {token} has id {token_id}, but its id in the vocabulary is "
                f"{backend.token_to_id(token)}. Expected the vocabulary's id."
            )
    parts: list[list[str]] = [[]]
    for token, text in zip(encoding.tokens, encoding.sequence_ids, strict=True):
        if text is None:
            parts[-1].append(token)
        elif len(parts) == text + 1:
            parts.append([])
    first, *rest = parts
    right = len(rest) == len(texts) and first == [specials.cls] and len(rest[-1]) == 1
    if not right or any(set(part) != {specials.sep} for part in rest):
        layout = f"{specials.cls} A {specials.sep}" + f" B {specials.sep}" * (len(texts) - 1)
        raise ValueError(
            f"its post_processor makes {' '.join(encoding.tokens)} of {' and '.join(texts)}; "
            f"expected {layout}, as the models of the family read texts"
        )
    return parts
