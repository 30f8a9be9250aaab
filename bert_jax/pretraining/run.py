"""Pretrain a model: open a run from its config, then train it or resume it.

result = pretrain(config, on_report=print)
result.metrics["mlm_loss"], result.model
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
from jax.experimental import multihost_utils
from jax.sharding import Mesh

from bert_jax.analysis.chips import peak_flops
from bert_jax.conversion import to_plain
from bert_jax.corpus.manifest import MANIFEST, TOKENIZER
from bert_jax.pretraining.config import PretrainConfig
from bert_jax.pretraining.memory import check_run_memory
from bert_jax.pretraining.messages import (
    conclude,
    describe,
    few_pairs,
    leaks,
    surplus_rows,
    teacher_lines,
)
from bert_jax.pretraining.phases import (
    PhaseBatches,
    PhaseCorpus,
    facts,
    open_corpora,
    phases_identity,
)
from bert_jax.pretraining.sections import ReportingConfig
from bert_jax.pretraining.start import (
    check_source,
    check_work_dir,
    copy_once,
    discard_stale_metadata,
    first_state,
)
from bert_jax.pretraining.step_setup import StepSetup
from bert_jax.pretraining.teacher import IDENTITY as TEACHERS
from bert_jax.pretraining.teacher import LoadedTeacher, load_teacher, sources, teachers_identity
from bert_jax.runs.outputs import check_work_dir_kind
from bert_jax.runs.ownership import keep_config, only_writer
from bert_jax.runs.runtime import versions
from bert_jax.runs.work_dir import (
    CHECKPOINTS_NAME,
    PAIRS,
    TOKENIZER_NAME,
    TrainedModel,
    load_trained,
    write_model,
)
from bert_jax.training import distributed
from bert_jax.training.checkpoint import Checkpointer
from bert_jax.training.checkpoint_files import CheckpointConfig, identity_of, recover
from bert_jax.training.distributed import StopRequest
from bert_jax.training.loop import Intervals, Phase, StepProfiler, Trainer
from bert_jax.training.metrics_log import LOG_NAME, read_metrics
from bert_jax.training.optimizer import LearningRates
from bert_jax.training.planning import state_bytes
from bert_jax.training.preflight import check
from bert_jax.training.reporting import Reporter
from bert_jax.training.reports import Message, OnReport, discard
from bert_jax.training.sharding import make_mesh
from bert_jax.training.step import EvaluationStep

PROFILE_NAME = "profile"


@dataclass(frozen=True)
class PretrainResult:
    """The outcome of a pretraining run.

    finished: whether the last phase has ended; False if the run was stopped, in which case its
      state is saved and the same call resumes it.
    step: number of optimizer steps done in the whole run.
    metrics: results of the last evaluation on held-out text; empty if there was none.
    """

    finished: bool
    step: int
    metrics: Mapping[str, float]
    work_dir: Path

    @cached_property
    def model(self) -> TrainedModel:
        """The model of the newest checkpoint, loaded when it is first used."""
        return load_trained(str(self.work_dir))


def pretrain(
    config: PretrainConfig,
    *,
    from_step: int | None = None,
    on_report: OnReport | None = None,
    stop: StopRequest | None = None,
) -> PretrainResult:
    """Pretrain a model, or resume the run in the config's work directory.

    The run can be in any thread. In the main thread SIGTERM, SIGHUP and Ctrl-C save a checkpoint
    at the next step and end it.

    Args:
      from_step: the step of a checkpoint to resume from instead of the newest.
      on_report: called with every message, progress report and evaluation; None for silence.
      stop: its `request()`, which any thread may call, ends the run as the signals do.

    Raises:
      ValueError: the run cannot start or resume; the message names the key to change.
    """
    run = PretrainRun.open(config)
    return run.train(from_step=from_step, on_report=on_report, stop=stop)


@dataclass(frozen=True)
class PretrainRun:
    """A pretraining run: everything that is made from its config before the first step.

    config: kept only for `config.json`.
    identity: values that a checkpoint must share with the run, except those of its teacher.
    trains_masked_lm: whether the masked-LM head is trained.
    """

    config: PretrainConfig
    work_dir: Path
    init_from: str
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

    @staticmethod
    def open(config: PretrainConfig) -> PretrainRun:
        """Open the corpora of a run and check that it can work.

        Raises:
          ValueError: the work directory holds something else, a corpus cannot be read or does not
            fit, the mesh does not exist, or the run does not fit into memory.
        """
        check_work_dir_kind(Path(config.work_dir))
        learning_rates = LearningRates(config.optimizer, config.total_steps)
        corpora = open_corpora(config.ordered_phases(), config.evaluation_batch_size)
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
        return PretrainRun(
            config=config,
            work_dir=Path(config.work_dir),
            init_from=config.init_from,
            seed=config.seed,
            setup=setup,
            corpora=corpora,
            mesh=mesh,
            batches=PhaseBatches(
                config.examples, config.loader, config.evaluation, config.total_steps, mesh
            ),
            learning_rates=learning_rates,
            intervals=Intervals(
                config.reporting.every_steps,
                config.evaluation.every_steps,
                config.checkpoint.every_steps,
                save_evaluated=config.checkpoint.keep_best > 0,
            ),
            checkpoint=config.checkpoint,
            reporting=config.reporting,
            identity={**config.identity(), "phases": phases_identity(corpora)},
            trains_masked_lm=config.trains_masked_lm,
        )

    def train(
        self,
        *,
        from_step: int | None = None,
        on_report: OnReport | None = None,
        stop: StopRequest | None = None,
    ) -> PretrainResult:
        """Train to the end of the last phase, or until a request to stop; see `pretrain`."""
        report = distributed.on_first_process(on_report)
        distributed.check_same(
            {
                "the config": to_plain(self.config),
                "the corpora": self.identity,
                "the versions": versions(),
                "--from-step": from_step,
            }
        )
        with ExitStack() as closing:
            # Left last, so that a save under way is finished before a signal may kill again.
            stop = closing.enter_context(stop or StopRequest())
            if jax.process_index() == 0:
                closing.enter_context(only_writer(self.work_dir))
            recovery = recover(self.work_dir / CHECKPOINTS_NAME, self.identity, from_step)
            for line in recovery.lines:
                report(Message(line))
            if recovery.step is None:
                check_source(self.init_from, self.setup.model, self.corpora)
            step, finished = self._train(recovery.step, report, stop, closing)
        metrics = _last_evaluation(self.work_dir / LOG_NAME)
        if finished and report is not discard:
            loss = metrics.get("mlm_loss") if self.trains_masked_lm else None
            report(Message("\n".join(conclude(self.work_dir, self.corpora[-1], loss))))
        # JAX gives the first process five minutes after the others have left; counting words over
        # a slow network takes longer.
        multihost_utils.sync_global_devices("concluded")
        return PretrainResult(finished, step, metrics, self.work_dir)

    def _train(
        self, verified: int | None, report: OnReport, stop: StopRequest, closing: ExitStack
    ) -> tuple[int, bool]:
        """Run the phases; return the last step, and whether it is the run's last.

        verified: the step of the checkpoint to resume from, as `recover` returned it.
        """
        saved, total = verified or 0, len(self.learning_rates)
        stored = identity_of(self.work_dir / CHECKPOINTS_NAME, saved) if saved else {}
        kept = stored.get(TEACHERS, {})
        check_work_dir(self.work_dir, self.corpora, self.init_from, begun=saved > 0)
        # A finished run needs no teacher, which may have been deleted.
        setup, teacher = self.setup, None
        if saved < total:
            setup, teacher = self._with_teacher(kept)
        teachers = teachers_identity(setup.distillation, teacher, kept)
        checkpointer = closing.enter_context(self._checkpointer(verified, teachers))
        if saved:
            checkpointer.check_identity()
        self._describe(setup, saved, report)
        if saved >= total:
            line = f"start      this run's checkpoint of step {saved:,} (finished: nothing to do)"
            report(Message(line))
            self._write_provenance(saved, report, finished=True)
            return saved, True
        state, origin = first_state(
            setup,
            self.mesh,
            checkpointer,
            seed=self.seed,
            init_from=self.init_from,
            teacher=teacher,
        )
        report(Message(f"start      {origin}"))
        self._write_provenance(saved, report, finished=False)
        reporter = self._reporter(setup, saved, report)
        if reporter is not None:
            closing.callback(reporter.close)
        profiler = StepProfiler(self.work_dir / PROFILE_NAME, self.reporting.profile_steps)
        closing.enter_context(profiler)
        train_step, evaluation_step = setup.steps(self.mesh, teacher)
        trainer = Trainer(
            mesh=self.mesh,
            train_step=train_step,
            seed=self.seed,
            learning_rates=self.learning_rates,
            checkpointer=checkpointer,
            reporter=reporter,
            intervals=self.intervals,
            stop=stop,
            profiler=profiler,
        )
        state, finished = trainer.run(state, self._phases(setup, evaluation_step, stop))
        checkpointer.close()  # raises the error of a failed save before the message below
        if not finished:
            line = f"stopped: saved step {int(state.step):,}; the same command resumes"
            report(Message(line))
        return int(state.step), finished

    def _phases(
        self, setup: StepSetup, evaluation_step: EvaluationStep, stop: StopRequest
    ) -> list[Phase]:
        """Return the phases for the trainer, which read nothing before they begin."""
        return [
            self.batches.phase(
                corpus, evaluation_step, _step_flops(setup, corpus), stop.while_waiting
            )
            for corpus in self.corpora
        ]

    def _checkpointer(
        self,
        verified: int | None,
        teachers: Mapping[str, object],
    ) -> Checkpointer:
        """Return the checkpointer; `teachers` is the part of the identity about the teacher."""
        return Checkpointer(
            self.work_dir / CHECKPOINTS_NAME,
            self.checkpoint,
            {**self.identity, **teachers},
            self.intervals.evaluates,
            verified=verified,
        )

    def _with_teacher(self, kept: Mapping[str, Any]) -> tuple[StepSetup, LoadedTeacher | None]:
        """Return the setup with its teacher, and the teacher's parameters; None if it has none.

        kept: the part of the checkpoint's identity about the teacher.
        """
        longest = max(corpus.config.sequence_length for corpus in self.corpora)
        setup = self.setup.with_teacher(jax.devices()[0], longest)
        if setup.teacher is None:
            return setup, None
        if setup.teacher.config.init_layers and not kept:
            shapes = setup.task.definition.shapes
            sources(setup.teacher, setup.model, setup.sentence_pairs, shapes)  # may refuse
        first = self.corpora[0]
        return setup, load_teacher(
            setup.teacher, self.mesh, first.tokenizer, first.config.corpus, kept
        )

    def _describe(self, setup: StepSetup, saved: int, report: OnReport) -> None:
        """Report the model, the devices, the corpora, and anything unusual about them."""
        if report is discard:
            return
        state = state_bytes(setup.task.definition, setup.transformation, self.mesh)
        lines = describe(setup, self.mesh, self.corpora, self.batches.evaluation, state)
        if not saved and not self.init_from:  # otherwise the size can no longer be chosen
            words = self.corpora[0].tokenizer.vocab_size
            lines += surplus_rows(words, setup.model.vocab_size)
        lines += [*few_pairs(setup.sentence_pairs, self.corpora), *leaks(self.corpora)]
        phases = [(corpus.name, corpus.config) for corpus in self.corpora]
        lines += teacher_lines(setup, phases)
        report(Message("\n".join(lines)))

    def _write_provenance(self, saved: int, report: OnReport, *, finished: bool) -> None:
        """Put config, tokenizer and manifests next to the checkpoints, on process 0."""
        if jax.process_index() != 0:
            return
        tokenizer = self.corpora[0].tokenizer
        if not saved:
            discard_stale_metadata(self.work_dir, tokenizer)
        origin = {"command": "bert-jax pretrain", PAIRS: self.setup.sentence_pairs}
        # Written first, since it says whose the other files are.
        write_model(self.setup.model_config, origin, self.work_dir, tokenizer=tokenizer)
        for line in keep_config(self.config, self.work_dir, saved, finished=finished):
            report(Message(line))
        copy_once(self.corpora[0].train.directory / TOKENIZER, self.work_dir / TOKENIZER_NAME)
        for corpus in self.corpora:
            source = corpus.train.directory / MANIFEST
            copy_once(source, self.work_dir / f"manifest-{corpus.name}.json")

    def _reporter(self, setup: StepSetup, saved: int, report: OnReport) -> Reporter | None:
        """Return what writes the log and passes reports on; None on all processes but the first."""
        if jax.process_index() != 0:
            return None
        peak = peak_flops(self.mesh.devices.flat[0].device_kind, setup.compute.dtype)
        return Reporter(
            self.work_dir,
            [(corpus.config.num_steps, _step_flops(setup, corpus)) for corpus in self.corpora],
            start_step=saved,
            peak_flops=peak * self.mesh.size if peak else None,
            tensorboard=self.reporting.tensorboard,
            on_report=report,
        )


def _step_flops(setup: StepSetup, corpus: PhaseCorpus) -> int:
    return setup.step_flops(corpus.config, corpus.train.manifest.max_pieces)


def _last_evaluation(log: Path) -> dict[str, float]:
    """Return the metrics of the last evaluation in a log; {} if there is none."""
    entries = read_metrics(log) if log.is_file() else []
    evaluations = [entry for entry in entries if entry["kind"] == "evaluation"]
    last = evaluations[-1] if evaluations else {}
    return {name: value for name, value in last.items() if name not in ("kind", "step")}
