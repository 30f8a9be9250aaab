"""Test training students from their teacher's work directory, using the command line."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest

from bert_jax.cli.main import main
from bert_jax.models.compute_config import ComputeConfig
from bert_jax.pretraining.student_parameters import student_parameters
from bert_jax.pretraining.teacher import LoadedTeacher, TeacherSpec
from bert_jax.runs.work_dir import read_model
from bert_jax.tasks.distillation import DistillationConfig, PretrainingTeacher
from bert_jax.tasks.pretraining import Pretraining
from bert_jax.training.checkpoint_checksums import custom_metadata, write_checksums
from bert_jax.training.checkpoint_files import newest_step, saved_run
from bert_jax.training.metrics_log import read_metrics

pytestmark = pytest.mark.slow

COMPUTE = ComputeConfig(dtype="float32", attention="xla")

STUDENT = """
import importlib.util


def get_config():
    spec = importlib.util.spec_from_file_location("teacher", "{config}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    config = module.get_config()
    del config.phases.phase2
    config.model.update(num_layers=1, num_segments=0)
    config.sentence_pairs = "none"
    config.checkpoint.every_steps = 10
    config.distillation = dict(teacher="{teacher}")
    return config
"""


@pytest.fixture(scope="module")
def teacher(tiny_config: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    work_dir = tmp_path_factory.mktemp("teacher") / "run"
    words = [f"work_dir={work_dir}", "phases.phase2=None", "checkpoint.every_steps=10"]
    words = [f"--config.{word}" for word in words]
    assert main(["pretrain", "--config", str(tiny_config), *words]) == 0
    return work_dir


@pytest.fixture
def student(tiny_config: Path, teacher: Path, tmp_path: Path) -> Path:
    file = tmp_path / "student.py"
    file.write_text(STUDENT.format(config=tiny_config, teacher=teacher), encoding="utf-8")
    return file


def test_a_student_trains_and_resumes(student, teacher, bert_jax_here, tmp_path):
    words = ("pretrain", "--config", student, f"--config.work_dir={tmp_path}/whole")
    whole = bert_jax_here(*words)
    assert whole.code == 0, whole.errors
    assert "start      the teacher's parameters, with layers 0 (of 0 to 1)" in whole.output
    line = r"^teacher +(\S+): ([\d,]+) parameters, float32, xla attention, forward (.*)$"
    match = re.search(line, whole.output, re.MULTILINE)
    assert match and match[1] == str(teacher) and "FLOPs per step of phase1" in match[3]
    entries = read_metrics(tmp_path / "whole/metrics.jsonl")
    train = [entry for entry in entries if entry["kind"] == "train"]
    for entry in (train[0], train[-1]):
        total = 5 * entry["soft_loss"] + 2 * entry["mlm_loss"] + entry["cosine_loss"]
        assert entry["loss"] == pytest.approx(total, rel=1e-5)
    held_out = [entry for entry in entries if entry["kind"] == "evaluation"]
    assert held_out and all({"soft_loss", "cosine_loss", "mlm_loss"} <= e.keys() for e in held_out)
    # Checkpoints do not contain the teacher.
    assert read_model(tmp_path / "whole")[0].encoder.num_layers == 1
    student_bytes, teacher_bytes = (
        sum(file.stat().st_size for file in (work_dir / "checkpoints/20").rglob("*"))
        for work_dir in (tmp_path / "whole", teacher)
    )
    assert student_bytes < teacher_bytes

    # Resume as if the run had been killed after step 10.
    for file in (tmp_path / "whole/checkpoints").iterdir():
        if file.name.isdigit() and int(file.name) > 10:
            shutil.rmtree(file)
    (tmp_path / "whole/metrics.jsonl").unlink()
    resumed = bert_jax_here(*words)
    assert resumed.code == 0 and "this run's checkpoint at step 10" in resumed.output
    last = [e for e in read_metrics(tmp_path / "whole/metrics.jsonl") if e["kind"] == "evaluation"]
    assert last[-1] == held_out[-1]

    # A finished run no longer needs its teacher, but the distillation settings must stay the same.
    missing = f"--config.distillation.teacher={tmp_path}/gone"
    done = bert_jax_here(*words, missing, "--config.optimizer.beta1=0.5")
    assert done.code == 0 and "finished: nothing to do" in done.output, done.errors
    assert "optimizer.beta1: 0.9 -> 0.5" in done.output
    saved_config = json.loads((tmp_path / "whole/config.json").read_text())
    assert saved_config["optimizer"]["beta1"] == 0.9
    exported = bert_jax_here(
        "export", tmp_path / "whole", "--format", "huggingface", "--output", tmp_path / "out"
    )
    assert exported.code == 0, exported.errors
    card = (tmp_path / "out/README.md").read_text()
    assert "- masked: 0.15 of the tokens, unit token, new masks in every epoch" in card
    assert "- sentence pairs: none" in card
    assert f"- distilled from: {teacher.name} (temperature 2.0, soft_weight 5.0" in card
    rejected = bert_jax_here(*words, missing, "--config.distillation.temperature=3")
    assert rejected.code == 2 and "distillation.temperature: 2.0 -> 3.0" in rejected.errors


def test_a_resumed_student_requires_its_original_teacher(student, teacher, bert_jax_here, tmp_path):
    """Reject a later checkpoint, and different parameters that have the same shapes."""
    teacher_dir, student_dir = tmp_path / "teacher", tmp_path / "student"
    shutil.copytree(teacher, teacher_dir)
    later = teacher_dir / f"checkpoints/{newest_step(teacher_dir / 'checkpoints')}"
    later.rename(tmp_path / later.name)
    words = ["pretrain", "--config", student, f"--config.work_dir={student_dir}"]
    words += [f"--config.distillation.teacher={teacher_dir}"]
    assert bert_jax_here(*words).code == 0
    step, identity = saved_run(student_dir / "checkpoints")
    pinned = identity["distillation"]["step"]
    assert step == 20 and pinned < int(later.name)
    for file in (student_dir / "checkpoints").iterdir():
        if file.name.isdigit() and int(file.name) > 10:
            shutil.rmtree(file)
    shutil.rmtree(teacher_dir / "checkpoints" / str(pinned))
    (tmp_path / later.name).rename(later)
    rejected = bert_jax_here(*words)
    assert rejected.code == 2
    assert f"this run's teacher was the checkpoint at step {pinned}, but " in rejected.errors
    assert "Restore that checkpoint, or choose another --config.work_dir" in rejected.errors
    replaced = Path(shutil.copytree(later, teacher_dir / "checkpoints" / str(pinned)))
    # Record the checksums as if the checkpoint had been saved at this step.
    write_checksums(replaced, pinned, custom_metadata(replaced))
    rejected = bert_jax_here(*words)
    assert rejected.code == 2 and "distillation.parameters: '" in rejected.errors


def test_a_student_is_initialized_with_layers_of_its_teacher(teacher):
    """Compare every parameter with the teacher's, even if the student shares some layers."""
    config, _ = read_model(teacher)
    deep = replace(config.encoder, num_layers=6)
    definition = Pretraining(deep, COMPUTE).definition
    teacher_params = definition.init(jax.random.key(0))
    for encoder, layers in (
        (replace(deep, num_layers=3, num_segments=0), {0: 0, 1: 2, 2: 4}),
        (replace(deep, num_layers=4, sharing="all", num_groups=2), {0: 0, 2: 3}),
    ):
        spec = TeacherSpec(
            DistillationConfig(str(teacher)), replace(config, encoder=deep), "next_sentence",
            COMPUTE, PretrainingTeacher(definition, DistillationConfig(str(teacher)), ()),
        )  # fmt: skip
        loaded = LoadedTeacher(spec, 0, teacher_params)
        random = Pretraining(encoder, COMPUTE).definition.init(jax.random.key(1))
        params, description = student_parameters(loaded, encoder, "next_sentence", initial=random)
        assert f"with layers {', '.join(map(str, layers.values()))} (of 0 to 5)" in description
        for name, value in params.items():
            number = re.match(r"encoder\.layers\.(\d+)\.", name)
            source = name
            if number:
                source = name.replace(number[0], f"encoder.layers.{layers[int(number[1])]}.")
            np.testing.assert_array_equal(value, teacher_params[source], err_msg=name)
        params, description = student_parameters(loaded, encoder, "sentence_order", initial=random)
        initialized = "next_sentence.bias, next_sentence.kernel"
        assert description.endswith(f"; randomly initialized: {initialized}")
        np.testing.assert_array_equal(
            params["next_sentence.kernel"], random["next_sentence.kernel"]
        )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["model.num_layers=3"], "model.num_layers=3: the teacher has only 2 layers to start from"),
        (["model.hidden_dim=8"], "has hidden_dim=16, but this run has 8: vectors of different"),
        (
            [
                "distillation.attention_weight=1",
                "distillation.init_layers=False",
                "model.num_heads=4",
            ],
            "has num_heads=2, but this run has 4: attention is compared head by head",
        ),
        (
            [
                "distillation.hidden_weight=1",
                "distillation.init_layers=False",
                "model.num_layers=3",
            ],
            "model.num_layers=3: the teacher has only 2 layers to match",
        ),
        (["model.vocab_size=400"], "has model.vocab_size=300, but this run has 400"),
        (["model.ffn_dim=8"], "encoder.layers.0.ffn.up.kernel [16, 8], the teacher's"),
        (
            ["model.position_offset=2", "model.max_positions=62"],
            "position_offset: 0 -> 2",
        ),
        (["model.num_heads=4"], "computes different outputs from its parameters than the student"),
        (["init_from=runs/x"], "init_from=runs/x and distillation.init_layers=True both set"),
        (
            [
                "distillation.hidden_weight=1",
                "distillation.soft_weight=0",
                "distillation.mlm_weight=0",
            ],
            "'mlm_loss' measures the masked-LM head, which is not trained if "
            "distillation.mlm_weight=0 and soft",
        ),
        (["distillation.temperature=0"], "distillation.temperature=0.0: must be positive"),
        (
            ["distillation.teacher=nowhere"],
            "distillation.teacher: nowhere: contains no model.json (there is no such directory)",
        ),
    ],
)
def test_incompatible_settings_are_rejected_before_training(
    words, message, student, bert_jax_here, tmp_path
):
    overrides = [f"--config.{word}" for word in (f"work_dir={tmp_path}/run", *words)]
    rejected = bert_jax_here("pretrain", "--config", student, *overrides)
    assert rejected.code == 2
    assert message in rejected.errors
    assert not (tmp_path / "run").exists()


