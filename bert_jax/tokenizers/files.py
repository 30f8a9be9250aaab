"""Read and write tokenizer files for every kind of vocabulary in the BERT family."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tokenizers

from bert_jax.files import CHECKSUMS_NAME, check_checksums, write_file
from bert_jax.json_files import read_json_object
from bert_jax.local_paths import check_local, make_directory
from bert_jax.storage.cache import local_tree
from bert_jax.storage.errors import MissingObjectError, naming_url
from bert_jax.storage.objects import find
from bert_jax.storage.urls import ObjectUrl
from bert_jax.tokenizers import byte_bpe_files, sentencepiece_files
from bert_jax.tokenizers.components import lowercases, strips_accents, with_layout
from bert_jax.tokenizers.special_tokens import BERT, SpecialTokens, special_tokens_of
from bert_jax.tokenizers.tokenizer_json import kind_of, override_normalizer, read_tokenizer_json
from bert_jax.tokenizers.wordpiece_files import (
    CONTINUATION,
    MAX_WORD_CHARACTERS,
    has_upper_case,
    read_vocabulary,
    wordpiece_backend,
)

# The subdirectory that contains the tokenizer of a work directory or a corpus.
NESTED_NAME = "tokenizer"
# The first of these files that exists is read.
FILE_NAMES = (
    "tokenizer.json",
    "vocab.txt",
    sentencepiece_files.SENTENCEPIECE_NAME,
    byte_bpe_files.BYTE_BPE_VOCABULARY_NAME,
)
# The tokenizer classes in transformers that split text the way this package does (with "Tokenizer"
# or "TokenizerFast" removed from their names). The tokenizer files themselves do not record how
# text is split.
_CLASSES = {
    "vocab.txt": ("Bert", "DistilBert", "Electra", "MobileBert", "ConvBert", "SqueezeBert"),
    sentencepiece_files.SENTENCEPIECE_NAME: ("Albert",),
    byte_bpe_files.BYTE_BPE_VOCABULARY_NAME: ("Roberta", "Longformer", "Bart"),
}
# The name of the model file in the first releases of XLM-RoBERTa and CamemBERT.
_FAIRSEQ_MODEL = "sentencepiece.bpe.model"
# The keys in tokenizer_config.json that have Boolean values. A value of null means the default.
_BOOLEAN_KEYS = (
    *("do_lower_case", "strip_accents", "tokenize_chinese_chars"),
    *("keep_accents", "add_prefix_space"),
)
# Checksums are verified only for these files, since the directory may also contain a model.
_CHECKSUMMED_FILES = (
    *FILE_NAMES,
    byte_bpe_files.BYTE_BPE_MERGES_NAME,
    "tokenizer_config.json",
    "special_tokens_map.json",
)
_GENERIC_CLASSES = ("PreTrained", "TokenizersBackend")
_EXPECTED_FILES = (
    f"{', '.join(FILE_NAMES[:-1])} or {FILE_NAMES[-1]} with {byte_bpe_files.BYTE_BPE_MERGES_NAME}"
)


def read_backend(path: Path, lowercase: bool | None) -> Any:
    """Read a tokenizer from a file or a directory.

    In a directory, tokenizer.json takes precedence over other files. `lowercase` sets whether text
    is lowercased and defaults to `do_lower_case` in tokenizer_config.json in the same directory. If
    neither is set, the default depends on the file. A tokenizer.json keeps its own setting. A
    vocab.txt is treated as uncased if no token contains an uppercase ASCII letter. A spiece.model
    is treated as uncased, like ALBERT's. Byte-level BPE is always cased.

    Raises:
      ValueError: a file is missing, damaged or unsupported, or conflicts with `lowercase`.
    """
    check_local(path)
    file = _tokenizer_file(path)
    check_checksums(file.parent, _CHECKSUMMED_FILES)
    config = _read_config(file.parent)
    _check_class(file, config)
    requested = lowercase
    lowercase = config.get("do_lower_case") if lowercase is None else lowercase
    if file.name == byte_bpe_files.BYTE_BPE_VOCABULARY_NAME:
        if lowercase:
            raise ValueError(
                f"{file}: byte-level BPE is always cased. Do not set lowercase or do_lower_case."
            )
        prefix_space = bool(config.get("add_prefix_space", False))
        backend = byte_bpe_files.read_byte_bpe(file, add_prefix_space=prefix_space)
    elif file.suffix == ".json":
        backend = read_tokenizer_json(file, config)
        override_normalizer(backend, file, config, requested)
    elif file.suffix == ".model":
        keep_accents = config.get("keep_accents", False)
        backend = sentencepiece_files.read_sentencepiece(
            file, lowercase=lowercase is not False, keep_accents=keep_accents
        )
    else:
        vocabulary = read_vocabulary(file)
        backend = wordpiece_backend(
            vocabulary,
            lowercase=not has_upper_case(vocabulary) if lowercase is None else lowercase,
            strip_accents=config.get("strip_accents"),
            separate_cjk=config.get("tokenize_chinese_chars", True),
        )
    add_special_tokens(backend)
    return backend


@contextmanager
def tokenizer_copy(url: ObjectUrl) -> Iterator[Path]:
    """Yield a local copy of a tokenizer's files in a bucket; error messages contain the URL.

    Args:
      url: the URL of a file or a directory, as for `read_backend`.

    Raises:
      ValueError: there is no such object, or the body of the `with` statement raises a ValueError.
    """
    file = bool(url.key) and find(url) is not None
    wanted = {*_CHECKSUMMED_FILES, _FAIRSEQ_MODEL, CHECKSUMS_NAME}
    if file:
        wanted.add(url.name)

    def is_wanted(name: str) -> bool:
        return name in wanted or (not file and name.removeprefix(f"{NESTED_NAME}/") in wanted)

    directory = url.parent if file else url
    try:
        copy = local_tree(directory, is_wanted)
    except MissingObjectError:
        raise ValueError(
            f"{url}: contains no tokenizer. Expected it to contain a {_EXPECTED_FILES}."
        ) from None
    with naming_url(copy, directory):
        yield copy / url.name if file else copy


def add_special_tokens(backend: Any) -> None:
    """Mark the special tokens in a backend's vocabulary as special."""
    specials = special_tokens_of(backend.get_vocab(with_added_tokens=True))
    assert specials is not None
    tokens: list[Any] = list(specials.tokens)
    if specials is not BERT:
        # The mask token includes the preceding space, which belongs to the word that it replaces.
        tokens[-1] = tokenizers.AddedToken(specials.mask, lstrip=True, special=True)
    backend.add_special_tokens(tokens)


