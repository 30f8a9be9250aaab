"""Read ALBERT's spiece.model, and build its SentencePiece tokenizer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import IntEnum
from pathlib import Path
from typing import Any

import tokenizers
from google.protobuf.message import DecodeError
from sentencepiece import sentencepiece_model_pb2
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors

from bert_jax.tokenizers.special_tokens import ALBERT
from bert_jax.tokenizers.vocabulary_files import check_size

# In a vocabulary, this character stands for the space before a word.
SENTENCEPIECE_SPACE = "▁"
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