def test_a_teacher_with_another_vocabulary_is_rejected(
    student, teacher, tiny_text, bert_jax_here, tmp_path
):
    output, source = str(tmp_path / "tokenizer"), ["--input", str(tiny_text)]
    size = ["--vocab-size", "300", "--num-unused", "1"]
    assert main(["train-tokenizer", *source, "--output", output, *size]) == 0
    words = ["--output", str(tmp_path / "32"), "--tokenizer", output, "--max-length", "32"]
    assert main(["prepare", *source, *words, "--held-out", "0.1", "--workers", "1"]) == 0
    overrides = (f"work_dir={tmp_path}/run", f"phases.phase1.corpus={tmp_path}/32")
    rejected = bert_jax_here(
        "pretrain", "--config", student, *(f"--config.{word}" for word in overrides)
    )
    assert rejected.code == 2
    assert (
        f"distillation.teacher={teacher}: {tmp_path}/32 was prepared with a different tokenizer"
        in rejected.errors
    )


def test_a_narrower_student_matches_hidden_states_and_attention(student, bert_jax_here, tmp_path):
    """Check the maps to the teacher's hidden dimension, which are not part of the model."""
    words = ("model.hidden_dim=8", f"work_dir={tmp_path}/run", "distillation.init_layers=False")
    words += ("distillation.soft_weight=0", "distillation.cosine_weight=0")
    words += ("distillation.hidden_weight=1", "distillation.attention_weight=1")
    words += ("distillation.mlm_weight=0", "checkpoint.best_metric=hidden_loss")
    command = ("pretrain", "--config", student, *(f"--config.{word}" for word in words))
    done = bert_jax_here(*command)
    assert done.code == 0, done.errors
    entries = read_metrics(tmp_path / "run/metrics.jsonl")
    assert "gain from context" not in done.output
    assert (
        "hidden states: embeddings and teacher layers 2, through trained maps from 8" in done.output
    )
    assert "attention scores: teacher layers 2\n" in done.output
    train = [entry for entry in entries if entry["kind"] == "train"]
    assert train[-1]["hidden_loss"] < train[0]["hidden_loss"]
    assert train[-1]["attention_loss"] < train[0]["attention_loss"]
    # Other commands load the model without the maps. A run with `init_from` initializes new maps.
    words = (f"init_from={tmp_path}/run", f"work_dir={tmp_path}/again", "phases.phase1.num_steps=2")
    words += ("optimizer.warmup_steps=1",)
    command = [word for word in command if not str(word).startswith("--config.work_dir=")]
    second = bert_jax_here(*command, *(f"--config.{word}" for word in words))
    assert second.code == 0, second.errors
    assert f"start      the parameters of {tmp_path}/run" in second.output


