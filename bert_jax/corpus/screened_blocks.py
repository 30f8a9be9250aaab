"""Screen blocks of documents: filter them, and compute their signatures."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from bert_jax.corpus.document_stream import KeptDocument
from bert_jax.files import temporary_beside, write_file, writing
from bert_jax.filtering.document_filter import check_document, clean_document
from bert_jax.filtering.exact_similarity import pack_shingles
from bert_jax.filtering.minhash import SHINGLE_WORDS, MinHash
from bert_jax.filtering.options import FilterOptions
from bert_jax.filtering.words import Hashes, all_shingles
from bert_jax.json_files import parse_json
from bert_jax.text.files import is_hub, is_tfds

BLOCK_BYTES = 4 << 20
_BEGINNING = 300  # This many characters of each document are kept for reports.


@dataclass(frozen=True)
class DocumentBlock:
    """Consecutive documents that are screened together.

    Attributes:
      number: the block's number, counted from 0.
      texts: the documents' texts in UTF-8.
      sources: where the documents come from.
      filtered: whether the documents may be filtered; documents from held-out inputs must not be.
      digest: a digest of everything that determines the result.
    """

    number: int
    texts: list[bytes]
    sources: list[str]
    filtered: list[bool]
    digest: str


@dataclass(frozen=True)
class ScreenedBlock:
    """The result of screening a block, apart from the signatures and the texts for reports.

    Attributes:
      digest: the digest of the block.
      sources: where the documents come from.
      findings: a list of (number of the document in the block, rule, detail).
    """

    digest: str
    sources: list[str]
    findings: list[tuple[int, str, str]]


@dataclass(frozen=True)
class BlockScreener:
    """The settings with which workers screen blocks.

    Attributes:
      options: the options.
      evaluation: the sorted hashes of the evaluation data's n-grams, if there are any.
      directory: the directory for the results.
    """

    options: FilterOptions
    evaluation: Hashes | None
    directory: Path

    @property
    def fingerprint(self) -> bytes:
        """A digest of the settings that determine the result for a document."""
        settings = json.dumps(self.options.as_json(), sort_keys=True).encode()
        evaluation = b"" if self.evaluation is None else self.evaluation.tobytes()
        return hashlib.blake2b(settings + evaluation, digest_size=16).digest()

    def has(self, number: int, digest: str) -> bool:
        """Return whether the result for a block with this number and digest is finished."""
        result = read_block(self.directory, number)
        if result is None or result.digest != digest:
            return False
        needed = []
        if self.options.near_duplicates is not None:
            needed.append(signatures_path(self.directory, number))
        if self.options.verify_near_duplicates:
            needed.append(shingles_path(self.directory, number))
        return all(path.is_file() for path in needed)

    def screen(self, block: DocumentBlock) -> ScreenedBlock:
        """Screen a block and write the result.

        The JSON Lines file, which marks the block as finished, is written last.

        Raises:
          NotWritten: a file cannot be written.
        """
        existing = read_block(self.directory, block.number)
        if existing is not None and existing.digest != block.digest:
            result_path(self.directory, block.number).unlink(missing_ok=True)
        texts = [text.decode("utf-8") for text in block.texts]
        findings = []
        for number, text in enumerate(texts):
            if not block.filtered[number]:
                continue
            texts[number] = cleaned = clean_document(text, self.options)
            if finding := check_document(cleaned, self.options, self.evaluation):
                findings.append((number, finding.rule, finding.detail))
        shown = {number for number, _, _ in findings}
        if self.options.near_duplicates is not None:
            removed = {number for number, rule, _ in findings if self.options.removes(rule)}
            compared = ["" if number in removed else text for number, text in enumerate(texts)]
            hashes, counts = all_shingles(compared, SHINGLE_WORDS)
            signatures = MinHash(self.options.near_duplicates).sign_shingles(hashes, counts)
            _save(signatures_path(self.directory, block.number), signatures)
            if self.options.verify_near_duplicates:
                _save(shingles_path(self.directory, block.number), pack_shingles(hashes, counts))
            shown.update(range(len(texts)))
        result = ScreenedBlock(block.digest, block.sources, findings)
        beginnings = [
            text[:_BEGINNING] if number in shown else "" for number, text in enumerate(texts)
        ]
        write_block(self.directory, block.number, result, beginnings)
        return result


def write_block(
    directory: Path, number: int, result: ScreenedBlock, beginnings: Sequence[str]
) -> None:
    """Write the result for a block; see `read_block` and `read_beginnings`.

    Args:
      directory: the directory for the results.
      number: the block's number.
      result: the result.
      beginnings: the beginning of each document that reports may show; "" for all other documents.

    Raises:
      NotWritten: the file cannot be written.
    """
    lines = (json.dumps(value) + "\n" for value in (asdict(result), beginnings))
    write_file(result_path(directory, number), "".join(lines))


def result_path(directory: Path, number: int) -> Path:
    """Return the path of a block's result."""
    return directory / f"block-{number:06d}.jsonl"


