"""Make a trainer's phases from a run's config and its corpora, or from random tokens."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jax.sharding import Mesh

from bert_jax.corpus.corpus import Corpus
from bert_jax.corpus.manifest import TOKENIZER
from bert_jax.pipeline.examples import Batch, ExampleConfig, ExampleSource
from bert_jax.pipeline.loader import BatchSource, EvaluationSource, Loader
from bert_jax.pretraining.sections import EvaluationConfig, LoaderConfig, PhaseConfig
from bert_jax.tokenizers.special_tokens import Vocabulary
from bert_jax.tokenizers.tokenizer import Tokenizer
from bert_jax.training.evaluation import HeldOutMetrics
from bert_jax.training.loop import Phase
from bert_jax.training.preflight import PhaseFacts
from bert_jax.training.sharding import local_rows
from bert_jax.training.step import EvaluationStep


@dataclass(frozen=True)
class PhaseCorpus:
    """The opened corpus of one phase.

    evaluation_batch_size: sequences in a batch of held-out text.
    first_epoch: the first epoch of the corpus that no earlier phase has begun.
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

    phases: name, first step and config of each, in running order.

    Raises:
      ValueError: a corpus is absent, unfinished or damaged, or its tokenizer is.
    """
    corpora = [
        PhaseCorpus(
            name,
            first,
            phase,
            evaluation_batch_size(phase),
            train=Corpus(phase.corpus, "train"),
            held_out=Corpus(phase.corpus, "heldout"),
            tokenizer=Tokenizer.load(Path(phase.corpus) / TOKENIZER),
        )
        for name, first, phase in phases
    ]
    begun: Counter[str] = Counter()  # epochs of each corpus
    for number, corpus in enumerate(corpora):
        fingerprint = corpus.train.manifest.fingerprint
        corpora[number] = dataclasses.replace(corpus, first_epoch=begun[fingerprint])
        seen = corpus.config.num_steps * corpus.config.batch_size
        begun[fingerprint] += -(-seen // max(len(corpus.train), 1))
    return corpora


def facts(corpus: PhaseCorpus) -> PhaseFacts:
    """Return what the preflight check needs to know about a phase."""
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
    """Return what a checkpoint must share with this run: the corpora and batches of each phase."""
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
    """How a run makes the batches of its phases.

    run_steps: the steps of all phases, over which masking rates may change.
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
        """Return a phase for the trainer, which reads nothing before the phase begins.

        Args:
          flops: FLOPs per step.
          while_waiting: called while a batch is overdue; see `Loader`.
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


def random_batch(
    length: int,
    pieces: int,
    rows: int,
    *,
    vocab_size: int,
    predictions: int,
    joined: bool = False,
    seed: int = 0,
) -> dict[str, np.ndarray]:
    """Return full rows of random tokens, each of `pieces` documents of equal length.

    Args:
      length: tokens in a row.
      predictions: masked positions in a row.
      joined: whether the config joins the documents of a row.

    Raises:
      ValueError: there are more documents than tokens, or several although the config joins them.
    """
    if pieces > length:
        raise ValueError(
            f"--pieces {pieces}: a row of {length} tokens cannot hold more than "
            f"{length} documents. Lower --pieces or leave it out"
        )
    if joined and pieces > 1:
        raise ValueError(
            f"--pieces {pieces} with join_documents=True: what a row holds is one document then; "
            "leave --pieces out"
        )
    rng = np.random.default_rng(seed)
    piece = np.minimum(np.arange(length) * pieces // length, pieces - 1)
    starts = np.searchsorted(piece, np.arange(pieces))
    position = np.arange(length) - starts[piece]
    token_ids = rng.integers(0, vocab_size, (rows, length))
    places = np.sort(rng.random((rows, length)).argsort(axis=1)[:, :predictions], axis=1)
    batch = {
        "token_ids": token_ids,
        "segment_ids": np.tile(position > length // pieces // 2, (rows, 1)),
        "position_ids": np.tile(position, (rows, 1)),
        "document_ids": np.tile(piece + 1, (rows, 1)),
        "masked_positions": places,
        "masked_labels": np.take_along_axis(token_ids, places, axis=1),
        "cls_positions": np.tile(starts, (rows, 1)),
        "pair_labels": rng.integers(0, 2, (rows, pieces)),
    }
    result = {name: value.astype(np.int32) for name, value in batch.items()}
    result["masked_weights"] = np.ones((rows, predictions), np.float32)
    result["pair_weights"] = np.ones((rows, pieces), np.float32)
    return result
