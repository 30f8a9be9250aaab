"""Read and write the sentence-embedding settings in a sentence-transformers directory."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, get_args

from bert_jax.conversion import to_dataclass
from bert_jax.interop.huggingface.import_config import ImportOptions
from bert_jax.json_files import expecting_fields, read_json, read_json_object
from bert_jax.models.sentence_embedding import PoolingMode, SentenceEmbedding

MODULES_NAME = "modules.json"
MODEL_NAME = "config_sentence_transformers.json"
CONFIG_NAME = "config.json"
# The encoder's settings are in the first of these files that exists. All names except the first
# were used only before version 1.
ENCODER_NAMES = (
    "sentence_bert_config.json",
    "sentence_roberta_config.json",
    "sentence_distilbert_config.json",
    "sentence_camembert_config.json",
    "sentence_albert_config.json",
    "sentence_xlm-roberta_config.json",
)
# The files to download from the hub in addition to the encoder's.
SENTENCE_FILES = (MODULES_NAME, MODEL_NAME, *ENCODER_NAMES, f"[0-9]*_*/{CONFIG_NAME}")
# The package that contains the modules in versions up to 5. Later versions also accept this name.
_PACKAGE = "sentence_transformers.models"
_SENTENCE = "sentence_embedding"
# The names of the Transformer module. All names except the first were used only before version 0.3.
_ENCODERS = ("Transformer", "BERT", "RoBERTa", "DistilBERT", "ALBERT", "CamemBERT", "XLMRoBERTa")
# Before version 6, Pooling had one flag per mode. Modes are concatenated in this order.
_FLAGS: Mapping[str, PoolingMode] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
# The supported value of each key in the encoder's file; None means that any value is supported.
_ENCODER_KEYS: Mapping[str, Any] = {
    "max_seq_length": None,
    "do_lower_case": None,
    # Unpadding saves time without changing the vectors.
    "unpad_inputs": None,
    "transformer_task": "feature-extraction",
    "module_output_name": "token_embeddings",
    "modality_config": {"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
}


@dataclass(frozen=True)
class SentenceModel:
    """A sentence-transformers directory whose encoder has not been read yet.

    Attributes:
      encoder: the directory that contains the encoder and its tokenizer.
      settings: the sentence-embedding settings, or None if there are none or they were dropped.
      lowercase: whether to lowercase texts before tokenization.
      notes: a message about the dropped modules, if any.
    """

    encoder: Path
    settings: SentenceEmbedding | None = None
    lowercase: bool = False
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Module:
    kind: str
    directory: Path


def read_sentence_model(directory: Path, options: ImportOptions) -> SentenceModel:
    """Read modules.json and the files it lists; treat a directory without this file as an encoder.

    Raises:
      ValueError: a file is damaged, or the model has an unsupported module or setting and no head
        was requested.
    """
    file = directory / MODULES_NAME
    if not file.is_file():
        return SentenceModel(directory)
    modules = list(_modules(file))
    encoder, dropped = modules[0].directory, [module.kind for module in modules[1:]]
    if modules[0].kind in _ENCODERS and not dropped:
        return SentenceModel(encoder)
    try:
        settings, lowercase = _settings(directory, modules)
    except _NotSupported as error:
        if options.head is None:
            raise ValueError(
                f"{error}, so sentence embeddings cannot be computed. Use --head encoder to import "
                "only the encoder, which embeds a text as the mean of its token vectors"
            ) from error
        note = f"{MODULES_NAME}: the modules {', '.join(dropped)} are dropped: {error}"
        return SentenceModel(encoder, notes=(note,))
    return SentenceModel(encoder, settings, lowercase)


class _NotSupported(ValueError):
    """An error for an intact file that has an unsupported module or setting."""


def _modules(file: Path) -> Iterator[_Module]:
    with expecting_fields(file):
        named = [(str(module["type"]), str(module["path"])) for module in read_json(file)]
    if not named:
        raise ValueError(f"{file}: damaged: it lists no modules")
    for kind, path in named:
        if PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts:
            raise ValueError(f"{file}: path {path!r}: expected the relative path of a subdirectory")
        # A module with any other prefix is custom code that comes with the model.
        own = kind.startswith("sentence_transformers.")
        yield _Module(kind.rpartition(".")[2] if own else kind, file.parent / path)


def _settings(directory: Path, modules: Sequence[_Module]) -> tuple[SentenceEmbedding, bool]:
    """Return the sentence-embedding settings, and whether to lowercase texts."""
    file = directory / MODULES_NAME
    for number, module in enumerate(modules):
        if module.kind not in (_ENCODERS, ("Pooling",), ("Normalize",))[min(number, 2)]:
            raise _NotSupported(
                f"{file}: a {module.kind} module is not supported; expected Transformer, Pooling "
                "and optionally Normalize, in that order"
            )
    encoder, pooling, *rest = modules
    for module in rest:
        _check_normalize(module.directory / CONFIG_NAME)
    content = _of_encoder(encoder.directory)
    values = {
        "max_length": _length(encoder.directory, content),
        "normalize": bool(rest),
        **_of_pooling(pooling.directory / CONFIG_NAME),
        **_of_model(directory / MODEL_NAME),
    }
    settings = to_dataclass(SentenceEmbedding, values, f"{directory}: {_SENTENCE}")
    return settings, bool(content.get("do_lower_case"))


def _of_encoder(directory: Path) -> dict[str, Any]:
    """Read and check the encoder's settings; return {} if it has no settings file."""
    files = [directory / name for name in ENCODER_NAMES if (directory / name).is_file()]
    if not files:
        return {}
    content = read_json_object(files[0])
    for key, value in content.items():
        supported = _ENCODER_KEYS.get(key)
        if value in (None, {}, supported) or (key in _ENCODER_KEYS and supported is None):
            continue
        raise _NotSupported(f"{files[0]}: {key}={value!r} is not supported")
    return content


