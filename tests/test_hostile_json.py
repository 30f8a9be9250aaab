"""Test that malformed JSON files are rejected with a one-line message that names the file."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from bert_jax.corpus.manifest import Manifest, ShardInfo, SplitInfo, read_manifest, write_manifest
from bert_jax.finetuning.hyperparameters import Hyperparameters
from bert_jax.finetuning.outcome import Outcome, read_outcome, write_outcome
from bert_jax.finetuning.sweep_directory import ended, kept_before, write_diverged
from bert_jax.finetuning.sweep_results import (
    Provenance,
    RunResult,
    SweepResults,
    VariantFacts,
    read_results,
    write_results,
)
from bert_jax.finetuning.variants import Variant
from bert_jax.interop.huggingface.config import read_encoder, read_labels, read_problem
from bert_jax.interop.huggingface.families import classes_of
from bert_jax.interop.huggingface.weights import open_weights
from bert_jax.interop.model_card import _training
from bert_jax.json_files import read_json_object
from bert_jax.labeled_data.squad import read_squad
from bert_jax.models.config import EncoderConfig
from bert_jax.models.model import ModelConfig
from bert_jax.pretraining.config import PhaseConfig, PretrainConfig
from bert_jax.runs.checkpoints import pretraining_comparison
from bert_jax.runs.locations import WorkDir
from bert_jax.runs.ownership import ResolvedConfig, keep_config
from bert_jax.runs.work_dir import (
    Comparison,
    InferenceDefaults,
    named_step,
    read_comparison,
    read_inference_defaults,
    read_model,
    write_model,
)
from bert_jax.tokenizers.tokenizer import Tokenizer
from bert_jax.tokenizers.wordpiece_files import wordpiece_backend
from bert_jax.training.metrics_log import read_metrics

from .test_json_files import HOSTILE

ENCODER = EncoderConfig(
    vocab_size=8, hidden_dim=4, num_layers=1, num_heads=2, ffn_dim=8, max_positions=8
)
CONFIG = PretrainConfig(
    work_dir="run", phases={"phase1": PhaseConfig("corpus", 10_000, 8, 2)}, model=ENCODER
)
WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "##b")


def backend() -> Any:
    return wordpiece_backend({word: i for i, word in enumerate(WORDS)}, lowercase=True)


def make_manifest(directory: Path) -> None:
    shard = ShardInfo("train-00000.arrayrecord", 1, 3, "ab")
    split = SplitInfo((shard,), 1, 1, 1, 1, 4, 0.5)
    write_manifest(
        directory,
        Manifest(
            *(8, 1, 2, 8, "fingerprint", {"vocab.txt": "ab"}, True, {"language": "en"}),
            *(({"path": "a.txt", "num_bytes": 3},), 0, 0, 0, 0, split, split),
        ),
    )


def make_model(directory: Path) -> None:
    write_model(
        ModelConfig(ENCODER, "classification", ("no", "yes")),
        {"command": "bert-jax finetune"},
        directory,
        tokenizer=Tokenizer(backend()),
        best_step=3,
        compared_by=Comparison("accuracy"),
        inference_defaults=InferenceDefaults(max_length=8),
    )


def read_all_of_model(directory: Path) -> None:
    for read in (read_model, read_inference_defaults, read_comparison, named_step):
        read(directory)


def make_huggingface(directory: Path) -> None:
    content = {
        "architectures": ["BertForSequenceClassification"],
        "model_type": "bert",
        "vocab_size": 8,
        "hidden_size": 4,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 8,
        "hidden_act": "gelu",
        "max_position_embeddings": 8,
        "type_vocab_size": 2,
        "layer_norm_eps": 1e-12,
        "id2label": {"0": "no", "1": "yes"},
        "problem_type": "single_label_classification",
    }
    (directory / "config.json").write_text(json.dumps(content))


def read_huggingface(directory: Path) -> None:
    file = directory / "config.json"
    content = read_json_object(file)
    read_encoder(content, str(file))
    classes_of(content)
    read_labels(content, 2)
    try:
        read_problem(content, 2)
    # The usual caller, `model_config`, adds the directory to the message.
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error


def make_results(directory: Path) -> None:
    hyperparameters = Hyperparameters(8, 1e-4, 2, 0)
    run = RunResult(hyperparameters, {"accuracy": 0.5}, 4, 1.5, False)
    origin = Provenance("bert-jax sweep", "2026-11-21 12:00", "1 x cpu", {"jax": "0"})
    results = SweepResults("RTE", "accuracy", False, "accuracy", 0.5, 9, 1, (run,), origin)
    write_results(results, directory)


def make_varied_results(directory: Path) -> None:
    make_results(directory)
    results = read_results(directory)
    variant = Variant.of({"dropout": 0.1, "best_metric": ""})
    hyperparameters = Hyperparameters(8, 1e-4, 2, 0, variant=variant)
    runs = (replace(results.runs[0], hyperparameters=hyperparameters),)
    facts = (VariantFacts(variant, 9, 5, 9, 0.5),)
    write_results(replace(results, runs=runs, variants=facts), directory)


def make_metrics(directory: Path) -> None:
    entry = {"kind": "evaluation", "step": 3, "accuracy": 0.5, "loss": None}
    (directory / "metrics.jsonl").write_text(json.dumps(entry) + "\n")


def make_squad(directory: Path) -> None:
    answers = [{"text": "b", "answer_start": 2}]
    paragraph = {"context": "a b", "qas": [{"id": "1", "question": "q?", "answers": answers}]}
    content = {"version": "1.1", "data": [{"title": "t", "paragraphs": [paragraph]}]}
    (directory / "squad.json").write_text(json.dumps(content))


def make_tokenizer(directory: Path) -> None:
    tokenizer = backend()
    tokenizer.add_special_tokens(list(WORDS[:5]))
    tokenizer.save(str(directory / "tokenizer.json"))


def make_vocabulary(directory: Path) -> None:
    words = ("<s>", "<pad>", "</s>", "<unk>", "<mask>", "a", "b", "ab")
    (directory / "vocab.json").write_text(json.dumps({word: i for i, word in enumerate(words)}))
    (directory / "merges.txt").write_text("#version: 0.2\na b\n")


def make_tokenizer_config(directory: Path) -> None:
    (directory / "vocab.txt").write_text("\n".join(WORDS))
    content = {"do_lower_case": True, "strip_accents": None, "tokenizer_class": "BertTokenizer"}
    (directory / "tokenizer_config.json").write_text(json.dumps(content))


def make_index(directory: Path) -> None:
    content = {"metadata": {"total_size": 4}, "weight_map": {"x": "model-1.safetensors"}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(content))


def make_sweep(directory: Path) -> None:
    (directory / "sweep.json").write_text(json.dumps({"config": {}, "keep": "best"}))


@dataclass(frozen=True)
class Kind:
    """A kind of file, with functions that write it to a directory and read it back."""

    name: str
    make: Callable[[Path], object]
    read: Callable[[Path], object]


KINDS = (
    Kind("model.json", make_model, read_all_of_model),
    Kind(
        "scores.json",
        lambda directory: write_outcome(
            WorkDir.on_disk(directory),
            Outcome(3, {"accuracy": 0.5}, [directory / "test.tsv"], {"test": "ab"}),
        ),
        read_outcome,
    ),
    Kind(
        "metrics.jsonl", make_metrics, lambda directory: read_metrics(directory / "metrics.jsonl")
    ),
    Kind("results.json", make_results, read_results),
    Kind("results.json", make_varied_results, read_results),
    Kind("sweep.json", make_sweep, kept_before),
    Kind("diverged.json", lambda directory: write_diverged(directory, "loss is nan"), ended),
    Kind(
        "config.json",
        lambda directory: ResolvedConfig.of(CONFIG).write(directory),
        pretraining_comparison,
    ),
    Kind(
        "config.json",
        lambda directory: ResolvedConfig.of(CONFIG).write(directory),
        lambda directory: keep_config(ResolvedConfig.of(CONFIG), directory, 5, finished=False),
    ),
    Kind(
        "config.json",
        lambda directory: ResolvedConfig.of(CONFIG).write(directory),
        lambda directory: _training(directory, 5),
    ),
    Kind("config.json", make_huggingface, read_huggingface),
    Kind("model.safetensors.index.json", make_index, open_weights),
    Kind("manifest.json", make_manifest, read_manifest),
    Kind("tokenizer.json", make_tokenizer, Tokenizer.load),
    Kind("tokenizer_config.json", make_tokenizer_config, Tokenizer.load),
    Kind("vocab.json", make_vocabulary, Tokenizer.load),
    Kind(
        "squad.json",
        make_squad,
        lambda directory: read_squad(directory / "squad.json", labeled=True),
    ),
)
READERS = [f"{number}-{kind.name}" for number, kind in enumerate(KINDS)]


def is_one_sentence(error: Exception, file: Path) -> bool:
    text = str(error)
    return str(file.parent) in text and file.name in text and "\n" not in text


@pytest.mark.parametrize("case", HOSTILE)
@pytest.mark.parametrize("kind", KINDS, ids=READERS)
def test_malformed_bytes_are_rejected(kind: Kind, case: str, tmp_path: Path) -> None:
    kind.make(tmp_path)
    file = tmp_path / kind.name
    content = HOSTILE[case][0]
    file.write_bytes(content + b"\n" if file.suffix == ".jsonl" else content)
    if file.suffix == ".jsonl" and not content:
        file.write_bytes(b"\n")
    with pytest.raises((ValueError, OSError)) as error:
        kind.read(tmp_path)
    assert is_one_sentence(error.value, file), error.value


VALUES: tuple[Any, ...] = (None, True, -1, 10**400, "maybe", [None], {"a": 1})


def modified_copies(content: Any) -> Iterator[Any]:
    """Yield copies of a JSON value, each with one part replaced or removed."""
    yield from VALUES
    if isinstance(content, (dict, list)):
        for key in list(content) if isinstance(content, dict) else range(len(content)):
            for changed in modified_copies(content[key]):
                other = copy.copy(content)
                other[key] = changed
                yield other
            other = copy.copy(content)
            del other[key]
            yield other


@pytest.mark.parametrize("kind", KINDS, ids=READERS)
def test_values_of_wrong_types_are_rejected(
    kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Skip `fsync`, which would take half of the test's time.
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    kind.make(tmp_path)
    file = tmp_path / kind.name
    valid = json.loads(file.read_text())
    kind.read(tmp_path) if kind.name != "model.safetensors.index.json" else None
    num_rejected = 0
    for content in modified_copies(valid):
        file.write_text(json.dumps(content) + "\n")
        try:
            kind.read(tmp_path)
        except (ValueError, OSError) as error:
            assert is_one_sentence(error, file), (content, error)
            num_rejected += 1
    assert num_rejected >= 4
