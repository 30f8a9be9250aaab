"""From raw text to guesses, and what else a finished run serves for: through the real command."""

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

from bert_jax.models.config import ComputeConfig
from bert_jax.models.sentence_embedding import SETTINGS_DROPPED
from bert_jax.runs.work_dir import (
    load_model_parameters,
    load_trained,
    read_model,
    read_sentence_embedding,
)
from bert_jax.tokenizers.tokenizer import Tokenizer
from bert_jax.training.checkpoint_files import steps_in
from bert_jax.training.metrics_log import read_metrics

# MLM and pairs are both learned in 600 steps: weights begin ten times larger than in BERT, whose
# 0.02 suits a width of 768.
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
    """Where everything of a finished run lies, and what it said."""

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
    # What a start with another vocabulary leaves when it is killed before its first checkpoint.
    (work_dir / "tokenizer").mkdir(parents=True)
    (work_dir / "model.json").write_text("{}")
    (work_dir / "tokenizer/vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n")
    (work_dir / "manifest-only.json").write_text("{}")
    config = directory / "config.py"
    config.write_text(LEARNING_CONFIG.format(corpus))
    finished = bert_jax("pretrain", "--config", config, f"--config.work_dir={work_dir}")
    return Trained(tokenizer, corpus, config, work_dir, finished.output)


def test_context_and_pairs_are_learned(trained):
    entries = read_metrics(trained.work_dir / "metrics.jsonl")
    evaluations = {entry["step"]: entry for entry in entries if entry["kind"] == "evaluation"}
    assert list(evaluations) == [100, 200, 300, 400, 500, 600]
    first, *_, last = evaluations.values()
    unigram = float(re.search(r"unigram cross-entropy.* (\S+) nats", trained.output).group(1))
    assert last["mlm_loss"] < first["mlm_loss"] - 0.5
    assert last["mlm_loss"] < unigram - 1  # which a model that ignores context cannot reach
    assert last["nsp_accuracy"] > 0.7
    assert list((trained.work_dir / "tensorboard").glob("events.out.tfevents.*"))


def test_a_run_takes_its_own_tokenizer_and_manifest_along(trained):
    for name in ("vocab.txt", "tokenizer.json"):
        ours = (trained.work_dir / "tokenizer" / name).read_bytes()
        assert ours == (trained.tokenizer / name).read_bytes()
    manifest = (trained.work_dir / "manifest-only.json").read_bytes()
    assert manifest == (trained.corpus / "manifest.json").read_bytes()


def test_masks_are_filled_from_context(bert_jax, trained):
    guesses = bert_jax(
        *("fill-mask", "--work-dir", trained.work_dir, "--top", 3),
        "The ripe [MASK] fell. The muddy wasp buzzed.",
        "The salty [MASK] drifted. The wooden boat rocked.",
    ).output
    told = [re.findall(r"(\S+) \d+\.\d%", line) for line in guesses.splitlines()]
    orchard, harbour = (set(words) for words in told if words)
    assert len(orchard) == len(harbour) == 3
    assert len(orchard & set("farmer apple ladder basket wasp fence".split())) >= 2, guesses
    assert len(harbour & set("boat sailor anchor wave gull rope".split())) >= 2, guesses


def test_a_start_from_a_model_of_another_kind_is_refused(bert_jax_here, trained, tmp_path):
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


# Two steps at a learning rate of 0 leave what they began with.
STILL = (
    "phases.only.num_steps=2",
    "optimizer.peak_learning_rate=0.0",
    "optimizer.warmup_steps=0",
    "reporting.tensorboard=False",
    "evaluation.every_steps=0",
    "checkpoint.keep_best=0",
)


