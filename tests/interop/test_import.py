"""Test which tensors an import reads, leaves out, initializes randomly or rejects."""

from __future__ import annotations

import numpy as np
import pytest

from bert_jax.interop.comparison import random_probe
from bert_jax.interop.huggingface.import_config import ImportOptions
from bert_jax.runs.checkpoints import load_model

from .conftest import change_tensors, same, tensors_of

LAYER = "bert.encoder.layer.1.output.dense.weight"
TABLE = "bert.embeddings.word_embeddings.weight"


def test_names_of_2018_and_buffers(make_bert, imported, bert_jax_here, tmp_path):
    theirs, old = make_bert(), make_bert(name="old")

    def age(tensors):
        for name in list(tensors):
            if "LayerNorm" in name:
                aged = name.replace("LayerNorm.weight", "LayerNorm.gamma")
                tensors[aged.replace("LayerNorm.bias", "LayerNorm.beta")] = tensors.pop(name)
        tensors["bert.embeddings.position_ids"] = np.arange(40)[None]
        tensors["cls.predictions.decoder.weight"] = tensors[TABLE].copy()
        tensors["cls.predictions.decoder.bias"] = tensors["cls.predictions.bias"].copy()

    change_tensors(old, age)
    output, ours = imported(old)
    assert "+ bert.embeddings.position_ids: left out because it is a buffer, not a weight" in output
    assert f"+ cls.predictions.decoder.weight: left out because it is the same as {TABLE}" in output
    same(ours, theirs, bert_jax_here)


def test_the_output_layer_under_its_other_names(make_bert, imported, bert_jax_here):
    theirs, other = make_bert("masked_lm"), make_bert("masked_lm", name="other")

    def rename(tensors):
        tensors["cls.predictions.decoder.bias"] = tensors.pop("cls.predictions.bias")
        tensors["cls.predictions.decoder.weight"] = tensors.pop(TABLE)

    change_tensors(other, rename)
    same(imported(other)[1], theirs, bert_jax_here)


def test_a_separate_output_layer_is_refused(make_bert, refused):
    theirs = make_bert()

    def untie(tensors):
        tensors["cls.predictions.decoder.weight"] = tensors[TABLE] + 1

    change_tensors(theirs, untie)
    errors = refused(theirs)
    assert "a separate output layer" in errors and "only the encoder with --head encoder" in errors


def test_an_encoder_with_a_separate_output_layer_is_imported(make_bert, imported, bert_jax_here):
    theirs, other = make_bert(), make_bert(name="other")

    def untie(tensors):
        tensors["cls.predictions.decoder.weight"] = tensors[TABLE] + 1

    change_tensors(other, untie)
    output, ours = imported(other, "--head", "encoder")
    assert "+ cls.predictions.decoder.weight: left out because it is not part of a model" in output
    same(ours, theirs, bert_jax_here)


def test_two_names_of_one_tensor_are_refused(make_bert, refused):
    theirs = make_bert()

    def double(tensors):
        tensors[TABLE.removeprefix("bert.")] = tensors[TABLE] * 2

    change_tensors(theirs, double)
    assert f"{TABLE} and {TABLE.removeprefix('bert.')} are two names for" in refused(theirs) or (
        f"{TABLE.removeprefix('bert.')} and {TABLE} are two names for" in refused(theirs)
    )


def test_every_unexplained_tensor_is_listed(make_bert, refused):
    theirs = make_bert()

    def spoil(tensors):
        del tensors[LAYER]
        tensors["bert.encoder.layer.2.output.dense.bias"] = np.zeros(32, np.float32)
        tensors["cls.seq_relationship.weight"] = np.zeros((3, 32), np.float32)

    change_tensors(theirs, spoil)
    errors = refused(theirs)
    assert f"  - encoder.layers.1.ffn.down.kernel (source: {LAYER}) [48, 32]: MISSING" in errors
    assert "  + bert.encoder.layer.2.output.dense.bias [32]: UNEXPECTED" in errors
    problem = "[3, 32] in the source, but its config implies [2, 32]"
    assert f" != cls.seq_relationship.weight: {problem}" in errors
    # A requested head may be randomly initialized, but a layer may not.
    assert "MISSING" in refused(theirs, "--head", "encoder")
    assert "--head encoder takes it" not in errors


@pytest.mark.parametrize("head", ["pretraining", "classification", "tagging"])
def test_the_error_for_a_damaged_head_suggests_the_encoder(head, make_bert, imported, refused):
    theirs = make_bert(head)
    part = "classifier.bias" if head != "pretraining" else "cls.predictions.transform.dense.bias"
    change_tensors(theirs, lambda tensors: tensors.pop(part))
    assert refused(theirs).rstrip().endswith("Import only the encoder with --head encoder")
    _, ours = imported(theirs, "--head", "encoder")
    token = load_model(str(ours)).model.encoder.embeddings.token[...]
    np.testing.assert_array_equal(token, tensors_of(theirs)[TABLE])