def test_a_wider_student_is_randomly_initialized(student, bert_jax_here, tmp_path):
    words = ("model.hidden_dim=32", "distillation.cosine_weight=0", f"work_dir={tmp_path}/run")
    words += ("distillation.init_layers=False", "distillation.soft_targets=all")
    words += ("distillation.mlm_weight=0",)
    words += ("optimizer.peak_learning_rate=0.01",)
    done = bert_jax_here("pretrain", "--config", student, *(f"--config.{word}" for word in words))
    assert done.code == 0, done.errors
    assert "start      random parameters" in done.output
    # The percentage is relative to the phase's FLOPs, which include the head at every token.
    phase = float(re.search(r"^phase1 .* tokens, ([\d.e+]+) FLOPs per step", done.output, re.M)[1])
    line = r"forward ([\d.e+]+) FLOPs per step of phase1, (\d+)% extra"
    forward, percentage = map(float, re.search(line, done.output).groups())
    assert percentage == pytest.approx(100 * forward / phase, abs=1)
    losses = [e["soft_loss"] for e in read_metrics(tmp_path / "run/metrics.jsonl") if "loss" in e]
    assert sum(losses[-5:]) < 0.5 * sum(losses[:5])


def test_flops_and_memory_include_the_teacher(student, bert_jax_here, tmp_path):
    without_teacher = tmp_path / "without_teacher.py"
    text = student.read_text(encoding="utf-8")
    text = text.replace("    config.distillation =", "    _ =")
    without_teacher.write_text(text, encoding="utf-8")
    flops, memory = {}, {}
    for config in (student, without_teacher):
        words = ("--config", config, "--config.work_dir=w")
        planned = bert_jax_here("plan", "--topology", "cpu:2", *words)
        assert planned.code == 0, planned.errors
        assert ("\nteacher   " in planned.output) == (config == student)
        match = re.search(r"FLOPs per step +([\d.e+]+) of the model", planned.output)
        flops[config] = float(match[1])
        measured = bert_jax_here("bench", "step", "--steps", "1", *words)
        assert measured.code == 0, measured.errors
        memory[config] = json.loads(measured.output.splitlines()[-1])["memory_mib"]
    assert flops[student] > 1.3 * flops[without_teacher]
    assert memory[student] > memory[without_teacher]
