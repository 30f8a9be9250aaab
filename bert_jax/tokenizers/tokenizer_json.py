"""Load and check tokenizer.json, and determine which tokens continue a word."""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import tokenizers
from tokenizers import decoders, normalizers

from bert_jax.json_files import expecting_fields
from bert_jax.tokenizers import byte_bpe_files, sentencepiece_files
from bert_jax.tokenizers.components import lowercases, separators_between, splitting_characters
from bert_jax.tokenizers.special_tokens import BERT, special_tokens_of
from bert_jax.tokenizers.vocabulary_files import check_ids, check_merges, read_json
from bert_jax.tokenizers.wordpiece_files import CONTINUATION, UNUSED

# The kinds of vocabulary that BERT, RoBERTa and ALBERT use. "sentencepiece" includes models with
# SentencePiece's own variant of BPE.
Kind = Literal["wordpiece", "byte_bpe", "sentencepiece"]

_FORM = "a tokenizer.json of the tokenizers library"


def kind_of(state: Mapping[str, Any]) -> Kind | None:
    """Return a tokenizer's kind, given its tokenizer.json, or None if the kind is not supported."""
    splitters = types_of(state["pre_tokenizer"])
    match state["model"]["type"]:
        case "WordPiece":
            return "wordpiece"
        case "BPE" if "ByteLevel" in splitters:
            return "byte_bpe"
        case "BPE" | "Unigram" if "Metaspace" in splitters:
            return "sentencepiece"
    return None


def read_tokenizer_json(file: Path, config: Mapping[str, Any]) -> Any:
    """Read a tokenizer.json and return its backend.

    Args:
      file: the tokenizer.json.
      config: the content of tokenizer_config.json in the same directory.

    Raises:
      ValueError: the file is damaged, its ids cannot be used as indices into a table, or its
        tokenizer is not supported.
    """
    state = read_json(file, f"This is not {_FORM}")
    try:
        model, kind = state["model"]["type"], kind_of(state)
        if kind is not None:
            _check_state(state)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{file}: not {_FORM}.") from error
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error
    if kind is None:
        raise ValueError(
            f"{file}: its model is {model}. Expected WordPiece, byte-level BPE, or a SentencePiece "
            "model (Unigram, or BPE with spaces in its pieces)."
        )
    prefix_space = config.get("add_prefix_space")
    # In transformers, this setting takes precedence over the file.
    if kind == "byte_bpe" and isinstance(prefix_space, bool):
        with expecting_fields(file):
            state = byte_bpe_files.with_prefix_space(state, prefix_space)
    backend = _load(file, state)
    # The file may enable padding or truncation to 512 tokens. Both would corrupt a corpus.
    backend.no_truncation()
    backend.no_padding()
    vocabulary = backend.get_vocab(with_added_tokens=True)
    specials = special_tokens_of(vocabulary)
    if specials is None:
        missing = [token for token in BERT.tokens if token not in vocabulary]
        raise ValueError(
            f"{file}: not a BERT vocabulary: it lacks {', '.join(missing)}, and it does not have "
            "the RoBERTa or ALBERT special tokens either."
        )
    try:
        _check_added_tokens(state, vocabulary)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error
    with _loading(file):
        separators_between(backend, specials)
    return backend


def _load(file: Path, state: Mapping[str, Any]) -> Any:
    with _loading(file):
        return tokenizers.Tokenizer.from_str(json.dumps(state))


