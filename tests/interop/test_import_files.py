"""Test importing from every supported file layout and from invalid files."""

from __future__ import annotations

import gc
import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch
import transformers

from bert_jax.interop.huggingface.weights import open_weights
from bert_jax.runs.checkpoints import load_model
from bert_jax.runs.work_dir import read_model

from .conftest import change_tensors, same, tensors_of

LAYER = "bert.encoder.layer.1.output.dense.weight"
TABLE = "bert.embeddings.word_embeddings.weight"


@pytest.mark.parametrize("safe", [True, False], ids=["safetensors", "pickle"])
@pytest.mark.parametrize("sharded", [True, False], ids=["sharded", "whole"])
def test_every_layout_of_files(safe, sharded, make_bert, imported, bert_jax_here, tmp_path):
    theirs = make_bert()
    model = transformers.BertForPreTraining.from_pretrained(theirs)
    other = tmp_path / "other"
    model.save_pretrained(other, max_shard_size="20KB" if sharded else "5GB")
    (other / "vocab.txt").write_bytes((theirs / "vocab.txt").read_bytes())
    if not safe:
        to_pickles(other)
    assert (len(list(other.glob("*.bin" if not safe else "*.safetensors"))) > 1) == sharded
    same(imported(other)[1], theirs, bert_jax_here)


def test_a_pickle_from_before_2020(make_bert, imported, bert_jax_here):
    theirs, old = make_bert(), make_bert(name="old")
    to_pickles(old)
    file = old / "pytorch_model.bin"
    torch.save(torch.load(file), file, _use_new_zipfile_serialization=False)
    before = num_tensors()
    weights = open_weights(old)
    # Tensors stay on disk until they are needed.
    assert weights.shapes[TABLE] and num_tensors() == before
    same(imported(old)[1], theirs, bert_jax_here)
    file.write_bytes(file.read_bytes()[:-100])
    finished = bert_jax_here("import", old, "--output", old.parent / "more")
    assert finished.code == 2 and "PyTorch cannot read it" in finished.errors


def num_tensors() -> int:
    """Return the number of tensors in this process's memory."""
    gc.collect()
    return sum(issubclass(type(kept), torch.Tensor) for kept in gc.get_objects())


def to_pickles(directory: Path) -> None:
    """Convert .safetensors files to the .bin files that transformers wrote until 2024."""
    from safetensors.torch import load_file

    for file in list(directory.glob("*.safetensors")):
        name = file.name.replace("model", "pytorch_model", 1).replace(".safetensors", ".bin")
        torch.save(load_file(file), directory / name)
        file.unlink()
    index = directory / "model.safetensors.index.json"
    if index.is_file():
        text = index.read_text().replace("model-", "pytorch_model-").replace(".safetensors", ".bin")
        (directory / "pytorch_model.bin.index.json").write_text(text)
        index.unlink()


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64])
@pytest.mark.parametrize("safe", [True, False], ids=["safetensors", "pickle"])
def test_other_precisions_become_float32(dtype, safe, make_bert, imported):
    theirs = make_bert()

    def convert(tensors):
        tensors |= {name: array.astype(dtype) for name, array in tensors.items()}

    change_tensors(theirs, convert)
    expected = tensors_of(theirs)[TABLE].astype(np.float32)
    if not safe:
        to_pickles(theirs)
    table = load_model(str(imported(theirs)[1])).model.encoder.embeddings.token[...]
    assert table.dtype == np.float32
    np.testing.assert_array_equal(table, expected)


def test_integers_and_infinities_are_refused(make_bert, refused):
    theirs = make_bert()
    change_tensors(theirs, lambda tensors: tensors.update({LAYER: np.ones((32, 48), np.int8)}))
    assert f"{LAYER} contains int8 values; expected floating-point numbers" in refused(theirs)
    endless = np.full((32, 48), np.inf, np.float32)
    change_tensors(theirs, lambda tensors: tensors.update({LAYER: endless}))
    assert f"{LAYER} contains non-finite numbers" in refused(theirs)


@pytest.mark.parametrize(
    "index",
    [
        "[]",
        '{"weight_map": {"a": 1}}',
        '{"weight_map": {}}',
        '{"weight_map": null}',
        '{"weight_map": {"a": "../model.safetensors"}}',
    ],
)
def test_an_invalid_index_is_refused(index, make_bert, refused):
    theirs = make_bert()
    (theirs / "model.safetensors").rename(theirs.parent / "model.safetensors")
    (theirs / "model.safetensors.index.json").write_text(index)
    assert "expected a weight_map of files in the same directory" in refused(theirs)


