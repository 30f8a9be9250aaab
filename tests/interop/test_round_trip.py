"""Test, for every head, that importing and exporting BERT preserves its outputs and tensors."""

from __future__ import annotations

import json
import shutil

import jax.numpy as jnp
import numpy as np
import pytest
import transformers

from bert_jax.interop.huggingface.families import origins
from bert_jax.models.compute_config import ComputeConfig
from bert_jax.models.config import EncoderConfig
from bert_jax.models.model import ModelConfig, define_model
from bert_jax.runs.work_dir import read_model
from bert_jax.training.checkpoint import Checkpointer
from bert_jax.training.checkpoint_files import CheckpointConfig
from bert_jax.training.checkpoint_parameters import load_parameters
from bert_jax.training.sharding import MeshConfig, make_mesh, parameter_shardings
from bert_jax.training.state import TrainState

from .conftest import ARCHITECTURES, LABELS, tensors_of


@pytest.mark.parametrize("head", ARCHITECTURES)
def test_import_and_export(head, make_bert, bert_jax_here, tmp_path):
    theirs, ours, back = make_bert(head), tmp_path / "ours", tmp_path / "back"
    imported = bert_jax_here("import", theirs, "--output", ours)
    assert imported.code == 0, imported.errors
    assert f"{len(tensors_of(theirs))} parameters imported" in imported.output
    assert "  - " not in imported.output and "  + " not in imported.output

    verified = bert_jax_here("verify", theirs, ours)
    assert verified.code == 0, verified.output + verified.errors
    assert "not compared" not in verified.output
    for row in ("embeddings", "layer 1", "layer 2", "last layer"):
        assert f"\n{row} " in verified.output

    exported = bert_jax_here("export", ours, "--format", "huggingface", "--output", back)
    assert exported.code == 0, exported.errors
    expected, found = tensors_of(theirs), tensors_of(back)
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)
        assert found[name].dtype == np.float32
    model, loading = getattr(transformers, ARCHITECTURES[head]).from_pretrained(
        back, output_loading_info=True
    )
    assert not any(loading[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert list(model.config.id2label.values()) == LABELS.get(head, ["LABEL_0", "LABEL_1"])
    assert bert_jax_here("verify", ours, back).code == 0
    again = bert_jax_here("import", back, "--output", tmp_path / "again")
    assert again.code == 0, again.errors
    assert bert_jax_here("verify", ours, tmp_path / "again", "--tolerance", "1e-30").code == 0


def test_auto_classes_load_exported_models(make_bert, bert_jax_here, tmp_path):
    ours, back = tmp_path / "ours", tmp_path / "back"
    assert bert_jax_here("import", make_bert(), "--output", ours).code == 0
    assert bert_jax_here("export", ours, "--format", "huggingface", "--output", back).code == 0
    for auto, architecture in (
        (transformers.AutoModelForPreTraining, "BertForPreTraining"),
        (transformers.AutoModel, "BertModel"),
        (transformers.AutoModelForMaskedLM, "BertForMaskedLM"),
    ):
        model, loading = auto.from_pretrained(back, output_loading_info=True)
        assert type(model).__name__ == architecture
        assert not loading["missing_keys"]
    tokenizer = transformers.AutoTokenizer.from_pretrained(back)
    assert tokenizer.model_max_length == 40
    pair = tokenizer("ab. c", "d?", return_tensors="pt")
    assert pair["token_type_ids"].tolist() == [[0, 0, 0, 0, 0, 0, 1, 1, 1]]
    # The model card begins with front matter for the Hugging Face Hub.
    card = (back / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: transformers\npipeline_tag: fill-mask\n")
    assert "| hidden_dim | 32 |" in card
    # The card contains no local paths.
    assert "- source: theirs\n" in card and str(tmp_path) not in card
    (back / "README.md").write_text(f"{card}\nOur own words.\n")
    assert bert_jax_here("import", back, "--output", tmp_path / "again").code == 0
    (back / "config.json").write_text((back / "config.json").read_text() + "\n")
    refused = bert_jax_here("import", back, "--output", tmp_path / "not")
    assert refused.code == 2 and "config.json: differs from its checksum" in refused.errors


def test_a_label_with_a_bar_does_not_break_the_model_card(make_bert, bert_jax_here, tmp_path):
    ours, back = tmp_path / "ours", tmp_path / "back"
    head = ("--head", "classification", "--labels", "either|or", "none")
    assert bert_jax_here("import", make_bert(), "--output", ours, *head).code == 0
    assert bert_jax_here("export", ours, "--format", "huggingface", "--output", back).code == 0
    assert "| labels | either\\|or, none |\n" in (back / "README.md").read_text()


@pytest.mark.parametrize(
    ("part", "architecture"),
    [
        ("encoder", "BertModel"),
        ("masked_lm", "BertForMaskedLM"),
        ("next_sentence", "BertForNextSentencePrediction"),
    ],
)
def test_a_part_is_exported(part, architecture, make_bert, bert_jax_here, tmp_path):
    theirs, ours, back = make_bert(), tmp_path / "ours", tmp_path / "back"
    assert bert_jax_here("import", theirs, "--output", ours).code == 0
    words = ("export", ours, "--format", "huggingface", "--output", back, "--head", part)
    assert bert_jax_here(*words).code == 0
    model, loading = getattr(transformers, architecture).from_pretrained(
        back, output_loading_info=True
    )
    assert not any(loading[key] for key in ("missing_keys", "unexpected_keys"))
    compared = bert_jax_here("verify", back, theirs)
    assert compared.code == 0, compared.output


def test_a_missing_head_is_refused(make_bert, bert_jax_here, tmp_path):
    ours = tmp_path / "ours"
    assert bert_jax_here("import", make_bert("masked_lm"), "--output", ours).code == 0
    for part in ("pretraining", "span", "next_sentence"):
        words = ("export", ours, "--format", "huggingface", "--output", tmp_path / "x")
        refused = bert_jax_here(*words, "--head", part)
        assert refused.code == 2
        assert f"--head {part}: not contained in a model with head='masked_lm'" in refused.errors
    assert not (tmp_path / "x").exists()


def test_a_bare_model_without_a_pooler(make_bert, bert_jax_here, tmp_path):
    theirs = make_bert("encoder", name="with")
    model = transformers.BertModel.from_pretrained(theirs, add_pooling_layer=False)
    model.save_pretrained(tmp_path / "without")
    (tmp_path / "without/vocab.txt").write_bytes((theirs / "vocab.txt").read_bytes())
    ours = tmp_path / "ours"
    assert bert_jax_here("import", tmp_path / "without", "--output", ours).code == 0
    assert json.loads((ours / "model.json").read_text())["model"]["pooler"] is False
    compared = bert_jax_here("verify", ours, theirs)
    assert compared.code == 0
    assert "only one of the models has them: pooled output" in compared.output


def test_models_without_a_hugging_face_class_are_not_exported(make_bert, bert_jax_here, tmp_path):
    ours = tmp_path / "ours"
    assert bert_jax_here("import", make_bert(), "--output", ours).code == 0
    file = ours / "model.json"
    content = json.loads(file.read_text())
    content["model"]["encoder"]["pooler_activation"] = "relu"
    file.write_text(json.dumps(content))
    words = ("export", ours, "--format", "huggingface", "--output", tmp_path / "back")
    refused = bert_jax_here(*words)
    assert refused.code == 2 and "onnx and stablehlo support every model" in refused.errors
    assert {path.name for path in tmp_path.iterdir()} == {"theirs", "ours"}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (dict(norm="pre"), "model.norm='pre' is not supported by Hugging Face's BERT"),
        (dict(positions="sinusoidal"), "model.positions='sinusoidal' is not supported by"),
        (dict(num_segments=0), "DistilBERT has no class for the 'pretraining' head"),
    ],
)
def test_only_supported_models_have_tensor_names(changes, words):
    with pytest.raises(ValueError, match=words):
        origins(ModelConfig(EncoderConfig(**changes)))


def test_an_output_that_exists_is_kept(make_bert, bert_jax_here, tmp_path):
    (tmp_path / "ours").mkdir()
    (tmp_path / "ours/thesis.txt").write_text("mine")
    refused = bert_jax_here("import", make_bert(), "--output", tmp_path / "ours")
    assert refused.code == 2 and "already exists" in refused.errors
    assert [path.name for path in (tmp_path / "ours").iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize("axes", [dict(), dict(data=2, fsdp=4), dict(data=2, fsdp=2, tensor=2)])
def test_the_mesh_does_not_change_the_exported_tensors(axes, make_bert, bert_jax_here, tmp_path):
    theirs, ours, back = make_bert(), tmp_path / "ours", tmp_path / "back"
    assert bert_jax_here("import", theirs, "--output", ours).code == 0
    config, _ = read_model(ours)
    definition = define_model(config, ComputeConfig(dtype="float32", attention="xla"))
    mesh = make_mesh(MeshConfig(**axes))
    assert mesh.size == 8
    shardings = parameter_shardings(definition.shapes, definition.logical_axes, mesh)
    params = load_parameters(ours / "checkpoints", definition, shardings)
    kernel = params["encoder.layers.0.ffn.up.kernel"]
    parts = axes.get("fsdp", 1) * axes.get("tensor", 1)
    assert kernel.addressable_shards[0].data.size == kernel.size / parts
    # Save the parameters the way a run on this mesh would, after a step that changes nothing.
    shutil.rmtree(ours / "checkpoints")
    state = TrainState(jnp.int32(1), params, (jnp.zeros(()),))
    with Checkpointer(ours / "checkpoints", CheckpointConfig(), {}) as checkpointer:
        checkpointer.save(state, None)
    assert bert_jax_here("export", ours, "--format", "huggingface", "--output", back).code == 0
    expected, found = tensors_of(theirs), tensors_of(back)
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)


@pytest.mark.slow
def test_pretraining_continues_from_an_imported_model(
    make_bert, bert_jax_here, tiny_config, tmp_path
):
    theirs, ours = make_bert(name="theirs", vocab_size=300, hidden_size=16), tmp_path / "ours"
    words = ("import", theirs, "--output", ours, "--tokenizer", tiny_config.parent / "tokenizer")
    assert bert_jax_here(*words).code == 0
    settings = [f"work_dir={tmp_path / 'run'}", f"init_from={ours}", "model.ffn_dim=48"]
    settings += ["model.max_positions=40", "phases.phase1.num_steps=2", "optimizer.name=adamw"]
    settings += ["optimizer.peak_learning_rate=0.0", "optimizer.warmup_steps=0"]
    settings += ["model.num_heads=4", "mesh.fsdp=4"]
    # Keep only the first phase, since the sequences in the recipe's second phase are longer than
    # this model supports.
    config = tmp_path / "config.py"
    lines = [line for line in tiny_config.read_text().splitlines() if "phase2=" not in line]
    config.write_text("\n".join(lines))
    finished = bert_jax_here("pretrain", "--config", config, *(f"--config.{s}" for s in settings))
    assert finished.code == 0, finished.errors
    assert f"start      the parameters of {ours}\n" in finished.output
    out = tmp_path / "out"
    words = ("export", tmp_path / "run", "--format", "huggingface", "--output", out)
    assert bert_jax_here(*words).code == 0
    for name, array in tensors_of(theirs).items():
        np.testing.assert_array_equal(tensors_of(out)[name], array, err_msg=name)
