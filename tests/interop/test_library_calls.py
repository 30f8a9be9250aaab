"""Test that the Python functions import, export, extract and compare models without printing."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import transformers

from bert_jax.interop.export import export
from bert_jax.interop.import_model import import_model
from bert_jax.interop.verify import verify
from bert_jax.runs.checkpoints import checkpoints_at
from bert_jax.runs.extraction import extract
from bert_jax.runs.work_dir import read_model

from .conftest import change_tensors, make, tensors_of
from .families import make as make_family


@pytest.fixture(scope="module")
def directories(tmp_path_factory):
    """Return (theirs, imported): a directory from transformers, and the result of importing it."""
    root = tmp_path_factory.mktemp("models")
    make(root / "theirs", "pretraining")
    return root / "theirs", import_model(root / "theirs", root / "ours")


def test_import_returns_its_result(directories, capsys, tmp_path):
    theirs, imported = directories
    assert imported.work_dir == theirs.parent / "ours"
    assert (imported.family, imported.config.head) == ("BERT", "pretraining")
    assert imported.tensors == ("46 parameters imported",)
    assert (imported.revision, imported.sentence_embedding) == (None, None)
    assert read_model(imported.work_dir)[0] == imported.config
    part = import_model(
        str(theirs), tmp_path / "part", head="classification", labels=["no", "yes"], seed=3
    )
    assert part.config.labels == ("no", "yes")
    assert any("classifier" in line for line in part.tensors)
    with pytest.raises(ValueError, match=r"^seed=-1: must be between 0"):
        import_model(theirs, tmp_path / "other", seed=-1)
    with pytest.raises(ValueError, match="already exists"):
        import_model(theirs, imported.work_dir.parent)
    assert capsys.readouterr() == ("", "")


def test_export_writes_the_imported_weights(directories, capsys, tmp_path):
    theirs, imported = directories
    exported = export(imported, tmp_path / "out", format="huggingface")
    assert (
        Path(exported) == exported.path == tmp_path / "out" and exported.config == imported.config
    )
    files = [file for file in exported.path.rglob("*") if file.is_file()]
    assert exported.num_bytes == sum(file.stat().st_size for file in files)
    before, after = tensors_of(theirs), tensors_of(exported.path)
    shared = before.keys() & after.keys()
    assert len(shared) > 30
    for name in shared:
        np.testing.assert_array_equal(before[name], after[name], err_msg=name)
    config = transformers.AutoConfig.from_pretrained(exported.path)
    assert config.architectures == ["BertForPreTraining"]
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"format": "huggingface", "hidden_states": True}, "hidden_states=True does not apply"),
        ({"format": "onnx", "dtype": "float16"}, "dtype applies only to format='huggingface'"),
    ],
)
def test_options_of_another_format_are_refused(directories, options, problem, tmp_path):
    with pytest.raises(ValueError, match=problem):
        export(directories[1].work_dir, tmp_path / "out", **options)
    assert not list(tmp_path.iterdir())


def test_a_note_says_that_the_pooler_is_left_out(capsys, tmp_path):
    make_family(tmp_path / "theirs", "DistilBert", "classification")
    imported = import_model(tmp_path / "theirs", tmp_path / "ours")
    assert imported.config.pooler and imported.family == "DistilBERT"
    exported = export(imported.work_dir, tmp_path / "out", format="huggingface", head="encoder")
    assert not exported.config.pooler
    assert exported.notes == ("the pooler is left out, since DistilBERT's bare encoder has none",)
    assert not [name for name in tensors_of(exported.path) if "pre_classifier" in name]
    assert capsys.readouterr().out == ""


def test_extract_takes_one_checkpoint(directories, capsys, tmp_path):
    imported = directories[1]
    directory, steps = checkpoints_at(imported.work_dir)
    assert directory == imported.work_dir / "checkpoints" and steps == [0]
    assert checkpoints_at(directory) == checkpoints_at(directory / "0") == (directory, [0])
    extracted = extract(imported.work_dir, tmp_path / "newest", "newest")
    assert (extracted.work_dir, extracted.step) == (tmp_path / "newest", 0)
    again = export(extracted.work_dir, tmp_path / "again", format="huggingface")
    once = export(imported.work_dir, tmp_path / "once", format="huggingface")
    for name, tensor in tensors_of(once.path).items():
        np.testing.assert_array_equal(tensor, tensors_of(again.path)[name], err_msg=name)
    model = json.loads((extracted.work_dir / "model.json").read_text())
    assert model == json.loads((imported.work_dir / "model.json").read_text())
    with pytest.raises(ValueError, match="step='last': expected a step number"):
        extract(imported.work_dir, tmp_path / "other", "last")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="step 7"):
        checkpoints_at(imported.work_dir, 7)
    assert capsys.readouterr().out == ""


def test_verify_compares_and_reports_only_if_asked(directories, capsys, tmp_path):
    theirs, imported = directories
    equal = verify(theirs, imported.work_dir)
    assert equal.passed and equal.verdict.startswith(tuple("0123456789"))
    assert equal.differences.keys() == {"random", "sentences"}
    largest = max(each.relative for each in equal.differences["random"].values())
    assert 0 < largest < 1e-4  # The results differ only by float32 rounding errors.
    assert not verify(theirs, imported.work_dir, tolerance=largest / 100).passed
    shutil.copytree(theirs, tmp_path / "changed")

    def change(tensors):
        tensors["bert.encoder.layer.1.output.LayerNorm.weight"][2] += 1

    change_tensors(tmp_path / "changed", change)
    assert not verify(tmp_path / "changed", imported.work_dir).passed
    with pytest.raises(ValueError, match=r"^tolerance=-1: expected 0"):
        verify(theirs, theirs, tolerance=-1)
    assert capsys.readouterr().out == ""
    reports = []
    verify(imported.work_dir, imported.work_dir, on_report=reports.append)
    assert [str(each).split()[0] for each in reports] == ["A", "B", "random:", "sentences:"]


@pytest.mark.parametrize("options", [{"format": "hf"}, {"format": "huggingface", "dtype": "fp16"}])
def test_an_unknown_format_or_dtype_is_refused(directories, tmp_path, options):
    with pytest.raises(ValueError, match=r"^(format='hf'|dtype='fp16'): expected one of .*'"):
        export(directories[1].work_dir, tmp_path / "exported", **options)
    assert not (tmp_path / "exported").exists()
