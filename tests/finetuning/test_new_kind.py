"""Test that a kind of task defined outside bert_jax needs only one module and a registration."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import bert_jax as bj
from bert_jax.conversion import to_dataclass, to_plain, without_absent_sections
from bert_jax.finetuning import registry
from bert_jax.finetuning.run import FinetuneRun
from bert_jax.finetuning.sentences import SENTENCES, SentencesConfig
from bert_jax.finetuning.task_kind import TaskKind
from bert_jax.inference.predict_tasks import PredictTask
from bert_jax.labeled_data.sentences import SentenceFiles
from bert_jax.models import model
from bert_jax.tasks.finetuning import Arrays, Classification
from bert_jax.tasks.task import Batch
from bert_jax.training.sharding import make_mesh

from ..conftest import Finished
from .conftest import COMMON, GOOD, RECIPE, Toy, scores, sentence
from .highlights import HEAD, HIGHLIGHTS, Highlight

SETS = {"train": "train", "validation": "dev"}


class FocalConfig(SentencesConfig):
    """A section like `SentencesConfig`, but with a different training loss."""


class FocalLoss(Classification):
    """Focal loss, which gives more weight to examples with larger errors."""

    def values(self, logits: jax.Array, batch: Batch) -> Arrays:
        """See `ClassifierTask.values`."""
        values = super().values(logits, batch)
        wrong = 1 - jnp.exp(-values["cross_entropy"])
        return values | {"cross_entropy": wrong**2 * values["cross_entropy"]}


FOCAL = replace(SENTENCES, section="focal", config=FocalConfig, loss=FocalLoss)


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register two new kinds for the duration of a test."""
    monkeypatch.setattr(registry, "_KINDS", dict(registry._KINDS))
    monkeypatch.setattr(model, "_CLASSIFIER_HEADS", dict(model._CLASSIFIER_HEADS))
    registry.register(HIGHLIGHTS)
    registry.register(FOCAL)


def write_texts(directory: Path) -> dict[str, str]:
    """Write texts in which favorable words are marked, and return a dict from split to file."""
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
    toy: Toy, bert_jax_here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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

    with monkeypatch.context() as patch:
        patch.setattr(
            registry, "_KINDS", {name: registry._KINDS[name] for name in ("glue", "tags")}
        )
        with pytest.raises(ValueError, match="section 'highlights' belongs to a kind of task that"):
            bj.evaluate(run)

    for form in ("onnx", "stablehlo"):
        exported = bj.export(run, tmp_path / form, format=form)
        assert bj.verify(run, exported.path).passed
    assert "- task: highlights, from train.jsonl" in (tmp_path / "onnx/README.md").read_text()
    refused = bert_jax_here("export", run, "--format", "huggingface", "--output", tmp_path / "hf")
    assert refused.code == 2 and "has no class for the 'highlighting' head" in refused.errors
    assert "set --head to 'encoder'" in refused.errors


@pytest.mark.usefixtures("registered")
def test_a_new_kind_has_keys_and_neighbors(toy: Toy, bert_jax_here, tmp_path: Path) -> None:
    keys = bert_jax_here("keys", "finetune")
    assert "highlights.files.train: text, default ''" in keys.output
    given = {"work_dir": "w", "init_from": "i", "highlights.files.train": "a.jsonl"}
    config = bj.load_config({"highlights": {"files": {}}}, given)
    assert registry.kind_of_task(config.task) is HIGHLIGHTS
    with pytest.raises(
        ValueError, match="one of the sections glue, .*, spans, highlights, focal; got"
    ):
        bj.load_config({"highlights": {"files": {}}}, given | {"tags.files.train": "a.txt"})


