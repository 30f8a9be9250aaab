"""Test that `verify` passes for models that agree and fails for models that differ."""

from __future__ import annotations

import json
import re
import shutil

import numpy as np
import pytest
import torch

from bert_jax.interop.comparison import (
    Difference,
    ProbeInput,
    differences,
    random_probe,
    unequal,
    unpaired_outputs,
)
from bert_jax.interop.verify import verdict_on

from .conftest import change_config, change_tensors

# One tensor from each part of the model, with the index of an element to change.
WEIGHTS = {
    "bert.embeddings.word_embeddings.weight": (50, 3),
    "bert.embeddings.position_embeddings.weight": (39, 0),  # This is the last position.
    "bert.embeddings.token_type_embeddings.weight": (1, 31),
    "bert.embeddings.LayerNorm.bias": (0,),
    "bert.encoder.layer.0.attention.self.query.weight": (5, 7),
    "bert.encoder.layer.1.attention.self.value.bias": (9,),
    "bert.encoder.layer.1.output.LayerNorm.weight": (2,),
    "bert.encoder.layer.1.intermediate.dense.weight": (47, 31),
    "bert.pooler.dense.weight": (0, 0),
    "cls.predictions.bias": (70,),
    "cls.predictions.transform.dense.weight": (3, 3),
    "cls.seq_relationship.weight": (1, 30),
}


@pytest.fixture
def ours(make_bert, bert_jax_here, tmp_path):
    """Return a work directory that was imported from the Hugging Face directory `theirs`."""
    assert bert_jax_here("import", make_bert(), "--output", tmp_path / "ours").code == 0
    return tmp_path / "ours"


def failing_rows(output: str) -> list[str]:
    """Return the names of the outputs whose relative difference exceeds 1e-4."""
    rows = re.findall(r"^(\S.*?)  +(.*)$", output.split("relative\n")[1], re.M)
    return [name for name, cells in rows if max(map(float, cells.split()[1::2])) > 1e-4]


def test_a_single_changed_weight_is_detected(ours, bert_jax_here, tmp_path):
    theirs, seen = ours.parent / "theirs", {}
    for name, place in WEIGHTS.items():
        changed = tmp_path / "changed"
        shutil.copytree(theirs, changed)

        def change(tensors, name=name, place=place):
            tensors[name] = tensors[name].copy()
            tensors[name][place] += 0.05

        change_tensors(changed, change)
        finished = bert_jax_here("verify", ours, changed)
        assert finished.code == 1, name
        assert "FAIL: " in finished.output and "NOT within 0.0001" in finished.output
        seen[name] = failing_rows(finished.output)
        shutil.rmtree(changed)
    # The first row that differs shows where the change is.
    assert seen["bert.embeddings.LayerNorm.bias"][0] == "embeddings"
    assert seen["bert.encoder.layer.0.attention.self.query.weight"][0] == "layer 1"
    assert seen["bert.encoder.layer.1.output.LayerNorm.weight"][0] == "layer 2"
    assert seen["bert.pooler.dense.weight"] == ["pooled output", "sentence-pair logits"]
    assert seen["cls.predictions.bias"] == ["masked-LM logits"]
    assert seen["cls.seq_relationship.weight"] == ["sentence-pair logits"]


@pytest.mark.parametrize(
    "changes",
    [
        dict(layer_norm_eps=1e-3),
        dict(hidden_act="gelu_new"),
        dict(num_attention_heads=2),
    ],
    ids=["epsilon", "activation", "heads"],
)
def test_a_changed_setting_is_detected(changes, ours, bert_jax_here):
    theirs = ours.parent / "theirs"
    assert bert_jax_here("verify", theirs, ours).code == 0
    change_config(theirs, **changes)
    for pair in ((theirs, ours), (ours, theirs)):
        assert bert_jax_here("verify", *pair).code == 1


