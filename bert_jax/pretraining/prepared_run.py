"""Train or resume a pretraining run whose config has been checked."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
from jax.experimental import multihost_utils
from jax.sharding import Mesh

from bert_jax.goodput.categories import PREPARATION, RESTORE, SAVE
from bert_jax.goodput.ledger import Ledger
from bert_jax.goodput.text import goodput_lines
from bert_jax.language_scores.evaluation_set import EvaluationSet, LanguageMetrics
from bert_jax.models.config import EncoderConfig
from bert_jax.pretraining.config import ReportingConfig
from bert_jax.pretraining.evaluation import Downstream, language_metrics
from bert_jax.pretraining.initial_state import (
    check_source,
    first_state,
    initial_state,
)
from bert_jax.pretraining.messages import conclude, describe
from bert_jax.pretraining.phases import (
    PhaseBatches,
    PhaseCorpus,
)
from bert_jax.pretraining.run_files import (
    check_work_dir,
    first_evaluation,
    last_evaluation,
    write_run_files,
)
from bert_jax.pretraining.stable_phase import StablePhase, undone_decay
from bert_jax.pretraining.step_setup import StepSetup
from bert_jax.pretraining.student_parameters import teacher_sources
from bert_jax.pretraining.teacher import (
    TEACHER_IDENTITY,
    LoadedTeacher,
    load_teacher,
    teacher_identity,
)
from bert_jax.runs.checkpoints import TrainedModel, load_model
from bert_jax.runs.locations import WorkDir
from bert_jax.runs.ownership import ResolvedConfig, only_writer
from bert_jax.runs.runtime import versions
from bert_jax.runs.work_dir import CHECKPOINTS_NAME
from bert_jax.storage.urls import Location
from bert_jax.tracking.background import open_trackers
from bert_jax.training import distributed
from bert_jax.training.accounting import mesh_peak_flops, open_ledger
from bert_jax.training.averaging import with_new_average
from bert_jax.training.checkpoint import Checkpointer
from bert_jax.training.checkpoint_files import CheckpointConfig, identity_of, recover
from bert_jax.training.distributed import StopRequest
from bert_jax.training.learning_rates import LearningRates
from bert_jax.training.loop import AfterSave, Trainer
from bert_jax.training.phase import Intervals, Phase
from bert_jax.training.planning import state_bytes
from bert_jax.training.profiling import StepProfiler
from bert_jax.training.reporting import Reporter
from bert_jax.training.reports import Message, OnReport, both_of, discard
from bert_jax.training.rollback import Recovery
from bert_jax.training.state import TrainState, abstract_state
from bert_jax.training.step import EvaluationStep, TrainStep

PROFILE_NAME = "profile"


@dataclass(frozen=True)
class PretrainResult:
    """The result of a pretraining run.

    Attributes:
      finished: whether the last phase is complete. If False, the run was stopped and its state
        saved; the same call resumes it.
      step: the number of optimizer steps completed, counted over the whole run.
      metrics: the metrics of the last held-out evaluation; empty if there was none.
      work_dir: the run's work directory, or its URL.
    """

    finished: bool
    step: int
    metrics: Mapping[str, float]
    work_dir: Location

    def __fspath__(self) -> str:
        """Return the work directory or its URL, so that the result can be used as a path."""
        return os.fspath(self.work_dir)

    @cached_property
    def model(self) -> TrainedModel:
        """The model in the newest checkpoint, loaded on first access."""
        return load_model(str(self.work_dir))


@dataclass(frozen=True)
class PretrainRun:
    """A validated pretraining run, with everything that `pretrain` builds from the config.

    Attributes:
      place: the directory that the run writes to.
      init_from: a work directory to load initial parameters from; "" for none.
      stable: a checkpoint in `init_from` that provides the whole initial state; None to start from
        parameters only.
      seed: the random seed for parameters and dropout.
      setup: the train-step settings, without a teacher.
      corpora: the opened corpora of the phases, in running order.
      mesh: the device mesh.
      batches: the settings for making batches.
      learning_rates: the learning rate at every step.
      intervals: the intervals, in steps, between reports, evaluations and checkpoints.
      checkpoint: how often to save checkpoints and how many to keep.
      reporting: the logging and profiling settings.
      identity: the values that must match a checkpoint for the run to resume from it, except the
        teacher's values.
      trains_masked_lm: whether any loss trains the masked-LM head.
      resolved: the config values that are written to `config.json`.
      evaluation_set: the texts and minimal pairs that every evaluation scores; None if there
        are none.
      downstream: the tasks that checkpoints are fine-tuned on; None if there are none.
      ledger: the record of how the run spends its time.
    """

    place: WorkDir
    init_from: str
    stable: StablePhase | None
    seed: int
    setup: StepSetup
    corpora: list[PhaseCorpus]
    mesh: Mesh
    batches: PhaseBatches
    learning_rates: LearningRates
    intervals: Intervals
    checkpoint: CheckpointConfig
    reporting: ReportingConfig
    identity: Mapping[str, Any]
    trains_masked_lm: bool
    resolved: ResolvedConfig
    evaluation_set: EvaluationSet | None = None
    downstream: Downstream | None = None
    ledger: Ledger = field(default_factory=Ledger)

    @property
    def work_dir(self) -> Path:
        """The local directory in which the run works."""
        return self.place.path

    def train(
        self,
        *,
        from_step: int | None = None,
        on_report: OnReport | None = None,
        stop: StopRequest | None = None,
    ) -> PretrainResult:
        """Train until the last phase ends or a stop is requested; see `pretrain`."""
        report = distributed.on_first_process(on_report)
        distributed.check_same(
            {
                "the config": self.resolved.values,
                "the corpora": self.identity,
                "the evaluation data": self.evaluation_set and self.evaluation_set.fingerprint,
                "the versions": versions(),
                "--from-step": from_step,
            }
        )
        with ExitStack() as closing:
            # `StopRequest` exits last, so that a signal can kill the process only after a save has
            # finished.
            stop = closing.enter_context(stop or StopRequest())
            if jax.process_index() == 0:
                closing.enter_context(only_writer(self.work_dir))
            closing.enter_context(self.place.uploading(stop))
            with self.ledger.during(RESTORE):
                recovery = recover(self.work_dir / CHECKPOINTS_NAME, self.identity, from_step)
                self.place.settle(recovery.step)
            for line in recovery.lines:
                report(Message(line))
            if recovery.step is None:
                check_source(self.init_from, self.setup.model, self.corpora)
                if self.stable is not None:
                    self.stable.check(self.learning_rates)
            step, finished = self._train(recovery.step, report, stop, closing)
        if goodput := self.ledger.goodput():
            report(Message("\n".join(goodput_lines(goodput))))
        if not finished:
            saved_line = f"saved step {step:,}; run the same command to resume"
            line = saved_line if step else "before the first step; run the same command to start"
            report(Message(f"stopped: {line}"))
        metrics = last_evaluation(self.work_dir)
        if finished and report is not discard:
            loss = metrics.get("mlm_loss") if self.trains_masked_lm else None
            first, last = self.corpora[0], self.corpora[-1]
            # Losses on different held-out texts are not comparable.
            alike = first.train.manifest.fingerprint == last.train.manifest.fingerprint
            before = first_evaluation(self.work_dir).get("mlm_loss") if alike else None
            report(Message("\n".join(conclude(self.work_dir, last, loss, before))))
        # Make the other processes wait for the first one. Once they have exited, JAX ends the first
        # process after five minutes, but counting token frequencies over a slow network can take
        # longer.
        multihost_utils.sync_global_devices("concluded")
        return PretrainResult(finished, step, metrics, self.place.location)

    def _train(
        self, verified: int | None, report: OnReport, stop: StopRequest, closing: ExitStack
    ) -> tuple[int, bool]:
        """Run the phases, and return the last step and whether the run is finished.

        Args:
          verified: the step of the checkpoint to resume from, as returned by `recover`; None to
            start from scratch.
          report: called with messages.
          stop: the request to stop, which the trainer checks.
          closing: the exit stack that closes the checkpointer and the reporter.
        """
        saved = verified or 0
        finished = saved >= len(self.learning_rates)
        check_work_dir(self.work_dir, self.corpora, self.init_from, begun=saved > 0)
        setup, teacher, identity = self._open_teacher(saved, finished=finished)
        stable = None if saved else self.stable
        if stable is not None:
            stable.check_identity({**self.identity, **identity})
        checkpointer = closing.enter_context(
            Checkpointer(
                self.work_dir / CHECKPOINTS_NAME,
                self.checkpoint,
                {**self.identity, **identity},
                self.intervals.evaluates,
                verified=verified,
                mirror=self.place.uploads,
            )
        )
        if saved:
            checkpointer.check_identity()
        self._describe(setup, saved, report)
        after_save: AfterSave | None = None
        if self.downstream is not None:
            after_save = closing.enter_context(self.downstream.scoring(self.place, stop, report))
        if finished:
            line = f"start      this run's checkpoint at step {saved:,} (finished: nothing to do)"
            report(Message(line))
            self._write_files(saved, report, finished=True)
            # The run may have been stopped while its last checkpoint was being fine-tuned.
            return saved, after_save is None or after_save(saved)
        notified = open_ledger(
            self.ledger,
            self.work_dir,
            closing,
            step=saved if stable is None else stable.step,
            total_steps=len(self.learning_rates),
            mesh=self.mesh,
            peak_flops=mesh_peak_flops(self.mesh, setup.compute.dtype),
            notify=self.reporting.notify,
        )
        with self.ledger.during(RESTORE if saved or stable is not None else PREPARATION):
            if stable is not None:
                state, origin = stable.state(setup, self.mesh)
            else:
                state, origin = first_state(
                    setup,
                    self.mesh,
                    checkpointer,
                    seed=self.seed,
                    init_from=self.init_from,
                    first_encoder=setup.for_phase(self.corpora[0].config).model,
                    teacher=teacher,
                )
                if not saved:
                    state = with_new_average(state)
        report(Message(f"start      {origin}"))
        if setup.optimizer.schedule == "wsd":
            for line in undone_decay(self.work_dir, self.learning_rates, saved):
                report(Message(line))
        self._write_files(saved, report, finished=False)
        if stable is not None:
            stable.copy_log(self.work_dir)
        phases = self._phases(setup, teacher, stop)
        trainer = Trainer(
            mesh=self.mesh,
            seed=self.seed,
            learning_rates=self.learning_rates,
            checkpointer=checkpointer,
            reporter=self._open_reporter(
                setup, phases, int(state.step), both_of(report, notified), closing
            ),
            intervals=self.intervals,
            stop=stop,
            evaluate_first=bool(self.init_from),
            after_save=after_save,
            ledger=self.ledger,
            recovery=self._recovery(setup, teacher, checkpointer),
            profiler=closing.enter_context(
                StepProfiler(self.work_dir / PROFILE_NAME, self.reporting.profile_steps)
            ),
        )
        state, finished = trainer.run(state, phases)
        with self.ledger.during(SAVE):
            checkpointer.close()  # If a save failed, this call raises its error.
        self.ledger.finish("finished" if finished else "stopped")
        return int(state.step), finished

    def _recovery(
        self, setup: StepSetup, teacher: LoadedTeacher | None, checkpointer: Checkpointer
    ) -> Recovery | None:
        """Return the `Recovery` that handles divergences, or None if they are not detected."""
        if not setup.divergence.enabled:
            return None

        def initial() -> TrainState:
            if self.stable is not None:
                return self.stable.state(setup, self.mesh)[0]
            state, _ = initial_state(
                setup, self.mesh, seed=self.seed, init_from=self.init_from, teacher=teacher
            )
            return with_new_average(state)

        abstract = abstract_state(setup.task.definition, setup.transformation, self.mesh)
        return Recovery(setup.divergence, checkpointer, abstract, initial)

    def _phases(
        self, setup: StepSetup, teacher: LoadedTeacher | None, stop: StopRequest
    ) -> list[Phase]:
        """Return the phases for the trainer. Phases with equal encoders share compiled steps."""
        data = self.evaluation_set
        steps: dict[EncoderConfig, tuple[TrainStep, EvaluationStep]] = {}
        scores: dict[EncoderConfig, LanguageMetrics] = {}
        phases = []
        for corpus in self.corpora:
            own = setup.for_phase(corpus.config)
            if own.model not in steps:
                steps[own.model] = own.steps(self.mesh, teacher)
                if data is not None:
                    scores[own.model] = language_metrics(data, own, self.mesh)
            phases += self.batches.phases(
                corpus,
                *steps[own.model],
                own.step_flops(corpus.config, corpus.train.manifest.max_fragments),
                stop.while_waiting,
                scores.get(own.model),
                own.diagnosis(self.mesh, teacher),
            )
        return phases

    def _open_teacher(
        self, saved: int, *, finished: bool
    ) -> tuple[StepSetup, LoadedTeacher | None, dict[str, object]]:
        """Return the setup with its teacher, the loaded teacher, and the teacher's identity.

        The teacher of a finished run is not opened, because it may have been deleted.
        """
        stored: Mapping[str, Any] = {}
        if saved:
            stored = identity_of(self.work_dir / CHECKPOINTS_NAME, saved)
        elif self.stable is not None:
            stored = self.stable.identity()
        saved_identity = stored.get(TEACHER_IDENTITY, {})
        setup, teacher = self.setup, None
        if not finished:
            setup, teacher = self._with_teacher(saved_identity)
        return setup, teacher, teacher_identity(setup.distillation, teacher, saved_identity)

    def _with_teacher(
        self, saved_identity: Mapping[str, Any]
    ) -> tuple[StepSetup, LoadedTeacher | None]:
        """Return the setup with its teacher, and the loaded teacher (None if there is none)."""
        longest = max(corpus.config.sequence_length for corpus in self.corpora)
        step = saved_identity.get("step")
        setup = self.setup.with_teacher(jax.devices()[0], longest, step)
        if setup.teacher is None:
            return setup, None
        if setup.teacher.config.init_layers and not saved_identity:
            shapes = setup.task.definition.shapes
            # The result is not needed, but this call raises ValueError if the teacher does not fit.
            teacher_sources(setup.teacher, setup.model, setup.sentence_pairs, shapes)
        first = self.corpora[0]
        return setup, load_teacher(
            setup.teacher, self.mesh, first.tokenizer, first.config.corpus, saved_identity
        )

    def _describe(self, setup: StepSetup, saved: int, report: OnReport) -> None:
        """Report the model, the devices, the corpora, and anything unusual about them."""
        if report is discard:
            return
        state = state_bytes(setup.task.definition, setup.transformation, self.mesh)
        lines = describe(
            setup,
            self.mesh,
            self.corpora,
            self.batches.evaluation,
            state,
            # A checkpoint or the model in `init_from` determines the vocabulary size.
            chooses_size=not saved and not self.init_from,
        )
        if self.evaluation_set is not None:
            lines += self.evaluation_set.lines()
        report(Message("\n".join(lines)))

    def _write_files(self, saved: int, report: OnReport, *, finished: bool) -> None:
        """Write the files that accompany the checkpoints, on the first process only."""
        if jax.process_index() != 0:
            return
        for line in write_run_files(
            self.work_dir,
            self.resolved,
            self.setup.model_config,
            self.setup.sentence_pairs,
            self.corpora,
            saved,
            finished=finished,
            generator=self.setup.generator,
        ):
            report(Message(line))

    def _open_reporter(
        self,
        setup: StepSetup,
        phases: Sequence[Phase],
        start_step: int,
        report: OnReport,
        closing: ExitStack,
    ) -> Reporter | None:
        """Return a reporter that `closing` closes, or None on all processes except the first."""
        if jax.process_index() != 0:
            return None
        reporter = Reporter(
            self.work_dir,
            [(phase.num_steps, phase.flops({})) for phase in phases],
            start_step=start_step,
            peak_flops=mesh_peak_flops(self.mesh, setup.compute.dtype),
            tensorboard=self.reporting.tensorboard,
            on_report=report,
            ledger=self.ledger,
            trackers=open_trackers(self.reporting.trackers, self.work_dir, self.resolved.as_read()),
        )
        closing.callback(reporter.close)
        return reporter
