"""What a pretraining run puts beside its checkpoints, and what it leaves alone."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from bert_jax.cli.config import RESOLVED_NAME
from bert_jax.cli.config_history import REMOVE_CONFIG, keep_config
from bert_jax.cli.phases import PhaseCorpus
from bert_jax.cli.run_config import PretrainConfig
from bert_jax.cli.work_dir_claim import check_claimable, holds
from bert_jax.data.manifest import MANIFEST, TOKENIZER
from bert_jax.data.tokenizer import Tokenizer
from bert_jax.files import writing
from bert_jax.inference.work_dir import MODEL_NAME, PAIRS, TOKENIZER_NAME, write_model
from bert_jax.json_files import read_json_object
from bert_jax.temporary import temporary_beside


def check_work_dir(config: PretrainConfig, corpora: Sequence[PhaseCorpus], *, begun: bool) -> None:
    """Refuse a work directory that is a corpus of the run or belongs to something else.

    Raises:
      ValueError: it is a corpus, cannot be claimed (see `check_claimable`), or holds a run that
        started from another `init_from`.
    """
    work_dir = Path(config.work_dir)
    for corpus in corpora:
        if Path(corpus.config.corpus).resolve() == work_dir.resolve():
            raise ValueError(
                f"work_dir={work_dir} is the corpus of phase {corpus.name}, whose tokenizer the "
                "run would write its own over: choose a directory of its own"
            )
    check_claimable(work_dir, corpora[0].tokenizer, begun=begun)
    if begun:
        _check_same_source(work_dir, config.init_from)


def _check_same_source(work_dir: Path, init_from: str) -> None:
    """Refuse another `init_from` than the one that the run in `work_dir` started from.

    A run that has a checkpoint never reads it again, so another one would be ignored.
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


def _resolved(path: str) -> Path | None:
    return Path(path).resolve() if path else None


def forget_provenance(work_dir: Path, tokenizer: Tokenizer) -> None:
    """Removes what a start that was killed before its first checkpoint left of its corpora.

    Nothing binds the next start to them; from the first checkpoint on, the run's identity does.

    tokenizer: the run's. The same one stays as it is: it may be whose the corpus was prepared with.
    """
    if not (work_dir / MODEL_NAME).is_file():
        return
    if not holds(work_dir, tokenizer):
        shutil.rmtree(work_dir / TOKENIZER_NAME, ignore_errors=True)
    for manifest in work_dir.glob("manifest-*.json"):
        manifest.unlink()


def write_provenance(
    work_dir: Path, config: PretrainConfig, corpora: Sequence[PhaseCorpus], saved: int
) -> None:
    """Puts config, tokenizer and manifests beside the checkpoints: a work directory is whole."""
    origin = {"command": "bert-jax pretrain", PAIRS: config.sentence_pairs}
    # First: it says whose the rest is.
    write_model(config.model_config(), origin, work_dir, tokenizer=corpora[0].tokenizer)
    for line in keep_config(config, work_dir, saved, finished=saved >= config.total_steps):
        print(line, flush=True)
    _copy(corpora[0].train.directory / TOKENIZER, work_dir / TOKENIZER_NAME)
    for corpus in corpora:
        source = corpus.train.directory / MANIFEST
        _copy(source, work_dir / f"manifest-{corpus.name}.json")


def _copy(source: Path, target: Path) -> None:
    """Copies a file or directory under a temporary name, then renames it; once is enough.

    A run goes on only with the corpora it began with, so what is there is what would be copied.
    """
    if target.exists():
        return
    with writing(target), temporary_beside(target, directory=source.is_dir()) as temporary:
        if source.is_dir():
            shutil.copytree(source, temporary, dirs_exist_ok=True)
        else:
            shutil.copyfile(source, temporary)
        temporary.rename(target)
