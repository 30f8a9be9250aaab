"""Write and check a run's work-directory files, other than checkpoints and reports."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from bert_jax.corpus.manifest import MANIFEST, TOKENIZER
from bert_jax.files import temporary_beside, writing
from bert_jax.json_files import read_json_object
from bert_jax.models.config import EncoderConfig
from bert_jax.models.model import ModelConfig
from bert_jax.objectives import SentencePairs
from bert_jax.pretraining.phases import PhaseCorpus
from bert_jax.runs.ownership import (
    REMOVE_CONFIG,
    RESOLVED_NAME,
    ResolvedConfig,
    check_claimable,
    holds,
    keep_config,
)
from bert_jax.runs.rotary_changes import rotary_changes
from bert_jax.runs.work_dir import MODEL_NAME, PAIRS, TOKENIZER_NAME, write_model
from bert_jax.storage.locations import absolute, local_copy
from bert_jax.storage.urls import Location, parse_location
from bert_jax.tokenizers.tokenizer import Tokenizer
from bert_jax.training.metrics_log import LOG_NAME, read_metrics


def check_work_dir(
    work_dir: Path, corpora: Sequence[PhaseCorpus], init_from: str, *, begun: bool
) -> None:
    """Reject a work directory that is one of the run's corpora or belongs to something else.

    Args:
      work_dir: the work directory.
      corpora: the corpora of the run.
      init_from: the work directory that initial parameters are loaded from; "" for none.
      begun: whether the run has a checkpoint.

    Raises:
      ValueError: the directory is a corpus, cannot be claimed (see `check_claimable`), or contains
        a run that started from a different `init_from`.
    """
    for corpus in corpora:
        if Path(corpus.config.corpus).resolve() == work_dir.resolve():
            raise ValueError(
                f"work_dir={work_dir} is the corpus of phase {corpus.name}, whose tokenizer the "
                "run would overwrite. Choose another directory."
            )
    check_claimable(work_dir, corpora[0].tokenizer, begun=begun)
    if begun:
        _check_same_source(work_dir, init_from)


def _check_same_source(work_dir: Path, init_from: str) -> None:
    """Reject an `init_from` other than the one that the run in `work_dir` started from.

    A run with a checkpoint never reads `init_from` again, so a different value would be ignored.
    """
    file = work_dir / RESOLVED_NAME
    if not file.is_file():
        return
    began = read_json_object(file, REMOVE_CONFIG).get("init_from", "")
    if isinstance(began, str) and _resolved(began) != _resolved(init_from):
        origin = began or "random parameters"
        raise ValueError(
            f"init_from={init_from}: the run in {work_dir} started from {origin}. Set "
            f'init_from="{began}" to resume it, or choose another work_dir.'
        )


def _resolved(path: str) -> str:
    return absolute(parse_location(path)) if path else ""


def write_run_files(
    work_dir: Path,
    config: ResolvedConfig,
    model: ModelConfig,
    sentence_pairs: SentencePairs,
    corpora: Sequence[PhaseCorpus],
    step: int,
    *,
    finished: bool,
    generator: EncoderConfig | None = None,
) -> list[str]:
    """Write the model's description, the config, the tokenizer and the manifests.

    Args:
      work_dir: the work directory.
      config: the run's config.
      model: the encoder and its heads.
      sentence_pairs: the kind of sentence pairs.
      corpora: the corpora of the run.
      step: the step of the checkpoint to resume from; 0 for a new run.
      finished: whether the run is finished, in which case its config is not replaced.
      generator: the generator's encoder, in a run that detects replaced tokens.

    Returns:
      Messages about values that have changed in the config.
    """
    tokenizer = corpora[0].tokenizer
    if not step:
        discard_stale_metadata(work_dir, tokenizer)
    origin = {"command": "bert-jax pretrain", PAIRS: sentence_pairs}
    # The model description is written first, because it marks the directory as belonging to a run.
    phases = [(corpus.first_step, corpus.config.encoder(model.encoder)) for corpus in corpora]
    write_model(
        model,
        origin,
        work_dir,
        tokenizer=tokenizer,
        generator=generator,
        rotary_changes=rotary_changes(model.encoder, phases),
    )
    lines = keep_config(config, work_dir, step, finished=finished)
    _copy_once(corpora[0].train.directory / TOKENIZER, work_dir / TOKENIZER_NAME)
    for corpus in corpora:
        source = corpus.train.directory / MANIFEST
        _copy_once(source, work_dir / f"manifest-{corpus.name}.json")
    return lines


def discard_stale_metadata(work_dir: Path, tokenizer: Tokenizer) -> None:
    """Remove the tokenizer and manifests of a run that was killed before its first checkpoint.

    A run without a checkpoint may be started again with different corpora. After the first
    checkpoint, the corpora are fixed by the run's identity.

    Args:
      work_dir: the work directory.
      tokenizer: the run's tokenizer. A saved tokenizer equal to it is kept, because the corpus may
        have been prepared with the one in this directory.
    """
    if not (work_dir / MODEL_NAME).is_file():
        return
    if not holds(work_dir, tokenizer):
        shutil.rmtree(work_dir / TOKENIZER_NAME, ignore_errors=True)
    for manifest in work_dir.glob("manifest-*.json"):
        manifest.unlink()


def _copy_once(source: Location, target: Path) -> None:
    """Copy a file or directory atomically, unless `target` exists.

    A run resumes only with the corpora it started with, so an existing target is already correct.
    """
    if target.exists():
        return
    source = local_copy(source)
    with writing(target), temporary_beside(target, directory=source.is_dir()) as temporary:
        if source.is_dir():
            shutil.copytree(source, temporary, dirs_exist_ok=True)
        else:
            shutil.copyfile(source, temporary)
        temporary.rename(target)


def first_evaluation(work_dir: Path) -> dict[str, float]:
    """Return the metrics of the evaluation before the first step, or {} if there was none."""
    return next((metrics for step, metrics in _evaluations(work_dir) if step == 0), {})


def last_evaluation(work_dir: Path) -> dict[str, float]:
    """Return the metrics of the last evaluation in the run's log, or {} if there is none."""
    evaluations = _evaluations(work_dir)
    return evaluations[-1][1] if evaluations else {}


def _evaluations(work_dir: Path) -> list[tuple[int, dict[str, float]]]:
    """Return the step and the metrics of each evaluation in the run's log."""
    log = work_dir / LOG_NAME
    entries = read_metrics(log) if log.is_file() else []
    return [
        (entry["step"], {n: value for n, value in entry.items() if n not in ("kind", "step")})
        for entry in entries
        if entry["kind"] == "evaluation"
    ]
