"""Tokenizer files as the world keeps them: vocab.txt, tokenizer.json and tokenizer_config.json."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from bert_jax.data.files import write_file

SPECIAL_TOKENS = {
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}
UNUSED = re.compile(r"\[unused\d+\]")
CONTINUATION = "##"
_FILE_NAMES = ("tokenizer.json", "vocab.txt")  # the first one found is read
MAX_WORD_CHARACTERS = 100  # a longer word is [UNK]; BERT's released code says 200, every port 100


def wordpiece_backend(
    vocabulary: Mapping[str, int],
    *,
    lowercase: bool,
    strip_accents: bool | None = None,
    separate_cjk: bool = True,
) -> Any:
    """BERT's tokenizer over `vocabulary`: clean, split at spaces, punctuation and CJK, WordPiece.

    `strip_accents=None` strips them exactly where text is lower-cased.
    Source: Devlin et al. 2018, section 3 ("Input/Output Representations"), and its released code.
    """
    backend = tokenizers.Tokenizer(
        models.WordPiece(
            dict(vocabulary),
            unk_token=SPECIAL_TOKENS["unk_token"],
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
    cls, sep = SPECIAL_TOKENS["cls_token"], SPECIAL_TOKENS["sep_token"]
    backend.post_processor = processors.TemplateProcessing(
        single=f"{cls}:0 $A:0 {sep}:0",
        pair=f"{cls}:0 $A:0 {sep}:0 $B:1 {sep}:1",
        special_tokens=[(token, vocabulary[token]) for token in (cls, sep)],
    )
    return backend


def read_backend(path: Path, lowercase: bool | None) -> Any:
    """Reads vocab.txt, tokenizer.json, or the directory that holds one (tokenizer.json first).

    Case: `lowercase` if given; else `do_lower_case` of a tokenizer_config.json beside the file;
    else what tokenizer.json says itself; else, of a plain vocabulary, uncased if no entry holds an
    upper-case ASCII letter. ValueError if the files are missing, damaged, or no WordPiece.
    """
    file = _tokenizer_file(path)
    config = _read_config(file.parent)
    if lowercase is None:
        lowercase = config.get("do_lower_case")
    if file.suffix == ".json":
        backend = _read_json(file)
        _override_normalizer(backend, file, config, lowercase)
    else:
        vocabulary = _read_vocabulary(file)
        if lowercase is None:
            lowercase = not any(_has_upper_case(token) for token in vocabulary)
        backend = wordpiece_backend(
            vocabulary,
            lowercase=lowercase,
            strip_accents=config.get("strip_accents"),
            separate_cjk=config.get("tokenize_chinese_chars", True),
        )
    # Without these a corpus would be cut to 512 tokens, or padded, because a file once said so.
    backend.no_truncation()
    backend.no_padding()
    backend.add_special_tokens(list(SPECIAL_TOKENS.values()))
    return backend


def write_backend(backend: Any, directory: Path) -> None:
    """Writes the files from which this package and `transformers.AutoTokenizer` load `backend`.

    Each file appears whole or not at all, and those that say how to read the vocabulary come
    before those that hold it.
    """
    state = json.loads(backend.to_str())
    normalizer = state["normalizer"] or {}
    vocabulary = backend.get_vocab(with_added_tokens=True)
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    # transformers rebuilds a BertTokenizer from its vocabulary and these settings alone.
    is_bert = (
        normalizer.get("type") == "BertNormalizer"
        and normalizer["clean_text"]
        and state["pre_tokenizer"] == {"type": "BertPreTokenizer"}
        and state["model"]["continuing_subword_prefix"] == CONTINUATION
        and state["model"]["max_input_chars_per_word"] == MAX_WORD_CHARACTERS
        and len(state["added_tokens"]) == len(SPECIAL_TOKENS)
        and list(vocabulary[token] for token in tokens) == list(range(len(tokens)))
    )
    config: dict[str, object] = dict(SPECIAL_TOKENS)
    config["tokenizer_class"] = "BertTokenizer" if is_bert else "PreTrainedTokenizerFast"
    if is_bert:
        config["do_lower_case"] = normalizer["lowercase"]
        config["strip_accents"] = normalizer["strip_accents"]
        config["tokenize_chinese_chars"] = normalizer["handle_chinese_chars"]
    directory.mkdir(parents=True, exist_ok=True)
    write_file(directory / "tokenizer_config.json", json.dumps(config, indent=2) + "\n")
    write_file(directory / "special_tokens_map.json", json.dumps(SPECIAL_TOKENS, indent=2) + "\n")
    if is_bert:
        write_file(directory / "vocab.txt", "".join(token + "\n" for token in tokens))
    write_file(directory / "tokenizer.json", backend.to_str(pretty=True))


def holds_tokenizer(directory: Path) -> bool:
    """Whether a directory holds a file that `read_backend` would read."""
    return any((directory / name).is_file() for name in _FILE_NAMES)


def _tokenizer_file(path: Path) -> Path:
    if path.is_dir():
        for name in _FILE_NAMES:
            if (path / name).is_file():
                return path / name
        raise ValueError(f"{path} holds no tokenizer; expected a tokenizer.json or vocab.txt in it")
    if not path.is_file():
        raise ValueError(
            f"tokenizer {path} does not exist; give a vocab.txt, a tokenizer.json, or a directory "
            "that holds one (bert-jax train-tokenizer makes one)"
        )
    if path.suffix not in (".txt", ".json"):
        raise ValueError(f"{path}: expected a vocab.txt or a tokenizer.json")
    return path


def _read_config(directory: Path) -> dict[str, Any]:
    file = directory / "tokenizer_config.json"
    if not file.is_file():
        return {}
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file}: not valid JSON: {error}") from error
    if not isinstance(config, dict):
        raise ValueError(f"{file}: expected a JSON object")
    return config


def _read_json(file: Path) -> Any:
    try:
        state = json.loads(file.read_text(encoding="utf-8"))
        kind = state["model"]["type"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{file}: not a tokenizer.json of the tokenizers library") from error
    if kind != "WordPiece":
        raise ValueError(f"{file}: its model is {kind}, expected WordPiece")
    try:
        backend = tokenizers.Tokenizer.from_str(json.dumps(state))
    except Exception as error:  # what the library raises is a bare Exception
        raise ValueError(f"{file}: the tokenizers library cannot load it: {error}") from error
    _check_special_tokens(file, backend.get_vocab(with_added_tokens=True))
    return backend


def _read_vocabulary(file: Path) -> dict[str, int]:
    # Universal line ends would split at a lone "\r", str.splitlines at U+2028 as well.
    with open(file, encoding="utf-8", newline="\n") as lines:
        try:
            tokens = [line.rstrip("\r\n") for line in lines]
        except UnicodeDecodeError as error:
            raise ValueError(f"{file}: not UTF-8 text ({error}); expected a vocab.txt") from error
    while tokens and not tokens[-1]:
        tokens.pop()
    vocabulary: dict[str, int] = {}
    for index, token in enumerate(tokens):
        if not token or token in vocabulary:
            what = f"repeats line {vocabulary[token] + 1}" if token else "is empty"
            raise ValueError(
                f"{file}:{index + 1}: the line {what}; expected a different entry on every line"
            )
        vocabulary[token] = index
    _check_special_tokens(file, vocabulary)
    return vocabulary


def _check_special_tokens(file: Path, vocabulary: Mapping[str, int]) -> None:
    missing = [token for token in SPECIAL_TOKENS.values() if token not in vocabulary]
    if missing:
        raise ValueError(f"{file}: not BERT's vocabulary: it lacks {', '.join(missing)}")


def _override_normalizer(
    backend: Any, file: Path, config: Mapping[str, Any], lowercase: bool | None
) -> None:
    """Lets tokenizer_config.json and the caller have the last word, as transformers does."""
    state = json.loads(backend.to_str())["normalizer"] or {}
    if state.get("type") != "BertNormalizer":
        if lowercase is not None and lowercase != lowercases(state):
            raise ValueError(
                f"{file}: its normalizer ({state.get('type', 'none')}) "
                f"{'keeps' if lowercase else 'lowers'} the case, and the opposite was asked for"
            )
        return
    if lowercase is None:
        lowercase = state["lowercase"]
    strip_accents = config.get("strip_accents", state["strip_accents"])
    backend.normalizer = normalizers.BertNormalizer(
        clean_text=state["clean_text"],
        handle_chinese_chars=config.get("tokenize_chinese_chars", state["handle_chinese_chars"]),
        strip_accents=strip_accents,
        lowercase=lowercase,
    )


def lowercases(normalizer: Any) -> bool:
    """Whether a normalizer, as tokenizer.json describes it, lowers the case."""
    if isinstance(normalizer, list):
        return any(map(lowercases, normalizer))
    if not isinstance(normalizer, dict):
        return False
    kind = normalizer.get("type")
    return (
        kind == "Lowercase"
        or (kind == "BertNormalizer" and normalizer["lowercase"])
        or lowercases(normalizer.get("normalizers"))
    )


def _has_upper_case(token: str) -> bool:
    if token in SPECIAL_TOKENS.values() or UNUSED.fullmatch(token):
        return False
    return any("A" <= character <= "Z" for character in token)