def write_backend(backend: Any, directory: Path, *, segments: bool) -> None:
    """Save a backend so that this package and `transformers.AutoTokenizer` can load it.

    Each file is written atomically. The files that describe how to read the vocabulary are written
    before the vocabulary itself.

    Args:
      backend: a `tokenizers.Tokenizer`.
      directory: the output directory, which is created if it does not exist.
      segments: whether the second text of a pair must have segment id 1.
    """
    state = json.loads(backend.to_str())
    vocabulary = backend.get_vocab(with_added_tokens=True)
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    specials = special_tokens_of(vocabulary)
    assert specials is not None
    # transformers uses only the vocabulary and these settings to rebuild a BertTokenizer.
    contiguous = [vocabulary[t] for t in tokens] == list(range(len(tokens)))
    is_bert = _is_bert(state, specials) and contiguous and "\n" not in "".join(tokens)
    config: dict[str, object] = dict(specials.named)
    config["tokenizer_class"] = "BertTokenizer" if is_bert else "PreTrainedTokenizerFast"
    if is_bert:
        normalizer = state["normalizer"]
        config["do_lower_case"] = normalizer["lowercase"]
        config["strip_accents"] = normalizer["strip_accents"]
        config["tokenize_chinese_chars"] = normalizer["handle_chinese_chars"]
    elif kind_of(state) == "byte_bpe":
        config["add_prefix_space"] = byte_bpe_files.adds_prefix_space(state)
    elif kind_of(state) == "sentencepiece":
        # A spiece.model itself does not contain these settings.
        config["do_lower_case"] = lowercases(state["normalizer"])
        config["keep_accents"] = not strips_accents(state["normalizer"])
    files = {
        "tokenizer_config.json": json.dumps(config, indent=2) + "\n",
        "special_tokens_map.json": json.dumps(specials.named, indent=2) + "\n",
    }
    if is_bert:
        files["vocab.txt"] = "".join(token + "\n" for token in tokens)
    elif kind_of(state) == "byte_bpe":
        files |= byte_bpe_files.write_byte_bpe(state["model"])
    make_directory(directory)
    for name, content in files.items():
        write_file(directory / name, content)
    kind = kind_of(state)
    assert kind is not None
    complete = with_layout(backend, specials, kind, segments=segments)
    write_file(directory / "tokenizer.json", complete.to_str(pretty=True))


