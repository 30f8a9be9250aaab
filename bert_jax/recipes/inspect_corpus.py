"""Describe a corpus, and show the examples that a recipe trains on."""

from __future__ import annotations

import dataclasses
import os

from bert_jax.corpus.manifest import Manifest, read_manifest
from bert_jax.objectives import SentencePairs
from bert_jax.pipeline.examples import ExampleConfig
from bert_jax.pretraining.config import PretrainConfig
from bert_jax.pretraining.corpus_view import CorpusView, view_corpus
from bert_jax.pretraining.phase_config import PhaseConfig
from bert_jax.recipes.load import Overrides, Source, load_config

_Phases = list[tuple[str, int, PhaseConfig]]


def inspect_corpus(
    corpus: str | os.PathLike[str],
    source: Source | None = None,
    overrides: Overrides = (),
    *,
    num_rows: int = 10,
) -> CorpusView:
    """Measure the training rows and documents of a corpus, and show some rows as a run sees them.

    The time is limited even for a very large corpus, because only some evenly spaced rows and
    shards of it are read. The result reports which ones.

    Args:
      corpus: a directory made by `prepare`.
      source: the config of a pretraining run, which determines the masks and sentence pairs; see
        `load_config`. None for the default settings of pretraining. If no phase of the config uses
        the corpus, the phase with the corpus's sequence length determines the settings. Without
        such a phase, the config must have only one phase.
      overrides: the keys to change; see `load_config`.
      num_rows: the number of rows to show.

    Returns:
      A `CorpusView`, which is printed as text and displayed in color in Jupyter. Its `save` writes
      an HTML page.

    Raises:
      ValueError: the corpus is missing, unfinished or damaged, has no training rows, or does not
        fit the config; `load_config` fails; or no phase of the config can use the corpus.
    """
    if num_rows < 1:
        raise ValueError(f"num_rows={num_rows}: expected at least 1.")
    corpus = os.fspath(corpus)
    manifest = read_manifest(corpus)
    if source is None:
        if overrides:
            raise ValueError(f"overrides={overrides!r}: there is no config to change. Specify one.")
        phases, examples = _default_run(corpus, manifest, num_rows)
        step, settings = 0, f"with the default settings ({_described(examples)})"
    else:
        config = load_config(source, overrides, kind="pretrain")
        phases, step = _phases_with(corpus, manifest.max_length, config)
        examples = config.examples
        settings = f"with the settings of the config ({_described(examples)})"
    return view_corpus(corpus, phases, examples, settings, step=step, num_rows=num_rows)


def _default_run(corpus: str, manifest: Manifest, num_rows: int) -> tuple[_Phases, ExampleConfig]:
    phase = PhaseConfig(
        corpus, num_steps=1, sequence_length=manifest.max_length, batch_size=num_rows
    )
    # Random pairs for next-sentence prediction need at least two documents.
    pairs: SentencePairs = "next_sentence" if manifest.train.num_documents > 1 else "none"
    return [("default settings", 0, phase)], ExampleConfig(seed=0, sentence_pairs=pairs)


def _phases_with(corpus: str, length: int, config: PretrainConfig) -> tuple[_Phases, int]:
    """Return (phases, the first step of the phase that uses the corpus).

    If no phase uses the corpus, the phase that fits it is changed to do so.
    """
    phases = config.ordered_phases()
    for _, first_step, phase in phases:
        if os.path.realpath(phase.corpus) == os.path.realpath(corpus):
            return phases, first_step
    fitting = [name for name, _, phase in phases if phase.sequence_length == length]
    fitting = fitting if len(phases) > 1 else [phases[0][0]]
    if len(fitting) != 1:
        lengths = ", ".join(f"{name}: {phase.sequence_length:,}" for name, _, phase in phases)
        raise ValueError(
            f"{corpus}: {len(fitting)} phases of the config have the sequence length {length:,} of "
            f"this corpus ({lengths}). Choose a phase by setting its key "
            f"phases.{phases[0][0]}.corpus={corpus}."
        )
    changed = [
        (name, step, dataclasses.replace(phase, corpus=corpus, sequence_length=length))
        if name in fitting
        else (name, step, phase)
        for name, step, phase in phases
    ]
    return changed, next(step for name, step, _ in changed if name in fitting)


def _described(examples: ExampleConfig) -> str:
    masking = examples.masking
    parts = [
        f"seed={examples.seed}",
        f"sentence_pairs={examples.sentence_pairs}",
        f"masking.rate={masking.rate:g}",
        f"masking.unit={masking.unit}",
        *(["join_documents=True"] if examples.join_documents else []),
    ]
    return ", ".join(parts)
