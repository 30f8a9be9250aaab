"""Define the phases of a pretraining run: their configs, corpora and batches."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from jax.sharding import Mesh

from bert_jax.corpus.corpus import Corpus
from bert_jax.corpus.inputs import MAX_LENGTH
from bert_jax.corpus.manifest import TOKENIZER
from bert_jax.local_paths import LocalPath
from bert_jax.pipeline.examples import Batch, ExampleConfig, ExampleSource
from bert_jax.pipeline.loader import BatchSource, EvaluationSource, Loader
from bert_jax.tokenizers.special_tokens import Vocabulary
from bert_jax.tokenizers.tokenizer import Tokenizer
from bert_jax.training.evaluation import HeldOutMetrics
from bert_jax.training.loop import Phase
from bert_jax.training.preflight import PhaseFacts
from bert_jax.training.sharding import local_rows
from bert_jax.training.step import EvaluationStep
from bert_jax.validation import check_at_least


@dataclass(frozen=True)
class PhaseConfig:
    """A stage of the run that uses one corpus, sequence length and batch size.

    Attributes:
      corpus: a directory made by `bert-jax prepare`.
      num_steps: the number of optimizer steps.
      sequence_length: the number of tokens per sequence, equal to the corpus's `--max-length`.
      batch_size: the global batch size: the number of sequences per step across all devices.
    """

    corpus: LocalPath
    num_steps: int
    sequence_length: int = 128
    batch_size: int = 256

    def __post_init__(self) -> None:
        check_at_least(1, "phase ", num_steps=self.num_steps, batch_size=self.batch_size)
        check_at_least(8, "phase ", sequence_length=self.sequence_length)
        if self.sequence_length > MAX_LENGTH:
            raise ValueError(
                f"phase sequence_length={self.sequence_length}: expected at most {MAX_LENGTH:,}, "
                "the maximum length of a corpus record."
            )


@dataclass(frozen=True)
class EvaluationConfig:
    """The evaluation on the held-out split of the corpora.

    Attributes:
      every_steps: the number of steps between evaluations; the last step is always evaluated.
        0 disables evaluation.
      batch_size: the number of sequences per evaluation batch. If 0, it is the number that a train
        step processes at once: the phase's batch_size divided by accumulation_steps.
      max_records: the maximum number of records to score. A larger split is sampled at random, and
        every evaluation uses the same sample. 0 scores all records.
    """

    every_steps: int = 1_000
    batch_size: int = 0
    max_records: int = 0

    def __post_init__(self) -> None:
        sizes = {"batch_size": self.batch_size, "max_records": self.max_records}
        check_at_least(0, "evaluation.", every_steps=self.every_steps, **sizes)


@dataclass(frozen=True)
class LoaderConfig:
    """How batches are made.

    Attributes:
      num_workers: the number of processes that make training batches; 0 makes them in a thread of
        the main process. Held-out batches are always made in a thread.
      prefetch: the number of batches that the thread, or each process, keeps ready.
    """

    num_workers: int = 0
    prefetch: int = 4

    def __post_init__(self) -> None:
        check_at_least(0, "loader.", num_workers=self.num_workers)
        check_at_least(1, "loader.", prefetch=self.prefetch)


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
      first_epoch: the epoch of the corpus at which the phase starts: the first epoch that no
        earlier phase has begun.
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
) -> list[PhaseCorpus]:
    """Open the corpus of every phase.

    Args:
      phases: (name, first step, config) for each phase, in running order.
      evaluation_batch_size: a function from a phase's config to its evaluation batch size.

    Raises:
      ValueError: a corpus or its tokenizer is missing, unfinished or damaged.
    """
    corpora = [
        PhaseCorpus(
            name,
            first_step,
            phase,
            evaluation_batch_size(phase),
            train=Corpus(phase.corpus, "train"),
            held_out=Corpus(phase.corpus, "heldout"),
            tokenizer=Tokenizer.load(Path(phase.corpus) / TOKENIZER),
        )
        for name, first_step, phase in phases
    ]
    begun_epochs: Counter[str] = Counter()  # keyed by corpus fingerprint
    for number, corpus in enumerate(corpora):
        fingerprint = corpus.train.manifest.fingerprint
        corpora[number] = dataclasses.replace(corpus, first_epoch=begun_epochs[fingerprint])
        sequences = corpus.config.num_steps * corpus.config.batch_size
        begun_epochs[fingerprint] += -(-sequences // max(len(corpus.train), 1))
    return corpora


def facts(corpus: PhaseCorpus) -> PhaseFacts:
    """Collect the information about a phase that the preflight check needs."""
    manifest = corpus.train.manifest
    return PhaseFacts(
        name=corpus.name,
        corpus=corpus.config.corpus,
        sequence_length=corpus.config.sequence_length,
        batch_size=corpus.config.batch_size,
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


def phases_identity(corpora: Sequence[PhaseCorpus]) -> dict[str, object]:
    """Return the corpus and batch-size values that must match when a run resumes."""
    return {
        corpus.name: {
            "first_step": corpus.first_step,
            "batch_size": corpus.config.batch_size,
            "corpus": corpus.train.manifest.fingerprint,
            "tokenizer": corpus.train.manifest.tokenizer_fingerprint,
            **({"first_epoch": corpus.first_epoch} if corpus.first_epoch else {}),
        }
        for corpus in corpora
    }


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

    def phase(
        self,
        corpus: PhaseCorpus,
        evaluation_step: EvaluationStep,
        flops: int,
        while_waiting: Callable[[], None],
    ) -> Phase:
        """Return a phase for the trainer; no batches are read until the phase begins.

        Args:
          corpus: the phase's corpus.
          evaluation_step: the compiled evaluation step.
          flops: the model FLOPs per step.
          while_waiting: called repeatedly while a batch is overdue; see `Loader`.
        """
        phase = corpus.config
        train = BatchSource(
            ExampleSource(corpus.train, Vocabulary.of(corpus.tokenizer), self.examples),
            batch_size=phase.batch_size,
            num_steps=phase.num_steps,
            local_rows=local_rows(self.mesh, phase.batch_size),
            first_step=corpus.first_step,
            run_steps=self.run_steps,
            first_epoch=corpus.first_epoch,
        )
        evaluate = None
        if self.evaluation.every_steps:
            evaluate = self._held_out_metrics(corpus, evaluation_step, while_waiting)
        return Phase(
            name=corpus.name,
            first_step=corpus.first_step,
            num_steps=phase.num_steps,
            batch_size=phase.batch_size,
            batches=lambda start_step: Loader(
                train,
                start_step=start_step,
                num_workers=self.loader.num_workers,
                prefetch=self.loader.prefetch,
                while_waiting=while_waiting,
            ),
            evaluate=evaluate,
            flops=lambda batch: flops,
        )

    def _held_out_metrics(
        self,
        corpus: PhaseCorpus,
        evaluation_step: EvaluationStep,
        while_waiting: Callable[[], None],
    ) -> HeldOutMetrics:
        size = corpus.evaluation_batch_size
        source = EvaluationSource(
            ExampleSource(corpus.held_out, Vocabulary.of(corpus.tokenizer), self.examples),
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
