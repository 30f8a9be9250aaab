"""Test that predictions for one file never overwrite predictions for another."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from bert_jax.finetuning.config import FinetuneConfig
from bert_jax.finetuning.glue import GlueConfig
from bert_jax.finetuning.open_evaluation import named_after
from bert_jax.finetuning.outcome import INPUTS_NAME, check_files, claim_files
from bert_jax.finetuning.tags import TagsConfig
from bert_jax.labeled_data.tags import TagFiles


def test_files_with_one_stem_have_separate_predictions(toy, make_source, bert_jax_here, tmp_path):
    """Use files with the same name, or with the same stem, like CoNLL-2003's test sets."""
    model, out = make_source("tagging", ("O", "B-PER", "B-LOC")), tmp_path / "out"
    (tmp_path / "other").mkdir()
    first, second, elsewhere = (
        tmp_path / name for name in ("eng.testa", "eng.testb", "other/eng.testa")
    )
    shutil.copy(toy.root / "tagged/validation.txt", first)
    shutil.copy(toy.root / "tagged/train.txt", elsewhere)
    second.write_text("matt\tB-PER\nlives\tO\n")

    def evaluate(data: Path):
        words = ("--config", toy.root / "tags.py", "--data", data, "--predictions", out)
        return bert_jax_here("evaluate", model, *words)

    # Evaluate the first file twice, which overwrites its own predictions.
    for data in (first, second, first):
        finished = evaluate(data)
        assert finished.code == 0, finished.errors
        assert f"predictions: {out}/{data.name}.txt" in finished.output
    assert {file.name for file in out.iterdir()} == {
        "eng.testa.txt",
        "eng.testb.txt",
        INPUTS_NAME,
    }
    before = (out / "eng.testa.txt").read_bytes()
    words = [
        [line.split("\t")[0] for line in text.decode().split("\n") if line]
        for text in (before, first.read_bytes())
    ]
    assert words[0] == words[1]
    refused = evaluate(elsewhere)
    assert refused.code == 2
    assert (
        f"eng.testa.txt: the file holds predictions for {first} by {model}, and predictions for "
        f"{elsewhere} by {model}" in refused.errors
    )
    assert f" for {elsewhere} by {model} would overwrite it" in refused.errors
    model = shutil.copytree(model, tmp_path / "another model")
    refused = evaluate(first)
    assert refused.code == 2
    assert f"and predictions for {first} by {model} would overwrite it" in refused.errors
    assert (out / "eng.testa.txt").read_bytes() == before


def test_a_file_is_replaced_only_for_the_same_input(tmp_path):
    claim_files(tmp_path / "out", ["a.json", "a_n_best.json"], "/data/a.json")
    for name in ("a.json", "a_n_best.json"):
        (tmp_path / "out" / name).touch()
    claim_files(tmp_path / "out", ["a.json", "a_n_best.json"], "/data/a.json")
    # The claimed file has not been written yet.
    claim_files(tmp_path / "out", ["b.json"], "/data/b.json")
    assert json.loads((tmp_path / "out" / INPUTS_NAME).read_text()) == {
        "a.json": "/data/a.json",
        "a_n_best.json": "/data/a.json",
        "b.json": "/data/b.json",
    }
    with pytest.raises(
        ValueError, match="a_n_best.json: the file holds predictions for /data/a.json"
    ):
        claim_files(tmp_path / "out", ["a_n_best.json"], "/data/a_n_best.json")


def test_a_file_of_unknown_origin_is_not_replaced(tmp_path):
    (tmp_path / "dev.tsv").touch()
    with pytest.raises(
        ValueError, match="dev.tsv: the file already exists, and predictions for /d/dev.tsv"
    ):
        check_files(tmp_path, ["dev.tsv"], "/d/dev.tsv")
    (tmp_path / INPUTS_NAME).write_text("[")
    with pytest.raises(ValueError, match=f"{INPUTS_NAME}.*Use another directory with --pred"):
        check_files(tmp_path, ["new.tsv"], "/d/new.tsv")


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("dev.tsv", "dev"),
        ("dev.tsv.gz", "dev"),
        ("data/DEV.JSONL", "DEV"),
        ("eng.testa", "eng.testa"),
        ("eng.testa.xz", "eng.testa"),
        ("emerging.test.annotated", "emerging.test.annotated"),
        ("en_ewt-ud-dev.conllu", "en_ewt-ud-dev"),
        ("v1.1", "v1.1"),
    ],
)
def test_an_unknown_extension_is_part_of_the_name(path, name):
    assert list(named_after(path, {"validation": None})) == [name]  # type: ignore[dict-item]


def test_an_input_is_identified_by_its_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.symlink(tmp_path, tmp_path / "link")
    both = {"work_dir": "w", "init_from": "i"}
    tags = FinetuneConfig(**both, task=TagsConfig(files=TagFiles(train="t", validation="v.txt")))
    assert tags.task.source_of("validation") == str(tmp_path.resolve() / "v.txt")
    assert tags.with_file("link/v.txt", "validation").task.source_of("validation") == (
        str(tmp_path.resolve() / "v.txt")
    )
    glue = FinetuneConfig(**both, task=GlueConfig("SST-2", "data", validation="other.tsv"))
    assert glue.task.source_of("validation").endswith("other.tsv")
    assert glue.task.source_of("test").endswith("data")
    tfds = glue.with_file("tfds:glue/sst2", "test")
    assert tfds.task.source_of("test") == "tfds:glue/sst2"
