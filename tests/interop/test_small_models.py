"""Test the small models that come with a checkout, and their short names."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
)

import bert_jax as bj
from bert_jax.interop import small_models
from bert_jax.interop.small_models import SMALL_MODELS, replace_short_names, small_model

from ..commands import REPOSITORY, Finished

Run = Callable[..., Finished]


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a cache directory that all tests in this file share."""
    directory = tmp_path_factory.getbasetemp() / "small-models-cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(directory))
    return directory


def test_every_model_is_imported_once_and_is_small(cache: Path) -> None:
    for name in SMALL_MODELS:
        directory = small_model(name)
        assert directory.is_relative_to(cache / "bert_jax" / "models")
        before = (directory / "model.json").stat().st_mtime_ns
        assert small_model(name) == directory
        assert (directory / "model.json").stat().st_mtime_ns == before
        source = REPOSITORY / small_models._FOLDERS[name]
        assert (source / "model.safetensors").stat().st_size < 11e6
        if name != "mini-bert":
            assert sum(file.stat().st_size for file in source.iterdir()) < 10e6


def test_the_pretrained_albert_knows_some_facts() -> None:
    fill = bj.FillMask(small_model("mini-albert"))
    (mask,) = fill("The president of the United [MASK] gave a speech.").masks
    assert mask[0].token == "states"


def test_the_sentiment_model_computes_what_transformers_computes() -> None:
    source = REPOSITORY / small_models._FOLDERS["mini-sentiment"]
    model = AutoModelForSequenceClassification.from_pretrained(source, dtype=torch.float32).eval()
    text = "A delightful film, and a very good one."
    inputs = AutoTokenizer.from_pretrained(source)(text, return_tensors="pt")
    with torch.no_grad():
        expected = model(**inputs).logits.softmax(-1)[0].numpy()
    result = bj.Classify(small_model("mini-sentiment"))(text)
    np.testing.assert_allclose(list(result.scores.values()), expected, atol=1e-5)
    assert result.label == "positive"


def test_the_entity_model_computes_what_transformers_computes() -> None:
    source = REPOSITORY / small_models._FOLDERS["mini-ner"]
    model = AutoModelForTokenClassification.from_pretrained(source, dtype=torch.float32).eval()
    words = "Matt lives in London .".split()
    encoded = AutoTokenizer.from_pretrained(source)(
        words, is_split_into_words=True, return_tensors="pt"
    )
    with torch.no_grad():
        labels = model(**encoded).logits.argmax(-1)[0].tolist()
    first = [encoded.word_ids().index(number) for number in range(len(words))]
    expected = [model.config.id2label[labels[position]] for position in first]
    result = bj.Tag(small_model("mini-ner"))(tuple(words))
    assert [word.tag for word in result.words] == expected


def test_the_question_model_computes_what_transformers_computes() -> None:
    source = REPOSITORY / small_models._FOLDERS["mini-qa"]
    model = AutoModelForQuestionAnswering.from_pretrained(source, dtype=torch.float32).eval()
    question, passage = "Where was Matt born?", "Matt was born in Canada in 1950."
    tokenizer = AutoTokenizer.from_pretrained(source)
    inputs = tokenizer(question, passage, return_tensors="pt")
    with torch.no_grad():
        output = model(**inputs)
    start, end = int(output.start_logits[0].argmax()), int(output.end_logits[0].argmax())
    answer = bj.AnswerQuestion(small_model("mini-qa"))(question, passage)
    assert answer.text.lower() == tokenizer.decode(inputs.input_ids[0, start : end + 1])


