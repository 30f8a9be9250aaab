"""Test importing Google-style checkpoints, with optimizer slots and TensorFlow variable names."""

from __future__ import annotations

import json

import numpy as np
import pytest

from bert_jax.runs.work_dir import read_model

from .conftest import SIZES, change_tensors, tensors_of

# Variable names in the 2018 release, against which the importer's patterns are tested. Kernels are
# [in, out]; all other variables have the same layout as Hugging Face's tensors.
EMBEDDINGS = {
    "bert/embeddings/word_embeddings": "bert.embeddings.word_embeddings.weight",
    "bert/embeddings/position_embeddings": "bert.embeddings.position_embeddings.weight",
    "bert/embeddings/token_type_embeddings": "bert.embeddings.token_type_embeddings.weight",
    "bert/embeddings/LayerNorm/gamma": "bert.embeddings.LayerNorm.weight",
    "bert/embeddings/LayerNorm/beta": "bert.embeddings.LayerNorm.bias",
    "bert/pooler/dense/kernel": "bert.pooler.dense.weight",
    "bert/pooler/dense/bias": "bert.pooler.dense.bias",
}
LAYERS = {
    "attention/self/query/kernel": "attention.self.query.weight",
    "attention/self/query/bias": "attention.self.query.bias",
    "attention/self/key/kernel": "attention.self.key.weight",
    "attention/self/key/bias": "attention.self.key.bias",
    "attention/self/value/kernel": "attention.self.value.weight",
    "attention/self/value/bias": "attention.self.value.bias",
    "attention/output/dense/kernel": "attention.output.dense.weight",
    "attention/output/dense/bias": "attention.output.dense.bias",
    "attention/output/LayerNorm/gamma": "attention.output.LayerNorm.weight",
    "attention/output/LayerNorm/beta": "attention.output.LayerNorm.bias",
    "intermediate/dense/kernel": "intermediate.dense.weight",
    "intermediate/dense/bias": "intermediate.dense.bias",
    "output/dense/kernel": "output.dense.weight",
    "output/dense/bias": "output.dense.bias",
    "output/LayerNorm/gamma": "output.LayerNorm.weight",
    "output/LayerNorm/beta": "output.LayerNorm.bias",
}
HEADS = {
    "pretraining": {
        "cls/predictions/output_bias": "cls.predictions.bias",
        "cls/predictions/transform/LayerNorm/gamma": "cls.predictions.transform.LayerNorm.weight",
        "cls/predictions/transform/LayerNorm/beta": "cls.predictions.transform.LayerNorm.bias",
        "cls/predictions/transform/dense/kernel": "cls.predictions.transform.dense.weight",
        "cls/predictions/transform/dense/bias": "cls.predictions.transform.dense.bias",
        "cls/seq_relationship/output_weights": "cls.seq_relationship.weight",
        "cls/seq_relationship/output_bias": "cls.seq_relationship.bias",
    },
    "classification": {
        "output_weights": "classifier.weight",
        "output_bias": "classifier.bias",
    },
    "span": {
        "cls/squad/output_weights": "qa_outputs.weight",
        "cls/squad/output_bias": "qa_outputs.bias",
    },
}


