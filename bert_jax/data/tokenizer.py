"""The tokenizer: text to WordPiece ids and back, the same ids as Hugging Face's BERT tokenizer."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bert_jax.data.tokenizer_files import (
    SPECIAL_TOKENS,
    UNUSED,
    lowercases,
    read_backend,
    write_backend,
)


class LocatedTokens(NamedTuple):
    """The tokens of a text and where they stand in it.

    ids: int32 [tokens]. offsets: int32 [tokens, 2], the characters of the text as it was given,
    from the first of a token to behind its last.
    """

    ids: NDArray[np.int32]
    offsets: NDArray[np.int32]


class Tokenizer:
    """BERT's WordPiece tokenizer, run by the `tokenizers` library; can be sent to a process."""

    def __init__(self, backend: Any) -> None:
        """Wraps a `tokenizers.Tokenizer` that knows BERT's five special tokens."""
        self._backend = backend

    @classmethod
    def load(cls, path: str | Path, lowercase: bool | None = None) -> Tokenizer:
        """Loads a vocab.txt, a tokenizer.json, or a directory that holds one.

        Text is lower-cased and stripped of accents if `lowercase` says so; if it is None, as
        tokenizer_config.json beside the file says; without one, as tokenizer.json itself says;
        and with a bare vocab.txt, if none of its entries holds an upper-case ASCII letter.
        ValueError if there is no such file, or it is not a BERT WordPiece vocabulary.
        """
        return cls(read_backend(Path(path), lowercase))

    def save(self, directory: str | Path) -> None:
        """Writes the files that `load` and `transformers.AutoTokenizer` read."""
        write_backend(self._backend, Path(directory))

    def encode_batch(
        self, texts: Sequence[str], *, specials_as_text: bool = False
    ) -> list[list[int]]:
        """Token ids of each text, without [CLS] and [SEP] around them.

        A text that spells out a special token ("[MASK]") gives its id, as in Hugging Face; with
        `specials_as_text` it is read as brackets around a word, as in BERT's own preparation,
        which is what text of unknown origin needs. ValueError for a text with a lone surrogate.
        """
        encodings = self._encode(self._backend.encode_batch_fast, texts, specials_as_text)
        return [encoding.ids for encoding in encodings]

    def encode_with_offsets(
        self, texts: Sequence[str], *, specials_as_text: bool = False
    ) -> list[LocatedTokens]:
        """As `encode_batch`, with the characters of each text that its tokens stand for.

        Characters the tokenizer drops (white space, stripped accents) belong to no token; tokens
        that one character was taken apart into (Hangul, where accents are stripped) share it.
        """
        encodings = self._encode(self._backend.encode_batch, texts, specials_as_text)
        return [
            LocatedTokens(
                np.array(encoding.ids, np.int32),
                np.fromiter(chain.from_iterable(encoding.offsets), np.int32).reshape(-1, 2),
            )
            for encoding in encodings
        ]

    def word_offsets(self, texts: Sequence[str]) -> list[NDArray[np.int32]]:
        """The words and punctuation marks that a text is split into before they become pieces.

        For each text int32 [words, 2]: the characters of the text as it was given. What spells out
        a special token is text; characters that `encode_with_offsets` drops belong to no word.
        """
        return [
            _spans(encoding.word_ids, encoding.offsets)
            for encoding in self._encode(self._backend.encode_batch, texts, True)
        ]

    def normalize(self, text: str) -> str:
        """The text as it is looked up: cleaned and, if uncased, lower-cased without accents."""
        normalizer = self._backend.normalizer
        return text if normalizer is None else normalizer.normalize_str(text)

    def _encode(self, encode: Any, texts: Sequence[str], specials_as_text: bool) -> list[Any]:
        self._backend.encode_special_tokens = specials_as_text
        try:
            return encode(list(texts), add_special_tokens=False)
        except (TypeError, UnicodeEncodeError) as error:
            self._name_unusable(texts)
            raise error

    @staticmethod
    def _name_unusable(texts: Sequence[str]) -> None:
        for index, text in enumerate(texts):
            if not isinstance(text, str):
                raise ValueError(f"texts[{index}] is a {type(text).__name__}, expected a string")
            try:
                text.encode("utf-8")
            except UnicodeEncodeError as error:
                raise ValueError(
                    f"texts[{index}] holds a lone surrogate at character {error.start}, "
                    "which is not a character of Unicode text"
                ) from None

    def decode(self, ids: Sequence[int]) -> str:
        """Readable text of token ids; special tokens are kept."""
        return self._backend.decode(list(ids), skip_special_tokens=False)

    def token_to_id(self, token: str) -> int | None:
        """Id of a vocabulary entry, None if it is not one."""
        return self._backend.token_to_id(token)

    def id_to_token(self, token_id: int) -> str | None:
        """Vocabulary entry of an id, None if there is none."""
        return self._backend.id_to_token(token_id)

    @cached_property
    def vocabulary(self) -> dict[str, int]:
        """Every entry and its id, in the order of the ids."""
        vocabulary = self._backend.get_vocab(with_added_tokens=True)
        return dict(sorted(vocabulary.items(), key=lambda item: item[1]))

    @cached_property
    def vocab_size(self) -> int:
        """One more than the largest id."""
        return max(self.vocabulary.values()) + 1

    @cached_property
    def pad_id(self) -> int:
        """Id of [PAD]."""
        return self.vocabulary[SPECIAL_TOKENS["pad_token"]]

    @cached_property
    def unk_id(self) -> int:
        """Id of [UNK]."""
        return self.vocabulary[SPECIAL_TOKENS["unk_token"]]

    @cached_property
    def cls_id(self) -> int:
        """Id of [CLS]."""
        return self.vocabulary[SPECIAL_TOKENS["cls_token"]]

    @cached_property
    def sep_id(self) -> int:
        """Id of [SEP]."""
        return self.vocabulary[SPECIAL_TOKENS["sep_token"]]

    @cached_property
    def mask_id(self) -> int:
        """Id of [MASK]."""
        return self.vocabulary[SPECIAL_TOKENS["mask_token"]]

    @cached_property
    def special_ids(self) -> tuple[int, ...]:
        """Ids of [PAD], [UNK], [CLS], [SEP] and [MASK], in this order."""
        return (self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id)

    @cached_property
    def random_ids(self) -> NDArray[np.int32]:
        """Ids that can stand in text, ascending: all but the special tokens and [unusedN]."""
        special = set(self.special_ids)
        return np.array(
            [
                token_id
                for token, token_id in self.vocabulary.items()
                if token_id not in special and not UNUSED.fullmatch(token)
            ],
            np.int32,
        )

    @cached_property
    def lowercase(self) -> bool:
        """Whether text is lower-cased before it is looked up."""
        return lowercases(self._state()["normalizer"])

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 (hex) over all that decides the ids of a text, whatever file it was read from."""
        state = self._state()
        model = {key: value for key, value in state["model"].items() if key != "vocab"}
        normalizer = dict(state["normalizer"] or {})
        if normalizer.get("type") == "BertNormalizer" and normalizer["strip_accents"] is None:
            normalizer["strip_accents"] = normalizer["lowercase"]  # what None means there
        content = {
            "vocabulary": list(self.vocabulary.items()),
            "model": model,
            "normalizer": normalizer,
            "pre_tokenizer": state["pre_tokenizer"],
            "added_tokens": state["added_tokens"],
        }
        canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode("utf-8")).hexdigest()

    def _state(self) -> dict[str, Any]:
        return json.loads(self._backend.to_str())


def _spans(word_ids: Sequence[int], offsets: Sequence[tuple[int, int]]) -> NDArray[np.int32]:
    """From the first to the last character of the tokens of each word."""
    if not word_ids:
        return np.empty((0, 2), np.int32)
    firsts = np.flatnonzero(np.diff(np.array(word_ids, np.int32), prepend=-1))
    characters = np.array(offsets, np.int32)
    ends = np.maximum.reduceat(characters[:, 1], firsts)
    return np.stack([characters[firsts, 0], ends], axis=1)