def test_a_requested_head_is_randomly_initialized(make_bert, imported, refused):
    theirs = make_bert()
    output, ours = imported(theirs, "--head", "classification", "--labels", "bad", "good")
    assert "  - classifier.kernel: randomly initialized, to be trained" in output
    assert (
        "  + cls.seq_relationship.bias: left out because it is not part of a model with the "
        "'classification' head" in output
    )
    loaded = load_model(str(ours))
    assert loaded.config.labels == ("bad", "good")
    model, tensors = loaded.model, tensors_of(theirs)
    np.testing.assert_array_equal(model.encoder.embeddings.token[...], tensors[TABLE])
    np.testing.assert_array_equal(
        model.pooler.dense.kernel[...], tensors["bert.pooler.dense.weight"].T
    )
    kernel = np.asarray(model.classifier.kernel[...])
    assert (
        kernel.shape == (32, 2) and 0.05 < kernel.std() < 0.12 and not model.classifier.bias.any()
    )
    _, other = imported(
        *(theirs, "--head", "classification", "--labels", "bad", "good", "--seed", "1"),
        name="other",
    )
    assert not np.allclose(load_model(str(other)).model.classifier.kernel[...], kernel)
    assert "--labels NAME" in refused(theirs, "--head", "tagging")


def test_a_head_is_left_out_on_request(make_bert, imported, bert_jax_here):
    theirs = make_bert("classification")
    output, ours = imported(theirs, "--head", "encoder")
    assert "+ classifier.weight: left out" in output
    same(ours, theirs, bert_jax_here)


def test_a_classifier_for_another_task_is_randomly_initialized(make_bert, imported, refused):
    theirs = make_bert("tagging")
    assert "no such classifier, so a new one would be randomly initialized" in refused(
        *(theirs, "--head", "classification")
    )
    words = ("--head", "classification", "--labels", "a", "b", "c", "d")
    output, ours = imported(theirs, *words)
    assert (
        "  - classifier.kernel: randomly initialized" in output
        and "  - pooler.dense.bias" in output
    )
    assert "  + classifier.weight: left out because the classifier is replaced with" in output
    kernel = load_model(str(ours)).model.classifier.kernel[...]
    assert kernel.shape == (32, 4)
    assert not np.array_equal(kernel, tensors_of(theirs)["classifier.weight"].T)


def test_a_classifier_with_other_labels(make_bert, imported):
    theirs = make_bert("classification")
    words = (theirs, "--head", "classification", "--labels")
    output, ours = imported(*words, "x", "y", "z")
    assert "the scores of the source's classifier are now x, y, z" in output
    kernel = load_model(str(ours)).model.classifier.kernel[...]
    np.testing.assert_array_equal(kernel, tensors_of(theirs)["classifier.weight"].T)
    output, ours = imported(*words, "yes", "no", name="fewer")
    assert "  - classifier.kernel: randomly initialized" in output and "left out" in output
    assert load_model(str(ours)).model.classifier.kernel.shape == (32, 2)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--labels", "a", ""), "--labels=('a', ''): contains an empty name"),
        (("--labels", " ", "a"), "--labels=(' ', 'a'): contains an empty name"),
        (("--labels", "a", "a"), "--labels=('a', 'a'): expected a tuple of distinct strings"),
        (("--labels", "a", "b\tc"), "--labels: 'b\\tc' contains a tab or a line break"),
        (("--seed", "-1"), "--seed=-1: must be between 0 and 2^32 - 1"),
        (("--seed", str(1 << 32)), "--seed=4294967296: must be between 0 and 2^32 - 1"),
    ],
)
def test_labels_and_seeds_are_checked_before_the_source(words, message, refused):
    assert message in refused("no/such-model", *words)


def test_functions_check_seeds_and_labels_too():
    with pytest.raises(ValueError, match="seed=-1: must be between 0"):
        random_probe(100, 2, 8, seed=-1)
    with pytest.raises(ValueError, match=r"labels=\('a', ''\): contains an empty name"):
        ImportOptions(labels=("a", ""))


@pytest.mark.parametrize("gone", ["classifier.bias", "bert.pooler.dense.bias"])
def test_an_incomplete_head_is_refused(gone, make_bert, refused):
    theirs = make_bert("classification")
    change_tensors(theirs, lambda tensors: tensors.pop(gone))
    assert "MISSING" in refused(theirs, "--head", "classification")
