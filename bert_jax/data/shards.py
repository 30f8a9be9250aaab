"""A unit of documents -> one finished shard file and a small result beside it."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from array_record.python.array_record_module import ArrayRecordWriter

from bert_jax.data.document_tokens import Encoder, tokenize_document
from bert_jax.data.manifest import ShardInfo, SplitInfo
from bert_jax.data.packing import TokenizedDocument, fill_rate, pack_documents
from bert_jax.data.records import encode_record, token_dtype
from bert_jax.data.units import Unit
from bert_jax.files import NotWritten, file_sha256, full_disk, write_file, writing
from bert_jax.json_files import read_json_object
from bert_jax.temporary import temporary_beside

# One record a chunk, not compressed: what random reads by index are fastest on.
_WRITER_OPTIONS = "group_size:1,uncompressed"


@dataclass(frozen=True)
class ShardSettings:
    """The settings, apart from the tokenizer, that determine a shard's bytes.

    unknown_id: the id of the unknown token, which is counted.
    """

    max_length: int
    max_pieces: int
    token_bytes: int
    language: str
    unknown_id: int


@dataclass(frozen=True)
class UnitResult:
    """Counts of one unit, and its shard. `unit_digest` is the digest of its source.

    num_unknown: the number of unknown tokens; None in older results, which did not record it.
    """

    unit_digest: str
    num_text_bytes: int
    num_documents: int
    num_empty_documents: int
    num_pieces: int
    num_sentences: int
    num_tokens: int
    shard: ShardInfo
    num_unknown: int | None = None


def shard_path(directory: Path, name: str) -> Path:
    """Where a unit's shard lies while the corpus is being prepared."""
    return directory / f"{name}.arrayrecord"


def write_records(path: Path, blobs: Sequence[bytes]) -> ShardInfo:
    """Write records to a shard that is there whole or not at all, also after a power cut.

    Raises:
        NotWritten: it cannot be written.
    """
    with writing(path), temporary_beside(path) as temporary:
        try:
            writer = ArrayRecordWriter(str(temporary), _WRITER_OPTIONS)
            for blob in blobs:
                writer.write(blob)
            writer.close()
        except RuntimeError as error:  # all that ArrayRecord raises, a full disk included
            raise NotWritten(path, full_disk(error) or str(error)) from error
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        info = ShardInfo(path.name, len(blobs), temporary.stat().st_size, file_sha256(temporary))
        os.replace(temporary, path)
    return info


def write_shard(
    unit: Unit, encoder: Encoder, settings: ShardSettings, directory: Path
) -> UnitResult:
    """Tokenise, pack and write a unit; its result is written last, so what has one is whole.

    Raises:
        OSError: the shard cannot be written.
    """
    documents = _tokenize(unit, encoder, settings)
    filled = [document for document in documents if len(document.token_ids)]
    records = pack_documents(filled, settings.max_length, settings.max_pieces)
    path = shard_path(directory, unit.name)
    shard = write_records(path, [encode_record(each, settings.token_bytes) for each in records])
    result = UnitResult(
        unit_digest=unit.digest,
        num_text_bytes=unit.num_bytes,
        num_documents=len(filled),
        num_empty_documents=len(documents) - len(filled),
        num_pieces=sum(map(len, records)),
        num_sentences=sum(len(document.sentence_starts) for document in filled),
        num_tokens=sum(len(document.token_ids) for document in filled),
        shard=shard,
        num_unknown=sum(
            int(np.count_nonzero(document.token_ids == settings.unknown_id)) for document in filled
        ),
    )
    write_file(path.with_suffix(".json"), json.dumps(dataclasses.asdict(result)))
    return result


def read_result(directory: Path, name: str) -> UnitResult | None:
    """The result of a unit whose shard is here and undamaged; None if it must be made again."""
    path = shard_path(directory, name)
    try:
        content = read_json_object(path.with_suffix(".json"))
        result = UnitResult(**{**content, "shard": ShardInfo(**content["shard"])})
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if not path.is_file() or file_sha256(path) != result.shard.sha256:
        return None
    return result


def split_info(results: Sequence[UnitResult], max_length: int) -> SplitInfo:
    """Return the manifest entry of a split made of these units, in their order."""
    records = sum(result.shard.num_records for result in results)
    pieces = sum(result.num_pieces for result in results)
    tokens = sum(result.num_tokens for result in results)
    unknown = [result.num_unknown for result in results]
    counted = [number for number in unknown if number is not None]
    return SplitInfo(
        shards=tuple(result.shard for result in results if result.shard.num_records),
        num_records=records,
        num_pieces=pieces,
        num_documents=sum(result.num_documents for result in results),
        num_sentences=sum(result.num_sentences for result in results),
        num_tokens=tokens,
        fill_rate=fill_rate(tokens, pieces, records, max_length),
        num_unknown=sum(counted) if len(counted) == len(unknown) else None,
    )


def _tokenize(unit: Unit, encoder: Encoder, settings: ShardSettings) -> list[TokenizedDocument]:
    dtype = token_dtype(settings.token_bytes)
    documents = []
    for document_id, data in zip(unit.document_ids, unit.texts, strict=True):
        text = data.decode("utf-8")
        try:
            tokens = tokenize_document(text, encoder, settings.language, dtype)
        except BaseException as error:  # a panic in a library's Rust is no Exception
            error.add_note(f"in the document that begins {text[:80]!r}")
            raise
        documents.append(TokenizedDocument(document_id, *tokens))
    return documents
