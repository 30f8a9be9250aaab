"""Test the command line from raw text to predictions, and various uses of a finished run."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np
import pytest
import transformers

from bert_jax.models.compute_config import ComputeConfig
from bert_jax.models.sentence_embedding import SETTINGS_DROPPED
from bert_jax.runs.checkpoints import load_model, load_model_parameters
from bert_jax.runs.work_dir import read_model, read_sentence_embedding
from bert_jax.tokenizers.tokenizer import Tokenizer
from bert_jax.training.checkpoint_files import steps_in
from bert_jax.training.metrics_log import read_metrics

pytestmark = pytest.mark.slow

# The model learns both MLM and sentence pairs in 600 steps. Its initializer range is ten times
# BERT's 0.02, which is meant for a hidden dimension of 768.
LEARNING_CONFIG = """
from ml_collections import ConfigDict


def get_config():
    return ConfigDict(
        dict(
            work_dir="",
            model=dict(
                vocab_size=300, hidden_dim=32, num_layers=1, num_heads=2, ffn_dim=64,
                max_positions=64, hidden_dropout=0.0, attention_dropout=0.0, initializer_range=0.2,
            ),
            phases=dict(
                only=dict(corpus="{0}", sequence_length=64, batch_size=32, num_steps=600)
            ),
            optimizer=dict(peak_learning_rate=1e-2, warmup_steps=20),
            evaluation=dict(every_steps=100),
            checkpoint=dict(every_steps=100),
        )
    )
