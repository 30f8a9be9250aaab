"""The tokenizer: text to ids and back, the same ids as Hugging Face's tokenizers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, assert_never

import numpy as np
from numpy.typing import NDArray

from bert_jax.tokenizers.components import (
    USUAL_SEPARATORS,
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
from bert_jax.tokenizers.files import read_backend, write_backend
from bert_jax.tokenizers.special_tokens import SpecialTokens, broken, special_tokens_of, unbroken
from bert_jax.tokenizers.tokenizer_json import (
    Kind,
    continues_word,
    fingerprint_of,
    kind_of,
    stands_in_text,
    types_of,
)


class LocatedTokens(NamedTuple):
    """The tokens of a text and where they stand in it.

    ids: int32 [tokens]. offsets: int32 [tokens, 2], the characters of the text as it was given,
    from the first of a token to behind its last.
    """

    ids: NDArray[np.int32]
    offsets: NDArray[np.int32]


class Tokenizer:
    """A tokenizer of the BERT family, run by the `tokenizers` library; can be sent to a process.

    BERT's WordPiece, RoBERTa's byte-level BPE, or ALBERT's SentencePiece: `kind`.
    """

    def __init__(self, backend: Any) -> None:
        """Wraps a `tokenizers.Tokenizer` that knows the five special tokens of its kind."""
        self._backend = backend

    @classmethod
    def load(cls, path: str | Path, lowercase: bool | None = None) -> Tokenizer:
        """Loads a tokenizer.json, vocab.txt, spiece.model, vocab.json or a directory with one.

        A work directory or a prepared corpus is such a directory, too.
        Text is lower-cased and stripped of accents if `lowercase` says so; if it is None, as
        tokenizer_config.json beside the file says; without one, as tokenizer.json itself says;
        with a bare vocab.txt, if none of its entries holds an upper-case ASCII letter; with a
        bare spiece.model always. A vocab.json has its merges.txt beside it and keeps the case.
        ValueError if there is no such file, or it is not a vocabulary of the family.
        """
        return cls(read_backend(Path(path), lowercase))

    def save(self, directory: str | Path, *, segments: bool = False) -> None:
        """Writes the files that `load` and `transformers.AutoTokenizer` read.

        segments: for a model that tells the texts of a pair apart; a tokenizer that says 0 of both,
          as RoBERTa's, says so still otherwise.
        """
        write_backend(self._backend, Path(directory), segments=segments)

    def encode_batch(
        self, texts: Sequence[str], *, specials_as_text: bool = False
    ) -> list[list[int]]:
        """Token ids of each text, without [CLS] and [SEP] around them.

        A text that spells out a special token ("[MASK]") gives its id, as in Hugging Face; with
        `specials_as_text` it is read as brackets around a word, as in BERT's own preparation,
        which is what text of unknown origin needs. ValueError for a text with a lone surrogate.
        """
        encodings = self._encode(self._backend, texts, specials_as_text, offsets=False)
        return [encoding.ids for encoding in encodings]

    def encode_with_offsets(
        self, texts: Sequence[str], *, specials_as_text: bool = False
    ) -> list[LocatedTokens]:
        """As `encode_batch`, with the characters of each text that its tokens stand for.

        Characters the tokenizer drops (white space, stripped accents) belong to no token; tokens
        that one character was taken apart into (Hangul, where accents are stripped) share it.
        """
        encodings = self._encode(self._located, texts, specials_as_text)
        located = self._offsets(encodings, texts, specials_as_text)
        return [
            LocatedTokens(np.array(encoding.ids, np.int32), offsets)
            for encoding, offsets in zip(encodings, located, strict=True)
        ]

    def encode_words(self, words: Sequence[str]) -> list[list[int]]:
        """Token ids of words that stand among others, each by itself.

        As `encode_batch`, but where spaces are part of the tokens every word has one before it: the
        ids of Hugging Face's `is_split_into_words=True`, and `add_prefix_space=True` for RoBERTa.
        """
        if self.spaces_are_text:
            words = [f" {word}" for word in words]
        return self.encode_batch(words)

    def word_offsets(self, texts: Sequence[str]) -> list[NDArray[np.int32]]:
        """Return the offsets of every text's words, before they are split into pieces.

        Offsets are int32 [words, 2] for each text, in characters of the original text. Punctuation
        marks are words; special tokens spelled in the text are ordinary text; characters that
        `encode_with_offsets` drops belong to no word. SentencePiece splits only at white space.
        """
        encodings = self._encode(self._word_finder, texts, True)
        return [words_of(offsets) for offsets in self._offsets(encodings, texts, True)]

    def _offsets(
        self, encodings: Sequence[Any], texts: Sequence[str], specials_as_text: bool
    ) -> Iterator[NDArray[np.int32]]:
        """[tokens, 2] of each; without the space before a word, which some tokens begin with."""
        for encoding, text in zip(encodings, texts, strict=True):
            found = offsets_of(encoding)
            if self.kind == "sentencepiece" and specials_as_text:
                found = unbroken(found, text, self.specials.tokens)
            yield without_spaces(found, text)

    def normalize(self, text: str) -> str:
        """The text as it is looked up: cleaned and, if uncased, lower-cased without accents."""
        normalizer = self._backend.normalizer
        return text if normalizer is None else normalizer.normalize_str(text)

    def _encode(
        self, backend: Any, texts: Sequence[str], specials_as_text: bool, *, offsets: bool = True
    ) -> list[Any]:
        backend.encode_special_tokens = specials_as_text
        encode = backend.encode_batch if offsets else backend.encode_batch_fast
        try:
            if specials_as_text and self.kind == "sentencepiece":
                texts = [broken(text, self.specials.tokens) for text in texts]
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

    def readable(self, token_id: int) -> str:
        """A vocabulary entry as text: "##ing" of WordPiece, "city" of "Ġcity" and "▁city"."""
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
    def kind(self) -> Kind:
        """How its vocabulary cuts words up."""
        kind = kind_of(self._state())
        assert kind is not None
        return kind

    @cached_property
    def separators_between(self) -> int:
        """[SEP]s between the segments of a pair, as its file has it, else as its kind's release."""
        found = separators_between(self._backend, self.specials)
        return USUAL_SEPARATORS[self.kind] if found is None else found

    @cached_property
    def specials_of_pair(self) -> int:
        """Special tokens of a pair: [CLS], those between the segments, and the last [SEP]."""
        return self.separators_between + 2

    @cached_property
    def spaces_are_text(self) -> bool:
        """Whether the space before a word is part of its tokens, as in byte-level BPE."""
        return self.kind == "byte_bpe"

    @cached_property
    def splits_at_marks(self) -> bool:
        """Whether a combining accent ends a word, as in ByteLevel."""
        return "ByteLevel" in types_of(self._state()["pre_tokenizer"])

    @cached_property
    def specials(self) -> SpecialTokens:
        """What its special tokens are called."""
        found = special_tokens_of(self.vocabulary)
        assert found is not None
        return found

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
        """Id of [CLS], in RoBERTa <s>."""
        return self.vocabulary[self.specials.cls]

    @cached_property
    def sep_id(self) -> int:
        """Id of [SEP], in RoBERTa </s>."""
        return self.vocabulary[self.specials.sep]

    @cached_property
    def mask_id(self) -> int:
        """Id of [MASK]."""
        return self.vocabulary[self.specials.mask]

    @cached_property
    def special_ids(self) -> tuple[int, ...]:
        """Ids of [PAD], [UNK], [CLS], [SEP] and [MASK], in this order."""
        return (self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id)

    @cached_property
    def random_ids(self) -> NDArray[np.int32]:
        """Ids that can stand in text, ascending: all but special tokens and unused slots."""
        return self._ids_where(stands_in_text)

    @cached_property
    def continuation_ids(self) -> NDArray[np.int32]:
        """Ids of the pieces that go on with a word, ascending."""
        return self._ids_where(lambda token: continues_word(token, self.kind))

    def _ids_where(self, wanted: Callable[[str], bool]) -> NDArray[np.int32]:
        special = set(self.special_ids)
        ids = [i for token, i in self.vocabulary.items() if i not in special and wanted(token)]
        return np.array(ids, np.int32)

    def lowercased(self) -> Tokenizer:
        """Return a copy of this tokenizer that first lower-cases the text and keeps accents."""
        return self if self.lowercase else Tokenizer(lowercasing(self._backend))

    @cached_property
    def lowercase(self) -> bool:
        """Whether text is lower-cased before it is looked up."""
        return lowercases(self._state()["normalizer"])

    @cached_property
    def strips_accents(self) -> bool:
        """Whether accents and other marks are stripped from the text."""
        return strips_accents(self._state()["normalizer"])

    @cached_property
    def _located(self) -> Any:
        return with_raw_offsets(self._backend)

    @cached_property
    def _word_finder(self) -> Any:
        return word_finder(self._backend)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 (hex) over all that decides the ids of a text, whatever file it was read from."""
        separators = self.separators_between
        usual = separators == USUAL_SEPARATORS[self.kind]
        return fingerprint_of(self._state(), self.vocabulary, None if usual else separators)

    def _state(self) -> dict[str, Any]:
        return json.loads(self._backend.to_str())
