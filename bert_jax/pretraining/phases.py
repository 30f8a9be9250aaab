"""Open the corpora of the phases of a pretraining run, and make their batches."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from jax.sharding import Mesh
from numpy.typing import NDArray

from bert_jax.corpus.corpus import Corpus
from bert_jax.corpus.manifest import TOKENIZER
from bert_jax.models.config import EncoderConfig
from bert_jax.pipeline.examples import Batch, ExampleConfig, ExampleSource
from bert_jax.pipeline.loader import BatchSource, EvaluationSource, Loader
from bert_jax.pretraining.evaluation_config import EvaluationConfig
from bert_jax.pretraining.phase_config import LoaderConfig, PhaseConfig, Stage
from bert_jax.storage.cache import Cache
from bert_jax.storage.urls import parse_location
from bert_jax.tokenizers.special_tokens import Vocabulary
from bert_jax.tokenizers.tokenizer import Tokenizer
from bert_jax.training.diagnosis import Diagnose
from bert_jax.training.evaluation import Evaluate, HeldOutMetrics, both
from bert_jax.training.phase import Phase
from bert_jax.training.preflight import PhaseFacts
from bert_jax.training.sharding import local_rows
from bert_jax.training.step import EvaluationStep, TrainStep


@dataclass(frozen=True)
class PhaseCorpus:
    """The opened corpus of one phase.

    Attributes:
      name: the phase's name.
      first_step: the phase's first step, counted over the whole run.
      config: the phase's config.
      evaluation_batch_size: the number of sequences in a held-out batch.
      train: the training split.
      held_out: the held-out split.
      tokenizer: the corpus's tokenizer.
      first_epoch: the epoch of the corpus at which the phase starts. It is the first epoch that no
        earlier phase has read from.
    """

    name: str
    first_step: int
    config: PhaseConfig
    evaluation_batch_size: int
    train: Corpus
    held_out: Corpus
    tokenizer: Tokenizer
    first_epoch: int = 0


def open_corpora(
    phases: Sequence[tuple[str, int, PhaseConfig]],
    evaluation_batch_size: Callable[[PhaseConfig], int],
    cache: Cache | None = None,
) -> list[PhaseCorpus]:
    """Open the corpus of every phase.

    Args:
      phases: (name, first step, config) for each phase, in running order.
      evaluation_batch_size: a function from a phase's config to its evaluation batch size.
      cache: where shards from a bucket are kept; None for the default.

    Raises:
      ValueError: a corpus or its tokenizer is missing, unfinished or damaged.
    """
    corpora = [
        PhaseCorpus(
            name,
            first_step,
            phase,
            evaluation_batch_size(phase),
            train=Corpus(phase.corpus, "train", cache),
            held_out=Corpus(phase.corpus, "heldout", cache),
            tokenizer=Tokenizer.load(parse_location(phase.corpus) / TOKENIZER),
        )
        for name, first_step, phase in phases
    ]
    begun_epochs: Counter[str] = Counter()  # keyed by corpus fingerprint
    for number, corpus in enumerate(corpora):
        fingerprint = corpus.train.manifest.fingerprint
        corpora[number] = dataclasses.replace(corpus, first_epoch=begun_epochs[fingerprint])
        num_epochs = -(-corpus.config.num_sequences // max(len(corpus.train), 1))
        begun_epochs[fingerprint] += num_epochs
    return corpora


def facts(corpus: PhaseCorpus) -> PhaseFacts:
    """Collect the information about a phase that the preflight check needs."""
    manifest = corpus.train.manifest
    return PhaseFacts(
        name=corpus.name,
        corpus=corpus.config.corpus,
        sequence_length=corpus.config.sequence_length,
        batch_size=corpus.config.batch_size,
        warmup_batch_sizes=corpus.config.warmup_batch_sizes,
        evaluation_batch_size=corpus.evaluation_batch_size,
        corpus_length=manifest.max_length,
        corpus_vocab_size=manifest.vocab_size,
        corpus_documents=manifest.train.num_documents,
        held_out_documents=manifest.heldout.num_documents,
        corpus_sentences=manifest.train.num_sentences,
        held_out_sentences=manifest.heldout.num_sentences,
        corpus_kind=corpus.tokenizer.kind,
        num_records=len(corpus.train),
        held_out_records=len(corpus.held_out),
        corpus_tokenizer_fingerprint=manifest.tokenizer_fingerprint,
        tokenizer_fingerprint=corpus.tokenizer.fingerprint,
    )


def phases_identity(corpora: Sequence[PhaseCorpus], model: EncoderConfig) -> dict[str, object]:
    """Return the values of the phases that must match when a run resumes.

    Args:
      corpora: the opened corpora of the phases.
      model: the run's encoder.
    """
    return {
        corpus.name: {
            "first_step": corpus.first_step,
            "batch_size": corpus.config.batch_size,
            "corpus": corpus.train.manifest.fingerprint,
            "tokenizer": corpus.train.manifest.tokenizer_fingerprint,
            **({"first_epoch": corpus.first_epoch} if corpus.first_epoch else {}),
            **_warmup_identity(corpus.config),
            **_rotary_identity(corpus.config, model),
        }
        for corpus in corpora
    }


def _warmup_identity(phase: PhaseConfig) -> dict[str, object]:
    if not phase.warmup_batch_sizes:  # Checkpoints of earlier versions lack these keys.
        return {}
    sizes, steps = list(phase.warmup_batch_sizes), phase.warmup_batch_steps
    return {"warmup_batch_sizes": sizes, "warmup_batch_steps": steps}


def _rotary_identity(phase: PhaseConfig, model: EncoderConfig) -> dict[str, object]:
    encoder = phase.encoder(model)
    return {} if encoder == model else {"rotary_theta": encoder.rotary_theta}


def training_batches(
    corpus: PhaseCorpus,
    examples: ExampleConfig,
    stage: Stage,
    run_steps: int,
    rows: NDArray[np.int64],
) -> BatchSource:
    """Return the batches of a stage of a phase.

    Args:
      corpus: the phase's corpus.
      examples: the settings that determine the examples.
      stage: one of the phase's stages.
      run_steps: the total number of steps in the run.
      rows: the rows of each batch to make.
    """
    return BatchSource(
        ExampleSource(corpus.train, Vocabulary.of(corpus.tokenizer), examples),
        batch_size=stage.batch_size,
        num_steps=stage.num_steps,
        local_rows=rows,
        first_step=corpus.first_step + stage.first_step,
        run_steps=run_steps,
        first_epoch=corpus.first_epoch,
        first_example=stage.first_sequence,
    )


@dataclass(frozen=True)
class PhaseBatches:
    """The settings that a run uses to make batches for its phases.

    Attributes:
      examples: the settings that determine the training examples.
      loader: the numbers of worker processes and prefetched batches.
      evaluation: the evaluation on held-out text.
      run_steps: the total number of steps, over which the masking rate may change.
      mesh: the device mesh that batches are sharded over.
    """

    examples: ExampleConfig
    loader: LoaderConfig
    evaluation: EvaluationConfig
    run_steps: int
    mesh: Mesh

    def phases(
        self,
        corpus: PhaseCorpus,
        train_step: TrainStep,
        evaluation_step: EvaluationStep,
        flops: int,
        while_waiting: Callable[[], None],
        on_other_data: Evaluate | None = None,
        diagnose: Diagnose | None = None,
    ) -> list[Phase]:
        """Return the stages of a phase, each as a `Phase` for the trainer.

        No batches are read until a stage begins.

        Args:
          corpus: the phase's corpus.
          train_step: the compiled train step.
          evaluation_step: the compiled evaluation step.
          flops: the model FLOPs per step with the phase's full batch size.
          while_waiting: called repeatedly while a batch is overdue; see `Loader`.
          on_other_data: computes the metrics on texts and minimal pairs; None if there are none.
          diagnose: see `Phase`.
        """
        evaluate: Evaluate | None = None
        if self.evaluation.every_steps:
            evaluate = self._held_out_metrics(corpus, evaluation_step, while_waiting)
            if on_other_data is not None:
                evaluate = both(evaluate, on_other_data)
        return [
            self._stage(
                corpus,
                stage,
                train_step,
                evaluate,
                flops * stage.batch_size // corpus.config.batch_size,
                while_waiting,
                diagnose,
            )
            for stage in corpus.config.stages
        ]

    def _stage(
        self,
        corpus: PhaseCorpus,
        stage: Stage,
        train_step: TrainStep,
        evaluate: Evaluate | None,
        flops: int,
        while_waiting: Callable[[], None],
        diagnose: Diagnose | None,
    ) -> Phase:
        rows = local_rows(self.mesh, stage.batch_size)
        train = training_batches(corpus, self.examples, stage, self.run_steps, rows)
        return Phase(
            name=corpus.name,
            first_step=corpus.first_step + stage.first_step,
            num_steps=stage.num_steps,
            batch_size=stage.batch_size,
            train_step=train_step,
            batches=lambda start_step: Loader(
                train,
                start_step=start_step,
                num_workers=self.loader.num_workers,
                prefetch=self.loader.prefetch,
                while_waiting=while_waiting,
            ),
            evaluate=evaluate,
            flops=lambda batch: flops,
            diagnose=diagnose,
        )

    def _held_out_metrics(
        self,
        corpus: PhaseCorpus,
        evaluation_step: EvaluationStep,
        while_waiting: Callable[[], None],
    ) -> HeldOutMetrics:
        size, examples = corpus.evaluation_batch_size, self.examples
        if rate := self.evaluation.masking_rate:
            examples = dataclasses.replace(examples, masking=examples.masking.constant(rate))
        source = EvaluationSource(
            ExampleSource(corpus.held_out, Vocabulary.of(corpus.tokenizer), examples),
            batch_size=size,
            local_rows=local_rows(self.mesh, size),
            max_records=self.evaluation.max_records,
        )
        return HeldOutMetrics(
            self.mesh,
            evaluation_step,
            size,
            lambda: _one_pass(source, self.loader.prefetch, while_waiting),
        )


def _one_pass(
    source: EvaluationSource, prefetch: int, while_waiting: Callable[[], None]
) -> Iterator[Batch]:
    with Loader(source, prefetch=prefetch, while_waiting=while_waiting) as loader:
        yield from loader