@contextmanager
def _loading(file: Path) -> Iterator[None]:
    """Convert errors and panics of the tokenizers library to a ValueError with the file's path."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error
    except BaseException as error:
        # The library raises plain Exceptions; its panics derive directly from BaseException.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise ValueError(f"{file}: the tokenizers library cannot load it: {error}") from error


def _check_state(state: Mapping[str, Any]) -> None:
    """Raise ValueError for invalid ids, pieces or merges that the library would accept."""
    added = ((token["content"], token["id"]) for token in state["added_tokens"] or ())
    check_ids([*_model_ids(state["model"]), *added])
    model = state["model"]
    match model["type"]:
        case "Unigram":
            if not isinstance(model["unk_id"], int):
                raise ValueError("model.unk_id is missing. Expected the id of the unknown token.")
        case "BPE":
            if model.get("dropout"):
                raise ValueError(
                    f"model.dropout={model['dropout']}: the same text would get different tokens "
                    "each time. Set it to null."
                )
            _check_unknown_token(model)
            merges = [_pair(merge) for merge in model["merges"]]
            check_merges(model["vocab"], merges, model.get("continuing_subword_prefix") or "")
        case _:
            _check_unknown_token(model)
    splitting_characters(state["pre_tokenizer"])
    if "ByteLevel" in types_of(state.get("normalizer")):
        raise ValueError("normalizer: ByteLevel belongs in pre_tokenizer. Move it there.")


def _model_ids(model: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    if model["type"] != "Unigram":
        yield from model["vocab"].items()
        return
    pieces: set[str] = set()
    for index, (piece, _) in enumerate(model["vocab"]):
        if piece in pieces:
            raise ValueError(f"model.vocab contains {piece!r} twice. Expected each piece once.")
        pieces.add(piece)
        yield piece, index


def _check_unknown_token(model: Mapping[str, Any]) -> None:
    unknown = model.get("unk_token")
    if unknown is not None and unknown not in model["vocab"]:
        raise ValueError(f"model.unk_token={unknown!r}: not in model.vocab. Add it there.")


def _pair(merge: Any) -> tuple[str, str]:
    left, right = merge.split(" ") if isinstance(merge, str) and merge.count(" ") == 1 else merge
    return left, right


def _check_added_tokens(state: Mapping[str, Any], vocabulary: Mapping[str, int]) -> None:
    """Raise ValueError if the library gave an added token an id that is not in the file."""
    for token in state["added_tokens"] or ():
        content, token_id = token["content"], token["id"]
        if vocabulary.get(content) != token_id:
            raise ValueError(
                f"added_tokens: {content!r} has id {token_id}, but the tokenizers library gives it "
                f"{vocabulary.get(content)}. Expected ids in ascending order that continue the "
                "model's ids without gaps."
            )


def fingerprint_of(
    state: Mapping[str, Any], vocabulary: Mapping[str, int], separators_between: int | None
) -> str:
    """Return the hex SHA-256 of everything that affects token ids.

    Args:
      state: the tokenizer in tokenizer.json's format.
      vocabulary: a dict from token to id, in ascending order of ids.
      separators_between: the number of separators between two texts; None for the kind's default.
    """
    model = {key: value for key, value in state["model"].items() if key != "vocab"}
    normalizer = dict(state["normalizer"] or {})
    if normalizer.get("type") == "BertNormalizer" and normalizer["strip_accents"] is None:
        # If strip_accents is None, accents are stripped only from lowercased text.
        normalizer["strip_accents"] = normalizer["lowercase"]
    content = {
        "vocabulary": list(vocabulary.items()),
        "model": model,
        "normalizer": normalizer,
        "pre_tokenizer": state["pre_tokenizer"],
        "added_tokens": state["added_tokens"],
    }
    if separators_between is not None:
        content["separators_between"] = separators_between
    if state["model"]["type"] == "Unigram":
        # Scores are rounded, since writing and reading the file changes their last digit.
        content["scores"] = [f"{score:.7g}" for _, score in state["model"]["vocab"]]
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode("utf-8")).hexdigest()


def override_normalizer(
    backend: Any, file: Path, config: Mapping[str, Any], lowercase: bool | None
) -> None:
    """Override the normalizer's settings the way transformers does.

    `lowercase` takes precedence over tokenizer_config.json. Only BERT's normalizer is changed; any
    other normalizer keeps the settings in the file.

    Raises:
      ValueError: `lowercase` contradicts a normalizer other than BERT's.
    """
    state = json.loads(backend.to_str())["normalizer"] or {}
    if state.get("type") != "BertNormalizer":
        if lowercase is not None and lowercase != lowercases(state):
            raise ValueError(
                f"{file}: lowercase={lowercase}: its normalizer ({state.get('type', 'none')}) "
                f"{'keeps the case' if lowercase else 'lowercases text'}, and only BERT's "
                "normalizer can be changed. Omit lowercase."
            )
        return
    if lowercase is None:
        lowercase = config.get("do_lower_case", state["lowercase"])
    strip_accents = config.get("strip_accents", state["strip_accents"])
    backend.normalizer = normalizers.BertNormalizer(
        clean_text=state["clean_text"],
        handle_chinese_chars=config.get("tokenize_chinese_chars", state["handle_chinese_chars"]),
        strip_accents=strip_accents,
        lowercase=lowercase,
    )


def types_of(part: Any) -> set[str]:
    """Return the types of a pre-tokenizer or normalizer and of all its parts."""
    if not isinstance(part, dict):
        return set()
    inner = (*part.get("pretokenizers", ()), *part.get("normalizers", ()))
    return {str(part.get("type"))}.union(*map(types_of, inner))


# RoBERTa's vocabulary is padded to a multiple of 8, and CamemBERT's keeps placeholders for ids that
# fairseq moved.
_FILLERS = re.compile(r"madeupword\d{4}|<(s|/s|unk)>NOTUSED")
# Scripts that are written without spaces between words, identified by the first word in the Unicode
# names of their letters.
_WITHOUT_SPACES = frozenset(("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR"))
_BYTES = decoders.ByteLevel()


def is_used(piece: str) -> bool:
    """Return whether a piece is in use, unlike the placeholders in some released vocabularies."""
    return not UNUSED.fullmatch(piece) and not _FILLERS.fullmatch(piece)


def continues_word(piece: str, kind: Kind) -> bool:
    """Return whether a piece continues the previous piece's word.

    WordPiece marks such pieces. In the other kinds of vocabulary, a word begins with a space or
    with punctuation, and pieces that follow without a space continue it, as in the n-gram masking
    of ALBERT's release. In scripts without spaces between words, every piece counts as a word;
    otherwise, a whole line would be treated as a single word.
    """
    match kind:
        case "wordpiece":
            return piece.startswith(CONTINUATION)
        case "byte_bpe":
            text = _BYTES.decode([piece])
            return not (piece.startswith(byte_bpe_files.BYTE_BPE_SPACE) or text[:1].isspace()) and (
                not _begins_word(text)
            )
        case "sentencepiece":
            return not piece.startswith(
                sentencepiece_files.SENTENCEPIECE_SPACE
            ) and not _begins_word(piece)


def _begins_word(text: str) -> bool:
    if _is_punctuation(text):
        return True
    # A combining mark continues the letter before it.
    script = unicodedata.name(text[:1], "").partition(" ")[0] if text else ""
    return script in _WITHOUT_SPACES and unicodedata.category(text[0])[0] != "M"


def _is_punctuation(text: str) -> bool:
    # An incomplete character decodes to U+FFFD, which Unicode classifies as a symbol.
    if not text or "\ufffd" in text:
        return False
    return all(unicodedata.category(character)[0] in "PS" for character in text)