def _length(directory: Path, content: Mapping[str, Any]) -> int | None:
    """Return the maximum number of tokens per text, or None if it is not limited.

    The maximum is stored in the encoder's settings file or, since version 6, in the tokenizer's.
    """
    file, key, value = directory / ENCODER_NAMES[0], "max_seq_length", content.get("max_seq_length")
    if value is None:
        file, key = directory / "tokenizer_config.json", "model_max_length"
        value = read_json_object(file).get(key) if file.is_file() else None
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{file}: {key}={value!r}: expected a whole number")
    return value


def _of_pooling(file: Path) -> dict[str, Any]:
    if not file.is_file():
        raise ValueError(f"{file}: missing, but {MODULES_NAME} requires it. Download it")
    content = read_json_object(file)
    if not content.keys() & {"embedding_dimension", "word_embedding_dimension"}:
        raise ValueError(f"{file}: damaged: it lacks word_embedding_dimension. Download it again")
    modes = content.get("pooling_mode")
    if modes is None:
        modes = [mode for flag, mode in _FLAGS.items() if content.get(flag)] or ["mean"]
    modes = [modes] if isinstance(modes, str) else modes
    supported = get_args(PoolingMode)
    if not isinstance(modes, list) or not all(mode in supported for mode in modes):
        raise _NotSupported(
            f"{file}: pooling_mode={modes!r} is not supported; expected one or more of "
            f"{', '.join(supported)}"
        )
    unsupported = [
        name
        for name, value in content.items()
        if value and name.startswith("pooling_mode_") and name not in _FLAGS
    ]
    if unsupported:
        raise _NotSupported(f"{file}: {', '.join(unsupported)} is not supported")
    return {"pooling": modes, "include_prompt": content.get("include_prompt", True)}


def _check_normalize(file: Path) -> None:
    """Reject a Normalize module whose input or output is not the sentence embedding.

    Early versions wrote no file for this module.
    """
    content = read_json_object(file) if file.is_file() else {}
    for key in ("module_input_name", "module_output_name"):
        if content.get(key) not in (None, _SENTENCE):
            raise _NotSupported(
                f"{file}: {key}={content[key]!r} is not supported; expected {_SENTENCE!r}"
            )


def _of_model(file: Path) -> dict[str, Any]:
    content = read_json_object(file) if file.is_file() else {}
    kind = content.get("model_type", "SentenceTransformer")
    if kind != "SentenceTransformer":
        raise _NotSupported(
            f"{file}: model_type={kind!r} is not supported; expected 'SentenceTransformer'"
        )
    names = {"default_prompt_name": "default_prompt_name", "truncate_dim": "truncate_dim"}
    names |= {"prompts": "prompts", "similarity_fn_name": "similarity"}
    return {key: content[name] for name, key in names.items() if content.get(name) is not None}


def within(settings: SentenceEmbedding, positions: int, shortest: int) -> SentenceEmbedding:
    """Return the settings with `max_length` capped at the encoder's number of positions.

    Raises:
      ValueError: the resulting `max_length` is less than `shortest`.
    """
    # transformers uses 1e30 for tokenizers without a limit.
    most = positions if settings.max_length is None else min(settings.max_length, positions)
    if most < shortest:
        raise ValueError(f"max_seq_length={most}: expected at least {shortest} tokens")
    return replace(settings, max_length=most)


def write_sentence_model(settings: SentenceEmbedding, hidden_dim: int, target: Path) -> None:
    """Add modules.json and the modules it lists to an exported encoder.

    Most versions of sentence-transformers can read these files.
    """
    flags = {flag: mode in settings.pooling for flag, mode in _FLAGS.items()}
    pooling: dict[str, Any] = {"word_embedding_dimension": hidden_dim, **flags}
    pooling["include_prompt"] = settings.include_prompt
    if settings.pooling != tuple(mode for flag, mode in _FLAGS.items() if flags[flag]):
        # Flags cannot express the order of the modes, but a list can. Versions before 6 reject the
        # list, so they cannot silently concatenate the modes in the wrong order.
        pooling["pooling_mode"] = list(settings.pooling)
    parts = [("Pooling", pooling)]
    if settings.normalize:
        parts.append(
            ("Normalize", {"module_input_name": _SENTENCE, "module_output_name": _SENTENCE})
        )
    modules = [{"idx": 0, "name": "0", "path": "", "type": f"{_PACKAGE}.Transformer"}]
    for number, (kind, content) in enumerate(parts, start=1):
        path = f"{number}_{kind}"
        (target / path).mkdir()
        _write(target / path / CONFIG_NAME, content)
        module = {"idx": number, "name": str(number), "path": path, "type": f"{_PACKAGE}.{kind}"}
        modules.append(module)
    # The exported tokenizer already lowercases texts if the model requires it.
    encoder = {"max_seq_length": settings.max_length, "do_lower_case": False}
    _write(target / ENCODER_NAMES[0], encoder)
    model: dict[str, Any] = {
        "model_type": "SentenceTransformer",
        "prompts": dict(settings.prompts),
        "default_prompt_name": settings.default_prompt_name,
        "similarity_fn_name": settings.similarity,
    }
    if settings.truncate_dim is not None:
        model["truncate_dim"] = settings.truncate_dim
    _write(target / MODEL_NAME, model)
    _write(target / MODULES_NAME, modules)


def _write(file: Path, content: object) -> None:
    file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
