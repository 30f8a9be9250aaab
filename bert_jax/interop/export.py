"""Export a work directory's model to a directory that other frameworks can load."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import jax

from bert_jax.files import write_checksums
from bert_jax.interop.formats import (
    DTYPES,
    FORMATS,
    ExportDType,
    Format,
    library,
    usage,
    write,
)
from bert_jax.interop.huggingface.config import PAIRS_KEY
from bert_jax.interop.huggingface.families import family_of
from bert_jax.interop.model_card import model_card
from bert_jax.json_files import read_json_object
from bert_jax.local_paths import naming_urls
from bert_jax.models.model import ModelConfig
from bert_jax.models.sentence_embedding import SentenceEmbedding
from bert_jax.runs.checkpoints import load_for_export
from bert_jax.runs.model_location import local_model
from bert_jax.runs.outputs import check_new_directory, new_directory
from bert_jax.runs.work_dir import (
    PAIRS,
    read_inference_defaults,
    read_model,
    read_sentence_embedding,
    read_tokenizer,
)
from bert_jax.storage.urls import Location, parse_location
from bert_jax.tokenizers.tokenizer import Tokenizer
from bert_jax.validation import check_choice


@dataclass(frozen=True)
class ExportResult:
    """The result of exporting a model.

    Attributes:
      path: the new directory.
      config: the config of the exported model.
      step: the training step of the exported checkpoint.
      num_bytes: the total size of the exported files in bytes.
      notes: remarks about the export, one line each.
    """

    path: Location
    config: ModelConfig
    step: int
    num_bytes: int
    notes: tuple[str, ...]

    def __fspath__(self) -> str:
        """Return the path, so that the result can be passed wherever a path is expected."""
        return os.fspath(self.path)

    @property
    def family(self) -> str:
        """The name of the model family, such as "RoBERTa"."""
        return family_of(self.config.encoder).title


@naming_urls()
def export(
    work_dir: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    format: Format,
    head: str | None = None,
    dtype: ExportDType | None = None,
    hidden_states: bool = False,
) -> ExportResult:
    """Export a work directory's model with its tokenizer and a model card to a new directory.

    Args:
      work_dir: the work directory of a run or an import. Its best checkpoint is exported, or the
        newest one if none is known to be the best.
      output: the directory to create.
      format: the format to write.
      head: the head to export, or "encoder" for the bare encoder; None exports the whole model.
      dtype: the data type in which "huggingface" stores the parameters; defaults to float32. Other
        formats do not support this option.
      hidden_states: whether the exported program also returns the embeddings and every layer's
        output; not supported by "huggingface".

    Returns:
      An `ExportResult` with the new directory, the config and remarks about the export.

    Raises:
      ValueError: there is no usable model, the format cannot represent the model, a library is
        missing, or an option does not apply to the format.
      OSError: a file cannot be read or written.
    """
    _check_options(format, dtype, hidden_states)
    output = parse_location(output, "--output")
    check_new_directory(output)
    work_dir = local_model(work_dir)
    origin, stored = read_model(work_dir)[1], dtype or "float32"
    settings = read_sentence_embedding(work_dir)
    notes = []
    with new_directory(output) as target:
        config, step, parameters = load_for_export(work_dir, head)
        if format == "huggingface" and _lacks_pooler(config):
            parameters = {k: v for k, v in parameters.items() if not k.startswith("pooler.")}
            config = replace(config, pooler=False)
            title = family_of(config.encoder).title
            notes.append(f"the pooler is left out, since {title}'s bare encoder has none")
        tokenizer = read_tokenizer(work_dir, config.encoder)
        with _without_source_paths():
            write(
                format,
                config,
                parameters,
                tokenizer,
                target,
                hidden_states=hidden_states,
                dtype=stored,
                sentence_embedding=settings,
            )
        if PAIRS in origin and config.head in ("pretraining", "next_sentence"):
            _record_pairs(target, origin[PAIRS])
        code = _loading_code(work_dir, format, config, tokenizer, settings)
        loader = library(format, config, settings is not None)
        card = model_card(work_dir, config, origin, step, loader, code, stored, settings)
        write_checksums(target)
        # Write the card after the checksums, so that it has no checksum and can be edited freely.
        (target / "README.md").write_text(card, encoding="utf-8")
        num_bytes = sum(file.stat().st_size for file in target.rglob("*") if file.is_file())
    if settings is not None and format != "huggingface":
        notes.append(
            f"the program returns token vectors. {output / 'README.md'} describes how to pool them "
            f"into the sentence embedding (pooling {' + '.join(settings.pooling)})"
        )
    return ExportResult(output, config, step, num_bytes, tuple(notes))


@contextmanager
def _without_source_paths() -> Iterator[None]:
    """Keep the paths of source files out of exported programs.

    By default, JAX records the source file of every operation. A program then contains this
    machine's paths, and its bytes depend on where the package is installed.
    """
    name = "jax_hlo_source_file_canonicalization_regex"
    former = getattr(jax.config, name)
    jax.config.update(name, ".*/")
    try:
        yield
    finally:
        jax.config.update(name, former)


def _check_options(format: Format, dtype: ExportDType | None, hidden_states: bool) -> None:
    check_choice("format", format, FORMATS)
    check_choice("dtype", dtype, (None, *DTYPES))
    if hidden_states and format == "huggingface":
        raise ValueError(
            "hidden_states=True does not apply to format='huggingface'. Leave it out: the model "
            "returns hidden states when called with output_hidden_states=True"
        )
    if dtype is not None and format != "huggingface":
        raise ValueError(
            "dtype applies only to format='huggingface': an exported program computes in float32. "
            "Leave it out"
        )


def _lacks_pooler(config: ModelConfig) -> bool:
    """Return whether a bare encoder has a pooler even though its Hugging Face class has none."""
    family = family_of(config.encoder)
    return config.head == "encoder" and config.pooler and not family.pooler


def _loading_code(
    work_dir: Path,
    format: Format,
    config: ModelConfig,
    tokenizer: Tokenizer,
    settings: SentenceEmbedding | None,
) -> str:
    used = read_inference_defaults(work_dir)
    return usage(
        format,
        config,
        mask=tokenizer.specials.mask,
        pairs=used is not None and bool(used.pairs),
        sentences=settings is not None,
    )


def _record_pairs(target: Path, pairs: str) -> None:
    """Record the task of the sentence-pair head in config.json, if that file exists."""
    file = target / "config.json"
    if file.is_file():
        content = read_json_object(file) | {PAIRS_KEY: pairs}
        file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