def test_a_run_starts_from_the_parameters_of_another(bert_jax_here, trained, tmp_path):
    settings = [*STILL, f"work_dir={tmp_path / 'run'}", f"init_from={trained.work_dir}"]
    words = ["pretrain", "--config", trained.config, *(f"--config.{s}" for s in settings)]
    finished = bert_jax_here(*words)
    assert finished.code == 0, finished.errors
    assert f"start      the parameters of {trained.work_dir}\n" in finished.output
    before, after = (
        jax.tree.leaves(load_trained(str(directory)).model)
        for directory in (trained.work_dir, tmp_path / "run")
    )
    for theirs, ours in zip(before, after, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    for other in ("", tmp_path / "nowhere"):
        refused = bert_jax_here(*words[:-1], f"--config.init_from={other}")
        assert refused.code == 2
        began = f'started from {trained.work_dir}. Set init_from="{trained.work_dir}"'
        assert began in refused.errors
    config = json.loads((tmp_path / "run/config.json").read_text())
    assert config["init_from"] == str(trained.work_dir)


def test_heads_that_only_one_of_two_models_has_are_told(bert_jax_here, trained, tmp_path):
    """Without pairs from a model of pairs, as who adapts BERT to a domain does, and back."""
    alone, again = tmp_path / "alone", tmp_path / "again"
    for work_dir, source, pairs, told in (
        (alone, trained.work_dir, "none", "; left out, of heads that are not trained here: "),
        (again, alone, "next_sentence", "; randomly initialized, as it lacks them: "),
    ):
        settings = [*STILL, f"work_dir={work_dir}", f"init_from={source}"]
        settings += [f"sentence_pairs={pairs}"]
        words = ["pretrain", "--config", trained.config, *(f"--config.{s}" for s in settings)]
        finished = bert_jax_here(*words)
        assert finished.code == 0, finished.errors
        names = "next_sentence.bias, next_sentence.kernel, pooler.dense.bias, pooler.dense.kernel"
        assert f"start      the parameters of {source}{told}{names}" in finished.output
        assert (SETTINGS_DROPPED in finished.output) == (work_dir == again)
        assert read_sentence_embedding(work_dir) is None
        content = json.loads((work_dir / "model.json").read_text())
        content["sentence_embedding"] = {"pooling": ["cls"]}
        (work_dir / "model.json").write_text(json.dumps(content))
    theirs, ours = (load_trained(str(directory)).model for directory in (trained.work_dir, again))
    for part in ("encoder", "masked_lm"):
        before, after = (jax.tree.leaves(getattr(model, part)) for model in (theirs, ours))
        for one, other in zip(before, after, strict=True):
            np.testing.assert_array_equal(one, other)


def test_what_is_not_a_runs_own_stays(bert_jax_here, trained, tmp_path):
    def run(work_dir: Path, *settings: str):
        given = [*STILL, f"work_dir={work_dir}", *settings]
        return bert_jax_here(
            "pretrain", "--config", trained.config, *(f"--config.{s}" for s in given)
        )

    corpus = tmp_path / "corpus"
    shutil.copytree(trained.corpus, corpus)
    before = {path: path.read_bytes() for path in corpus.rglob("*") if path.is_file()}
    refused = run(corpus, f"phases.only.corpus={corpus}")
    assert refused.code == 2 and "this is a corpus. Give another directory." in refused.errors
    assert {path: path.read_bytes() for path in before} == before

    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "config.json").write_text("{}")
    refused = run(theirs)
    assert refused.code == 2 and "has a config.json, which no run wrote" in refused.errors
    assert (theirs / "config.json").read_text() == "{}"

    other = tmp_path / "other"
    shutil.copytree(trained.corpus / "tokenizer", other / "tokenizer")
    exchange_tokenizer(other / "tokenizer")
    refused = run(other)
    assert refused.code == 2 and "has another tokenizer in it than the run's" in refused.errors

    # The one that the corpus was prepared with stays as it lies there, with all its files.
    mine = tmp_path / "mine"
    shutil.copytree(trained.corpus / "tokenizer", mine / "tokenizer")
    (mine / "tokenizer/notes.txt").write_text("of mine")
    for _ in range(2):  # the second as after a start that was killed before its first checkpoint
        shutil.rmtree(mine / "checkpoints", ignore_errors=True)
        finished = run(mine)
        assert finished.code == 0, finished.errors
        assert (mine / "tokenizer/notes.txt").read_text() == "of mine"


def test_one_checkpoint_becomes_a_work_directory(bert_jax_here, trained, tmp_path):
    checkpoints = trained.work_dir / "checkpoints"
    there = steps_in(checkpoints)
    losses = {
        entry["step"]: entry["mlm_loss"]
        for entry in read_metrics(trained.work_dir / "metrics.jsonl")
        if entry["kind"] == "evaluation"
    }
    best = min(there, key=lambda step: losses[step])
    assert there[-1] == 600 and len(there) > 1
    for told, step in (("best", best), ("newest", 600), (str(there[0]), there[0])):
        output = tmp_path / told
        finished = bert_jax_here("extract", trained.work_dir, "--step", told, "--output", output)
        assert finished.code == 0, finished.errors
        assert f"the parameters of step {step}" in finished.output
        assert steps_in(output / "checkpoints") == [step]
        compute = ComputeConfig(dtype="float32", attention="xla")
        model = read_model(trained.work_dir)[0]
        theirs = load_model_parameters(trained.work_dir, model, compute, step)
        ours = load_model_parameters(output, model, compute)
        assert ours.keys() == theirs.keys()
        for name, values in theirs.items():
            np.testing.assert_array_equal(ours[name], values)
        assert max(e["step"] for e in read_metrics(output / "metrics.jsonl")) == step
    first = tmp_path / str(there[0])
    form = ["--format", "huggingface", "--output", tmp_path / "exported"]
    assert bert_jax_here("export", first, *form).code == 0
    card = (tmp_path / "exported/README.md").read_text()
    assert f"- steps: {there[0]}\n" in card
    assert f"Held out, after step {there[0]} (losses in nats a token)" in card

    words = ["pretrain", "--config", trained.config, f"--config.work_dir={first}"]
    refused = bert_jax_here(*words, *(f"--config.{s}" for s in STILL))
    assert refused.code == 2 and "parameters alone" in refused.errors
    for told, message in (
        ("7", "no checkpoint of step 7. Available steps: "),
        ("last", "--step last: expected a number of steps, 'best' or 'newest'"),
    ):
        output = tmp_path / "refused"
        refused = bert_jax_here("extract", trained.work_dir, "--step", told, "--output", output)
        assert refused.code == 2 and message in refused.errors and not output.exists()


