"""Read and write manifest.json, which describes a corpus directory and marks it as finished."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert_jax.files import write_file
from bert_jax.json_files import expecting_fields, json_kind, read_json_object
from bert_jax.storage.cache import local_file
from bert_jax.storage.errors import MissingObjectError, naming_url
from bert_jax.storage.locations import sha256_of
from bert_jax.storage.objects import find, has_objects
from bert_jax.storage.urls import Location, ObjectUrl, parse_location

MANIFEST = "manifest.json"
TOKENIZER = "tokenizer"  # `Tokenizer.save` writes this subdirectory.
FORMAT_VERSION = 1
# Format version 1 calls fragments "pieces".
_JSON_NAMES = {"max_fragments": "max_pieces", "num_fragments": "num_pieces"}
_FIELD_NAMES = {json_name: field for field, json_name in _JSON_NAMES.items()}


def json_fields(fields: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Build a dict keyed by JSON field names, as the `dict_factory` for `dataclasses.asdict`."""
    return {_JSON_NAMES.get(name, name): value for name, value in fields}


def field_values(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a JSON object, keyed by the names of the dataclass fields."""
    return {_FIELD_NAMES.get(name, name): value for name, value in content.items()}


@dataclass(frozen=True)
class ShardInfo:
    """An ArrayRecord file.

    Attributes:
      name: the file's name in the corpus directory.
      num_records: the number of records in the file.
      num_bytes: the file's size in bytes.
      sha256: the file's SHA-256 in hex.
    """

    name: str
    num_records: int
    num_bytes: int
    sha256: str


@dataclass(frozen=True)
class SplitInfo:
    """One split of a corpus, either training or held-out.

    Attributes:
      shards: the shards, in the order of their record numbers.
      num_records: the number of records.
      num_fragments: the number of fragments in the records.
      num_documents: the number of documents with at least one token.
      num_sentences: the number of sentences with at least one token.
      num_tokens: the number of tokens, excluding special tokens.
      fill_rate: the fraction of the records' positions that are used if every fragment is written
        as `[CLS] A [SEP] B [SEP]`; 0 if there are no records.
      num_unknown: the number of unknown tokens; None for older corpora, in which they were not
        counted.
    """

    shards: tuple[ShardInfo, ...]
    num_records: int
    num_fragments: int
    num_documents: int
    num_sentences: int
    num_tokens: int
    fill_rate: float
    num_unknown: int | None = None

    @property
    def unknown_share(self) -> float | None:
        """The fraction of tokens that are unknown, or None if unknown tokens were not counted."""
        return None if self.num_unknown is None else self.num_unknown / max(1, self.num_tokens)


@dataclass(frozen=True)
class Manifest:
    """A description of a corpus and its sources.

    Attributes:
      max_length: the length of a training sequence, including special tokens.
      max_fragments: the maximum number of fragments in a record.
      token_bytes: the size of a stored token id, 2 or 4.
      vocab_size: the largest token id plus one.
      tokenizer_fingerprint: the tokenizer's fingerprint.
      tokenizer_files: a dict from the name of each file in the tokenizer directory to its SHA-256.
      lowercase: whether the tokenizer lowercases text.
      options: the preparation options that determine the corpus's bytes.
      sources: the sources in reading order. Each has the keys "path" and "num_bytes" (on disk). A
        file also has "mtime_ns" and "sha256", and a source that is held out completely has
        "split": "heldout".
      duplicates_removed: the number of documents removed because an earlier one has the same text.
      empty_documents: the number of documents removed because they have no tokens.
      bad_lines_skipped: the number of lines skipped with on_bad_line="skip".
      documents_split: the number of documents that exceeded the size limit and were split.
      train: the training split.
      heldout: the held-out split.
      empty_files_skipped: the number of inputs without any documents, skipped with
        on_bad_line="skip".
      heldout_repeats: the number of documents removed from training because a document in a
        held-out input has the same text, ignoring case and white space.
      filters: the number of documents that were left out by each filter or as near-duplicates, as
        in `FilterSummary`. The key "files" contains the SHA-256 of each file that describes these
        documents. None if only exact duplicates were left out.
      format_version: the version of the corpus format.
    """

    max_length: int
    max_fragments: int
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
    filters: dict[str, Any] | None = None
    format_version: int = FORMAT_VERSION

    @property
    def filter_files(self) -> dict[str, str]:
        """The SHA-256 of each file about documents that were left out, keyed by name."""
        return {} if self.filters is None else self.filters["files"]

    @property
    def fingerprint(self) -> str:
        """The hexadecimal SHA-256 of everything that affects training, except the sources."""
        content = dataclasses.asdict(self, dict_factory=json_fields)
        history = ("options", "sources", "tokenizer_files")
        for name in (*history, "empty_files_skipped", "heldout_repeats", "filters"):
            del content[name]
        # The fingerprints of older corpora do not include these counts.
        for split in ("train", "heldout"):
            del content[split]["num_unknown"]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def write_manifest(directory: str | os.PathLike[str], manifest: Manifest) -> None:
    """Write manifest.json atomically, as the last step of a preparation."""
    write_file(Path(directory, MANIFEST), manifest_text(manifest))


def manifest_text(manifest: Manifest) -> str:
    """Return the content of manifest.json."""
    fields = dataclasses.asdict(manifest, dict_factory=json_fields)
    if manifest.filters is None:  # Manifests without filters do not have this key.
        del fields["filters"]
    content = {"fingerprint": manifest.fingerprint, **fields}
    return json.dumps(content, indent=1) + "\n"


def read_manifest(directory: str | os.PathLike[str]) -> Manifest:
    """Read the manifest of a finished corpus.

    Raises:
      ValueError: there is no manifest, the preparation is not finished, or the file is damaged.
    """
    location = parse_location(directory)
    if isinstance(location, ObjectUrl):
        try:
            copy = local_file(location / MANIFEST)
        except MissingObjectError:
            raise ValueError(_missing_from_bucket(location)) from None
        with naming_url(copy, location / MANIFEST):
            return _read(copy)
    path = location / MANIFEST
    try:
        return _read(path)
    except (FileNotFoundError, NotADirectoryError):
        raise ValueError(_missing_message(path)) from None


def _read(path: Path) -> Manifest:
    content = read_json_object(path)
    with expecting_fields(path):
        version = content["format_version"]
        if version != FORMAT_VERSION:
            raise ValueError(
                f"{path}: format_version={version}: this version of bert_jax expects "
                f"{FORMAT_VERSION}. Prepare the corpus again."
            )
        fingerprint = content.pop("fingerprint")
        for split in ("train", "heldout"):
            shards = tuple(ShardInfo(**shard) for shard in content[split].pop("shards"))
            content[split] = SplitInfo(shards=shards, **field_values(content[split]))
        content["sources"] = tuple(content["sources"])
        manifest = Manifest(**field_values(content))
        _check_history(manifest)
    if manifest.fingerprint != fingerprint:
        raise ValueError(
            f"{path}: damaged or edited: its content has the fingerprint "
            f"{manifest.fingerprint[:16]} instead of {str(fingerprint)[:16]}. Prepare the corpus "
            "again."
        )
    return manifest


def _check_history(manifest: Manifest) -> None:
    """Raise TypeError if a field that is not part of the fingerprint has the wrong type."""
    for name, value, kind in (
        ("options", manifest.options, dict),
        ("tokenizer_files", manifest.tokenizer_files, dict),
        *(("sources", source, dict) for source in manifest.sources),
        *(("tokenizer_files", sha256, str) for sha256 in manifest.tokenizer_files.values()),
        ("empty_files_skipped", manifest.empty_files_skipped, int),
        ("heldout_repeats", manifest.heldout_repeats, int),
    ):
        if type(value) is not kind:
            raise TypeError(f"{name} contains {json_kind(value)}")


def _missing_message(path: Path) -> str:
    directory = path.parent
    if (directory / ".work").exists():
        return (
            f"{directory}: this corpus is not finished. Run the same `bert-jax prepare` again to "
            "continue from the finished shards."
        )
    if directory.is_file():
        problem = "this is a file, not a corpus"
    elif not directory.is_dir():
        problem = "this corpus does not exist"
    else:
        problem = f"this is not a corpus, since it has no {path.name}"
    return f"{directory}: {problem}. Prepare a corpus with `bert-jax prepare`."


def _missing_from_bucket(url: ObjectUrl) -> str:
    if has_objects(url / ".work"):
        problem = "this corpus is not finished. Run the same `bert-jax prepare` again to continue"
        return f"{url}: {problem} from the finished shards."
    missing = (
        f"the bucket contains no {MANIFEST} there" if has_objects(url) else "it does not exist"
    )
    return (
        f"{url}: this is not a corpus, since {missing}. Prepare a corpus with `bert-jax prepare`."
    )


def verify_shards(
    directory: str | os.PathLike[str],
    manifest: Manifest,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Check every file in a corpus against its SHA-256 in the manifest.

    Args:
      directory: the corpus directory.
      manifest: the corpus's manifest.
      progress: called after each shard with the number of bytes checked and the total.

    Raises:
      ValueError: a file is missing or differs. The message names all such files.
    """
    location = parse_location(directory)
    shards = (*manifest.train.shards, *manifest.heldout.shards)
    total = sum(shard.num_bytes for shard in shards)
    done = 0
    faults = [
        _fault(location / TOKENIZER / name, sha256)
        for name, sha256 in manifest.tokenizer_files.items()
    ]
    faults += [_fault(location / name, sha256) for name, sha256 in manifest.filter_files.items()]
    for shard in shards:
        faults.append(_fault(location / shard.name, shard.sha256))
        done += shard.num_bytes
        if progress is not None:
            progress(done, total)
    present = [fault for fault in faults if fault]
    if present:
        raise ValueError(
            f"{directory}: {len(present)} of {len(faults)} files differ from the manifest: "
            f"{'; '.join(present)}. Copy or prepare them again."
        )


def _fault(path: Location, sha256: str) -> str | None:
    exists = find(path) is not None if isinstance(path, ObjectUrl) else path.is_file()
    if not exists:
        return f"{path} is missing"
    return None if sha256_of(path) == sha256 else f"{path} is corrupt"