"""


@dataclass(frozen=True)
class Trained:
    """A finished run: its paths and its output."""

    tokenizer: Path
    corpus: Path
    config: Path
    work_dir: Path
    output: str


@pytest.fixture(scope="module")
def trained(bert_jax, tiny_text, tmp_path_factory) -> Trained:
    directory = tmp_path_factory.mktemp("trained")
    tokenizer, corpus, work_dir = directory / "tokenizer", directory / "corpus", directory / "run"
    sizes = ["--vocab-size", 300, "--num-unused", 0]
    bert_jax("train-tokenizer", "--input", tiny_text, "--output", tokenizer, *sizes)
    source = ["--input", tiny_text, "--tokenizer", tokenizer]
    options = ["--max-length", 64, "--held-out", 0.1, "--workers", 2]
    bert_jax("prepare", *source, "--output", corpus, *options)
    # These files look as if a process with a different vocabulary had been killed before its first
    # checkpoint.
    (work_dir / "tokenizer").mkdir(parents=True)
    (work_dir / "model.json").write_text("{}")
    (work_dir / "tokenizer/vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n")
    (work_dir / "manifest-only.json").write_text("{}")
    config = directory / "config.py"
    config.write_text(LEARNING_CONFIG.format(corpus))
    finished = bert_jax("pretrain", "--config", config, f"--config.work_dir={work_dir}")
    return Trained(tokenizer, corpus, config, work_dir, finished.output)


def test_losses_show_that_the_model_uses_context(trained):
    entries = read_metrics(trained.work_dir / "metrics.jsonl")
    evaluations = {entry["step"]: entry for entry in entries if entry["kind"] == "evaluation"}
    assert list(evaluations) == [100, 200, 300, 400, 500, 600]
    first, *_, last = evaluations.values()
    unigram = float(re.search(r"unigram cross-entropy.* (\S+) nats", trained.output).group(1))
    assert last["mlm_loss"] < first["mlm_loss"] - 0.5
    # A model that ignores context cannot reach a loss this low.
    assert last["mlm_loss"] < unigram - 1
    assert last["nsp_accuracy"] > 0.7
    assert list((trained.work_dir / "tensorboard").glob("events.out.tfevents.*"))


def test_a_run_copies_its_tokenizer_and_manifest(trained):
    for name in ("vocab.txt", "tokenizer.json"):
        copy = (trained.work_dir / "tokenizer" / name).read_bytes()
        assert copy == (trained.tokenizer / name).read_bytes()
    manifest = (trained.work_dir / "manifest-only.json").read_bytes()
    assert manifest == (trained.corpus / "manifest.json").read_bytes()


def test_masks_are_filled_from_context(bert_jax, trained):
    guesses = bert_jax(
        *("fill-mask", "--work-dir", trained.work_dir, "--top", 3),
        "The ripe [MASK] fell. The muddy wasp buzzed.",
        "The salty [MASK] drifted. The wooden boat rocked.",
    ).output
    words_by_line = [re.findall(r"(\S+) \d+\.\d%", line) for line in guesses.splitlines()]
    orchard, harbor = (set(words) for words in words_by_line if words)
    assert len(orchard) == len(harbor) == 3
    assert len(orchard & set("farmer apple ladder basket wasp fence".split())) >= 2, guesses
    assert len(harbor & set("boat sailor anchor wave gull rope".split())) >= 2, guesses


def test_initialization_from_an_incompatible_model_is_rejected(bert_jax_here, trained, tmp_path):
    settings = [
        f"work_dir={tmp_path / 'run'}",
        f"init_from={trained.work_dir}",
        "model.activation=gelu_tanh",
    ]
    finished = bert_jax_here(
        "pretrain", "--config", trained.config, *(f"--config.{s}" for s in settings)
    )
    assert finished.code == 2
    assert "activation: 'gelu' -> 'gelu_tanh'" in finished.errors
    assert not finished.output and not (tmp_path / "run").exists()


# Settings for a run of two steps with a learning rate of 0, which leaves the parameters unchanged.
UNCHANGED = (
    "phases.only.num_steps=2",
    "optimizer.peak_learning_rate=0.0",
    "optimizer.warmup_steps=0",
    "reporting.tensorboard=False",
    "evaluation.every_steps=0",
    "checkpoint.keep_best=0",
)


def test_a_run_can_be_initialized_from_another_run(bert_jax_here, trained, tmp_path):
    settings = [*UNCHANGED, f"work_dir={tmp_path / 'run'}", f"init_from={trained.work_dir}"]
    words = ["pretrain", "--config", trained.config, *(f"--config.{s}" for s in settings)]
    finished = bert_jax_here(*words)
    assert finished.code == 0, finished.errors
    assert f"start      the parameters of {trained.work_dir}\n" in finished.output
    before, after = (
        jax.tree.leaves(load_model(str(directory)).model)
        for directory in (trained.work_dir, tmp_path / "run")
    )
    for expected, actual in zip(before, after, strict=True):
        np.testing.assert_array_equal(actual, expected)
    for other in ("", tmp_path / "nowhere"):
        rejected = bert_jax_here(*words[:-1], f"--config.init_from={other}")
        assert rejected.code == 2
        message = f'started from {trained.work_dir}. Set init_from="{trained.work_dir}"'
        assert message in rejected.errors
    config = json.loads((tmp_path / "run/config.json").read_text())
    assert config["init_from"] == str(trained.work_dir)


def test_differences_in_heads_are_reported(bert_jax_here, trained, tmp_path):
    """Initialize a run without sentence pairs from a run with pairs, and vice versa.

    The first case is common when BERT is adapted to a domain.
    """
    without_pairs, with_pairs = tmp_path / "without_pairs", tmp_path / "with_pairs"
    cases = (
        (
            *(without_pairs, trained.work_dir, "none"),
            "; not trained in this run and therefore left out: ",
        ),
        (
            *(with_pairs, without_pairs, "next_sentence"),
            "; missing and therefore randomly initialized: ",
        ),
    )
    for work_dir, source, pairs, message in cases:
        settings = [*UNCHANGED, f"work_dir={work_dir}", f"init_from={source}"]
        settings += [f"sentence_pairs={pairs}"]
        words = ["pretrain", "--config", trained.config, *(f"--config.{s}" for s in settings)]
        finished = bert_jax_here(*words)
        assert finished.code == 0, finished.errors
        names = "next_sentence.bias, next_sentence.kernel, pooler.dense.bias, pooler.dense.kernel"
        assert f"start      the parameters of {source}{message}{names}" in finished.output
        assert (SETTINGS_DROPPED in finished.output) == (work_dir == with_pairs)
        assert read_sentence_embedding(work_dir) is None
        content = json.loads((work_dir / "model.json").read_text())
        content["sentence_embedding"] = {"pooling": ["cls"]}
        (work_dir / "model.json").write_text(json.dumps(content))
    models = [load_model(str(directory)).model for directory in (trained.work_dir, with_pairs)]
    for part in ("encoder", "masked_lm"):
        before, after = (jax.tree.leaves(getattr(model, part)) for model in models)
        for expected, actual in zip(before, after, strict=True):
            np.testing.assert_array_equal(actual, expected)


def test_files_of_others_are_not_overwritten(bert_jax_here, trained, tmp_path):
    def run(work_dir: Path, *settings: str):
        overrides = [*UNCHANGED, f"work_dir={work_dir}", *settings]
        return bert_jax_here(
            "pretrain", "--config", trained.config, *(f"--config.{s}" for s in overrides)
        )

    corpus = tmp_path / "corpus"
    shutil.copytree(trained.corpus, corpus)
    before = {path: path.read_bytes() for path in corpus.rglob("*") if path.is_file()}
    rejected = run(corpus, f"phases.only.corpus={corpus}")
    assert rejected.code == 2 and "this is a corpus. Choose another directory." in rejected.errors
    assert {path: path.read_bytes() for path in before} == before

    unrelated = tmp_path / "unrelated"
    unrelated.mkdir()
    (unrelated / "config.json").write_text("{}")
    rejected = run(unrelated)
    assert rejected.code == 2 and "contains a config.json that no run wrote" in rejected.errors
    assert (unrelated / "config.json").read_text() == "{}"

    other = tmp_path / "other"
    shutil.copytree(trained.corpus / "tokenizer", other / "tokenizer")
    change_tokenizer(other / "tokenizer")
    rejected = run(other)
    assert rejected.code == 2 and "contains a different tokenizer" in rejected.errors

    # An existing copy of the corpus's tokenizer is kept, and so are all other files next to it.
    existing = tmp_path / "existing"
    shutil.copytree(trained.corpus / "tokenizer", existing / "tokenizer")
    (existing / "tokenizer/notes.txt").write_text("notes")
    # Start the run twice, as if the first one had been killed before its first checkpoint.
    for _ in range(2):
        shutil.rmtree(existing / "checkpoints", ignore_errors=True)
        finished = run(existing)
        assert finished.code == 0, finished.errors
        assert (existing / "tokenizer/notes.txt").read_text() == "notes"


def test_extract_makes_a_work_directory_from_one_checkpoint(bert_jax_here, trained, tmp_path):
    checkpoints = trained.work_dir / "checkpoints"
    steps = steps_in(checkpoints)
    losses = {
        entry["step"]: entry["mlm_loss"]
        for entry in read_metrics(trained.work_dir / "metrics.jsonl")
        if entry["kind"] == "evaluation"
    }
    best = min(steps, key=lambda step: losses[step])
    assert steps[-1] == 600 and len(steps) > 1
    for name, step in (("best", best), ("newest", 600), (str(steps[0]), steps[0])):
        output = tmp_path / name
        finished = bert_jax_here("extract", trained.work_dir, "--step", name, "--output", output)
        assert finished.code == 0, finished.errors
        assert f"the parameters of {trained.work_dir} at step {step}" in finished.output
        assert steps_in(output / "checkpoints") == [step]
        compute = ComputeConfig(dtype="float32", attention="xla")
        model = read_model(trained.work_dir)[0]
        expected = load_model_parameters(trained.work_dir, model, compute, step)
        extracted = load_model_parameters(output, model, compute)
        assert extracted.keys() == expected.keys()
        for name, values in expected.items():
            np.testing.assert_array_equal(extracted[name], values)
        assert max(e["step"] for e in read_metrics(output / "metrics.jsonl")) == step
    first = tmp_path / str(steps[0])
    form = ["--format", "huggingface", "--output", tmp_path / "exported"]
    assert bert_jax_here("export", first, *form).code == 0
    card = (tmp_path / "exported/README.md").read_text()
    assert f"- steps: {steps[0]}\n" in card
    assert f"Held-out metrics after step {steps[0]} (losses in nats per token)" in card

    words = ["pretrain", "--config", trained.config, f"--config.work_dir={first}"]
    rejected = bert_jax_here(*words, *(f"--config.{s}" for s in UNCHANGED))
    assert rejected.code == 2 and "parameters alone" in rejected.errors
    for name, message in (
        ("7", "no checkpoint at step 7. Available steps: "),
        ("last", "--step=last: expected a step number, 'best' or 'newest'"),
    ):
        output = tmp_path / "rejected"
        rejected = bert_jax_here("extract", trained.work_dir, "--step", name, "--output", output)
        assert rejected.code == 2 and message in rejected.errors and not output.exists()


def test_the_best_checkpoint_needs_an_evaluation(bert_jax_here, trained, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(trained.work_dir, copy)
    words = ["extract", copy, "--step", "best", "--output", tmp_path / "best"]
    (copy / "metrics.jsonl").unlink()
    rejected = bert_jax_here(*words)
    assert rejected.code == 2 and "was evaluated with mlm_loss" in rejected.errors
    (copy / "config.json").unlink()
    rejected = bert_jax_here(*words)
    assert (
        rejected.code == 2
        and "contains no config.json, which specifies the metric for" in rejected.errors
    )


def test_position_embeddings_are_repeated_for_a_longer_model(bert_jax_here, trained, tmp_path):
    source = jax.tree.map(np.asarray, load_model(str(trained.work_dir)).model)
    table = source.encoder.embeddings.position[...]
    longer = len(table) * 2 + 3
    settings = [*UNCHANGED, f"work_dir={tmp_path / 'run'}", f"init_from={trained.work_dir}"]
    settings += [f"model.max_positions={longer}"]
    words = ["pretrain", "--config", trained.config, *(f"--config.{s}" for s in settings)]
    finished = bert_jax_here(*words)
    assert finished.code == 0, finished.errors
    assert f"positions from {len(table)} on are copies of earlier ones\n" in finished.output
    target = jax.tree.map(np.asarray, load_model(str(tmp_path / "run")).model)
    positions = target.encoder.embeddings.position[...]
    np.testing.assert_array_equal(positions, np.concatenate([table, table, table[:3]]))
    np.testing.assert_array_equal(
        target.encoder.embeddings.token[...], source.encoder.embeddings.token[...]
    )

    settings = [*UNCHANGED, f"work_dir={tmp_path / 'other'}", f"init_from={trained.work_dir}"]
    settings += [f"model.max_positions={len(table) - 1}"]
    words = ["pretrain", "--config", trained.config, *(f"--config.{s}" for s in settings)]
    rejected = bert_jax_here(*words)
    assert rejected.code == 2 and "max_positions" in rejected.errors


def change_tokenizer(directory: Path) -> None:
    """Swap two words in a directory's vocabulary."""
    words = (directory / "vocab.txt").read_text().splitlines()
    words[-1], words[-2] = words[-2], words[-1]
    shutil.rmtree(directory)
    directory.mkdir()
    (directory / "vocab.txt").write_text("\n".join(words) + "\n")