def test_without_an_evaluation_no_checkpoint_is_best(bert_jax_here, trained, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(trained.work_dir, copy)
    words = ["extract", copy, "--step", "best", "--output", tmp_path / "best"]
    (copy / "metrics.jsonl").unlink()
    refused = bert_jax_here(*words)
    assert refused.code == 2 and "was evaluated with mlm_loss" in refused.errors
    (copy / "config.json").unlink()
    refused = bert_jax_here(*words)
    assert refused.code == 2 and "no config.json in it, which says what is best" in refused.errors


def test_a_longer_model_starts_from_copies_of_the_positions_of_a_shorter(
    bert_jax_here, trained, tmp_path
):
    theirs = jax.tree.map(np.asarray, load_trained(str(trained.work_dir)).model)
    table = theirs.encoder.embeddings.position[...]
    longer = len(table) * 2 + 3
    settings = [*STILL, f"work_dir={tmp_path / 'run'}", f"init_from={trained.work_dir}"]
    settings += [f"model.max_positions={longer}"]
    words = ["pretrain", "--config", trained.config, *(f"--config.{s}" for s in settings)]
    finished = bert_jax_here(*words)
    assert finished.code == 0, finished.errors
    assert f"positions from {len(table)} on are copies of those before\n" in finished.output
    ours = jax.tree.map(np.asarray, load_trained(str(tmp_path / "run")).model)
    found = ours.encoder.embeddings.position[...]
    np.testing.assert_array_equal(found, np.concatenate([table, table, table[:3]]))
    token = (each.encoder.embeddings.token[...] for each in (ours, theirs))
    np.testing.assert_array_equal(*token)

    settings = [*STILL, f"work_dir={tmp_path / 'other'}", f"init_from={trained.work_dir}"]
    settings += [f"model.max_positions={len(table) - 1}"]
    words = ["pretrain", "--config", trained.config, *(f"--config.{s}" for s in settings)]
    refused = bert_jax_here(*words)
    assert refused.code == 2 and "max_positions" in refused.errors


def exchange_tokenizer(directory: Path) -> None:
    """Swaps two words of the vocabulary that lies in a directory."""
    words = (directory / "vocab.txt").read_text().splitlines()
    words[-1], words[-2] = words[-2], words[-1]
    shutil.rmtree(directory)
    directory.mkdir()
    (directory / "vocab.txt").write_text("\n".join(words) + "\n")


def test_parameters_of_another_vocabulary_are_refused(bert_jax_here, trained, tmp_path):
    shutil.copytree(trained.work_dir, tmp_path / "theirs")
    exchange_tokenizer(tmp_path / "theirs/tokenizer")
    model = json.loads((tmp_path / "theirs/model.json").read_text())
    model["tokenizer"] = Tokenizer.load(tmp_path / "theirs/tokenizer").fingerprint
    (tmp_path / "theirs/model.json").write_text(json.dumps(model))
    settings = [f"work_dir={tmp_path / 'run'}", f"init_from={tmp_path / 'theirs'}"]
    words = ["pretrain", "--config", trained.config, *(f"--config.{s}" for s in settings)]
    finished = bert_jax_here(*words)
    assert finished.code == 2
    assert "its tokenizer is not the one that" in finished.errors
    assert not finished.output


def test_a_corpus_with_another_tokenizer_than_its_own_is_refused(bert_jax_here, trained, tmp_path):
    shutil.copytree(trained.corpus, tmp_path / "corpus")
    exchange_tokenizer(tmp_path / "corpus/tokenizer")
    settings = [f"work_dir={tmp_path / 'run'}", f"phases.only.corpus={tmp_path / 'corpus'}"]
    words = ["pretrain", "--config", trained.config, *(f"--config.{s}" for s in settings)]
    finished = bert_jax_here(*words)
    assert finished.code == 2
    assert "is not the one it was prepared with" in finished.errors
    assert not (tmp_path / "run").exists()


def test_hugging_face_fills_the_same_masks(bert_jax_here, trained, tmp_path):
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
    ours = bert_jax_here("fill-mask", "--work-dir", trained.work_dir, *sentences).output
    found = [re.findall(r"(\S+) (\d+\.\d)%", line) for line in ours.splitlines()]
    told = [[(word, float(percent)) for word, percent in line] for line in found if line]
    transformers.logging.disable_progress_bar()
    model = transformers.AutoModelForMaskedLM.from_pretrained(out)
    tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    fill = transformers.pipeline("fill-mask", model=model, tokenizer=tokenizer, top_k=5)
    for sentence, guesses in zip(sentences, told, strict=True):
        theirs = fill(sentence)
        assert [guess["token_str"] for guess in theirs] == [word for word, _ in guesses]
        percents = [100 * guess["score"] for guess in theirs]
        # Ours are written with one decimal.
        assert [percent for _, percent in guesses] == pytest.approx(percents, abs=0.051)


def test_the_card_of_an_export_says_how_it_was_trained(bert_jax_here, trained, tmp_path):
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