def test_a_tensor_in_two_files_is_refused(make_bert, refused):
    theirs = make_bert()
    whole = theirs / "model.safetensors"
    for name in ("a.safetensors", "b.safetensors"):
        (theirs / name).write_bytes(whole.read_bytes())
    whole.unlink()
    index = {"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}}
    (theirs / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "Remove one of them" in refused(theirs)


def test_the_current_directory_cannot_be_replaced(make_bert, bert_jax_here, monkeypatch, tmp_path):
    monkeypatch.chdir(make_bert())
    assert bert_jax_here("import", ".", "--output", "../ours").code == 0
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    refused = bert_jax_here("import", "../theirs", "--output", ".")
    assert (
        refused.code == 2
        and "the output cannot replace a link or the current directory" in refused.errors
    )
    refused = bert_jax_here("import", "../theirs/vocab.txt", "--output", "../more")
    assert refused.code == 2 and "is a file. Pass the directory that contains it" in refused.errors


def test_damaged_files_are_reported(make_bert, refused):
    theirs = make_bert()
    file = theirs / "model.safetensors"
    whole = file.read_bytes()
    for length in (4, 100, len(whole) // 2, len(whole) - 1):
        file.write_bytes(whole[:length])
        assert f"{file}: damaged or truncated" in refused(theirs), length
    file.unlink()
    assert "contains no weights" in refused(theirs)
    (theirs / "pytorch_model.bin").write_bytes(b"PK\x03\x04 and no more")
    assert "PyTorch cannot read it" in refused(theirs)
    (theirs / "pytorch_model.bin").unlink()
    index = theirs / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {LAYER: "model-00001-of-00002.safetensors"}}))
    name = "model-00001-of-00002.safetensors"
    assert f"lists files that are not in {theirs}: {name}" in refused(theirs)
    index.write_text("{")
    assert "model.safetensors.index.json: not valid JSON" in refused(theirs)
    (theirs / "config.json").write_text("{")
    assert "config.json: not valid JSON" in refused(theirs)
    (theirs / "config.json").unlink()
    assert "contains no config.json" in refused(theirs)


class Touch:
    """An object that creates a file when it is unpickled, to show that a pickle can run code."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_code_in_pickles_is_not_run(make_bert, refused, tmp_path):
    theirs = make_bert()
    (theirs / "model.safetensors").unlink()
    torch.save({LAYER: Touch(theirs / "owned")}, theirs / "pytorch_model.bin")
    assert "PyTorch cannot read it" in refused(theirs)
    assert not (theirs / "owned").exists()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda table: {7: table}, "a state_dict, which maps names to tensors"),
        (lambda table: {TABLE: table.to_sparse()}, TABLE),
        (lambda table: {TABLE: table.to("meta")}, TABLE),
        (lambda table: {TABLE: table.to(torch.complex64)}, TABLE),
    ],
    ids=["numbers for names", "sparse", "meta", "complex"],
)
def test_pickles_without_dense_arrays_are_refused(change, named, tmp_path):
    torch.save(change(torch.ones(4, 2)), tmp_path / "pytorch_model.bin")
    with pytest.raises(ValueError, match=f"pytorch_model.bin: .*{named}"):
        open_weights(tmp_path)


@pytest.mark.parametrize(
    ("name", "argument"), [("flax_model.msgpack", "from_flax"), ("tf_model.h5", "from_tf")]
)
def test_weights_of_flax_and_tensorflow_are_refused_with_their_conversion(
    name, argument, make_bert, refused
):
    theirs = make_bert()
    (theirs / "model.safetensors").rename(theirs / name)
    message = refused(theirs)
    assert f"the weights are in {name}" in message
    assert f"from_pretrained({str(theirs)!r}, {argument}=True)" in message


def test_files_that_are_not_weights_are_reported(make_bert, refused):
    theirs = make_bert()
    (theirs / "model.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1\noid x")
    assert "a Git LFS pointer instead of weights" in refused(theirs)
    (theirs / "model.safetensors").write_bytes(b"<!DOCTYPE html><html></html>" * 9)
    assert "a web page instead of weights" in refused(theirs)
    (theirs / "model.safetensors").rename(theirs / "model-00001-of-00002.safetensors")
    assert "contains model-00001-of-00002.safetensors, but no file *.index.json" in refused(theirs)


def test_work_directories_and_bad_outputs_are_refused(make_bert, imported, refused, tmp_path):
    _, ours = imported(make_bert())
    assert "Pass it directly to finetune or pretrain (--init), export or verify" in refused(ours)
    (tmp_path / "new").write_text("a file")
    assert f"{tmp_path / 'new'} is a file, so" in refused(tmp_path / "theirs")


def test_names_on_the_hub(make_bert, imported, refused, monkeypatch):
    snapshot, asked = make_bert(name="86b5e0934494bd15c9632b12f734a8a67f723594"), []

    def download(name, revision, allow_patterns):
        asked.append((name, revision, allow_patterns))
        return str(snapshot)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    _, ours = imported("google-bert/bert-base-uncased", "--revision", "v2")
    [(name, revision, patterns)] = asked
    assert (name, revision) == ("google-bert/bert-base-uncased", "v2")
    files = {"vocab.txt", "tokenizer.json", "spiece.model", "vocab.json", "merges.txt"}
    assert {"config.json", "tokenizer_config.json"} | files <= set(patterns)
    assert "model*.safetensors" in patterns and not any(p.endswith(".bin") for p in patterns)
    assert read_model(ours)[1]["revision"] == snapshot.name
    monkeypatch.undo()
    assert "is a local directory, which has no revisions" in refused(snapshot, "--revision", "v2")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert "the hub cannot be reached to look for a model" in refused("someone/nothing")
    assert "neither a local directory nor a valid name" in refused("models/of/mine")
