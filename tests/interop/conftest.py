"""Create Hugging Face BERT directories with random parameters, and import or compare them."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from safetensors.numpy import load_file, save_file

if importlib.util.find_spec("triton"):
    # Import the triton package from PyTorch's CUDA builds now, because the process would crash if
    # TensorFlow were imported first.
    import triton  # noqa: F401

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz.,!?0123456789"]
WORDS += [f"##{letter}" for letter in "abcdefghijklmnopqrstuvwxyz0123456789"]
SIZES = dict(
    vocab_size=len(WORDS),
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=48,
    max_position_embeddings=40,
    initializer_range=0.1,
)
ARCHITECTURES = {
    "encoder": "BertModel",
    "pretraining": "BertForPreTraining",
    "masked_lm": "BertForMaskedLM",
    "next_sentence": "BertForNextSentencePrediction",
    "classification": "BertForSequenceClassification",
    "multiple_choice": "BertForMultipleChoice",
    "tagging": "BertForTokenClassification",
    "span": "BertForQuestionAnswering",
}
LABELS = {"classification": ["no", "maybe", "yes"], "tagging": ["O", "B-PER", "I-PER", "B-LOC"]}
Maker = Callable[..., Path]


def make(directory: Path, head: str, **changes: object) -> transformers.PreTrainedModel:
    """Save a vocabulary and a model whose parameters are all random, even biases and LayerNorms."""
    labels = LABELS.get(head)
    names = dict(enumerate(labels)) if labels else None
    more = {"id2label": names, "label2id": {v: k for k, v in names.items()}} if names else {}
    torch.manual_seed(0)
    config = transformers.BertConfig(**{**SIZES, **more, **changes})
    model = getattr(transformers, ARCHITECTURES[head])(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    model.save_pretrained(directory)
    (directory / "vocab.txt").write_text("".join(word + "\n" for word in WORDS), encoding="utf-8")
    return model


@pytest.fixture(autouse=True)
def quiet() -> None:
    """Disable the progress bars that transformers shows."""
    transformers.logging.disable_progress_bar()


@pytest.fixture
def make_bert(tmp_path: Path) -> Maker:
    """Return a function that writes a model directory for a head, with the given settings."""

    def made(head: str = "pretraining", name: str = "theirs", **changes: object) -> Path:
        make(tmp_path / name, head, **changes)
        return tmp_path / name

    return made


def tensors_of(directory: Path) -> dict[str, np.ndarray]:
    """Return the tensors in a model directory, as a dict keyed by name."""
    return load_file(directory / "model.safetensors")


def change_tensors(directory: Path, change: Callable[[dict[str, np.ndarray]], None]) -> None:
    """Apply `change` to the dict of tensors in a model directory, and save the result."""
    tensors = tensors_of(directory)
    change(tensors)
    arrays = {name: np.ascontiguousarray(array) for name, array in tensors.items()}
    save_file(arrays, directory / "model.safetensors", metadata={"format": "pt"})


def change_config(directory: Path, **changes: object) -> None:
    """Change keys in a model directory's config.json, and remove those whose new value is None."""
    file = directory / "config.json"
    content = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({k: v for k, v in content.items() if v is not None}))


def card_code(exported: Path) -> str:
    """Return the Python code in an export's model card."""
    card = (exported / "README.md").read_text()
    found = re.search(r"```python\n(.*?)```", card, re.DOTALL)
    assert found
    return found.group(1)


def run_card(exported: Path, more: str) -> str:
    """Run the code in an export's model card, followed by `more`, and return the printed text.

    The code runs in the export directory, without any predefined names.
    """
    printed = io.StringIO()
    with contextlib.chdir(exported), contextlib.redirect_stdout(printed):
        exec(f"{card_code(exported)}\n{more}", {})
    return printed.getvalue()


@pytest.fixture
def refused(bert_jax_here, tmp_path):
    """Return a function that runs an import, expects it to fail, and returns the error message."""

    def run(source, *words):
        before = set(tmp_path.iterdir())
        output = tmp_path / "new" / "ours"
        finished = bert_jax_here("import", source, "--output", output, *words)
        assert finished.code == 2, finished.output
        assert finished.errors.startswith("bert-jax: error: ")
        assert "Traceback" not in finished.errors
        assert set(tmp_path.iterdir()) == before
        return finished.errors

    return run


@pytest.fixture
def imported(bert_jax_here, tmp_path):
    """Return a function that imports a model and returns (output, work directory)."""

    def run(source, *words, name="ours"):
        finished = bert_jax_here("import", source, "--output", tmp_path / name, *words)
        assert finished.code == 0, finished.errors
        return finished.output, tmp_path / name

    return run


def same(directory: Path, other: Path, bert_jax_here) -> None:
    """Check that `verify` passes for two models."""
    compared = bert_jax_here("verify", directory, other)
    assert compared.code == 0, compared.output + compared.errors