def test_initialization_with_another_vocabulary_is_rejected(bert_jax_here, trained, tmp_path):
    source = tmp_path / "source"
    shutil.copytree(trained.work_dir, source)
    change_tokenizer(source / "tokenizer")
    model = json.loads((source / "model.json").read_text())
    model["tokenizer"] = Tokenizer.load(source / "tokenizer").fingerprint
    (source / "model.json").write_text(json.dumps(model))
    settings = [f"work_dir={tmp_path / 'run'}", f"init_from={source}"]
    words = ["pretrain", "--config", trained.config, *(f"--config.{s}" for s in settings)]
    finished = bert_jax_here(*words)
    assert finished.code == 2
    assert "was prepared with a different tokenizer, so this model's" in finished.errors
    assert not finished.output


def test_a_corpus_with_a_changed_tokenizer_is_rejected(bert_jax_here, trained, tmp_path):
    shutil.copytree(trained.corpus, tmp_path / "corpus")
    change_tokenizer(tmp_path / "corpus/tokenizer")
    settings = [f"work_dir={tmp_path / 'run'}", f"phases.only.corpus={tmp_path / 'corpus'}"]
    words = ["pretrain", "--config", trained.config, *(f"--config.{s}" for s in settings)]
    finished = bert_jax_here(*words)
    assert finished.code == 2
    assert "is not the one that the corpus was prepared with" in finished.errors
    assert not (tmp_path / "run").exists()


