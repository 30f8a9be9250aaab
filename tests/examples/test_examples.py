"""Test every example at a tiny size by calling it as a function."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import optax
import pytest
import transformers

import bert_jax as bj

from ..commands import REPOSITORY

pytestmark = pytest.mark.slow

EXAMPLES = sorted((REPOSITORY / "examples").glob("*.py"))


def load(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, REPOSITORY / f"examples/{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_examples_are_short_and_use_only_public_names(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    assert len(text.splitlines()) < 60
    assert "from bert_jax" not in text and "import bert_jax as bj" in text
    assert f"test_{file.stem}(" in Path(__file__).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def hf_model(tmp_path_factory: pytest.TempPathFactory, tiny_config: Path) -> Path:
    """Return a directory that contains a small BERT, saved by transformers, and its tokenizer."""
    directory = tmp_path_factory.mktemp("hf_model") / "bert"
    sizes: dict[str, Any] = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=2)
    config = transformers.BertConfig(
        **sizes, vocab_size=300, intermediate_size=32, max_position_embeddings=64
    )
    transformers.set_seed(0)
    transformers.BertForPreTraining(config).save_pretrained(directory)
    vocabulary = (tiny_config.parent / "tokenizer/vocab.txt").read_text(encoding="utf-8")
    (directory / "vocab.txt").write_text(vocabulary, encoding="utf-8")
    return directory


def test_export_and_verify(
    hf_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    load("export_and_verify").main(str(hf_model), str(tmp_path))
    output = capsys.readouterr().out
    assert output.startswith("BERT, 2 layers")
    assert (tmp_path / "onnx/model.onnx").is_file()
    assert transformers.BertForPreTraining.from_pretrained(tmp_path / "huggingface")


CORPUS = REPOSITORY / "tests/golden/frozen/kept/corpora/wordpiece32"


def test_own_loop(capsys: pytest.CaptureFixture[str]) -> None:
    load("own_loop").main(str(CORPUS), steps=8)
    output = capsys.readouterr().out
    assert output.startswith("step 8  loss 5.") or output.startswith("step 8  loss 6.")


def test_electra() -> None:
    """Check that the models share their token embeddings and that the loss decreases."""
    electra = load("electra")
    loader = bj.CorpusLoader(CORPUS, batch_size=8, sentence_pairs="none")
    sizes = dict(vocab_size=loader.tokenizer.vocab_size, max_positions=loader.length)
    task = electra.Electra(num_layers=1, embedding_dim=16, **sizes)
    names = task.definition.shapes
    assert [name for name in names if "embeddings.token" in name] == ["encoder.embeddings.token"], (
        "one shared table"
    )
    trainer = bj.Trainer(task, optax.adamw(2e-3))
    losses: list[float] = []
    trainer.on_step(lambda step, metrics: losses.append(metrics["replaced_loss"]))
    trainer.fit(loader, 30)
    assert np.mean(losses[-5:]) < 0.6 * losses[0]


TINY = {
    "phases.phase1.num_steps": 2,
    "phases.phase1.batch_size": 8,
    "optimizer.warmup_steps": 1,
    "evaluation.every_steps": 2,
    "reporting.tensorboard": False,
}


def test_pretrain(tiny_text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = {"model.hidden_dim": 16, "model.ffn_dim": 32, "model.max_positions": 32}
    main = load("pretrain").main
    main(str(tmp_path), [str(tiny_text)], vocab_size=300, max_length=32, overrides=TINY | sizes)
    output = capsys.readouterr().out
    assert "held-out metrics after step 2: {" in output and "mlm_loss" in output
    assert (tmp_path / "run/model.json").is_file()


def test_continue_pretraining(
    hf_model: Path, tiny_text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main = load("continue_pretraining").main
    main(str(hf_model), str(tmp_path), [str(tiny_text)], max_length=32, overrides=TINY)
    assert "held-out metrics after step 2: {" in capsys.readouterr().out
    before, after = (
        json.loads((tmp_path / name / "model.json").read_text())["model"]
        for name in ("imported", "run")
    )
    assert before == after
    assert (tmp_path / "run/checkpoints").is_dir()


def test_finetune_csv(hf_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bj.import_model(hf_model, tmp_path / "model")
    rows = [
        f"the {noun} {verb},{verb}" for noun in "abcdefghijklmnopqrst" for verb in ("fell", "grew")
    ]
    data = tmp_path / "reviews.csv"
    data.write_text("\n".join(["text,label", *rows]) + "\n")
    small = {"num_epochs": 1, "batch_size": 8, "max_length": 16, "max_shapes": 1}
    main = load("finetune_csv").main
    main(str(tmp_path / "model"), str(data), str(tmp_path / "run"), overrides=small)
    output = capsys.readouterr().out
    assert "reviews, 40 examples: {" in output and "A delightful film. " in output
