"""Compare the importance of heads, and the scores after pruning them, with PyTorch."""

from __future__ import annotations

import json
from dataclasses import replace

import jax
import numpy as np
import pytest
import torch
import transformers
from numpy.testing import assert_allclose

from bert_jax import EvaluationConfig, evaluate
from bert_jax.finetuning.open_evaluation import open_evaluation
from bert_jax.finetuning.sentences import SentencesConfig
from bert_jax.interpretability import head_pruning
from bert_jax.interpretability.head_pruning import HeadPruning, prune_heads
from bert_jax.labeled_data.sentences import SentenceFiles
from bert_jax.runs.work_dir import read_model

ROWS = [("it rains", "no"), ("wet roads", "maybe"), ("the dog runs", "yes"), ("rain, rain", "yes")]
LABELS = ["no", "maybe", "yes"]
HEADS, SIZE = 4, 8


@pytest.fixture(scope="module")
def config(tmp_path_factory) -> EvaluationConfig:
    file = tmp_path_factory.mktemp("data") / "dev.csv"
    lines = ["text,label", *(f'"{text}",{label}' for text, label in ROWS)]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    files = SentenceFiles(
        *(str(file), str(file)), first="text", label="label", labels=tuple(LABELS)
    )
    return EvaluationConfig(SentencesConfig(files), max_length=24)


@pytest.fixture(scope="module")
def pruning(import_pair, config) -> HeadPruning:
    return prune_heads(import_pair("Bert", "classification")[1], config=config)


