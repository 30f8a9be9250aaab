"""Read and check the files of a vocabulary, in any format."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bert_jax import json_files

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
      vocabulary: a dict from token to id.
      merges: the pairs of pieces.
      prefix: the prefix of pieces that continue a word, such as "##".

    Raises:
      ValueError: a piece is missing. The message gives the merge.
    """
    for left, right in merges:
        for piece in (left, right, left + right.removeprefix(prefix)):
            if piece not in vocabulary:
                raise ValueError(
                    f"the merge of {left!r} and {right!r} needs {piece!r}, which is not in the "
                    "vocabulary. Use merges and a vocabulary from the same release."
                )
