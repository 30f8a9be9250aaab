"""Run fine-tuning from a config to a trained model and its predictions."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import jax
from jax.sharding import Mesh

from bert_jax.analysis.chips import peak_flops
from bert_jax.analysis.counts import encoder_training_flops
from bert_jax.cli.output import console_report
from bert_jax.finetuning.config import FinetuneConfig
from bert_jax.finetuning.outcome import (
    PREDICTIONS_NAME,
    Outcome,
    concluded_with,
    describe_model,
    write_outcome,
)
from bert_jax.finetuning.programs import (
    Programs,
    check_data,
    check_finetuning,
    check_mesh,
    make_programs,
    unknown_lines,
)
from bert_jax.finetuning.scoring import LOSS, Judge, Scorer, padding, row_lengths
from bert_jax.finetuning.source import Source, encoder_of, open_source, source_identity
from bert_jax.finetuning.task_data import TaskData
from bert_jax.labeled_data.features import ByLength, FeatureBatches
from bert_jax.models.config import ComputeConfig
from bert_jax.models.model import ModelConfig
from bert_jax.models.parameters import Parameters, count
from bert_jax.models.sentence_embedding import SETTINGS_DROPPED
from bert_jax.pipeline.loader import Loader
from bert_jax.runs.ownership import check_claimable, keep_config
from bert_jax.runs.runtime import dtype_hint
from bert_jax.runs.work_dir import (
    CHECKPOINTS_NAME,
    TOKENIZER_NAME,
    Comparison,
    read_sentence_embedding,
)
from bert_jax.tasks.finetuning import ClassifierTask
from bert_jax.tokenizers.tokenizer import Tokenizer
from bert_jax.training.checkpoint import Checkpointer
from bert_jax.training.checkpoint_files import CheckpointConfig, recover, steps_in
from bert_jax.training.checkpoint_parameters import load_parameters
from bert_jax.training.distributed import StopRequest, ToldToStop, agreed
from bert_jax.training.evaluation import EarlyStopping
from bert_jax.training.loop import HostBatch, Intervals, Phase, Trainer
from bert_jax.training.metrics_log import LOG_NAME, read_metrics
from bert_jax.training.optimizer import LearningRates
from bert_jax.training.reporting import Reporter
from bert_jax.training.sharding import local_rows, parameter_shardings
from bert_jax.training.step import TrainState, abstract_state, learned, parameter_key

Evaluation = Mapping[str, float]


def open_checkpointer(run: FinetuneRun, early: EarlyStopping, verified: int | None) -> Checkpointer:
    """Return the checkpointer of a run, which keeps the newest checkpoint and the best one.

    Args:
      early: the early-stopping state, which knows the best step.
      verified: the step whose files `recover` has verified.
    """
    intervals = run.intervals
    kept = CheckpointConfig(
        keep_last=1,
        keep_best=1,
        best_metric=run.best_metric,
        lower_is_better=run.best_metric.endswith(LOSS),
    )
    return Checkpointer(
        run.work_dir / CHECKPOINTS_NAME,
        kept,
        identity(run),
        # A state that was saved before it was evaluated also lacks metrics.
        lambda step: intervals.evaluates(step) or step == early.best_step,
        verified=verified,
    )


def first_state(run: FinetuneRun, checkpointer: Checkpointer) -> tuple[TrainState, str]:
    """The state to start from and where it comes from, in this order.

    This run's newest checkpoint; else random, with the parameters of `init_from` that the model
    has too, unless the run is from scratch.
    """
    definition, config = run.task.definition, run.config
    optimizer, learns = run.programs.optimizer, run.programs.tuning.learns
    step = checkpointer.latest_step()
    if step is not None:
        checkpointer.check_identity()  # first: of another run the steps say nothing
        abstract = abstract_state(definition, optimizer, run.mesh, learns)
        if step > run.total_steps:
            raise ValueError(
                f"{config.work_dir} was trained for {step:,} steps, num_epochs={config.num_epochs} "
                f"are {run.total_steps:,}: set num_epochs to what it was or more, or take another "
                "work_dir"
            )
        return checkpointer.restore(abstract), f"this run's checkpoint of step {step:,}"
    state = run.programs.init(parameter_key(config.seed))
    if config.from_scratch:
        return state, f"random parameters (seed {config.seed})"
    found = _parameters_of(run)
    kept = {name: found[name] for name in state.params if name in found}
    fresh = sorted(state.params.keys() - kept.keys())
    told = f"the parameters of {config.init_from}"
    if fresh:
        told += f"; randomly initialized: {', '.join(fresh)}"
    if any(name.startswith("classifier.") for name in kept):
        told += "; its classifier too, of the same labels"
    if read_sentence_embedding(run.source.directory) is not None:
        told += f"; {SETTINGS_DROPPED}"
    return TrainState(state.step, state.params | kept, state.opt_state), told


def with_checkpoints(run: FinetuneRun, past: Sequence[Evaluation]) -> Sequence[Evaluation]:
    """Return the `past` evaluations without the best ones whose checkpoints no longer exist.

    A damaged checkpoint, for example, was moved aside. Evaluations that are not the best never have
    a checkpoint and count for `patience`.
    """
    steps, lost = steps_in(run.work_dir / CHECKPOINTS_NAME), []
    while True:
        early = EarlyStopping(run.best_metric, 0, run.best_metric.endswith(LOSS))
        early.observe_all(past)
        best = early.best_step
        if best is None or agreed(best in steps):
            break
        lost.append(best)
        past = [evaluation for evaluation in past if evaluation["step"] != best]
    if lost and jax.process_index() == 0:
        rest = "" if best is None else f"; the next best is step {best:,}"
        print(f"warning    the best checkpoint so far, of step {lost[0]:,}, is missing{rest}")
    return past


def _parameters_of(run: FinetuneRun) -> Parameters:
    """Those of the source; a classifier of another task or other labels is none of them."""
    found, models = run.source.parameters(), (run.model, run.source.model)
    ours, theirs = ((model.head, model.labels, model.problem) for model in models)
    if ours == theirs:
        return found
    return {name: x for name, x in found.items() if not name.startswith("classifier.")}


def identity(run: FinetuneRun) -> dict[str, object]:
    """What a checkpoint must share with a run for the run to go on from it."""
    config = run.config
    assert run.data.train is not None
    return {
        "model": dataclasses.asdict(run.model),
        "optimizer": dataclasses.asdict(config.optimizer),
        "tuning": dataclasses.asdict(config.tuning),
        "seed": config.seed,
        "init_from": source_identity(config, run.source),
        "from_scratch": config.from_scratch,
        "batch_size": config.batch_size,
        "best_metric": run.best_metric,
        "row_lengths": list(run.row_lengths),
        # The keys are told to a user whose file has changed, to whom the values say nothing.
        "training examples (their file, its columns, max_length)": run.data.train.fingerprint,
        "validation examples (likewise)": {
            name: examples.fingerprint for name, examples in run.data.validation.items()
        },
        "tokenizer": run.tokenizer.fingerprint,
    }


def changes(told: Sequence[str]) -> list[str]:
    """What `keep_config` says, and what follows from another number of epochs."""
    lines = list(told)
    if any(line.startswith("  num_epochs:") for line in lines) and lines[0].startswith("changed"):
        lines.append("  (the learning rate follows the new number of steps from here on)")
    return lines


def describe(run: FinetuneRun) -> list[str]:
    """Lines: the model and how much of it learns, the examples, the batches."""
    shapes, train = run.task.definition.shapes, run.data.train
    assert train is not None
    learning = count(learned(shapes, run.programs.tuning.learns))
    each = ", ".join(map(str, run.row_lengths))
    sets = {**run.data.validation, **run.data.test}
    held = [f"{examples.num_examples:,} {name}" for name, examples in sets.items()]
    kind = "windows of passages " if run.model.head == "span" else ""
    epochs = run.config.num_epochs
    held += [] if run.data.test else ["no test set"]
    return [
        f"model      {count(shapes):,} parameters, {learning:,} trainable; "
        f"{run.compute.dtype}, {run.compute.attention} attention",
        *dtype_hint(run.config.compute, run.mesh.devices.flat[0].platform),
        f"examples   {len(train):,} {kind}for training, {', '.join(held)}",
        *unknown_lines(run.data.features, run.tokenizer),
        f"batches    {run.total_steps:,} of {run.config.batch_size} in "
        f"{epochs} epoch{'s' * (epochs > 1)}, rows of {each} tokens, "
        f"{padding(train, run.plan):.1%} padding",
    ]


@dataclass(frozen=True)
class FinetuneRun:
    """A run whose files have been read and whose config has been checked against them.

    row_lengths: what rows are padded to: a compiled program each.
    """

    config: FinetuneConfig
    mesh: Mesh
    source: Source
    data: TaskData
    model: ModelConfig
    compute: ComputeConfig
    row_lengths: tuple[int, ...]
    programs: Programs

    def turned(
        self, work_dir: str, *, seed: int, batch_size: int, learning_rate: float, num_epochs: int
    ) -> FinetuneRun:
        """The same run elsewhere under other dials, with the files read and the programs as here.

        Raises:
          ValueError: the batch cannot be split over the devices.
        """
        optimizer = dataclasses.replace(self.config.optimizer, peak_learning_rate=learning_rate)
        config = dataclasses.replace(self.config, work_dir=work_dir, optimizer=optimizer, seed=seed)
        config = dataclasses.replace(config, batch_size=batch_size, num_epochs=num_epochs)
        check_mesh(config, self.mesh)
        return dataclasses.replace(self, config=config)

    @property
    def tokenizer(self) -> Tokenizer:
        """Of the model that is started from, and so of this one."""
        return self.source.tokenizer

    @property
    def task(self) -> ClassifierTask:
        """The loss that is learned."""
        return self.programs.task

    @cached_property
    def plan(self) -> ByLength:
        """The batches of training."""
        assert self.data.train is not None
        return ByLength(
            self.data.train.lengths, self.row_lengths, self.config.batch_size, self.config.seed
        )

    @cached_property
    def scorer(self) -> Scorer:
        """Runs the model over whole sets."""
        steps = self.programs.prediction_step, self.programs.metrics_step
        return Scorer(self.mesh, self.task, *steps, self.config.rows_evaluated, self.row_lengths)

    @property
    def work_dir(self) -> Path:
        """Where the run writes."""
        return Path(self.config.work_dir)

    @property
    def total_steps(self) -> int:
        """Steps of all epochs."""
        return self.config.num_epochs * self.plan.steps_per_epoch

    @property
    def intervals(self) -> Intervals:
        """When the run reports, evaluates and saves."""
        return self.config.intervals(self.plan.steps_per_epoch)

    @property
    def best_metric(self) -> str:
        """The validation metric that checkpoints are compared by."""
        return self.config.best_metric or self.data.best_metric

    def train(self, stop: StopRequest, closing: ExitStack, from_step: int | None = None) -> bool:
        """Train, evaluate and write the predictions; return False if stopped before the end.

        Args:
          from_step: the step of a kept checkpoint to return to; see `recover`.
        """
        config = self.config
        rates = LearningRates(config.optimizer, self.total_steps)
        lower = self.best_metric.endswith(LOSS)
        intervals = self.intervals
        early = EarlyStopping(self.best_metric, config.patience, lower)
        belonging = {} if from_step is None else identity(self)
        recovery = recover(self.work_dir / CHECKPOINTS_NAME, belonging, from_step)
        print(*(f"{line}\n" for line in recovery.lines), sep="", end="", flush=True)
        checkpointer = closing.enter_context(open_checkpointer(self, early, recovery.step))
        begun = recovery.step is not None
        check_claimable(self.work_dir, self.tokenizer, begun=begun)
        state, origin = first_state(self, checkpointer)
        start, first = int(state.step), jax.process_index() == 0
        past = with_checkpoints(self, self._evaluations(start))
        early.observe_all(past)
        ended = start == self.total_steps or early.enough
        judged = any(evaluation["step"] == start for evaluation in past)
        concluded = ended and bool(
            agreed(judged and concluded_with(self.work_dir, early.best_step, self._tests()))
        )
        if first:
            end = " (finished: nothing to do)" if concluded else "; compiling the first step"
            print("\n".join(describe(self)))
            print(f"start      {origin}{end}", flush=True)
            self._write_provenance(start, concluded)
        if concluded:
            return True
        trainer = Trainer(
            mesh=self.mesh,
            train_step=self.programs.train_step,
            seed=config.seed,
            learning_rates=rates,
            checkpointer=checkpointer,
            reporter=self._reporter(start, closing) if first else None,
            intervals=intervals,
            stop=stop,
            early=early,
        )
        state, finished = trainer.run(state, [self._phase()])
        checkpointer.close()
        if not finished:
            if first:
                print(f"stopped: saved step {int(state.step):,}; the same command resumes")
            return False
        if first and int(state.step) < self.total_steps:
            print(f"ended early: {config.patience} evaluations in a row were no better (patience)")
        if early.best_step is None:
            raise ValueError(
                f"{self.work_dir}: it is trained, but {LOG_NAME} in it, which says what did best, "
                "is gone: put it back, or start in another work_dir"
            )
        try:
            self._finish(early.best_step, state, stop)
        except ToldToStop:
            if first:
                print("stopped: training is finished; the same command writes the predictions")
            return False
        return True

    def _phase(self) -> Phase:
        train = self.data.train
        assert train is not None
        size = self.config.batch_size
        rows = partial(local_rows, self.mesh)
        batches = FeatureBatches(
            train, self.plan, num_epochs=self.config.num_epochs, local_rows=rows
        )

        def flops(batch: HostBatch) -> float:
            sequences, length = size * train.sequences_per_example, batch["token_ids"].shape[-1]
            learning = self.programs.tuning.num_learning_layers
            return float(sequences * encoder_training_flops(self.model.encoder, length, learning))

        return Phase(
            name="finetuning",
            first_step=0,
            num_steps=self.total_steps,
            batch_size=size,
            batches=lambda start: Loader(batches, start_step=start, prefetch=4),
            evaluate=Judge(self.scorer, self.data),
            flops=flops,
        )

    def _finish(self, best_step: int, state: TrainState, stop: StopRequest) -> None:
        at_best = best_step == int(state.step) or not self.data.test
        params = state.params if at_best else self._best(best_step)
        directory = self.work_dir / PREDICTIONS_NAME
        directory.mkdir(exist_ok=True)
        files = []
        for name, examples in self.data.test.items():
            logits, _ = self.scorer.answers(params, examples, name, stop.heed)
            if jax.process_index() == 0:
                files += examples.write(logits, directory, name)
        if jax.process_index() != 0:
            return
        scores = next(e for e in self._evaluations(self.total_steps) if e["step"] == best_step)
        scores = {name: x for name, x in scores.items() if name not in ("kind", "step")}
        write_outcome(self.work_dir, Outcome(best_step, scores, files, self._tests()))
        self._write_model(best_step)

    def _tests(self) -> dict[str, str]:
        return {name: examples.written_from for name, examples in self.data.test.items()}

    def _best(self, step: int) -> Parameters:
        definition = self.task.definition
        shardings = parameter_shardings(definition.shapes, definition.logical_axes, self.mesh)
        return load_parameters(self.work_dir / CHECKPOINTS_NAME, definition, shardings, step)

    def _evaluations(self, up_to: int) -> list[Mapping[str, float]]:
        log = self.work_dir / LOG_NAME
        entries = read_metrics(log) if log.is_file() else []
        return [e for e in entries if e["kind"] == "evaluation" and e["step"] <= up_to]

    def _reporter(self, start: int, closing: ExitStack) -> Reporter:
        peak = peak_flops(self.mesh.devices.flat[0].device_kind, self.compute.dtype)
        reporter = Reporter(
            self.work_dir,
            [(self.total_steps, 1.0)],
            start_step=start,
            peak_flops=peak * self.mesh.size if peak else None,
            tensorboard=self.config.tensorboard,
            on_report=console_report,
        )
        closing.callback(reporter.close)
        return reporter

    def _write_provenance(self, start: int, concluded: bool) -> None:
        if not concluded:
            self._write_model(None)  # also of a run that ended: another may do better from here on
        for line in changes(keep_config(self.config, self.work_dir, start, finished=concluded)):
            print(line, flush=True)
        if not concluded:
            self.tokenizer.save(self.work_dir / TOKENIZER_NAME)

    def _write_model(self, best_step: int | None) -> None:
        by = Comparison(self.best_metric, self.best_metric.endswith(LOSS))
        describe_model(self.config, self.data, self.model, self.tokenizer, by, best_step)


def open_run(config: FinetuneConfig, mesh: Mesh) -> FinetuneRun:
    """Reads the model, the task's files and checks that they fit.

    Raises:
      ValueError: they do not, or a file is missing or damaged; says what to do.
    """
    check_mesh(config, mesh)
    source = open_source(config, mesh)
    encoder = encoder_of(config, source)
    data = config.open(source.tokenizer, ("train", "validation", "test"))
    check_data(config, data, source.tokenizer)
    model = data.head.on(encoder, config.head_dropout)
    compute = config.compute.resolve(jax.devices()[0], encoder)
    assert data.train is not None
    lengths = row_lengths(data.train, config.max_shapes, encoder.max_positions)
    check_finetuning(config, mesh, model, compute, data.train, lengths)
    programs = make_programs(config, model, compute, mesh)
    return FinetuneRun(config, mesh, source, data, model, compute, lengths, programs)