def test_the_tolerance_is_respected(ours, bert_jax_here):
    theirs = ours.parent / "theirs"
    assert bert_jax_here("verify", ours, theirs, "--tolerance", "1e-9").code == 1
    for wrong in ("-1", "nan", "inf"):
        refused = bert_jax_here("verify", ours, theirs, f"--tolerance={wrong}")
        assert refused.code == 2 and "expected 0 (bitwise equality) or a positive" in refused.errors


def test_a_tolerance_of_0_requires_bitwise_equality(ours, bert_jax_here, tmp_path):
    same, moved = (tmp_path / name for name in ("same", "moved"))
    shutil.copytree(ours, same)
    equal = bert_jax_here("verify", ours, same, "--tolerance", "0")
    assert equal.code == 0 and "PASS: A and B are bitwise equal" in equal.output

    theirs = ours.parent / "theirs"  # PyTorch has the same weights, but rounds differently.
    close = bert_jax_here("verify", ours, theirs, "--tolerance", "1e-4")
    last = r"\nPASS: (\S+) is within 0.0001; the largest absolute difference is (\S+)\n$"
    relative, absolute = map(float, re.search(last, close.output).groups())
    assert 0 < relative < 1e-5 and 0 < absolute < 1e-4
    rows = close.output.split("relative\n")[1].split("\nPASS")[0].splitlines()
    cells = [row[22:].split() for row in rows]
    assert absolute == pytest.approx(max(float(x) for row in cells for x in row[::2]), rel=0.05)
    exact = bert_jax_here("verify", ours, theirs, "--tolerance", "0")
    assert exact.code == 1 and "FAIL: NOT bitwise equal: " in exact.output

    # Flip the last bit of a bias, a change far below any tolerance for rounding.
    def nudge(tensors):
        bias = tensors["cls.seq_relationship.bias"].copy()
        bias[0] = np.nextafter(bias[0], np.float32(9))
        tensors["cls.seq_relationship.bias"] = bias

    shutil.copytree(theirs, moved)
    change_tensors(moved, nudge)
    assert bert_jax_here("verify", theirs, moved).code == 0
    exact = bert_jax_here("verify", theirs, moved, "--tolerance", "0")
    assert exact.code == 1
    assert "FAIL: NOT bitwise equal: sentence-pair logits;" in exact.output


def test_a_negative_seed_is_refused(ours, bert_jax_here):
    refused = bert_jax_here("verify", ours, ours, "--seed", "-1")
    assert refused.code == 2 and "--seed=-1: must be between 0 and 2^32 - 1" in refused.errors


def test_missing_weights_are_refused(ours, bert_jax_here):
    theirs = ours.parent / "theirs"
    change_tensors(theirs, lambda tensors: tensors.pop("bert.pooler.dense.bias"))
    refused = bert_jax_here("verify", ours, theirs)
    assert refused.code == 2
    assert "finds no usable weights for bert.pooler.dense.bias" in refused.errors


def test_damaged_weights_are_refused(ours, bert_jax_here):
    theirs = ours.parent / "theirs"
    wide = np.zeros((3, 32), np.float32)
    change_tensors(theirs, lambda tensors: tensors.update({"cls.seq_relationship.weight": wide}))
    refused = bert_jax_here("verify", ours, theirs)
    assert refused.code == 2 and "BertForPreTraining cannot be loaded: " in refused.errors
    (theirs / "model.safetensors").write_bytes(b"no weights")
    refused = bert_jax_here("verify", ours, theirs)
    assert refused.code == 2 and "BertForPreTraining cannot be loaded: " in refused.errors


def test_a_different_tokenizer_is_detected(ours, bert_jax_here):
    theirs = ours.parent / "theirs"
    words = (theirs / "vocab.txt").read_text().split()
    words[5], words[6] = words[6], words[5]
    (theirs / "vocab.txt").write_text("\n".join(words) + "\n")
    compared = bert_jax_here("verify", ours, theirs)
    assert compared.code == 1 and "different tokenizers" in compared.output
    # The weights are compared even if the tokenizers differ.
    assert failing_rows(compared.output) == []


