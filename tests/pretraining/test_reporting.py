"""Test the reports and traces of a pretraining run."""

import pytest
from jax.profiler import ProfileData

from bert_jax.pretraining import prepared_run
from bert_jax.runs.status import read_status
from bert_jax.training import reporting
from bert_jax.training.curves import draw_curves
from bert_jax.training.metrics_log import read_metrics


def test_the_cost_of_a_step_is_the_flops_of_its_phase(
    tiny_config, bert_jax_here, monkeypatch, tmp_path
):
    costs = []

    def note(*args, **options):
        costs.append(args[1])
        raise ValueError("stopped by the test")

    monkeypatch.setattr(prepared_run, "Reporter", note)
    phases = ("phase1.num_steps=2", "phase2.num_steps=1", "phase2.batch_size=32")
    words = [f"--config.work_dir={tmp_path}", "--config.optimizer.warmup_steps=1"]
    words += [f"--config.phases.{word}" for word in phases]
    finished = bert_jax_here("pretrain", "--config", tiny_config, *words)
    assert finished.code == 2 and "stopped by the test" in finished.errors
    [((first_steps, first_cost), (second_steps, second_cost))] = costs
    assert (first_steps, second_steps) == (2, 1)
    # 32 sequences of 64 tokens have four times as many tokens as 16 sequences of 32, and each token
    # attends to twice as many.
    assert 4 < second_cost / first_cost < 8


@pytest.mark.slow
# jaxlib 0.11 on Python 3.12 warns about its own class, and aborts if warnings are errors.
@pytest.mark.filterwarnings("ignore:builtin type event_stats:DeprecationWarning")
def test_steps_are_traced_on_request(tiny_config, bert_jax_here, tmp_path):
    words = [f"--config.work_dir={tmp_path}", "--config.reporting.profile_steps=3"]
    phases = ["phase1.num_steps=12", "phase2.num_steps=3"]
    # With a different shape, the step would be compiled while the profiler is tracing.
    phases += [f"phase2.corpus={tiny_config.parent / '32'}", "phase2.sequence_length=32"]
    phases += ["phase2.batch_size=16"]
    words += [f"--config.phases.{word}" for word in phases]
    finished = bert_jax_here("pretrain", "--config", tiny_config, *words)
    assert finished.code == 0, finished.errors
    (file,) = (tmp_path / "profile").rglob("*.xplane.pb")
    traced = [
        dict(event.stats)["step_num"]
        for plane in ProfileData.from_file(str(file)).planes
        for line in plane.lines
        for event in line.events
        if event.name == "step"
    ]
    assert sorted(traced) == [11, 12, 13]  # The traced steps extend across the end of a phase.


def test_a_run_without_evaluation_needs_no_held_out_text(
    tiny_config, tiny_text, bert_jax_here, monkeypatch, tmp_path
):
    monkeypatch.setattr(reporting, "draw_curves", draw_curves)
    corpus, work_dir = tmp_path / "corpus", tmp_path / "run"
    words = ["--tokenizer", tiny_config.parent / "tokenizer", "--output", corpus, "--workers", 1]
    prepared = bert_jax_here(
        "prepare", "--input", tiny_text, *words, "--max-length", 32, "--held-out", 0
    )
    assert prepared.code == 0, prepared.errors
    words = [f"work_dir={work_dir}", f"phases.phase1.corpus={corpus}", "phases.phase2=None"]
    words += ["phases.phase1.num_steps=3", "optimizer.warmup_steps=1"]
    command = ["pretrain", "--config", tiny_config, *(f"--config.{word}" for word in words)]
    refused = bert_jax_here(*command)
    assert refused.code == 2
    assert "or set evaluation.every_steps=0 and checkpoint" in refused.errors
    none = "--config.evaluation.every_steps=0"
    refused = bert_jax_here(*command, none)
    assert refused.code == 2 and "Set checkpoint.keep_best=0" in refused.errors
    finished = bert_jax_here(*command, none, "--config.checkpoint.keep_best=0")
    assert finished.code == 0, finished.errors
    assert "not evaluated" in finished.output and "held-out" not in finished.output
    assert finished.output.splitlines()[-1] == f"curves: {work_dir / 'curves.png'}"
    assert (work_dir / "curves.png").is_file()
    entries = read_metrics(work_dir / "metrics.jsonl")
    assert {entry["kind"] for entry in entries} == {"train"}
    # The starts that were refused are not in the ledger.
    status = read_status(work_dir)
    assert (status.state, status.step, status.goodput.starts) == ("finished", 3, 1)
    trained = sum(entry["tokens_per_second"] * entry["seconds"] for entry in entries)
    assert status.goodput.tokens == pytest.approx(trained)
    assert 0 < status.goodput.fill_rate < 1
    spent = status.goodput.seconds
    assert spent["productive"] > 0 and spent["unproductive_checkpoint_save_time"] > 0
    assert "\ngoodput    " in finished.output and "  goodput " in finished.errors
    for verb, *rest in (("extract", "--step", "newest"), ("export", "--format", "huggingface")):
        done = bert_jax_here(verb, work_dir, *rest, "--output", tmp_path / verb)
        assert done.code == 0, done.errors
