"""Read, check and write vocabularies in their original file formats.

These are BERT's vocab.txt (WordPiece), RoBERTa's vocab.json and merges.txt (byte-level BPE), and
ALBERT's spiece.model (SentencePiece).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from enum import IntEnum
from itertools import count
from pathlib import Path
from typing import Any

import tokenizers
from google.protobuf.message import DecodeError
from sentencepiece import sentencepiece_model_pb2
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors

from bert_jax import json_files
from bert_jax.tokenizers.special_tokens import ALBERT, BERT, ROBERTA

# A hundred times the combined size of RoBERTa's vocab.json and merges.txt.
MAX_FILE_BYTES = 128 << 20
# The maximum number of ids without a token. The rows for these ids in the embedding table are never
# trained.
MAX_UNUSED_IDS = 1_000


def check_size(file: Path) -> None:
    """Raise ValueError if a file is far too large for a vocabulary."""
    size = file.stat().st_size
    if size > MAX_FILE_BYTES:
        raise ValueError(
            f"{file}: the file has {size:,} bytes; expected at most {MAX_FILE_BYTES:,} for a "
            "vocabulary. Use the tokenizer's own file."
        )


def read_text(file: Path) -> str:
    """Return the text of a vocabulary file without its byte-order mark.

    Raises:
      ValueError: the file is far too large for a vocabulary, or is not UTF-8.
    """
    check_size(file)
    try:
        text = file.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file}: not UTF-8 text ({error}).") from error
    return text.removeprefix("\ufeff")


def read_json(file: Path, fix: str = "") -> Any:
    """Return the content of a vocabulary's JSON file.

    This raises the same errors as `json_files.read_json`, plus a ValueError if the file is far too
    large for a vocabulary.
    """
    check_size(file)
    return json_files.read_json(file, fix)


def check_ids(vocabulary: Iterable[tuple[str, Any]]) -> None:
    """Check a vocabulary's (token, id) pairs, which may include the same pair more than once.

    Raises:
      ValueError: an id is not a nonnegative integer, two tokens share an id, a token has two ids,
        or more than `MAX_UNUSED_IDS` ids below the largest one belong to no token.
    """
    ids: dict[str, int] = {}
    tokens: dict[int, str] = {}
    for token, token_id in vocabulary:
        if type(token_id) is not int or token_id < 0:
            raise ValueError(
                f"the id of {token!r} is {token_id!r}. Expected a nonnegative integer."
            )
        if ids.setdefault(token, token_id) != token_id:
            raise ValueError(
                f"{token!r} has two ids, {ids[token]} and {token_id}. Expected one id per token."
            )
        if tokens.setdefault(token_id, token) != token:
            raise ValueError(
                f"{tokens[token_id]!r} and {token!r} have the same id, {token_id}. "
                "Expected a different id for every token."
            )
    largest = max(tokens, default=-1)
    unused = largest + 1 - len(tokens)
    if unused > MAX_UNUSED_IDS:
        raise ValueError(
            f"the largest id is {largest:,} ({tokens[largest]!r}), but there are only "
            f"{len(tokens):,} tokens: {unused:,} ids are unused; expected at most "
            f"{MAX_UNUSED_IDS:,}. Number the tokens without gaps."
        )


def check_merges(
    vocabulary: Mapping[str, Any], merges: Iterable[Sequence[str]], prefix: str = ""
) -> None:
    """Check that a vocabulary contains both pieces of every BPE merge and their concatenation.

    Args:
      vocabulary: the vocabulary.
      merges: the pairs of pieces.
      prefix: the prefix of pieces that continue a word, such as "##".

    Raises:
      ValueError: a piece is missing. The message names the merge.
    """
    for left, right in merges:
        for piece in (left, right, left + right.removeprefix(prefix)):
            if piece not in vocabulary:
                raise ValueError(
                    f"the merge of {left!r} and {right!r} needs {piece!r}, which is not in the "
                    "vocabulary. Use merges and a vocabulary from the same release."
                )


UNUSED = re.compile(r"\[unused\d+\]")
CONTINUATION = "##"
# Longer words become [UNK]. BERT's released code has a limit of 200, but all ports use 100.
MAX_WORD_CHARACTERS = 100


def wordpiece_backend(
    vocabulary: Mapping[str, int],
    *,
    lowercase: bool,
    strip_accents: bool | None = None,
    separate_cjk: bool = True,
) -> Any:
    """Build BERT's tokenizer.

    The tokenizer cleans the text, splits it into words at spaces, punctuation and CJK characters,
    and splits the words with WordPiece. Source: Devlin et al. 2018, section 3 ("Input/Output
    Representations"), and its released code.

    Args:
      vocabulary: the tokens and their ids.
      lowercase: whether text is lowercased.
      strip_accents: whether accents are stripped. If None, they are stripped only if text is
        lowercased.
      separate_cjk: whether every CJK character is a separate word.
    """
    backend = tokenizers.Tokenizer(
        models.WordPiece(
            dict(vocabulary),
            unk_token=BERT.unk,
            continuing_subword_prefix=CONTINUATION,
            max_input_chars_per_word=MAX_WORD_CHARACTERS,
        )
    )
    backend.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=separate_cjk,
        strip_accents=strip_accents,
        lowercase=lowercase,
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix=CONTINUATION)
    cls, sep = BERT.cls, BERT.sep
    backend.post_processor = processors.TemplateProcessing(
        single=f"{cls}:0 $A:0 {sep}:0",
        pair=f"{cls}:0 $A:0 {sep}:0 $B:1 {sep}:1",
        special_tokens=[(token, vocabulary[token]) for token in (cls, sep)],
    )
    return backend


def read_vocabulary(file: Path) -> dict[str, int]:
    """Read a vocab.txt into a dict from piece to id.

    White space around a piece is stripped, as in BERT's released code, unless the line contains
    only white space or the stripped piece also occurs on another line. In those cases, the line is
    left unchanged.

    Raises:
      ValueError: the file is damaged, or is not a BERT vocabulary.
    """
    # Universal-newline mode would also split at a lone "\r", and str.splitlines even at U+2028.
    lines = [line.rstrip("\r") for line in read_text(file).split("\n")]
    while lines and not lines[-1]:
        lines.pop()
    unstripped = set(lines)
    vocabulary: dict[str, int] = {}
    for index, line in enumerate(lines):
        piece = line.strip()
        if not piece or piece in unstripped or piece in vocabulary:
            piece = line
        if not piece or piece in vocabulary:
            raise ValueError(f"{file}:{index + 1}: {_fault(piece, vocabulary, unstripped)}.")
        vocabulary[piece] = index
    missing = [token for token in BERT.tokens if token not in vocabulary]
    if missing:
        raise ValueError(f"{file}: not BERT's vocabulary: it lacks {', '.join(missing)}.")
    return vocabulary


def _fault(line: str, vocabulary: Mapping[str, int], lines: Container[str]) -> str:
    expected = "Expected a different entry on every line"
    if line:
        return f"the line repeats line {vocabulary[line] + 1}. {expected}"
    unused = next(name for name in map("[unused{}]".format, count()) if name not in lines)
    return f"the line is empty. {expected}. Replace it with {unused} to keep the other ids"


def has_upper_case(vocabulary: Mapping[str, int]) -> bool:
    """Return whether any token contains an uppercase ASCII letter.

    Special and unused tokens are ignored.
    """
    return any(
        "A" <= character <= "Z"
        for token in vocabulary
        if token not in BERT.tokens and not UNUSED.fullmatch(token)
        for character in token
    )


BYTE_BPE_VOCABULARY_NAME = "vocab.json"
BYTE_BPE_MERGES_NAME = "merges.txt"
BYTE_BPE_SPACE = "Ġ"  # stands for a space byte in a vocabulary


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
    """Return whether a tokenizer, in tokenizer.json's format, puts a space before a text."""
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


SENTENCEPIECE_SPACE = "▁"  # stands for the space before a word in a vocabulary
SENTENCEPIECE_NAME = "spiece.model"
# ALBERT's release splits pieces such as "2,", even though they are in its vocabulary. This penalty
# makes them so unlikely that they are split here too.
_DIGIT_COMMA_PENALTY = 100.0


class _ModelType(IntEnum):
    """The supported values of `trainer_spec.model_type` in a model file."""

    UNIGRAM = 1
    BPE = 2


def albert_normalizer(*, lowercase: bool, keep_accents: bool, charsmap: bytes = b"") -> Any:
    """Return ALBERT's normalizer, followed by a SentencePiece model's character map.

    The normalizer unifies quotes, strips accents after NFKD, and lowercases letters. Source: Lan
    et al. 2020 and its released code.
    """
    steps: list[Any] = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    if not keep_accents:
        steps += [normalizers.NFKD(), normalizers.StripAccents()]
    if lowercase:
        steps.append(normalizers.Lowercase())
    if charsmap:
        steps.append(normalizers.Precompiled(charsmap))
    steps.append(normalizers.Replace(Regex(" {2,}"), " "))
    return normalizers.Sequence(steps)


def read_sentencepiece(file: Path, *, lowercase: bool, keep_accents: bool) -> Any:
    """Build a backend from a spiece.model.

    Raises:
      ValueError: the file is damaged, or is not an ALBERT vocabulary.
    """
    check_size(file)
    # The module creates its classes dynamically, so mypy cannot find them.
    proto = vars(sentencepiece_model_pb2)["ModelProto"]()
    try:
        proto.ParseFromString(file.read_bytes())
    except DecodeError as error:
        raise ValueError(f"{file}: not a SentencePiece model: {error}") from error
    model: Any
    pieces = [(piece.piece, piece.score) for piece in proto.pieces]
    ids = {piece: index for index, (piece, _) in enumerate(pieces)}
    missing = [token for token in ALBERT.tokens if token not in ids]
    if missing:
        raise ValueError(f"{file}: not ALBERT's vocabulary: it lacks {', '.join(missing)}.")
    if len(ids) < len(pieces):
        raise ValueError(f"{file}: a piece occurs twice. Expected every piece to occur once.")
    for piece, score in pieces:
        if not math.isfinite(score):
            raise ValueError(
                f"{file}: damaged: the piece {piece!r} has the score {score}. Download the file "
                "again."
            )
    match proto.trainer_spec.model_type:
        case _ModelType.UNIGRAM:
            scored = [(piece, _score(piece, score)) for piece, score in pieces]
            model = models.Unigram(scored, unk_id=ids[ALBERT.unk], byte_fallback=False)
        case _ModelType.BPE:
            rules = _merges(pieces, ids)
            model = models.BPE(ids, rules, unk_token=ALBERT.unk, fuse_unk=True)
        case other:
            raise ValueError(f"{file}: model_type={other}: expected 1 (unigram) or 2 (BPE).")
    backend = tokenizers.Tokenizer(model)
    backend.normalizer = albert_normalizer(
        lowercase=lowercase,
        keep_accents=keep_accents,
        charsmap=proto.normalizer_spec.precompiled_charsmap,
    )
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.WhitespaceSplit(),
            pre_tokenizers.Metaspace(replacement=SENTENCEPIECE_SPACE, prepend_scheme="always"),
        ]
    )
    backend.decoder = decoders.Metaspace(replacement=SENTENCEPIECE_SPACE, prepend_scheme="always")
    backend.post_processor = processors.TemplateProcessing(
        single=f"{ALBERT.cls}:0 $A:0 {ALBERT.sep}:0",
        pair=f"{ALBERT.cls}:0 $A:0 {ALBERT.sep}:0 $B:1 {ALBERT.sep}:1",
        special_tokens=[(token, ids[token]) for token in (ALBERT.cls, ALBERT.sep)],
    )
    return backend


def _score(piece: str, score: float) -> float:
    digit_comma = len(piece) >= 2 and piece[-1] == "," and piece[-2].isdigit()
    return score - _DIGIT_COMMA_PENALTY if digit_comma else score


def _merges(pieces: Sequence[tuple[str, float]], ids: dict[str, int]) -> list[tuple[str, str]]:
    """Return all pairs of pieces that make up another piece, with the most likely pairs first."""
    candidates = []
    for piece, score in pieces:
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in ids and right in ids:
                candidates.append((-score, ids[left], ids[right], left, right))
    return [(left, right) for *_, left, right in sorted(candidates)]