def test_a_different_tokenization_by_transformers_is_reported(ours, bert_jax_here, tmp_path):
    """Test with BertTokenizer, which lowercases by default even if tokenizer.json does not."""
    back, words = tmp_path / "back", ("--format", "huggingface")
    assert bert_jax_here("export", ours, *words, "--output", back).code == 0
    assert bert_jax_here("verify", ours, back).code == 0
    file = back / "tokenizer.json"
    state = json.loads(file.read_text())
    state["normalizer"] |= {"lowercase": False, "strip_accents": False}
    # Remove the checksums, which would reveal the following changes.
    (back / "SHA256SUMS").unlink()
    file.write_text(json.dumps(state))
    (back / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')
    compared = bert_jax_here("verify", back, back)
    assert compared.code == 1
    assert "NOTE  transformers tokenizes texts for A differently: ids [2, " in compared.output
    expected = (
        "FAIL: transformers tokenizes text differently, so the models were compared on ids that it "
        "would not produce"
    )
    assert expected in compared.output


def test_models_with_different_labels(make_bert, bert_jax_here, tmp_path):
    theirs = make_bert("classification")
    for name, words in {
        "as it is": (),
        "renamed": ("--labels", "x", "y", "z"),
        "another": ("--head", "classification", "--labels", "x", "y"),
    }.items():
        imported = bert_jax_here("import", theirs, "--output", tmp_path / name, *words)
        assert imported.code == 0, imported.errors
    compared = bert_jax_here("verify", tmp_path / "as it is", tmp_path / "renamed")
    assert compared.code == 0
    assert "NOTE  the scores have different names: " in compared.output
    compared = bert_jax_here("verify", tmp_path / "as it is", tmp_path / "another")
    assert compared.code == 1
    assert "logits is [8, 3] in A and [8, 2] in B" in compared.output


def test_a_checkpoint_without_its_data_is_refused(make_bert, bert_jax, bert_jax_here, tmp_path):
    ours = tmp_path / "ours"
    assert bert_jax_here("import", make_bert(), "--output", ours).code == 0
    shutil.rmtree(ours / "checkpoints" / "0" / "params" / "d")
    # Use a separate process, since Orbax's objects cause warnings at the next garbage collection.
    refused = bert_jax("verify", ours, ours, code=2)
    assert "the checkpoint at step 0 is damaged: params/d/" in refused.errors
    assert "is missing. Restore it from a copy" in refused.errors


def test_a_path_without_a_model_is_refused(ours, bert_jax_here, tmp_path):
    refused = bert_jax_here("verify", ours, tmp_path / "nothing")
    assert refused.code == 2 and "not a supported model" in refused.errors


def probe_of(mask: list[list[int]]) -> ProbeInput:
    ids = np.zeros((len(mask), len(mask[0])), np.int32)
    return ProbeInput("by hand", ids, ids, np.array(mask, np.int32))


def test_differences_of_small_arrays():
    probe = probe_of([[1, 1, 0]])
    first = {"hidden": np.array([[[3.0], [4.0], [900.0]]], np.float32), "pooled": np.ones((1, 1))}
    second = {"hidden": np.array([[[3.0], [4.5], [0.0]]], np.float32), "logits": np.ones((1, 1))}
    [(name, found)] = differences(first, second, probe).items()
    assert name == "hidden"
    assert found.largest == 0.5  # Padding is ignored.
    assert found.relative == pytest.approx(0.5 / np.sqrt((9 + 20.25) / 2))
    assert unpaired_outputs(first, second) == ["pooled", "logits"]


@pytest.mark.parametrize(
    ("second", "names"),
    [
        ([[1.0, 0.0]], []),
        ([[np.nextafter(np.float32(1), np.float32(2)), 0.0]], ["pooled"]),
        ([[1.0, -0.0]], ["pooled"]),
        ([[1.0, 0.0, 0.0]], ["pooled"]),
    ],
)
def test_outputs_are_compared_bitwise(second, names):
    outputs = [{"pooled": np.array(values, np.float32)} for values in ([[1.0, 0.0]], second)]
    assert unequal(*outputs, probe_of([[1, 1]])) == names


def test_padding_may_have_any_bits():
    hidden = np.arange(3, dtype=np.float32).reshape(1, 3, 1)
    other = hidden + np.array([0, 0, 5], np.float32)[:, None]
    assert unequal({"hidden": hidden}, {"hidden": other}, probe_of([[1, 1, 0]])) == []
    assert unequal({"hidden": hidden}, {"hidden": other}, probe_of([[1, 1, 1]])) == ["hidden"]


def test_nonfinite_values_fail():
    broken = Difference(np.inf, np.inf)
    passed, verdict = verdict_on({"random": {"hidden": broken}}, [], 0)
    assert not passed and "some values are not finite" in verdict


def test_features_are_not_confused_with_positions():
    # There are as many features as positions, but the padding mask must not apply to features.
    probe = probe_of([[1, 1, 0], [1, 0, 0]])
    first = {"pooled": np.zeros((2, 3), np.float32)}
    second = {"pooled": np.array([[0, 0, 0], [0, 0, 5]], np.float32)}
    assert differences(first, second, probe)["pooled"].largest == 5


@pytest.mark.parametrize(
    "other", [np.full((1, 2), np.nan), np.full((1, 2), np.inf), np.zeros((1, 3)), np.zeros((2, 1))]
)
def test_incomparable_outputs_differ_infinitely(other):
    probe = probe_of([[1, 1]])
    for pair in ((np.ones((1, 2)), other), (other, np.ones((1, 2)))):
        outputs = [{"pooled": array.astype(np.float32)} for array in pair]
        assert differences(*outputs, probe)["pooled"] == Difference(np.inf, np.inf)


def test_zeros_are_equal():
    zeros = {"pooled": np.zeros((1, 2), np.float32)}
    assert differences(zeros, zeros, probe_of([[1]]))["pooled"] == Difference(0.0, 0.0)


def test_random_input_covers_all_positions_and_segments():
    probe = random_probe(1000, 3, 40, seed=0)
    assert probe.token_ids.shape == (4, 40)
    assert probe.attention_mask[0].all() and not probe.attention_mask[-1].all()
    real = probe.attention_mask == 1
    assert set(np.unique(probe.segment_ids[real])) == {0, 1, 2}
    assert (np.diff(probe.attention_mask, axis=1) <= 0).all()  # Padding comes last.
    assert len(np.unique(probe.token_ids[real])) > 60


def test_a_pickle_refused_by_pytorch_is_reported_in_one_sentence(ours, bert_jax_here):
    theirs = ours.parent / "theirs"
    (theirs / "model.safetensors").unlink()
    torch.save({"weight": Unpicklable()}, theirs / "pytorch_model.bin")
    for words in (("verify", ours, theirs), ("import", theirs, "--output", ours.parent / "more")):
        refused = bert_jax_here(*words)
        assert refused.code == 2, refused.errors
        assert str(theirs) in refused.errors and "Traceback" not in refused.errors
    (theirs / "pytorch_model.bin").write_bytes(b"\x80\x04N.")
    refused = bert_jax_here("verify", ours, theirs)
    assert refused.code == 2 and "BertForPreTraining cannot be loaded: " in refused.errors


class Unpicklable:
    """A class that PyTorch refuses to load from a weights file."""


def test_feed_forward_chunking_does_not_matter(ours, bert_jax_here):
    theirs = ours.parent / "theirs"
    change_config(theirs, chunk_size_feed_forward=7)
    compared = bert_jax_here("verify", ours, theirs)
    assert compared.code == 0, compared.errors