def hugging_face(directory, mask):
    """Return (losses of all rows, accuracy), with every head's output multiplied by `mask`."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(directory)
    for layer, factors in zip(model.bert.encoder.layer, mask, strict=True):
        layer.attention.output.dense.register_forward_pre_hook(
            lambda _, inputs, factors=factors: (inputs[0] * factors.repeat_interleave(SIZE),)
        )
    losses, correct = [], 0
    for text, label in ROWS:
        logits = model(**tokenizer(text, return_tensors="pt")).logits
        target = torch.tensor([LABELS.index(label)])
        losses.append(torch.nn.functional.cross_entropy(logits, target))
        correct += int(logits.argmax()) == int(target)
    return losses, correct / len(ROWS)


def test_importance_is_the_mean_absolute_gradient(import_pair, pruning):
    mask = torch.ones(2, HEADS, requires_grad=True)
    losses, _ = hugging_face(import_pair("Bert", "classification")[0], mask)
    gradients = [torch.autograd.grad(loss, mask, retain_graph=True)[0].abs() for loss in losses]
    expected = torch.stack(gradients).mean(dim=0).numpy()
    expected = expected / np.linalg.norm(expected, axis=1, keepdims=True)
    assert_allclose(pruning.importance, expected, rtol=1e-3)


def test_scores_equal_pytorch_with_heads_switched_off(import_pair, pruning):
    source = import_pair("Bert", "classification")[0]
    assert pruning.metric == "accuracy" and pruning.layers == (0, 1)
    for layer, head in np.ndindex(2, HEADS):
        mask = torch.ones(2, HEADS)
        mask[layer, head] = 0
        assert pruning.without[layer, head] == hugging_face(source, mask)[1]
    mask = torch.ones(2, HEADS)
    expected = [hugging_face(source, mask)[1]]
    for layer, head in pruning.order:
        mask[layer, head] = 0
        expected.append(hugging_face(source, mask)[1])
    assert list(pruning.scores) == expected


def test_nothing_is_pruned_at_first_and_everything_at_last(import_pair, config, pruning, tmp_path):
    work_dir = import_pair("Bert", "classification")[1]
    (scores,) = evaluate(work_dir, config=config).sets.values()
    assert pruning.scores[0] == scores.scores["accuracy"]
    assert sorted(pruning.order) == [(layer, head) for layer in range(2) for head in range(HEADS)]
    flat = [pruning.importance[layer, head] for layer, head in pruning.order]
    assert flat == sorted(flat)
    assert len(list(pruning.lines())) == 2 + 2 + 1 + 1 + 9 + 2
    pruning.save(tmp_path / "pruning.json")
    saved = json.loads((tmp_path / "pruning.json").read_text(encoding="utf-8"))
    assert saved["scores"] == list(pruning.scores)
    file = config.task.files.validation
    assert (saved["work_dir"], saved["step"], saved["data"]) == (str(work_dir), 0, file)
    assert (saved["set"], saved["examples"]) == ("validation", 4)
    assert list(pruning.lines())[-1] == (
        f"{work_dir.name}, step 0, on 4 examples: validation from {file}"
    )


def test_shared_layers_are_pruned_together(import_pair, config):
    pruning = prune_heads(import_pair("Albert", "classification")[1], config=config)
    assert pruning.importance.shape == (2, HEADS)  # The model has two groups of one layer each.


def test_progress_names_layers_as_the_table_does(import_pair, config, monkeypatch):
    work_dir = import_pair("Bert", "classification")[1]
    first, second = head_pruning.output_kernels(read_model(work_dir)[0].encoder).values()
    monkeypatch.setattr(head_pruning, "output_kernels", lambda encoder: {0: first, 2: second})
    printed = []
    pruned = prune_heads(work_dir, config=config, on_progress=printed.append)
    assert pruned.layers == (0, 2)
    assert [text for text in printed if "without" in text] == [
        f"without head {layer}-{head}" for layer in (1, 3) for head in range(1, HEADS + 1)
    ]


def test_the_parameters_are_on_the_device_when_gradients_are_computed(
    import_pair, config, monkeypatch
):
    seen = []
    gradients = head_pruning._mask_gradients

    def recorded(params, batch, *, task):
        seen.extend(params.values())
        return gradients(params, batch, task=task)

    monkeypatch.setattr(head_pruning, "_mask_gradients", recorded)
    opened = open_evaluation(import_pair("Bert", "classification")[1], config)
    head_pruning.head_importance(opened, opened.sets["validation"])
    assert seen and all(isinstance(array, jax.Array) for array in seen)


def test_one_of_several_validation_sets_is_chosen(import_pair, config, pruning, monkeypatch):
    original = head_pruning.open_evaluation

    def with_two_sets(*args, **options):
        opened = original(*args, **options)
        (examples,) = opened.sets.values()
        return replace(opened, sets={"matched": examples, "mismatched": examples})

    monkeypatch.setattr(head_pruning, "open_evaluation", with_two_sets)
    work_dir = import_pair("Bert", "classification")[1]
    with pytest.raises(ValueError, match=r"^set_name=None: .*Use one of matched, mismatched\."):
        prune_heads(work_dir, config=config)
    with pytest.raises(ValueError, match="set_name='other': expected one of 'matched', 'mism"):
        prune_heads(work_dir, config=config, set_name="other")
    chosen = prune_heads(work_dir, config=config, set_name="mismatched")
    assert chosen.set_name == "mismatched" and chosen.scores == pruning.scores


def test_the_command_prunes_an_imported_model(
    bert_jax_here, import_pair, config, pruning, tmp_path
):
    file = config.task.files.validation
    keys = {"train": file, "validation": file, "first": "text", "label": "label"}
    words = [f"--config.sentences.files.{name}={value}" for name, value in keys.items()]
    words += [f"--config.sentences.files.labels={tuple(LABELS)}", "--config.max_length=24"]
    outputs = ["--plot", tmp_path / "plot.png", "--output", tmp_path / "pruning.json"]
    printed = bert_jax_here(
        *("prune-heads", import_pair("Bert", "classification")[1]),
        *("--config", "configs/finetune/table.py", *words, *outputs),
    )
    assert printed.code == 0, printed.errors
    assert printed.output == f"{pruning}\n"
    saved = json.loads((tmp_path / "pruning.json").read_text(encoding="utf-8"))
    assert saved == pruning.to_json()
    assert (tmp_path / "plot.png").is_file()