def test_commands_accept_short_names(bert_jax_here: Run, tmp_path: Path) -> None:
    reviews = tmp_path / "reviews.txt"
    reviews.write_text("A delightful film.\n")
    result = bert_jax_here("predict", "mini-sentiment", "--input", reviews)
    assert json.loads(result.output)["label"] == "positive", result.errors
    result = bert_jax_here("fill-mask", "mini-bert", "The [MASK] of the sea.", "--top", "1")
    assert "coast" in result.output, result.errors
    result = bert_jax_here("inspect", "mini-bert", "mini-albert")
    assert "5,479,746" in result.output and "4,845,506" in result.output, result.errors
    other = bert_jax_here("fill-mask", "mini-ner", "The [MASK] of the sea.")
    message = "mini-ner: this model does not fill masks. It tags words: use `bert-jax predict`."
    assert other.code == 2 and other.errors.startswith(f"bert-jax: error: {message}")
    misspelled = bert_jax_here("fill-mask", "mini-brt", "The [MASK] of the sea.")
    assert misspelled.code == 2 and "nearest small model is mini-bert" in misspelled.errors
    with pytest.raises(ValueError, match=r"use `bj.small_model\('mini-ner'\)`"):
        bj.Tag("mini-ner")
    options = {"config_overrides": ["--config.init_from=mini-bert", "--config.seed=1"]}
    options["vary"] = ["seed=1,2", "init_from=mini-bert,mini-albert"]
    options |= {"directory": "mini-bert", "source": "mini-bert"}
    replace_short_names(options)
    models = [str(small_model(name)) for name in ("mini-bert", "mini-albert")]
    assert options["vary"] == ["seed=1,2", f"init_from={','.join(models)}"]
    assert options["directory"] == models[0]
    assert options["source"] == str(REPOSITORY / small_models._FOLDERS["mini-bert"])
    assert options["config_overrides"][1] == "--config.seed=1"
    assert options["config_overrides"][0] == f"--config.init_from={small_model('mini-bert')}"
    result = bert_jax_here("verify", "mini-bert", REPOSITORY / small_models._FOLDERS["mini-bert"])
    assert result.code == 0, result.output + result.errors


def test_a_directory_takes_precedence_over_a_short_name(
    bert_jax_here: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mini-bert").mkdir()
    result = bert_jax_here("fill-mask", "mini-bert", "The [MASK] of the sea.")
    assert result.code == 2
    assert "model.json" in result.errors


def test_unknown_names_and_installations_without_models_are_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match="name='mini-nre': no such small model; nearest: mini-ner"):
        small_model("mini-nre")
    monkeypatch.setattr(small_models, "_CHECKOUT", tmp_path)
    with pytest.raises(ValueError, match="come with a checkout of bert_jax"):
        small_model("mini-bert")


def test_a_changed_file_leads_to_another_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(small_models._FOLDERS["mini-bert"])
    shutil.copytree(REPOSITORY / folder, tmp_path / folder)
    monkeypatch.setattr(small_models, "_CHECKOUT", tmp_path)
    _, before = small_models._locate("mini-bert")
    with (tmp_path / folder / "config.json").open("a") as file:
        file.write("\n")
    assert small_models._locate("mini-bert")[1] != before


def test_a_command_imports_a_model_without_using_jax_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = (
        "from bert_jax.interop.small_models import replace_short_names; import sys; "
        "options = {'init': 'mini-bert', 'second': 'mini-bert'}; replace_short_names(options); "
        "assert 'jax' not in sys.modules; print(options['init'], options['second'])"
    )
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": str(REPOSITORY)}
    output = subprocess.check_output([sys.executable, "-c", program], env=environment, text=True)
    directory, second = output.split()
    assert Path(directory, "model.json").is_file() and second == "mini-bert"


def test_a_failed_import_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(ValueError, match=r"could not be imported \(exit code 1\)"):
        replace_short_names({"work_dir": "mini-bert"})


def test_a_model_that_another_process_has_just_imported_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def imported_elsewhere(source: Path, directory: Path) -> None:
        directory.mkdir(parents=True)
        raise ValueError("already exists")

    monkeypatch.setattr("bert_jax.interop.import_model.import_model", imported_elsewhere)
    assert small_model("mini-bert").is_dir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))

    def failing(source: Path, directory: Path) -> None:
        raise ValueError("the disk is full")

    monkeypatch.setattr("bert_jax.interop.import_model.import_model", failing)
    with pytest.raises(ValueError, match="the disk is full"):
        small_model("mini-bert")
