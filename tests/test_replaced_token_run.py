"""Test the commands for replaced-token detection, from pretraining to export."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
import transformers
from safetensors.numpy import load_file

from bert_jax import score_text
from bert_jax.cli.main import main
from bert_jax.inference.fill_mask import FillMask
from bert_jax.models.compute_config import ComputeConfig
from bert_jax.models.replaced_token import generator_of
from bert_jax.runs.work_dir import read_generator, read_model
from bert_jax.tasks.replaced_token import ReplacedToken, ReplacedTokenConfig
from bert_jax.training.checkpoint_parameters import load_parameters
from bert_jax.training.metrics_log import read_metrics

pytestmark = pytest.mark.slow  # These tests train complete runs.

CONFIG = """
import importlib.util


def get_config():
    spec = importlib.util.spec_from_file_location("tiny", "{config}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    config = module.get_config()
    del config.phases.phase2
    config.model.update(num_layers=1, embedding_dim=8, pooler_activation="gelu")
    config.sentence_pairs = "none"
    config.masking = dict(mask_fraction=1.0, random_fraction=0.0)
    config.accumulation_steps = 2
    config.checkpoint.update(every_steps=10, best_metric="replaced_loss")
    config.replaced_token = dict(generator_size=0.5, weight=50.0)
    config.mesh = dict(data=2, fsdp=2, tensor=2)
    return config
"""


@pytest.fixture(scope="module")
def config(tiny_config: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("electra") / "config.py"
    file.write_text(CONFIG.format(config=tiny_config), encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def run(config: Path) -> Path:
    """Return the work directory of a finished run."""
    work_dir = config.parent / "run"
    words = ["pretrain", "--config", str(config), f"--config.work_dir={work_dir}"]
    text = config.parent / "text.txt"
    text.write_text("The salty boat drifted. Was owl or fox quiet?\n", encoding="utf-8")
    words += [f"--config.evaluation.texts=('{text}',)", "--config.evaluation.text_length=32"]
    assert main(words) == 0
    return work_dir


def test_metrics_are_logged_and_the_run_resumes(run, config, bert_jax_here, tmp_path):
    entries = read_metrics(run / "metrics.jsonl")
    train = [entry for entry in entries if entry["kind"] == "train"]
    held_out = [entry for entry in entries if entry["kind"] == "evaluation"]
    names = {"mlm_loss", "mlm_accuracy", "replaced_loss", "replaced_accuracy"}
    assert all(names <= entry.keys() for entry in (*train, *held_out))
    assert {"replaced_precision", "replaced_recall"} <= train[0].keys()
    # Precision is undefined once the model classifies all tokens as original.
    assert all("replaced_recall" in entry for entry in held_out)
    for entry in (train[0], train[-1]):
        total = entry["mlm_loss"] + 50 * entry["replaced_loss"]
        assert entry["loss"] == pytest.approx(total, rel=1e-5)
    assert train[-1]["loss"] < train[0]["loss"]

    # Resume as if the run had been killed after step 10.
    resumed = Path(shutil.copytree(run, tmp_path / "run"))
    for file in (resumed / "checkpoints").iterdir():
        if file.name.isdigit() and int(file.name) > 10:
            shutil.rmtree(file)
    words = ("pretrain", "--config", config, f"--config.work_dir={resumed}")
    again = bert_jax_here(*words)
    assert again.code == 0 and "this run's checkpoint at step 10" in again.output, again.errors
    assert "generator  " in again.output and " more parameters: 1 layers of 8" in again.output
    for entry, other in zip(entries, read_metrics(resumed / "metrics.jsonl"), strict=True):
        for name in names & entry.keys():
            assert entry[name] == other[name], (entry["step"], name)
    refused = bert_jax_here(*words, "--config.replaced_token.weight=25")
    assert refused.code == 2 and "replaced_token.weight: 50.0 -> 25.0" in refused.errors


def test_the_discriminator_is_exported_by_default(run, bert_jax_here, tmp_path):
    model, _ = read_model(run)
    assert model.head == "replaced_token"
    words = ("export", run, "--format", "huggingface", "--output", tmp_path / "out")
    exported = bert_jax_here(*words)
    assert exported.code == 0, exported.errors
    theirs, loading = transformers.ElectraForPreTraining.from_pretrained(
        tmp_path / "out", output_loading_info=True
    )
    assert not any(loading[key] for key in ("missing_keys", "unexpected_keys"))
    assert theirs.config.embedding_size == 8
    verified = bert_jax_here("verify", run, tmp_path / "out")
    assert verified.code == 0 and "replaced-token logits" in verified.output, verified.errors
    card = (tmp_path / "out/README.md").read_text()
    assert "generator of size 0.5, with a loss weight of 50" in card
    assert "(`replaced_token` head)" in card


def test_the_generator_can_be_extracted(run, bert_jax_here, tmp_path):
    words = ("extract", run, "--step", "newest", "--generator", "--output", tmp_path / "gen")
    extracted = bert_jax_here(*words)
    assert extracted.code == 0, extracted.errors
    model, _ = read_model(tmp_path / "gen")
    assert model.head == "masked_lm"
    assert model.encoder == read_generator(run) == generator_of(read_model(run)[0].encoder, 0.5)
    assert FillMask(tmp_path / "gen")("the [MASK] of the sea").masks
    # The run uses the generator to score texts, with its parameters split over eight devices.
    scores = score_text(tmp_path / "gen", run.parent / "text.txt", max_length=32)
    values = read_metrics(run / "metrics.jsonl")[-1]
    assert values["text_text_mlm_loss"] == pytest.approx(scores.mlm_loss, rel=1e-5)
    perplexity = values["text_text_pseudo_perplexity"]
    assert perplexity == pytest.approx(scores.pseudo_perplexity, rel=1e-5)
    out = tmp_path / "out"
    for source in (run, tmp_path / "gen"):
        words = ("export", source, "--format", "huggingface", "--output", out / source.name)
        assert bert_jax_here(*words).code == 0
    assert bert_jax_here("verify", tmp_path / "gen", out / "gen").code == 0
    one, other = (load_file(out / name / "model.safetensors") for name in (run.name, "gen"))
    shared = one.keys() & other.keys()
    tables = {name for name in shared if np.array_equal(one[name], other[name])}
    assert {name.split(".")[2] for name in tables if "electra.embeddings." in name} == {
        "word_embeddings", "position_embeddings", "token_type_embeddings", "LayerNorm",
    }  # fmt: skip
    refused = bert_jax_here(
        "extract", tmp_path / "gen", "--step", "20", "--generator", "--output", tmp_path / "x"
    )
    assert refused.code == 2 and "has no generator" in refused.errors


def test_a_run_starts_from_both_models_of_another_run(run, config, bert_jax_here, tmp_path):
    words = ["pretrain", "--config", config, f"--config.work_dir={tmp_path}/more"]
    words += [f"--config.init_from={run}", "--config.phases.phase1.num_steps=1"]
    words += ["--config.optimizer.warmup_steps=0", "--config.optimizer.peak_learning_rate=1e-9"]
    words += ["--config.evaluation.every_steps=0", "--config.checkpoint.keep_best=0"]
    started = bert_jax_here(*words)
    assert started.code == 0, started.errors
    assert f"start      the parameters of {run}\n" in started.output
    task = ReplacedToken(
        read_model(run)[0].encoder,
        ComputeConfig(dtype="float32", attention="xla"),
        ReplacedTokenConfig(generator_size=0.5),
    )
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    places = dict.fromkeys(task.definition.shapes, sharding)
    before, after = (
        load_parameters(directory / "checkpoints", task.definition, places)
        for directory in (run, tmp_path / "more")
    )
    for name, value in before.items():
        np.testing.assert_allclose(after[name], value, rtol=0, atol=1e-7, err_msg=name)

    other = [word for word in words if "work_dir" not in str(word)]
    other += [f"--config.work_dir={tmp_path}/other", "--config.replaced_token.generator_size=1"]
    started = bert_jax_here(*other)
    assert started.code == 0, started.errors
    assert "missing and therefore randomly initialized: the generator" in started.output


def test_fine_tuning_starts_from_the_discriminator(run, bert_jax_here, tmp_path):
    rows = [f"{text},{label}" for text, label in (("a boat", "sea"), ("an oven", "land")) * 8]
    (tmp_path / "rows.csv").write_text("\n".join(["text,label", *rows]) + "\n")
    words = ["finetune", "--config", "table", "--init", run, "--data", tmp_path / "rows.csv"]
    words += ["--config.max_length=16", "--config.num_epochs=1", "--config.batch_size=8"]
    words += [
        f"--config.work_dir={tmp_path}/tuned",
        "--config.sentences.files.validation_share=0.5",
    ]
    tuned = bert_jax_here(*words)
    assert tuned.code == 0, tuned.errors
    assert "randomly initialized: classifier.bias, classifier.kernel, pooler" in tuned.output
    out = tmp_path / "out"
    words = ["export", tmp_path / "tuned", "--format", "huggingface", "--output", out]
    assert bert_jax_here(*words).code == 0
    assert transformers.ElectraForSequenceClassification.from_pretrained(out)


def test_the_plan_and_the_tables_include_the_generator(config, run, bert_jax_here):
    tables = bert_jax_here("inspect", "--config", config, f"--config.work_dir={run}")
    assert tables.code == 0, tables.errors
    for row in ("replaced-token head", "generator, without the shared embeddings", "  generator "):
        assert row in tables.output
    content = json.loads((run / "model.json").read_text())
    assert content["generator"]["hidden_dim"] == 8


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("sentence_pairs=next_sentence", "sentence_pairs='next_sentence' with a replaced_token"),
        ("checkpoint.best_metric=nsp_loss", "is not a held-out metric of this run"),
    ],
)
def test_contradictions_are_refused(change, message, config, bert_jax_here, tmp_path):
    words = ["pretrain", "--config", config, f"--config.work_dir={tmp_path}/x"]
    refused = bert_jax_here(*words, f"--config.{change}")
    assert refused.code == 2 and message in refused.errors, refused.errors