def test_exported_models_make_the_same_predictions_in_transformers(
    bert_jax_here, trained, tmp_path
):
    out = tmp_path / "out"
    exported = bert_jax_here(
        *("export", trained.work_dir, "--format", "huggingface", "--output", out)
    )
    assert exported.code == 0, exported.errors
    compared = bert_jax_here("verify", out, trained.work_dir)
    assert compared.code == 0, compared.output
    sentences = [
        "The ripe [MASK] fell. The muddy wasp buzzed.",
        "The salty [MASK] drifted. The wooden boat rocked.",
        "Was owl or [MASK] quiet?",
    ]
    output = bert_jax_here("fill-mask", "--work-dir", trained.work_dir, *sentences).output
    matches = [re.findall(r"(\S+) (\d+\.\d)%", line) for line in output.splitlines()]
    all_guesses = [[(word, float(percent)) for word, percent in line] for line in matches if line]
    transformers.logging.disable_progress_bar()
    model = transformers.AutoModelForMaskedLM.from_pretrained(out)
    tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    fill = transformers.pipeline("fill-mask", model=model, tokenizer=tokenizer, top_k=5)
    for sentence, guesses in zip(sentences, all_guesses, strict=True):
        expected = fill(sentence)
        assert [guess["token_str"] for guess in expected] == [word for word, _ in guesses]
        percents = [100 * guess["score"] for guess in expected]
        # The command prints one decimal place.
        assert [percent for _, percent in guesses] == pytest.approx(percents, abs=0.051)


def test_the_model_card_describes_the_training(bert_jax_here, trained, tmp_path):
    out = tmp_path / "out"
    words = ("export", trained.work_dir, "--format", "huggingface", "--output", out)
    assert bert_jax_here(*words).code == 0
    card = (out / "README.md").read_text()
    manifest = json.loads((trained.corpus / "manifest.json").read_text())
    assert "- steps: 600\n" in card
    assert "- only: 600 steps of 32 sequences of 64 tokens\n" in card
    assert f"corpus {manifest['fingerprint']}: {manifest['train']['num_tokens']:,} tokens" in card
    entries = read_metrics(trained.work_dir / "metrics.jsonl")
    last = [entry for entry in entries if entry["kind"] == "evaluation"][-1]
    assert f"| mlm_loss | {last['mlm_loss']:.4f} |" in card
    assert f"| nsp_accuracy | {last['nsp_accuracy']:.4f} |" in card
