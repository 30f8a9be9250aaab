"""manifest.json: what a prepared corpus directory holds. Its presence means it is finished."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert_jax.files import file_sha256, write_file
from bert_jax.json_files import expecting_fields, json_kind, read_json_object
from bert_jax.local_paths import check_local

MANIFEST = "manifest.json"
TOKENIZER = "tokenizer"  # the directory beside it that Tokenizer.save wrote
FORMAT_VERSION = 1


@dataclass(frozen=True)
class ShardInfo:
    """One ArrayRecord file: its name in the directory, records, size and SHA-256 in hex."""

    name: str
    num_records: int
    num_bytes: int
    sha256: str


@dataclass(frozen=True)
class SplitInfo:
    """One split of the corpus, train or held-out.

    Attributes:
        shards: in the order in which records are numbered.
        num_pieces: runs of one document's tokens in the records.
        num_documents: documents with at least one token.
        num_sentences: sentences with at least one token.
        num_tokens: tokens, special ones not counted.
        fill_rate: share of the records' positions taken when every piece is written as
            `[CLS] A [SEP] B [SEP]`; 0 for a split without records.
        num_unknown: tokens that are unknown to the tokenizer; None in older corpora, which did not
            record it.
    """

    shards: tuple[ShardInfo, ...]
    num_records: int
    num_pieces: int
    num_documents: int
    num_sentences: int
    num_tokens: int
    fill_rate: float
    num_unknown: int | None = None

    @property
    def unknown_share(self) -> float | None:
        """The share of unknown tokens; None if they were not counted."""
        return None if self.num_unknown is None else self.num_unknown / max(1, self.num_tokens)


@dataclass(frozen=True)
class Manifest:
    """What a corpus is, and where it came from.

    Attributes:
        max_length: positions of the sequence a record fills, special tokens included.
        max_pieces: the most pieces in a record.
        token_bytes: 2 or 4, size of a stored token id.
        tokenizer_files: name -> SHA-256 of the files in the tokenizer directory.
        options: the options of the preparation that decide its bytes.
        sources: the sources, in reading order: {"path", "num_bytes" on disk}, for a file also
            {"mtime_ns", "sha256"}, and {"split": "heldout"} if all of it is held out.
        duplicates_removed: documents left out because an earlier one has the same text.
        heldout_repeats: documents left out of training because one of an input that is held out
            whole has the same text, case and white space apart.
        empty_documents: documents left out because they hold no token.
        bad_lines_skipped: lines left out with on_bad_line="skip".
        empty_files_skipped: inputs in which there was no document, left out with the same.
        documents_split: documents longer than one is allowed to be, read as several.
    """

    max_length: int
    max_pieces: int
    token_bytes: int
    vocab_size: int
    tokenizer_fingerprint: str
    tokenizer_files: dict[str, str]
    lowercase: bool
    options: dict[str, Any]
    sources: tuple[dict[str, Any], ...]
    duplicates_removed: int
    empty_documents: int
    bad_lines_skipped: int
    documents_split: int
    train: SplitInfo
    heldout: SplitInfo
    empty_files_skipped: int = 0
    heldout_repeats: int = 0
    format_version: int = FORMAT_VERSION

    @property
    def fingerprint(self) -> str:
        """SHA-256 over what training sees: records and tokenizer, not where they came from."""
        content = dataclasses.asdict(self)
        history = ("options", "sources", "tokenizer_files")
        for name in (*history, "empty_files_skipped", "heldout_repeats"):
            del content[name]
        for split in ("train", "heldout"):  # so that older corpora keep their fingerprints
            del content[split]["num_unknown"]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def write_manifest(directory: str | os.PathLike[str], manifest: Manifest) -> None:
    """Write manifest.json under a temporary name, then rename it: the last act of preparation."""
    content = {"fingerprint": manifest.fingerprint, **dataclasses.asdict(manifest)}
    write_file(Path(directory, MANIFEST), json.dumps(content, indent=1) + "\n")


def read_manifest(directory: str | os.PathLike[str]) -> Manifest:
    """Read the manifest of a finished corpus.

    Raises:
        ValueError: there is none, preparation has not finished, or the file is damaged.
    """
    check_local(directory)
    path = Path(directory, MANIFEST)
    try:
        content = read_json_object(path)
    except (FileNotFoundError, NotADirectoryError):
        raise ValueError(_why_absent(path)) from None
    with expecting_fields(path):
        version = content["format_version"]
        if version != FORMAT_VERSION:
            raise ValueError(
                f"{path} has format version {version}, this bert_jax reads {FORMAT_VERSION}: "
                "prepare the corpus again"
            )
        fingerprint = content.pop("fingerprint")
        for split in ("train", "heldout"):
            shards = tuple(ShardInfo(**shard) for shard in content[split].pop("shards"))
            content[split] = SplitInfo(shards=shards, **content[split])
        content["sources"] = tuple(content["sources"])
        manifest = Manifest(**content)
        _check_history(manifest)
    if manifest.fingerprint != fingerprint:
        raise ValueError(
            f"{path} is damaged or was edited: its content has fingerprint "
            f"{manifest.fingerprint[:16]}, it says {str(fingerprint)[:16]}"
        )
    return manifest


def _check_history(manifest: Manifest) -> None:
    """Raise TypeError if a field that the fingerprint leaves out has a wrong type."""
    for name, value, kind in (
        ("options", manifest.options, dict),
        ("tokenizer_files", manifest.tokenizer_files, dict),
        *(("sources", source, dict) for source in manifest.sources),
        *(("tokenizer_files", sha256, str) for sha256 in manifest.tokenizer_files.values()),
        ("empty_files_skipped", manifest.empty_files_skipped, int),
        ("heldout_repeats", manifest.heldout_repeats, int),
    ):
        if type(value) is not kind:
            raise TypeError(f"{name} holds {json_kind(value)}")


def _why_absent(path: Path) -> str:
    if path.parent.is_file():
        return f"no corpus at {path.parent}: that is a file; `bert-jax prepare` makes one of text"
    if not path.parent.is_dir():
        return (
            f"no corpus at {path.parent}: there is no such directory; `bert-jax prepare` makes one"
        )
    if (path.parent / ".work").exists():
        return (
            f"the corpus at {path.parent} is not finished: run the same `bert-jax prepare` again, "
            "it continues from its finished shards"
        )
    return f"no corpus at {path.parent}: it has no {path.name}; `bert-jax prepare` makes one"


def verify_shards(
    directory: str | os.PathLike[str],
    manifest: Manifest,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Check every file of the corpus against its SHA-256.

    Args:
        progress: called after each file with (bytes checked, bytes in all).

    Raises:
        ValueError: a file is missing or differs; names every such file.
    """
    shards = (*manifest.train.shards, *manifest.heldout.shards)
    total = sum(shard.num_bytes for shard in shards)
    done = 0
    faults = [
        _fault(Path(directory, TOKENIZER, name), sha256)
        for name, sha256 in manifest.tokenizer_files.items()
    ]
    for shard in shards:
        faults.append(_fault(Path(directory, shard.name), shard.sha256))
        done += shard.num_bytes
        if progress is not None:
            progress(done, total)
    found = [fault for fault in faults if fault]
    if found:
        raise ValueError(
            f"{len(found)} of {len(faults)} files of the corpus differ from its manifest: "
            f"{'; '.join(found)}. Copy or prepare them again."
        )


def _fault(path: Path, sha256: str) -> str | None:
    if not path.is_file():
        return f"{path} is missing"
    return None if file_sha256(path) == sha256 else f"{path} is corrupt"
