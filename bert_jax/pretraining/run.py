"""Pretrain a model: check a config, build the run, and train or resume it.

result = pretrain(config, on_report=print)
result.metrics["mlm_loss"], result.model
"""

from __future__ import annotations

import jax

from bert_jax.goodput.categories import INITIALIZATION, PREPARATION
from bert_jax.goodput.ledger import Ledger
from bert_jax.pretraining.config import PretrainConfig
from bert_jax.pretraining.evaluation import Downstream, open_evaluation_set
from bert_jax.pretraining.phases import (
    PhaseBatches,
    facts,
    open_corpora,
    phases_identity,
)
from bert_jax.pretraining.prepared_run import PretrainResult, PretrainRun
from bert_jax.pretraining.run_memory import check_run_memory, check_scoring_memory
from bert_jax.pretraining.stable_phase import StablePhase
from bert_jax.runs.locations import WorkDir, open_work_dir
from bert_jax.runs.model_location import local_model
from bert_jax.runs.ownership import ResolvedConfig
from bert_jax.tracking.background import check_trackers
from bert_jax.training.distributed import StopRequest
from bert_jax.training.learning_rates import LearningRates
from bert_jax.training.preflight import check
from bert_jax.training.reports import OnReport
from bert_jax.training.sharding import make_mesh
from bert_jax.validation import check_config


def pretrain(
    config: PretrainConfig,
    *,
    from_step: int | None = None,
    on_report: OnReport | None = None,
    stop: StopRequest | None = None,
    downstream: Downstream | None = None,
) -> PretrainResult:
    """Pretrain a model like `bert_jax.pretrain`, with downstream tasks that the caller has loaded.

    Args:
      config: the run's config.
      from_step: see `bert_jax.pretrain`.
      on_report: see `bert_jax.pretrain`.
      stop: see `bert_jax.pretrain`.
      downstream: the tasks in `evaluation.downstream`; None if there are none.

    Raises:
      ValueError: the run cannot start or resume; the message names the key to change.
    """
    ledger = Ledger()
    ledger.switch(PREPARATION)
    check_config(config, PretrainConfig)
    check_trackers(config.reporting.trackers, "reporting.trackers")
    with open_work_dir(config.work_dir) as place:
        run = _prepared(config, place, ledger, downstream)
        result = run.train(from_step=from_step, on_report=place.reporting(on_report), stop=stop)
        place.finished = result.finished
    return result


def _prepared(
    config: PretrainConfig, place: WorkDir, ledger: Ledger, downstream: Downstream | None
) -> PretrainRun:
    """Return a run whose config, corpora and devices have been checked."""
    learning_rates = LearningRates(config.optimizer, config.total_steps)
    corpora = open_corpora(
        config.ordered_phases(), config.evaluation_batch_size, config.loader.cache
    )
    with ledger.during(INITIALIZATION):
        mesh = make_mesh(config.mesh)
    check(
        config.model,
        [facts(corpus) for corpus in corpora],
        mesh,
        accumulation_steps=config.accumulation_steps,
        sentence_pairs=config.sentence_pairs,
        vocabulary=config.vocabulary,
        evaluates=config.evaluation.every_steps > 0,
    )
    setup = config.step_setup(jax.devices()[0])
    check_run_memory(setup, mesh, corpora, config.evaluation, config.loader)
    evaluation_set = open_evaluation_set(config, corpora[0].tokenizer)
    if evaluation_set is not None:
        check_scoring_memory(setup, mesh, corpora, evaluation_set)
    assert bool(config.evaluation.downstream) == (downstream is not None), "see bert_jax.pretrain"
    if downstream is not None:
        downstream.check(setup.model_config, corpora[0].tokenizer, place)
    stable = None
    if step := config.decay_from:
        stable = StablePhase(local_model(config.init_from, "init_from"), step)
    return PretrainRun(
        place=place,
        init_from=config.init_from,
        stable=stable,
        seed=config.seed,
        setup=setup,
        corpora=corpora,
        mesh=mesh,
        batches=PhaseBatches(
            config.examples, config.loader, config.evaluation, config.total_steps, mesh
        ),
        learning_rates=learning_rates,
        intervals=config.intervals,
        checkpoint=config.checkpoint,
        reporting=config.reporting,
        identity={**config.identity(), "phases": phases_identity(corpora, config.model)},
        trains_masked_lm=config.trains_masked_lm,
        resolved=ResolvedConfig.of(config),
        evaluation_set=evaluation_set,
        downstream=downstream,
        ledger=ledger,
    )