def block_files(number: int) -> list[str]:
    """Return the names of the files of a block; the first one marks the block as finished.

    The other files exist only if near-duplicates are compared.
    """
    paths = (path(Path(), number) for path in (result_path, signatures_path, shingles_path))
    return [path.name for path in paths]


def signatures_path(directory: Path, number: int) -> Path:
    """Return the path of a block's signatures."""
    return directory / f"block-{number:06d}.npy"


def shingles_path(directory: Path, number: int) -> Path:
    """Return the path of the shingles of a block's documents."""
    return directory / f"shingles-{number:06d}.npy"


def read_block(directory: Path, number: int) -> ScreenedBlock | None:
    """Return the result for a block, or None if it is missing or damaged."""
    try:
        with open(result_path(directory, number), encoding="utf-8") as file:
            return ScreenedBlock(**parse_json(file.readline()))
    except (OSError, ValueError, TypeError):
        return None


def finished_block(directory: Path, number: int) -> ScreenedBlock:
    """Return the result for a block that must be finished."""
    block = read_block(directory, number)
    assert block is not None, f"block {number} is not finished"
    return block


def read_beginnings(directory: Path, number: int) -> list[str]:
    """Return the beginnings of the documents in a screened block; see `write_block`."""
    with open(result_path(directory, number), encoding="utf-8") as file:
        file.readline()
        beginnings: list[str] = parse_json(file.readline())
        return beginnings


def group_documents(
    documents: Iterable[tuple[KeptDocument, bool]], fingerprint: bytes
) -> Iterator[DocumentBlock]:
    """Group pairs of (document, whether it may be filtered) into blocks of about 4 MiB of text."""
    number, size = 0, 0
    group: list[tuple[KeptDocument, bool]] = []
    for document, filtered in documents:
        group.append((document, filtered))
        size += len(document.text)
        if size >= BLOCK_BYTES:
            yield _block(number, group, fingerprint)
            number, size, group = number + 1, 0, []
    if group:
        yield _block(number, group, fingerprint)


def permanent_source(source: str) -> str:
    """Return where a document comes from, with an absolute path, as in the manifest."""
    is_name = is_tfds(source) or is_hub(source) or "://" in source
    return source if is_name else os.path.abspath(source)


def _block(
    number: int, group: Sequence[tuple[KeptDocument, bool]], fingerprint: bytes
) -> DocumentBlock:
    digest = hashlib.blake2b(fingerprint, digest_size=16)
    for document, filtered in group:
        digest.update(document.digest + bytes([filtered]))
    return DocumentBlock(
        number,
        [document.text for document, _ in group],
        [permanent_source(document.source) for document, _ in group],
        [filtered for _, filtered in group],
        digest.hexdigest(),
    )


def _save(path: Path, array: np.ndarray) -> None:
    with writing(path), temporary_beside(path) as temporary:
        with open(temporary, "wb") as file:
            np.save(file, array)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