def _is_bert(state: Mapping[str, Any], specials: SpecialTokens) -> bool:
    normalizer = state["normalizer"] or {}
    return (
        normalizer.get("type") == "BertNormalizer"
        and normalizer["clean_text"]
        and state["pre_tokenizer"] == {"type": "BertPreTokenizer"}
        and state["model"]["type"] == "WordPiece"
        and state["model"]["continuing_subword_prefix"] == CONTINUATION
        and state["model"]["max_input_chars_per_word"] == MAX_WORD_CHARACTERS
        and specials is BERT
        and len(state["added_tokens"]) == len(BERT.tokens)
    )


def has_tokenizer(directory: Path) -> bool:
    """Return whether a directory contains a file that `read_backend` can read."""
    return any((directory / name).is_file() for name in FILE_NAMES)


def _tokenizer_file(path: Path) -> Path:
    if path.is_dir():
        for name in FILE_NAMES:
            if (path / name).is_file():
                return path / name
        if (path / _FAIRSEQ_MODEL).is_file():
            raise ValueError(
                f"{path / _FAIRSEQ_MODEL}: this file's ids differ from the model's, because "
                "fairseq shifted them. Load it with transformers.AutoTokenizer and call "
                "save_pretrained, which writes a tokenizer.json."
            )
        if has_tokenizer(path / NESTED_NAME):
            return _tokenizer_file(path / NESTED_NAME)
        raise ValueError(
            f"{path}: contains no tokenizer. Expected it to contain a {_EXPECTED_FILES}."
        )
    if not path.is_file():
        raise ValueError(
            f"{path}: this tokenizer does not exist. Specify a {_EXPECTED_FILES}, or a directory "
            "that contains one. `bert-jax train-tokenizer` creates such a directory."
        )
    if path.suffix not in (".txt", ".json", ".model"):
        raise ValueError(f"{path}: expected a {_EXPECTED_FILES}.")
    return path


def _read_config(directory: Path) -> dict[str, Any]:
    file = directory / "tokenizer_config.json"
    if not file.is_file():
        return {}
    content = read_json_object(file)
    config = {name: value for name, value in content.items() if value is not None}
    kinds = dict.fromkeys(_BOOLEAN_KEYS, bool) | {"tokenizer_class": str}
    for name, kind in kinds.items():
        if not isinstance(config.get(name, kind()), kind):
            expected = "true or false" if kind is bool else "a string"
            raise ValueError(f"{file}: {name}={config[name]!r}: expected {expected}.")
    # For strip_accents, null does not simply mean the default. It overrides tokenizer.json, and
    # means that accents are stripped if text is lowercased.
    return config | {name: content[name] for name in ("strip_accents",) if name in content}


def _check_class(file: Path, config: Mapping[str, Any]) -> None:
    class_name = config.get("tokenizer_class")
    if class_name is None or file.name not in _CLASSES:
        return
    stem = class_name.removesuffix("Fast").removesuffix("Tokenizer")
    if stem not in (*_CLASSES[file.name], *_GENERIC_CLASSES):
        supported = ", ".join(f"{name}Tokenizer" for name in _CLASSES[file.name])
        raise ValueError(
            f"{file}: tokenizer_class={class_name!r} in tokenizer_config.json splits text in its "
            f"own way. Expected {supported}, or a tokenizer.json, which describes how text is "
            "split (where possible, transformers.AutoTokenizer's save_pretrained writes one)."
        )
