"""Fine-tune a model: train, evaluate, and write the predictions of the best checkpoint."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import jax

from bert_jax.analysis.flops import encoder_training_flops
from bert_jax.conversion import to_plain
from bert_jax.finetuning.config import FinetuneConfig
from bert_jax.finetuning.outcome import (
    PREDICTIONS_NAME,
    Outcome,
    concluded_with,
    conclusion,
    read_outcome,
    write_outcome,
)
from bert_jax.finetuning.run import FinetuneRun
from bert_jax.finetuning.run_description import describe
from bert_jax.finetuning.scoring import ValidationMetrics
from bert_jax.goodput.categories import INITIALIZATION, PREPARATION, RESTORE, SAVE
from bert_jax.goodput.ledger import Ledger
from bert_jax.goodput.text import goodput_lines
from bert_jax.labeled_data.feature_batches import FeatureBatches
from bert_jax.local_paths import naming_urls
from bert_jax.models.parameters import Parameters
from bert_jax.pipeline.loader import Loader
from bert_jax.runs.locations import WorkDir, open_work_dir
from bert_jax.runs.ownership import check_claimable, keep_config, only_writer
from bert_jax.runs.runtime import Compilations, versions
from bert_jax.runs.work_dir import CHECKPOINTS_NAME, TOKENIZER_NAME, Comparison
from bert_jax.storage.urls import Location
from bert_jax.tracking.background import check_trackers, open_trackers
from bert_jax.training.accounting import mesh_peak_flops, open_ledger
from bert_jax.training.checkpoint import Checkpointer
from bert_jax.training.checkpoint_files import CheckpointConfig, recover, steps_in
from bert_jax.training.checkpoint_parameters import load_parameters
from bert_jax.training.diagnosis import make_diagnosis
from bert_jax.training.distributed import (
    StopRequest,
    StopRequested,
    agreed,
    check_same,
    on_first_process,
)
from bert_jax.training.evaluation import EarlyStopping
from bert_jax.training.learning_rates import LearningRates
from bert_jax.training.loop import Trainer
from bert_jax.training.metrics_log import LOG_NAME, read_metrics
from bert_jax.training.phase import HostBatch, Phase
from bert_jax.training.reporting import Reporter
from bert_jax.training.reports import Message, OnReport, both_of
from bert_jax.training.sharding import local_rows, make_mesh, parameter_shardings
from bert_jax.training.state import TrainState
from bert_jax.validation import check_config

Evaluation = Mapping[str, float]


@dataclass(frozen=True)
class FinetuneResult:
    """The result of fine-tuning.

    Until the run is finished, the best step, scores and predictions are empty. They are always
    empty on all processes but the first.

    Attributes:
      finished: whether the run has ended. If False, it was stopped: its state is saved, and the
        same call resumes it.
      work_dir: the run's work directory, or its URL.
      best_step: the step of the best checkpoint, which `evaluate`, `predict` and `export` use.
      scores: the validation metrics of that checkpoint.
      predictions: the prediction files for the test sets.
    """

    finished: bool
    work_dir: Location
    best_step: int | None = None
    scores: Mapping[str, float] = field(default_factory=dict)
    predictions: Sequence[Location] = ()

    def __fspath__(self) -> str:
        """Return the work directory or its URL, so that the result can be passed as a path."""
        return os.fspath(self.work_dir)


@naming_urls()
def finetune(
    config: FinetuneConfig,
    *,
    from_step: int | None = None,
    on_report: OnReport | None = None,
    stop: StopRequest | None = None,
) -> FinetuneResult:
    """Fine-tune a model, or resume the run in the config's work directory.

    The function can be called from any thread. In the main thread, SIGTERM, SIGHUP and Ctrl-C save
    a checkpoint at the next step and end the run.

    Args:
      config: the run's config.
      from_step: the step of a kept checkpoint to resume from; later checkpoints are set aside.
      on_report: called with every message, progress report and evaluation; None for no callback.
      stop: a request to stop; any thread may call its `request()`, which ends the run in the same
        way as a signal.

    Returns:
      A `FinetuneResult` with the best step, its validation scores and the prediction files.

    Raises:
      ValueError: the config, the model and the data do not match, or another run uses the work
        directory.
      TrainingDiverged: the loss or a parameter became NaN or infinite.
    """
    ledger = Ledger()
    ledger.switch(PREPARATION)
    check_config(config, FinetuneConfig)
    check_trackers(config.trackers, "trackers")
    with open_work_dir(config.work_dir) as place:
        result = _finetune(config, place, ledger, from_step, place.reporting(on_report), stop)
        place.finished = result.finished
    return result


def _finetune(
    config: FinetuneConfig,
    place: WorkDir,
    ledger: Ledger,
    from_step: int | None,
    on_report: OnReport | None,
    stop: StopRequest | None,
) -> FinetuneResult:
    """Run or resume `finetune` in a work directory that is already open."""
    with ledger.during(INITIALIZATION):
        mesh = make_mesh(config.mesh)
    # Check this before the first collective operation, which hangs if the configs differ.
    given = {"the config": to_plain(config), "--from-step": from_step}
    check_same({**given, "the versions": versions()})
    run = FinetuneRun.open(config, mesh, place=place)
    check_same({"the model and the examples": run.identity()})
    with ExitStack() as closing:
        compiled = closing.enter_context(Compilations())
        # `StopRequest` exits last, so that a signal can kill the process only after a save has
        # finished.
        stop = closing.enter_context(stop or StopRequest())
        if jax.process_index() == 0:
            closing.enter_context(only_writer(place.path))
        finished = train(run, stop, from_step=from_step, on_report=on_report, ledger=ledger)
    if not finished or jax.process_index() != 0:
        return FinetuneResult(finished, place.location)
    outcome = read_outcome(place.path)
    assert outcome is not None
    report = on_first_process(on_report)
    lines = [*conclusion(outcome, run.data, run.compared_by), f"work directory: {place.location}"]
    for line in (*lines, *compiled.lines()):
        report(Message(line))
    predictions = [place.shown(file) for file in outcome.predictions]
    return FinetuneResult(True, place.location, outcome.step, outcome.scores, predictions)


def train(
    run: FinetuneRun,
    stop: StopRequest,
    *,
    from_step: int | None = None,
    on_report: OnReport | None = None,
    ledger: Ledger | None = None,
) -> bool:
    """Train, evaluate and write the predictions; return False if a stop was requested.

    Args:
      run: the opened run.
      stop: a request to stop, which saves a checkpoint at the next step.
      from_step: the step of a kept checkpoint to resume from; see `recover`.
      on_report: called with every message, progress report and evaluation; None for no callback.
      ledger: accounts for the run's time; None for a new one.
    """
    if ledger is None:
        ledger = Ledger()
        ledger.switch(PREPARATION)
    report = on_first_process(on_report)
    rates = LearningRates(run.optimizer, run.total_steps)
    compared_by = run.compared_by
    early = EarlyStopping(compared_by.metric, run.monitoring.patience, compared_by.lower_is_better)
    belonging = {} if from_step is None else run.identity()
    stopped = ""
    with ExitStack() as closing:
        closing.enter_context(run.place.uploading(stop))
        with ledger.during(RESTORE):
            recovery = recover(run.work_dir / CHECKPOINTS_NAME, belonging, from_step)
            run.place.settle(recovery.step)
        for line in recovery.lines:
            report(Message(line))
        checkpointer = closing.enter_context(_open_checkpointer(run, early, recovery.step))
        check_claimable(run.work_dir, run.tokenizer, begun=recovery.step is not None)
        with ledger.during(PREPARATION if recovery.step is None else RESTORE):
            state, origin = run.first_state(checkpointer)
        start = int(state.step)
        if _begin(run, start, origin, early, report):
            return True
        notified = open_ledger(
            ledger,
            run.work_dir,
            closing,
            step=start,
            total_steps=run.total_steps,
            mesh=run.mesh,
            peak_flops=mesh_peak_flops(run.mesh, run.compute.dtype),
            notify=run.monitoring.notify,
        )
        trainer = Trainer(
            mesh=run.mesh,
            seed=run.hyperparameters.seed,
            learning_rates=rates,
            checkpointer=checkpointer,
            reporter=_open_reporter(run, start, both_of(report, notified), closing, ledger),
            intervals=run.intervals,
            stop=stop,
            early=early,
            ledger=ledger,
            recovery=run.recovery(checkpointer),
        )
        state, finished = trainer.run(state, [_phase(run)])
        with ledger.during(SAVE):
            checkpointer.close()
        if not finished:
            stopped = f"stopped: saved step {int(state.step):,}; run the same command to resume"
        elif _finish(run, state, early, stop, report):
            ledger.finish("finished")
        else:
            stopped = "stopped after training; run the same command to write the predictions"
    # The ledger's last entry is written at the end of the `with` statement.
    if goodput := ledger.goodput():
        report(Message("\n".join(goodput_lines(goodput))))
    if stopped:
        report(Message(stopped))
    return not stopped


def _open_checkpointer(
    run: FinetuneRun, early: EarlyStopping, verified: int | None
) -> Checkpointer:
    """Return the run's checkpointer, which keeps the newest checkpoint and the best one.

    Args:
      run: the opened run.
      early: the early-stopping state, which records the best step.
      verified: the step whose files `recover` has verified.
    """
    intervals, compared_by = run.intervals, run.compared_by
    kept = CheckpointConfig(
        keep_last=1,
        keep_best=1,
        best_metric=compared_by.metric,
        lower_is_better=compared_by.lower_is_better,
    )
    return Checkpointer(
        run.work_dir / CHECKPOINTS_NAME,
        kept,
        run.identity(),
        # A checkpoint that was saved before its evaluation has no metrics, but may be the best one.
        lambda step: intervals.evaluates(step) or step == early.best_step,
        verified=verified,
        mirror=run.place.uploads,
    )


def _begin(
    run: FinetuneRun, start: int, origin: str, early: EarlyStopping, report: OnReport
) -> bool:
    """Report the start and write the config; return whether the run had already finished."""
    past = with_checkpoints(
        run.work_dir, _evaluations(run.work_dir, start), run.compared_by, report
    )
    early.observe_all(past)
    ended = start == run.total_steps or early.enough
    evaluated = any(evaluation["step"] == start for evaluation in past)
    concluded = ended and bool(
        agreed(evaluated and concluded_with(run.work_dir, early.best_step, _tests(run)))
    )
    if jax.process_index() == 0:
        end = " (finished: nothing to do)" if concluded else "; compiling the first step"
        for line in (*describe(run), f"start      {origin}{end}"):
            report(Message(line))
        _write_provenance(run, start, concluded, report)
    return concluded


def _write_provenance(run: FinetuneRun, start: int, concluded: bool, report: OnReport) -> None:
    if not concluded:
        # Mark no checkpoint as the best, even if training has ended: a later one may be better.
        run.write_model(None)
    changes = keep_config(run.resolved, run.work_dir, start, finished=concluded)
    for line in changes:
        report(Message(line))
    changed = changes and changes[0].startswith("changed")
    if changed and any(line.startswith("  num_epochs:") for line in changes):
        report(Message("  (from now on, the learning rate follows the new number of steps)"))
    if not concluded:
        run.tokenizer.save(run.work_dir / TOKENIZER_NAME)


def with_checkpoints(
    work_dir: Path, past: Sequence[Evaluation], compared_by: Comparison, report: OnReport
) -> Sequence[Evaluation]:
    """Return `past` without the evaluations that were the best so far but have no checkpoint now.

    A checkpoint can be missing because it was damaged and moved aside. Evaluations that were never
    the best have no checkpoint, but still count toward `patience`.
    """
    steps, lost = steps_in(work_dir / CHECKPOINTS_NAME), []
    while True:
        early = EarlyStopping(compared_by.metric, 0, compared_by.lower_is_better)
        early.observe_all(past)
        best = early.best_step
        if best is None or agreed(best in steps):
            break
        lost.append(best)
        past = [evaluation for evaluation in past if evaluation["step"] != best]
    if lost:
        rest = "" if best is None else f"; the next best is step {best:,}"
        missing = f"the best checkpoint so far (step {lost[0]:,}) is missing{rest}"
        report(Message(f"warning    {missing}"))
    return past


def _open_reporter(
    run: FinetuneRun,
    start: int,
    on_report: OnReport | None,
    closing: ExitStack,
    ledger: Ledger,
) -> Reporter | None:
    """Return a reporter that `closing` will close, or None on all processes but the first."""
    if jax.process_index() != 0:
        return None
    reporter = Reporter(
        run.work_dir,
        [(run.total_steps, 1.0)],
        start_step=start,
        peak_flops=mesh_peak_flops(run.mesh, run.compute.dtype),
        tensorboard=run.monitoring.tensorboard,
        on_report=on_report,
        ledger=ledger,
        trackers=open_trackers(run.monitoring.trackers, run.work_dir, run.resolved.as_read()),
    )
    closing.callback(reporter.close)
    return reporter


def _phase(run: FinetuneRun) -> Phase:
    examples = run.data.train
    assert examples is not None
    size, num_epochs = run.hyperparameters.batch_size, run.hyperparameters.num_epochs
    rows = partial(local_rows, run.mesh)
    batches = FeatureBatches(examples, run.plan, num_epochs=num_epochs, local_rows=rows)

    def flops(batch: HostBatch) -> float:
        sequences, length = size * examples.sequences_per_example, batch["token_ids"].shape[-1]
        trainable = run.compiled.tuning.num_trainable_layers
        return float(sequences * encoder_training_flops(run.model.encoder, length, trainable))

    diagnose = None
    if run.compiled.divergence.enabled:
        diagnose = make_diagnosis(
            run.compiled.task,
            run.mesh,
            accumulation_steps=run.compiled.accumulation_steps,
            is_trainable=run.compiled.tuning.is_trainable,
        )
    return Phase(
        name="finetuning",
        first_step=0,
        num_steps=run.total_steps,
        batch_size=size,
        train_step=run.compiled.train_step,
        batches=lambda start: Loader(batches, start_step=start, prefetch=4),
        evaluate=ValidationMetrics(run.scorer, run.data),
        flops=flops,
        diagnose=diagnose,
    )


def _finish(
    run: FinetuneRun, state: TrainState, early: EarlyStopping, stop: StopRequest, report: OnReport
) -> bool:
    """Write the final scores and predictions; return False if a stop was requested."""
    if int(state.step) < run.total_steps:
        patience = run.monitoring.patience
        report(Message(f"ended early: no improvement in {patience} evaluations (patience)"))
    if early.best_step is None:
        raise ValueError(
            f"work_dir={run.work_dir}: {LOG_NAME}, which records the best checkpoint, is missing. "
            "Restore the file, or use another work_dir."
        )
    try:
        _write_outcome(run, early.best_step, state, stop)
    except StopRequested:
        return False
    return True


def _write_outcome(run: FinetuneRun, best_step: int, state: TrainState, stop: StopRequest) -> None:
    at_best = best_step == int(state.step) or not run.data.test
    params = state.params if at_best else _best_parameters(run, best_step)
    directory = run.work_dir / PREDICTIONS_NAME
    directory.mkdir(exist_ok=True)
    files = []
    for name, examples in run.data.test.items():
        logits, _ = run.scorer.answers(params, examples, name, stop.raise_if_stopping)
        if jax.process_index() == 0:
            files += examples.write(logits, directory, name)
    if jax.process_index() != 0:
        return
    evaluations = _evaluations(run.work_dir, run.total_steps)
    scores = next(entry for entry in evaluations if entry["step"] == best_step)
    scores = {name: x for name, x in scores.items() if name not in ("kind", "step")}
    write_outcome(run.place, Outcome(best_step, scores, files, _tests(run)))
    run.write_model(best_step)


def _tests(run: FinetuneRun) -> dict[str, str]:
    return {name: examples.written_from for name, examples in run.data.test.items()}


def _best_parameters(run: FinetuneRun, step: int) -> Parameters:
    definition = run.compiled.task.definition
    shardings = parameter_shardings(definition.shapes, definition.logical_axes, run.mesh)
    return load_parameters(run.work_dir / CHECKPOINTS_NAME, definition, shardings, step)


def _evaluations(work_dir: Path, up_to: int) -> list[Evaluation]:
    log = work_dir / LOG_NAME
    entries = read_metrics(log) if log.is_file() else []
    return [e for e in entries if e["kind"] == "evaluation" and e["step"] <= up_to]
