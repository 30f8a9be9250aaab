"""Tokenizer files as the world keeps them, of every kind of vocabulary in the BERT family."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers

from bert_jax.files import check_checksums, write_file
from bert_jax.json_files import read_json_object
from bert_jax.local_paths import check_local, make_directory
from bert_jax.tokenizers import vocabulary_files
from bert_jax.tokenizers.components import lowercases, strips_accents, with_layout
from bert_jax.tokenizers.special_tokens import BERT, SpecialTokens, special_tokens_of
from bert_jax.tokenizers.tokenizer_json import kind_of, override_normalizer, read_tokenizer_json
from bert_jax.tokenizers.vocabulary_files import (
    CONTINUATION,
    MAX_WORD_CHARACTERS,
    has_upper_case,
    read_vocabulary,
    wordpiece_backend,
)

# The directory of a work directory or a corpus that has its tokenizer.
NESTED_NAME = "tokenizer"
# The first one found is read.
FILE_NAMES = (
    "tokenizer.json",
    "vocab.txt",
    vocabulary_files.SENTENCEPIECE_NAME,
    vocabulary_files.BYTE_BPE_VOCABULARY_NAME,
)
# The classes of transformers, "Tokenizer" and "TokenizerFast" left out, that split text as is done
# here with these files, which do not say it themselves.
_CLASSES = {
    "vocab.txt": ("Bert", "DistilBert", "Electra", "MobileBert", "ConvBert", "SqueezeBert"),
    vocabulary_files.SENTENCEPIECE_NAME: ("Albert",),
    vocabulary_files.BYTE_BPE_VOCABULARY_NAME: ("Roberta", "Longformer", "Bart"),
}
# Of XLM-RoBERTa and CamemBERT as they were first released.
_FAIRSEQ_MODEL = "sentencepiece.bpe.model"
# Boolean keys of tokenizer_config.json; null means the default.
_TRUTHS = (
    *("do_lower_case", "strip_accents", "tokenize_chinese_chars"),
    *("keep_accents", "add_prefix_space"),
)
# A tokenizer's files, in a directory that may also hold a model.
_CHECKED = (
    *FILE_NAMES,
    vocabulary_files.BYTE_BPE_MERGES_NAME,
    "tokenizer_config.json",
    "special_tokens_map.json",
)
_ANY_CLASS = ("PreTrained", "TokenizersBackend")
_ANY = (
    f"{', '.join(FILE_NAMES[:-1])} or {FILE_NAMES[-1]} with {vocabulary_files.BYTE_BPE_MERGES_NAME}"
)


def read_backend(path: Path, lowercase: bool | None) -> Any:
    """Reads a tokenizer's file, or that of a directory (tokenizer.json first).

    Case: `lowercase` if given; else `do_lower_case` of a tokenizer_config.json beside the file;
    else what tokenizer.json says itself; else, of a plain vocab.txt, uncased if no entry holds an
    upper-case ASCII letter, and of a spiece.model, uncased, as ALBERT's are. Byte-level BPE keeps
    the case. ValueError if the files are missing, damaged, or of another kind.
    """
    check_local(path)
    file = _tokenizer_file(path)
    check_checksums(file.parent, _CHECKED)
    config = _read_config(file.parent)
    _check_class(file, config)
    asked, lowercase = lowercase, config.get("do_lower_case") if lowercase is None else lowercase
    if file.name == vocabulary_files.BYTE_BPE_VOCABULARY_NAME:
        if lowercase:
            raise ValueError(f"{file}: byte-level BPE keeps the case, and lower case was asked for")
        spaced = bool(config.get("add_prefix_space", False))
        backend = vocabulary_files.read_byte_bpe(file, add_prefix_space=spaced)
    elif file.suffix == ".json":
        backend = read_tokenizer_json(file, config)
        override_normalizer(backend, file, config, asked)
    elif file.suffix == ".model":
        keep_accents = config.get("keep_accents", False)
        backend = vocabulary_files.read_sentencepiece(
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


def add_special_tokens(backend: Any) -> None:
    """Makes the special tokens of its vocabulary known to a backend."""
    specials = special_tokens_of(backend.get_vocab(with_added_tokens=True))
    assert specials is not None
    tokens: list[Any] = list(specials.tokens)
    if specials is not BERT:
        # A space before the mask is the word's that it stands for, which none is written for.
        tokens[-1] = tokenizers.AddedToken(specials.mask, lstrip=True, special=True)
    backend.add_special_tokens(tokens)


def write_backend(backend: Any, directory: Path, *, segments: bool) -> None:
    """Writes the files from which this package and `transformers.AutoTokenizer` load `backend`.

    segments: whether it must say which text of a pair a token is of.

    Each file appears whole or not at all, and those that say how to read the vocabulary come
    before those that hold it.
    """
    state = json.loads(backend.to_str())
    vocabulary = backend.get_vocab(with_added_tokens=True)
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    specials = special_tokens_of(vocabulary)
    assert specials is not None
    # transformers rebuilds a BertTokenizer from its vocabulary and these settings alone.
    one_a_line = [vocabulary[t] for t in tokens] == list(range(len(tokens)))
    is_bert = _is_bert(state, specials) and one_a_line and "\n" not in "".join(tokens)
    config: dict[str, object] = dict(specials.named)
    config["tokenizer_class"] = "BertTokenizer" if is_bert else "PreTrainedTokenizerFast"
    if is_bert:
        normalizer = state["normalizer"]
        config["do_lower_case"] = normalizer["lowercase"]
        config["strip_accents"] = normalizer["strip_accents"]
        config["tokenize_chinese_chars"] = normalizer["handle_chinese_chars"]
    elif kind_of(state) == "byte_bpe":
        config["add_prefix_space"] = vocabulary_files.adds_prefix_space(state)
    elif kind_of(state) == "sentencepiece":
        # What a spiece.model beside it is read with, which does not say so itself.
        config["do_lower_case"] = lowercases(state["normalizer"])
        config["keep_accents"] = not strips_accents(state["normalizer"])
    files = {
        "tokenizer_config.json": json.dumps(config, indent=2) + "\n",
        "special_tokens_map.json": json.dumps(specials.named, indent=2) + "\n",
    }
    if is_bert:
        files["vocab.txt"] = "".join(token + "\n" for token in tokens)
    elif kind_of(state) == "byte_bpe":
        files |= vocabulary_files.write_byte_bpe(state["model"])
    make_directory(directory)
    for name, content in files.items():
        write_file(directory / name, content)
    kind = kind_of(state)
    assert kind is not None
    laid_out = with_layout(backend, specials, kind, segments=segments)
    write_file(directory / "tokenizer.json", laid_out.to_str(pretty=True))


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


def holds_tokenizer(directory: Path) -> bool:
    """Whether a directory holds a file that `read_backend` would read."""
    return any((directory / name).is_file() for name in FILE_NAMES)


def _tokenizer_file(path: Path) -> Path:
    if path.is_dir():
        for name in FILE_NAMES:
            if (path / name).is_file():
                return path / name
        if (path / _FAIRSEQ_MODEL).is_file():
            raise ValueError(
                f"{path / _FAIRSEQ_MODEL}: its ids are not those the model learned, which fairseq "
                "moved; load it with transformers.AutoTokenizer and save_pretrained, which writes "
                "a tokenizer.json"
            )
        if holds_tokenizer(path / NESTED_NAME):
            return _tokenizer_file(path / NESTED_NAME)
        raise ValueError(f"{path} holds no tokenizer; expected a {_ANY} in it")
    if not path.is_file():
        raise ValueError(
            f"tokenizer {path} does not exist; give a {_ANY}, or a directory that holds one "
            "(bert-jax train-tokenizer makes one)"
        )
    if path.suffix not in (".txt", ".json", ".model"):
        raise ValueError(f"{path}: expected a {_ANY}")
    return path


def _read_config(directory: Path) -> dict[str, Any]:
    file = directory / "tokenizer_config.json"
    if not file.is_file():
        return {}
    content = read_json_object(file)
    config = {name: value for name, value in content.items() if value is not None}
    kinds = dict.fromkeys(_TRUTHS, bool) | {"tokenizer_class": str}
    for name, kind in kinds.items():
        if not isinstance(config.get(name, kind()), kind):
            expected = "true or false" if kind is bool else "a string"
            raise ValueError(f"{file}: {name} is {config[name]!r}; expected {expected}")
    # Null is a value of this key, and overrides tokenizer.json: strip accents with the case.
    return config | {name: content[name] for name in ("strip_accents",) if name in content}


def _check_class(file: Path, config: Mapping[str, Any]) -> None:
    told = config.get("tokenizer_class")
    if told is None or file.name not in _CLASSES:
        return
    name = told.removesuffix("Fast").removesuffix("Tokenizer")
    if name not in (*_CLASSES[file.name], *_ANY_CLASS):
        known = ", ".join(f"{each}Tokenizer" for each in _CLASSES[file.name])
        raise ValueError(
            f"{file}: tokenizer_config.json beside it says tokenizer_class {told!r}, which splits "
            f"text in a way of its own; expected one of {known}, or a tokenizer.json, which says "
            "how (save_pretrained of transformers.AutoTokenizer writes one where there can be one)"
        )