@pytest.fixture
def make_release(make_bert, tmp_path):
    """Return a function that saves a model in Hugging Face's and Google's formats.

    The function returns the paths of both directories.
    """

    def run(head: str, more: dict[str, np.ndarray] | None = None, without: str = ""):
        theirs, release = make_bert(head), tmp_path / "release"
        release.mkdir()
        tensors = tensors_of(theirs)
        names = EMBEDDINGS | HEADS[head]
        for number in range(SIZES["num_hidden_layers"]):
            for there, here in LAYERS.items():
                names[f"bert/encoder/layer_{number}/{there}"] = (
                    f"bert.encoder.layer.{number}.{here}"
                )
        variables = {}
        for there, here in names.items():
            if here in tensors and there != without:
                values = tensors.pop(here)
                variables[there] = values.T if there.endswith("/kernel") else values
        assert not tensors or without
        for name in list(variables):
            for slot in ("adam_m", "adam_v"):
                variables[f"{name}/{slot}"] = np.zeros_like(variables[name])
        variables |= {"global_step": np.int64(1_000_000), **(more or {})}
        save(release / "bert_model.ckpt", variables)
        config = json.loads((theirs / "config.json").read_text())
        recorded = {**SIZES, "hidden_act": "gelu", "type_vocab_size": config["type_vocab_size"]}
        recorded |= {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
        (release / "bert_config.json").write_text(json.dumps(recorded))
        (release / "vocab.txt").write_bytes((theirs / "vocab.txt").read_bytes())
        return theirs, release

    return run


def save(prefix, variables: dict[str, np.ndarray]) -> None:
    import tensorflow  # Import TensorFlow only here, so that the other tests run without it.

    tensorflow.raw_ops.SaveV2(
        prefix=str(prefix),
        tensor_names=list(variables),
        shape_and_slices=[""] * len(variables),
        tensors=[tensorflow.constant(value) for value in variables.values()],
    )


@pytest.mark.parametrize("head", ["pretraining", "span"])
@pytest.mark.parametrize("path", ["", "bert_model.ckpt", "bert_model.ckpt.index"])
def test_a_release_is_imported(head, path, make_release, bert_jax_here, tmp_path):
    theirs, release = make_release(head)
    ours = tmp_path / "ours"
    imported = bert_jax_here("import", release / path, "--output", ours)
    assert imported.code == 0, imported.errors
    # The step and the two optimizer slots for each variable are left out. The release's span models
    # also have a pooler, whose slots are left out too.
    assert "optimizer variables are left out" in imported.output
    assert "UNEXPECTED" not in imported.output and "adam" not in imported.output
    compared = bert_jax_here("verify", theirs, ours)
    assert compared.code == 0, compared.output
    assert read_model(ours)[0].head == head


@pytest.mark.parametrize("path", ["", "bert_model.ckpt", "bert_model.ckpt.index"])
def test_a_release_is_compared_without_being_imported(path, make_release, bert_jax_here):
    """Test comparing a release with the same weights in a Hugging Face directory."""
    theirs, release = make_release("pretraining")
    compared = bert_jax_here("verify", release / path, theirs)
    assert compared.code == 0, compared.output + compared.errors
    assert "(TensorFlow checkpoint, pretraining)" in compared.output
    # The sentences are tokenized with the release's vocab.txt.
    assert "sentences: " in compared.output

    def change(tensors):
        tensors["bert.pooler.dense.bias"] = tensors["bert.pooler.dense.bias"] + 0.1

    change_tensors(theirs, change)
    compared = bert_jax_here("verify", theirs, release / path)
    assert compared.code == 1 and "NOT within 0.0001" in compared.output


def test_a_release_and_its_import_are_bitwise_equal(make_release, bert_jax_here, tmp_path):
    _, release = make_release("span")
    assert bert_jax_here("import", release, "--output", tmp_path / "ours").code == 0
    compared = bert_jax_here("verify", release, tmp_path / "ours", "--tolerance", "0")
    assert compared.code == 0, compared.output + compared.errors


def test_the_error_for_a_release_that_needs_an_option_has_advice(make_release, bert_jax_here):
    theirs, release = make_release("classification")
    refused = bert_jax_here("verify", release, theirs)
    assert refused.code == 2 and "Set --head to one of classification" in refused.errors
    assert "compare the resulting work directory instead" in refused.errors


def test_a_classifier_of_the_release(make_release, bert_jax_here, tmp_path):
    theirs, release = make_release("classification")
    refused = bert_jax_here("import", release, "--output", tmp_path / "ours")
    assert refused.code == 2 and "Set --head to one of classification" in refused.errors
    words = ("import", release, "--output", tmp_path / "ours", "--head", "classification")
    assert bert_jax_here(*words).code == 0
    assert read_model(tmp_path / "ours")[0].labels == ("LABEL_0", "LABEL_1", "LABEL_2")
    assert bert_jax_here("verify", theirs, tmp_path / "ours").code == 0


def test_unexplained_tensors_are_refused(make_release, bert_jax_here, tmp_path):
    gone = "bert/encoder/layer_1/intermediate/dense/bias"
    more = {"bert/encoder/layer_2/output/dense/bias": np.zeros(32, np.float32)}
    _, release = make_release("pretraining", more, without=gone)
    refused = bert_jax_here("import", release, "--output", tmp_path / "ours")
    assert refused.code == 2 and not (tmp_path / "ours").exists()
    assert "- encoder.layers.1.ffn.up.bias (source: bert.encoder.layer.1.intermediate" in (
        refused.errors
    )
    assert "+ bert.encoder.layer.2.output.dense.bias [32]: UNEXPECTED" in refused.errors


def test_damage_is_reported(make_release, bert_jax_here, tmp_path):
    _, release = make_release("pretraining")
    words = ("import", release, "--output", tmp_path / "ours")
    [data] = release.glob("bert_model.ckpt.data-*")
    whole = data.read_bytes()
    # Cut off some of the parameters too, not just the optimizer moments that follow them.
    data.write_bytes(whole[: len(whole) // 8])
    refused = bert_jax_here(*words)
    assert refused.code == 2 and "bert_model.ckpt: " in refused.errors
    data.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
    refused = bert_jax_here(*words)
    assert refused.code == 2 and "cannot be read" in refused.errors
    data.write_bytes(whole)
    (release / "bert_model.ckpt.index").write_bytes(b"")
    assert "TensorFlow cannot read it" in bert_jax_here(*words).errors
    (release / "bert_config.json").unlink()
    assert "no bert_config.json in the same directory" in bert_jax_here(*words).errors
    (release / "other.ckpt.index").write_bytes(b"")
    assert "contains multiple checkpoints" in bert_jax_here(*words).errors
    assert not (tmp_path / "ours").exists()
