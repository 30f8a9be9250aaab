"""Make a trainer's phases from a run's config and its corpora, or from random tokens."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jax.sharding import Mesh

from bert_jax.analysis.counts import TRAINING_FACTOR, pretraining_flops
from bert_jax.corpus.corpus import Corpus
from bert_jax.corpus.manifest import TOKENIZER
from bert_jax.pipeline.examples import Batch, ExampleSource
from bert_jax.pipeline.loader import BatchSource, EvaluationSource, Loader
from bert_jax.pretraining.config import PhaseConfig, PretrainConfig
from bert_jax.tokenizers.special_tokens import Vocabulary
from bert_jax.tokenizers.tokenizer import Tokenizer
from bert_jax.training.evaluation import HeldOutMetrics
from bert_jax.training.loop import Phase
from bert_jax.training.preflight import PhaseFacts
from bert_jax.training.sharding import local_rows
from bert_jax.training.step import EvaluationStep

# Raised where one seed draws other pairs than it did, or a pair weighs otherwise in the loss: a run
# of before is refused, and not mixed.
_PAIRS = 3


@dataclass(frozen=True)
class PhaseCorpus:
    """The corpus of one phase, opened. first_epoch: of it that no phase before has begun."""

    name: str
    first_step: int
    config: PhaseConfig
    train: Corpus
    held_out: Corpus
    tokenizer: Tokenizer
    first_epoch: int = 0


def open_corpora(config: PretrainConfig) -> list[PhaseCorpus]:
    """Opens every phase's corpus.

    Raises:
      ValueError: a corpus is absent, unfinished or damaged, or its tokenizer is.
    """
    found = [
        PhaseCorpus(
            name,
            first,
            phase,
            train=Corpus(phase.corpus, "train"),
            held_out=Corpus(phase.corpus, "heldout"),
            tokenizer=Tokenizer.load(Path(phase.corpus) / TOKENIZER),
        )
        for name, first, phase in config.ordered_phases()
    ]
    begun: Counter[str] = Counter()  # epochs of each corpus
    for number, corpus in enumerate(found):
        fingerprint = corpus.train.manifest.fingerprint
        found[number] = dataclasses.replace(corpus, first_epoch=begun[fingerprint])
        seen = corpus.config.num_steps * corpus.config.batch_size
        begun[fingerprint] += -(-seen // max(len(corpus.train), 1))
    return found


def facts(config: PretrainConfig, corpus: PhaseCorpus) -> PhaseFacts:
    """What preflight wants to know of a phase."""
    manifest = corpus.train.manifest
    return PhaseFacts(
        name=corpus.name,
        corpus=corpus.config.corpus,
        sequence_length=corpus.config.sequence_length,
        batch_size=corpus.config.batch_size,
        evaluation_batch_size=config.evaluation_batch_size(corpus.config),
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


def identity(config: PretrainConfig, corpora: list[PhaseCorpus]) -> dict[str, object]:
    """What a checkpoint must share with this run: model, seed, masking, corpora and batches."""
    # A rate that changes with the run changes otherwise in a run of another length.
    changing = {"total_steps": config.total_steps} if config.masking.final_rate else {}
    pairs = {"pairs": _PAIRS} if config.sentence_pairs != "none" else {}
    return {
        **changing,
        **pairs,
        "model": config.model_identity(),
        "optimizer": config.optimizer.name,
        "seed": config.seed,
        "masking": vars(config.masking),
        "join_documents": config.join_documents,
        "phases": {
            corpus.name: {
                "first_step": corpus.first_step,
                "batch_size": corpus.config.batch_size,
                "corpus": corpus.train.manifest.fingerprint,
                "tokenizer": corpus.train.manifest.tokenizer_fingerprint,
                **({"first_epoch": corpus.first_epoch} if corpus.first_epoch else {}),
            }
            for corpus in corpora
        },
    }


def training_flops(config: PretrainConfig, phase: PhaseConfig, pieces: int) -> int:
    """Model FLOPs of one step of a phase whose corpus packs up to `pieces` documents a row.

    A student's own, without its teacher's forward pass.
    """
    counted = pretraining_flops(
        config.model,
        phase.sequence_length,
        config.max_predictions(phase),
        pieces=pieces,
        next_sentence=config.sentence_pairs != "none",
    )
    return phase.batch_size * counted.training + comparing_flops(config, phase)


def comparing_flops(config: PretrainConfig, phase: PhaseConfig) -> int:
    """Of a step: training the masked-LM head at all tokens, where a student is compared at all."""
    if config.distillation is None or config.distillation.soft_targets != "all":
        return 0
    length = phase.sequence_length
    head = pretraining_flops(config.model, length, length, next_sentence=False).masked_lm
    return TRAINING_FACTOR * phase.batch_size * head


def make_phase(
    config: PretrainConfig,
    corpus: PhaseCorpus,
    mesh: Mesh,
    evaluation_step: EvaluationStep,
    flops: int,
    while_waiting: Callable[[], None],
) -> Phase:
    """Return a phase for the trainer, which reads nothing before the phase begins.

    flops: FLOPs per step. while_waiting: called while a batch is overdue; see `Loader`.
    """
    vocabulary = Vocabulary.of(corpus.tokenizer)
    examples = config.examples
    phase, evaluation_size = corpus.config, config.evaluation_batch_size(corpus.config)
    train = BatchSource(
        ExampleSource(corpus.train, vocabulary, examples),
        batch_size=phase.batch_size,
        num_steps=phase.num_steps,
        local_rows=local_rows(mesh, phase.batch_size),
        first_step=corpus.first_step,
        run_steps=config.total_steps,
        first_epoch=corpus.first_epoch,
    )
    held_out_metrics = None
    if config.evaluation.every_steps:
        held_out = EvaluationSource(
            ExampleSource(corpus.held_out, vocabulary, examples),
            batch_size=evaluation_size,
            local_rows=local_rows(mesh, evaluation_size),
            max_records=config.evaluation.max_records,
        )
        held_out_metrics = HeldOutMetrics(
            mesh,
            evaluation_step,
            evaluation_size,
            lambda: _one_pass(held_out, config.loader.prefetch, while_waiting),
        )
    return Phase(
        name=corpus.name,
        first_step=corpus.first_step,
        num_steps=phase.num_steps,
        batch_size=phase.batch_size,
        batches=lambda start_step: Loader(
            train,
            start_step=start_step,
            num_workers=config.loader.num_workers,
            prefetch=config.loader.prefetch,
            while_waiting=while_waiting,
        ),
        evaluate=held_out_metrics,
        flops=lambda batch: flops,
    )


def _one_pass(
    source: EvaluationSource, prefetch: int, while_waiting: Callable[[], None]
) -> Iterator[Batch]:
    with Loader(source, prefetch=prefetch, while_waiting=while_waiting) as loader:
        yield from loader


def random_batch(
    config: PretrainConfig, phase: PhaseConfig, pieces: int, rows: int
) -> dict[str, np.ndarray]:
    """Full rows of random tokens, each of `pieces` documents of equal length.

    Raises:
      ValueError: there are more documents than tokens, or several although the config joins them.
    """
    if pieces > phase.sequence_length:
        raise ValueError(
            f"--pieces {pieces}: a row of {phase.sequence_length} tokens cannot hold more than "
            f"{phase.sequence_length} documents. Lower --pieces or leave it out"
        )
    if config.join_documents and pieces > 1:
        raise ValueError(
            f"--pieces {pieces} with join_documents=True: what a row holds is one document then; "
            "leave --pieces out"
        )
    rng = np.random.default_rng(config.seed)
    length, predictions = phase.sequence_length, config.max_predictions(phase)
    piece = np.minimum(np.arange(length) * pieces // length, pieces - 1)
    starts = np.searchsorted(piece, np.arange(pieces))
    position = np.arange(length) - starts[piece]
    token_ids = rng.integers(0, config.model.vocab_size, (rows, length))
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