def test_the_command_line_registers_the_kinds_of_installed_packages(
    bert_jax_here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "_KINDS", dict(registry._KINDS))
    monkeypatch.setattr(model, "_CLASSIFIER_HEADS", dict(model._CLASSIFIER_HEADS))
    monkeypatch.syspath_prepend(tmp_path)
    package = tmp_path / "marker-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: marker\nVersion: 1.0\n")

    (tmp_path / "raising.py").write_text("raise TypeError('no name')\n")
    (tmp_path / "conflicting.py").write_text(
        "import dataclasses\n"
        "from tests.finetuning.highlights import HIGHLIGHTS\n"
        "KIND = dataclasses.replace(HIGHLIGHTS, section='tags')\n"
    )

    def keys(value: str) -> Finished:
        (package / "entry_points.txt").write_text(f"[bert_jax.task_kinds]\nx = {value}\n")
        return bert_jax_here("keys", "finetune")

    for value, problem in (
        ("tests.finetuning.highlights:MISSING", "of marker: cannot be loaded"),
        ("no_such_module:KIND", "of marker: cannot be loaded"),
        (
            "tests.finetuning.highlights:HEAD",
            "of marker: refers to a ClassifierHead. It must refer to a TaskKind.",
        ),
        ("raising:KIND", "of marker: cannot be loaded (TypeError: no name). Fix or uninstall"),
        ("conflicting:KIND", "of marker: section='tags': another kind of task has this section"),
    ):
        refused = keys(value)
        assert refused.code == 2 and problem in refused.errors
        assert HIGHLIGHTS not in registry.task_kinds()
    listed = keys("tests.finetuning.highlights:HIGHLIGHTS")
    assert listed.code == 0, listed.errors
    assert "highlights.files.train: text, default ''" in listed.output
    assert HIGHLIGHTS in registry.task_kinds()


def test_without_its_registration_a_new_kind_is_unknown() -> None:
    assert HIGHLIGHTS not in registry.task_kinds()
    with pytest.raises(ValueError, match="head='highlighting': expected one of encoder, "):
        model.ModelConfig(model.EncoderConfig(vocab_size=8), HEAD.name)


@pytest.mark.usefixtures("registered")
def test_kinds_with_the_same_head_have_their_own_losses(toy: Toy, tmp_path: Path) -> None:
    files = {split: f"{toy.root}/reviews/{name}.tsv" for split, name in SETS.items()}
    section = {"files": {"first": "sentence", "label": "label", "labels": ("0", "1")} | files}
    for kind in (SENTENCES, FOCAL):
        given = {"work_dir": tmp_path, "init_from": toy.source, "max_length": 24}
        config = bj.load_config({kind.section: section}, given, kind="finetune")
        run = FinetuneRun.open(config, make_mesh(config.mesh))
        assert type(run.compiled.task) is kind.loss


def test_a_config_of_a_registered_kind_is_read_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"work_dir": "w", "init_from": "i", "tags.files.train": "a.txt"}
    config = bj.load_config({"tags": {"files": {}}}, given, kind="finetune")
    with monkeypatch.context() as patch:
        patch.setattr(registry, "_KINDS", registry._KINDS | {"highlights": HIGHLIGHTS})
        values = to_plain(config)
    assert values["highlights"] is None
    with pytest.raises(ValueError, match=r"config\.highlights: no such key"):
        to_dataclass(bj.FinetuneConfig, values)
    stored = without_absent_sections(bj.FinetuneConfig, values)
    assert to_dataclass(bj.FinetuneConfig, stored) == config


def test_a_task_that_is_not_registered_is_refused() -> None:
    task = FocalConfig(SentenceFiles(train="a.tsv"))
    with pytest.raises(ValueError, match="FocalConfig is not the config of a registered task kind"):
        bj.FinetuneConfig("work", "source", task)


def test_names_that_are_taken_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    clash = TaskKind("tags", HIGHLIGHTS.config, HEAD, HIGHLIGHTS.loss, HIGHLIGHTS.predict)
    with pytest.raises(ValueError, match="section='tags': another kind of task has this section"):
        registry.register(clash)
    with pytest.raises(
        ValueError, match="config=SentencesConfig: the task kind with section 'sent"
    ):
        registry.register(replace(SENTENCES, section="reviews"))
    classify = PredictTask("classify", Highlight, [("words",)], lambda model, texts, _: [])
    with pytest.raises(ValueError, match="predict='classify': another `predict` task has"):
        registry.register(replace(HIGHLIGHTS, predict=classify))
    monkeypatch.setattr(registry, "_KINDS", dict(registry._KINDS))
    registry.register(replace(FOCAL, section="seed"))
    with pytest.raises(ValueError, match="section='seed': FinetuneConfig already has a key with"):
        bj.load_config("finetune/sst2", {"work_dir": "w", "init_from": "i"})
    head = model.ClassifierHead("tagging", "sequence")
    with pytest.raises(ValueError, match="head='tagging': another head already has this name"):
        model.register_head(head)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"scored": "words"}, "scored='words': expected one of sequence, choices, tokens"),
        ({"problems": ("ranking",)}, r"=\('ranking',\): expected one or more of single_label"),
        ({"scored": "choices", "labels": ("a", "b")}, "a choice has one score. Expected one label"),
    ],
)
def test_a_head_that_cannot_be_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        model.ClassifierHead(**{"name": "ranking", "scored": "sequence"} | values)
