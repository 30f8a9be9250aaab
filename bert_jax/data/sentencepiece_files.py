"""SentencePiece models as ALBERT's release keeps them: spiece.model."""

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

from bert_jax.data.special_tokens import ALBERT
from bert_jax.data.vocabulary_checks import check_size

SPACE = "▁"  # how the space in front of a word is written in a vocabulary
MODEL_NAME = "spiece.model"
# ALBERT's release takes "2," apart, which its vocabulary has as one piece: as unlikely as this.
_DIGIT_COMMA_PENALTY = 100.0


class TrainedAs(IntEnum):
    """`trainer_spec.model_type` of a model file, the types that are understood."""

    UNIGRAM = 1
    BPE = 2


def albert_normalizer(*, lowercase: bool, keep_accents: bool, charsmap: bytes = b"") -> Any:
    """What ALBERT's release does to text, and then the map of characters a model was learned with.

    Source: Lan et al. 2020, and its released code: quotes, NFKD without accents, lower case.
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
    """The backend of a spiece.model; ValueError if it is damaged or not of ALBERT's kind."""
    check_size(file)
    # The module makes its classes when it is imported.
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
        raise ValueError(f"{file}: not ALBERT's vocabulary: it lacks {', '.join(missing)}")
    if len(ids) < len(pieces):
        raise ValueError(f"{file}: a piece stands in it twice")
    for piece, score in pieces:
        if not math.isfinite(score):
            raise ValueError(
                f"{file}: damaged: the piece {piece!r} has the score {score}. Fetch the file again"
            )
    match proto.trainer_spec.model_type:
        case TrainedAs.UNIGRAM:
            scored = [(piece, _score(piece, score)) for piece, score in pieces]
            model = models.Unigram(scored, unk_id=ids[ALBERT.unk], byte_fallback=False)
        case TrainedAs.BPE:
            rules = _merges(pieces, ids)
            model = models.BPE(ids, rules, unk_token=ALBERT.unk, fuse_unk=True)
        case other:
            raise ValueError(f"{file}: a model of type {other}; expected 1 (unigram) or 2 (BPE)")
    backend = tokenizers.Tokenizer(model)
    backend.normalizer = albert_normalizer(
        lowercase=lowercase,
        keep_accents=keep_accents,
        charsmap=proto.normalizer_spec.precompiled_charsmap,
    )
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.WhitespaceSplit(),
            pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme="always"),
        ]
    )
    backend.decoder = decoders.Metaspace(replacement=SPACE, prepend_scheme="always")
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
    """Every way to put a piece together of two others, the likeliest piece first."""
    found = []
    for piece, score in pieces:
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in ids and right in ids:
                found.append((-score, ids[left], ids[right], left, right))
    return [(left, right) for *_, left, right in sorted(found)]
