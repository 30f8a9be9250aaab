"""Import a model from another framework into a new work directory."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bert_jax.interop.hub import local_directory
from bert_jax.interop.huggingface.families import family_of
from bert_jax.interop.huggingface.import_config import ImportOptions
from bert_jax.interop.huggingface.load import ForeignModel, open_directory
from bert_jax.interop.tensorflow_import import checkpoint_prefix, open_checkpoint
from bert_jax.local_paths import is_url, naming_urls
from bert_jax.models.model import ModelConfig, Problem
from bert_jax.models.sentence_embedding import SentenceEmbedding
from bert_jax.runs.model_location import local_model
from bert_jax.runs.outputs import check_new_directory, new_directory
from bert_jax.runs.work_dir import CHECKPOINTS_NAME, PAIRS, TOKENIZER_NAME, write_model
from bert_jax.storage.locations import local_input
from bert_jax.storage.urls import Location, parse_location
from bert_jax.training.checkpoint_parameters import save_parameters
from bert_jax.validation import check_seed


@dataclass(frozen=True)
class ImportResult:
    """The result of importing a model.

    Attributes:
      work_dir: the new work directory.
      config: the model's config.
      notes: remarks about the source, one line each.
      tensors: a line with the number of imported parameters, then one line for each parameter that
        was randomly initialized and for each tensor that was left out.
      sentence_embedding: the sentence-embedding settings; None unless the source is a
        sentence-transformers model.
      revision: the model's commit on the Hugging Face Hub; None for a local source.
    """

    work_dir: Location
    config: ModelConfig
    notes: tuple[str, ...]
    tensors: tuple[str, ...]
    sentence_embedding: SentenceEmbedding | None
    revision: str | None

    def __fspath__(self) -> str:
        """Return the path, so that the result can be passed wherever a path is expected."""
        return os.fspath(self.work_dir)

    @property
    def family(self) -> str:
        """The name of the model family, such as "RoBERTa"."""
        return family_of(self.config.encoder).title

    def lines(self) -> Iterator[str]:
        """Yield lines that report how each tensor was used and describe the imported model."""
        yield from self.notes
        yield from self.tensors
        if self.sentence_embedding is not None:
            settings = self.sentence_embedding.described().items()
            yield f"sentence embedding: {', '.join(f'{name} {value}' for name, value in settings)}"
        yield f"{self.work_dir}: {self.family} ({self.config.head!r} head)"


@naming_urls()
def import_model(
    source: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    head: str | None = None,
    labels: Sequence[str] = (),
    problem: Problem | None = None,
    tokenizer: str | os.PathLike[str] | None = None,
    max_positions: int | None = None,
    revision: str | None = None,
    seed: int = 0,
) -> ImportResult:
    """Import a model from another framework into a new work directory.

    Args:
      source: a Hugging Face directory, the name of a model on the hub, or a TensorFlow checkpoint
        from Google's BERT release (bert_model.ckpt or its directory).
      output: the work directory to create.
      head: the head to import; None imports all heads of the source. A head that the source lacks
        is randomly initialized.
      labels: the label names for a randomly initialized classifier, or new names for the labels of
        the source's classifier.
      problem: the meaning of a classifier's scores; None keeps the source's setting.
      tokenizer: a tokenizer file or directory to use instead of the one in `source`.
      max_positions: the number of position embeddings to keep, counted from the first; None keeps
        all of them.
      revision: a branch, tag or commit on the hub; defaults to the main branch.
      seed: the seed for randomly initialized parameters.

    Returns:
      An `ImportResult` with the new work directory, the config and remarks about the source.

    Raises:
      ValueError: the source or the output is unusable, an option does not fit the source, or a
        tensor is missing, unexpected or has the wrong shape.
      OSError: a file cannot be read or written.
    """
    source, destination = os.fspath(source), parse_location(output, "--output")
    check_seed(seed)
    check_new_directory(destination)
    options = ImportOptions(head, tuple(labels), problem, max_positions)
    own = None if tokenizer is None else local_input(tokenizer, "--tokenizer")
    model, commit = _open(source, revision, options, own)
    origin = _origin(source, commit, model)
    with new_directory(destination) as target:
        save_parameters(target / CHECKPOINTS_NAME, model.parameters(seed), origin)
        model.tokenizer.save(target / TOKENIZER_NAME)
        write_model(
            model.config,
            origin,
            target,
            tokenizer=model.tokenizer,
            sentence_embedding=model.sentence_embedding,
        )
    return ImportResult(
        destination,
        model.config,
        tuple(model.notes),
        tuple(model.account.lines()),
        model.sentence_embedding,
        commit,
    )


def _open(
    source: str, revision: str | None, options: ImportOptions, tokenizer: Path | None
) -> tuple[ForeignModel, str | None]:
    """Return (model, commit) for `source`; the commit is None unless the model is on the hub."""
    local = local_model(source, "source")
    is_huggingface = (local / "config.json").is_file()
    prefix = None if is_huggingface else checkpoint_prefix(local)
    if prefix is None:
        directory, commit = local_directory(
            os.fspath(local) if is_url(source) else source, revision
        )
        return open_directory(directory, options, tokenizer=tokenizer), commit
    if revision is not None:
        raise ValueError(
            f"--revision {revision}: {source} is a local file, which has no revisions. Leave "
            "--revision out"
        )
    return open_checkpoint(prefix, options, tokenizer=tokenizer), None


def _origin(source: str, commit: str | None, model: ForeignModel) -> dict[str, str]:
    """Return the provenance to record in `model.json` and in model cards."""
    origin = {"command": "bert-jax import", "source": source}
    if commit:
        origin["revision"] = commit
    if model.config.head in ("pretraining", "next_sentence"):
        origin[PAIRS] = model.pairs
    if model.account.fresh:
        origin["randomly initialized"] = ", ".join(model.account.fresh)
    return origin
