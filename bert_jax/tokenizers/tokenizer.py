"""Tokenize text into the same ids as Hugging Face's tokenizers."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, assert_never

import numpy as np
from numpy.typing import NDArray

from bert_jax.storage.urls import parse_url
from bert_jax.tokenizers.components import (
    DEFAULT_SEPARATORS,
    lowercases,
    lowercasing,
    offsets_of,
    separators_between,
    strips_accents,
    with_raw_offsets,
    without_spaces,
    word_finder,
    words_of,
)
from bert_jax.tokenizers.files import read_backend, tokenizer_copy, write_backend
from bert_jax.tokenizers.special_tokens import (
    SpecialTokens,
    special_tokens_of,
    split_specials,
    unsplit_offsets,
)
from bert_jax.tokenizers.tokenizer_json import (
    Kind,
    continues_word,
    fingerprint_of,
    is_used,
    kind_of,
    types_of,
)


class LocatedTokens(NamedTuple):
    """The tokens of a text and their positions.

    Attributes:
      ids: int32 [tokens], the token ids.
      offsets: int32 [tokens, 2], the start and the (exclusive) end of each token, as character
        positions in the original text.
    """

    ids: NDArray[np.int32]
    offsets: NDArray[np.int32]


class Tokenizer:
    """A BERT-family tokenizer, backed by the `tokenizers` library. It can be pickled.

    The kind of vocabulary is BERT's WordPiece, RoBERTa's byte-level BPE, or ALBERT's SentencePiece.
    """

    def __init__(self, backend: Any) -> None:
        """Wrap a `tokenizers.Tokenizer`. To read a tokenizer from files, use `load`.

        Args:
          backend: a `tokenizers.Tokenizer` that has the five special tokens of its kind.
        """
        self._backend = backend

    def __repr__(self) -> str:
        return f"Tokenizer(kind={self.kind!r}, vocab_size={self.vocab_size})"

    @classmethod
    def load(cls, path: str | os.PathLike[str], lowercase: bool | None = None) -> Tokenizer:
        """Load a tokenizer from a file or a directory.

        The file must be a tokenizer.json, vocab.txt, spiece.model or vocab.json. A directory must
        contain one of these files, or be a work directory or a prepared corpus. A vocab.json needs
        a merges.txt in the same directory and is always cased. For any other file, `lowercase` sets
        whether text is lowercased and stripped of accents, and defaults to `do_lower_case` in
        tokenizer_config.json in the same directory. If neither is set, the default depends on the
        file. A tokenizer.json keeps its own setting. A vocab.txt is treated as uncased if no token
        contains an uppercase ASCII letter. A spiece.model is treated as uncased. The path may be a
        URL in a bucket.

        Raises:
          ValueError: the file does not exist or is not a vocabulary of the BERT family.
        """
        url = parse_url(path)
        if url is None:
            return cls(read_backend(Path(path), lowercase))
        with tokenizer_copy(url) as copy:
            return cls(read_backend(copy, lowercase))

    def save(self, directory: str | Path, *, segments: bool = False) -> None:
        """Write the files that `load` and `transformers.AutoTokenizer` read.

        Args:
          directory: the output directory, which is created if it does not exist.
          segments: whether the model distinguishes the two texts of a pair. If so, a tokenizer that
            gives both texts segment id 0, such as RoBERTa's, is saved in a form that assigns
            segment id 1 to the second text.
        """
        write_backend(self._backend, Path(directory), segments=segments)

    def encode_batch(
        self, texts: Sequence[str], *, specials_as_text: bool = False
    ) -> list[list[int]]:
        """Return the token ids of each text, without surrounding [CLS] and [SEP].

        Args:
          texts: the texts to encode.
          specials_as_text: whether to encode "[MASK]" in a text as ordinary text (a word in
            brackets), as in BERT's own data preparation. Otherwise, it is encoded as the special
            token, as in Hugging Face's tokenizers. Set this to True for text from unknown sources.

        Raises:
          ValueError: a text is not a string or contains a lone surrogate.
        """
        encodings = self._encode(self._backend, texts, specials_as_text, offsets=False)
        return [encoding.ids for encoding in encodings]

    def encode_with_offsets(
        self, texts: Sequence[str], *, specials_as_text: bool = False
    ) -> list[LocatedTokens]:
        """Return the token ids of each text, as `encode_batch` does, along with their offsets.

        Characters that the tokenizer drops (white space, stripped accents) belong to no token. If
        one character is decomposed into multiple tokens (as happens to Hangul when accents are
        stripped), all of these tokens have the character's offsets.
        """
        encodings = self._encode(self._offset_backend, texts, specials_as_text)
        located = self._offsets(encodings, texts, specials_as_text)
        return [
            LocatedTokens(np.array(encoding.ids, np.int32), offsets)
            for encoding, offsets in zip(encodings, located, strict=True)
        ]

    def encode_words(self, words: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each word in a sentence.

        Unlike `encode_batch`, this puts a space before every word if spaces are part of the tokens.
        The ids are the same as Hugging Face's with `is_split_into_words=True` and, for RoBERTa,
        `add_prefix_space=True`.
        """
        if self.spaces_are_text:
            words = [f" {word}" for word in words]
        return self.encode_batch(words)

    def word_offsets(self, texts: Sequence[str]) -> list[NDArray[np.int32]]:
        """Return the offsets of the words in each text, before words are split into pieces.

        The offsets of each text are an int32 array [words, 2] of character positions in the
        original text. Punctuation marks count as words, and special tokens spelled out in a text
        are treated as ordinary text. Characters that `encode_with_offsets` drops belong to no word.
        SentencePiece splits only at white space.
        """
        encodings = self._encode(self._word_finder, texts, True)
        return [words_of(offsets) for offsets in self._offsets(encodings, texts, True)]

    def _offsets(
        self, encodings: Sequence[Any], texts: Sequence[str], specials_as_text: bool
    ) -> Iterator[NDArray[np.int32]]:
        """Yield the offsets [tokens, 2] for each text, excluding any leading space in a token."""
        for encoding, text in zip(encodings, texts, strict=True):
            offsets = offsets_of(encoding)
            if self.kind == "sentencepiece" and specials_as_text:
                offsets = unsplit_offsets(offsets, text, self.specials.tokens)
            yield without_spaces(offsets, text)

    def normalize(self, text: str) -> str:
        """Apply the normalizer, which cleans text and may also lowercase it and strip accents."""
        normalizer = self._backend.normalizer
        return text if normalizer is None else normalizer.normalize_str(text)

    def _encode(
        self, backend: Any, texts: Sequence[str], specials_as_text: bool, *, offsets: bool = True
    ) -> list[Any]:
        backend.encode_special_tokens = specials_as_text
        encode = backend.encode_batch if offsets else backend.encode_batch_fast
        try:
            if specials_as_text and self.kind == "sentencepiece":
                texts = [split_specials(text, self.specials.tokens) for text in texts]
            return encode(list(texts), add_special_tokens=False)
        except (TypeError, UnicodeEncodeError) as error:
            self._raise_for_unusable(texts)
            raise error

    @staticmethod
    def _raise_for_unusable(texts: Sequence[str]) -> None:
        for index, text in enumerate(texts):
            if not isinstance(text, str):
                raise ValueError(f"texts[{index}]: expected a string, got {type(text).__name__}.")
            try:
                text.encode("utf-8")
            except UnicodeEncodeError as error:
                raise ValueError(
                    f"texts[{index}]: a lone surrogate at character {error.start}, which is not "
                    "valid Unicode. Remove it."
                ) from None

    def decode(self, ids: Sequence[int]) -> str:
        """Decode token ids into text, including special tokens."""
        return self._backend.decode(list(ids), skip_special_tokens=False)

    def readable(self, token_id: int) -> str:
        """Return a token in readable form.

        For example, "##ing" is returned unchanged, and "Ġcity" and "▁city" become "city".
        """
        if token_id in self.special_ids:
            return str(self.id_to_token(token_id))
        match self.kind:
            case "wordpiece":
                return str(self.id_to_token(token_id))
            case "byte_bpe" | "sentencepiece":
                return self.decode([token_id]).strip() or str(self.id_to_token(token_id))
            case _:
                assert_never(self.kind)

    def token_to_id(self, token: str) -> int | None:
        """Return the id of a token, or None if the vocabulary does not contain it."""
        return self._backend.token_to_id(token)

    def id_to_token(self, token_id: int) -> str | None:
        """Return the token with the given id, or None if there is none."""
        return self._backend.id_to_token(token_id)

    @cached_property
    def vocabulary(self) -> dict[str, int]:
        """A dict from token to id, in ascending order of ids."""
        vocabulary = self._backend.get_vocab(with_added_tokens=True)
        return dict(sorted(vocabulary.items(), key=lambda item: item[1]))

    @cached_property
    def vocab_size(self) -> int:
        """The largest id plus one."""
        return max(self.vocabulary.values()) + 1

    @cached_property
    def kind(self) -> Kind:
        """The kind of vocabulary, which determines how words are split."""
        kind = kind_of(self._state())
        assert kind is not None
        return kind

    @cached_property
    def separators_between(self) -> int:
        """Number of [SEP]s between the texts of a pair; each kind of tokenizer has a default."""
        separators = separators_between(self._backend, self.specials)
        return DEFAULT_SEPARATORS[self.kind] if separators is None else separators

    @cached_property
    def specials_of_pair(self) -> int:
        """Number of special tokens in a pair: [CLS], the [SEP]s between the texts, and [SEP]."""
        return self.separators_between + 2

    @cached_property
    def spaces_are_text(self) -> bool:
        """Whether the space before a word is part of its tokens, as in byte-level BPE."""
        return self.kind == "byte_bpe"

    @cached_property
    def splits_at_marks(self) -> bool:
        """Whether a combining accent ends a word, as it does with ByteLevel."""
        return "ByteLevel" in types_of(self._state()["pre_tokenizer"])

    @cached_property
    def specials(self) -> SpecialTokens:
        """The special tokens."""
        specials = special_tokens_of(self.vocabulary)
        assert specials is not None
        return specials

    @cached_property
    def pad_id(self) -> int:
        """Id of [PAD]."""
        return self.vocabulary[self.specials.pad]

    @cached_property
    def unk_id(self) -> int:
        """Id of [UNK]."""
        return self.vocabulary[self.specials.unk]

    @cached_property
    def cls_id(self) -> int:
        """Id of [CLS], which RoBERTa calls <s>."""
        return self.vocabulary[self.specials.cls]

    @cached_property
    def sep_id(self) -> int:
        """Id of [SEP], which RoBERTa calls </s>."""
        return self.vocabulary[self.specials.sep]

    @cached_property
    def mask_id(self) -> int:
        """Id of [MASK]."""
        return self.vocabulary[self.specials.mask]

    @cached_property
    def special_ids(self) -> tuple[int, ...]:
        """Ids of [PAD], [UNK], [CLS], [SEP] and [MASK], in that order."""
        return (self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id)

    @cached_property
    def random_ids(self) -> NDArray[np.int32]:
        """Ids of all tokens except special and unused ones, in ascending order."""
        return self._ids_where(is_used)

    @cached_property
    def continuation_ids(self) -> NDArray[np.int32]:
        """Ids of tokens that continue a word, in ascending order."""
        return self._ids_where(lambda token: continues_word(token, self.kind))

    def _ids_where(self, condition: Callable[[str], bool]) -> NDArray[np.int32]:
        special = set(self.special_ids)
        ids = [i for token, i in self.vocabulary.items() if i not in special and condition(token)]
        return np.array(ids, np.int32)

    def lowercased(self) -> Tokenizer:
        """Return this tokenizer if it is uncased, or else an uncased copy that keeps accents."""
        return self if self.lowercase else Tokenizer(lowercasing(self._backend))

    @cached_property
    def lowercase(self) -> bool:
        """Whether text is lowercased before it is tokenized."""
        return lowercases(self._state()["normalizer"])

    @cached_property
    def strips_accents(self) -> bool:
        """Whether accents and other marks are stripped from the text."""
        return strips_accents(self._state()["normalizer"])

    @cached_property
    def _offset_backend(self) -> Any:
        return with_raw_offsets(self._backend)

    @cached_property
    def _word_finder(self) -> Any:
        return word_finder(self._backend)

    @cached_property
    def fingerprint(self) -> str:
        """Hex SHA-256 of everything that affects token ids, independent of the file format."""
        separators = self.separators_between
        default = separators == DEFAULT_SEPARATORS[self.kind]
        return fingerprint_of(self._state(), self.vocabulary, None if default else separators)

    def _state(self) -> dict[str, Any]:
        return json.loads(self._backend.to_str())
