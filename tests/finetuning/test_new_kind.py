"""A kind of task outside bert_jax needs one module and one registration."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

import bert_jax as bj
from bert_jax.finetuning import registry
from bert_jax.finetuning.task_kind import TaskKind
from bert_jax.models import model

from .conftest import COMMON, GOOD, RECIPE, Toy, scores, sentence
from .highlights import HEAD, HIGHLIGHTS


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register the kind until the end of the test."""
    monkeypatch.setattr(registry, "_KINDS", dict(registry._KINDS))
    monkeypatch.setattr(model, "_CLASSIFIER_HEADS", dict(model._CLASSIFIER_HEADS))
    registry.register(HIGHLIGHTS)


def write_texts(directory: Path) -> dict[str, str]:
    """Write texts whose favorable words are marked, and return the files by split."""
    rng, files = random.Random(0), {}
    for split, count in (("train", 192), ("validation", 21), ("test", 5)):
        rows = []
        for _ in range(count):
            words = sentence(rng, *rng.sample(GOOD, rng.randint(1, 2))).split()
            marks = {} if split == "test" else {"marks": [int(word in GOOD) for word in words]}
            rows.append({"words": words} | marks)
        file = directory / f"{split}.jsonl"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        files[split] = str(file)
    return files


@pytest.mark.usefixtures("registered")
def test_a_new_kind_is_fine_tuned_evaluated_predicted_and_exported(
    toy: Toy, bert_jax_here, tmp_path: Path
) -> None:
    files = write_texts(tmp_path)
    recipe = tmp_path / "highlights.py"
    recipe.write_text(RECIPE.format(COMMON | dict(work_dir="", highlights=dict(files=files))))
    run = tmp_path / "run"

    finetuned = bert_jax_here(
        *("finetune", "--config", recipe, "--init", toy.source, f"--config.work_dir={run}")
    )
    assert finetuned.code == 0, finetuned.errors
    assert scores(run)["scores"]["f1"] > 0.95
    predictions = (run / "predictions/test.jsonl").read_text().splitlines()
    rows = [json.loads(line)["words"] for line in Path(files["test"]).read_text().splitlines()]
    expected = [[int(word in GOOD) for word in words] for words in rows]
    assert [json.loads(line)["marks"] for line in predictions] == expected

    evaluated = bj.evaluate(run, data=files["train"])
    assert evaluated.sets["train"].scores["f1"] > 0.95

    predicted = bert_jax_here("predict", run, "--input", files["test"])
    assert predicted.code == 0, predicted.errors
    (first, *_) = map(json.loads, predicted.output.splitlines())
    assert [probability > 0.5 for probability in first["probabilities"]] == [
        word in GOOD for word in first["words"]
    ]

    for form in ("onnx", "stablehlo"):
        exported = bj.export(run, tmp_path / form, format=form)
        assert bj.verify(run, exported.path).passed
    assert "- task: highlights, from train.jsonl" in (tmp_path / "onnx/README.md").read_text()
    refused = bert_jax_here("export", run, "--format", "huggingface", "--output", tmp_path / "hf")
    assert refused.code == 2 and "has no class for the head 'highlighting'" in refused.errors


@pytest.mark.usefixtures("registered")
def test_a_new_kind_has_keys_and_neighbors(toy: Toy, bert_jax_here, tmp_path: Path) -> None:
    keys = bert_jax_here("keys", "finetune")
    assert "highlights.files.train: text, default ''" in keys.output
    given = {"work_dir": "w", "init_from": "i", "highlights.files.train": "a.jsonl"}
    config = bj.load_config({"highlights": {"files": {}}}, given)
    assert registry.kind_of_task(config.task) is HIGHLIGHTS
    with pytest.raises(ValueError, match="one of the sections glue, .*, spans, highlights; there"):
        bj.load_config({"highlights": {"files": {}}}, given | {"tags.files.train": "a.txt"})


def test_without_its_registration_a_new_kind_is_unknown() -> None:
    assert HIGHLIGHTS not in registry.task_kinds()
    with pytest.raises(ValueError, match="head='highlighting': expected one of encoder, "):
        model.ModelConfig(model.EncoderConfig(vocab_size=8), HEAD.name)


def test_names_that_are_taken_are_refused() -> None:
    clash = TaskKind("tags", HIGHLIGHTS.config, HEAD, HIGHLIGHTS.loss, HIGHLIGHTS.predict)
    with pytest.raises(ValueError, match="section='tags': another kind of task has this section"):
        registry.register(clash)
    head = model.ClassifierHead("tagging", "sequence")
    with pytest.raises(ValueError, match="head='tagging': another head has this name"):
        model.register_head(head)
