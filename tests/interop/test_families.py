"""Test importing and exporting families other than BERT with every head."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import onnxruntime
import pytest
import transformers

from bert_jax.inference.classify import Classify
from bert_jax.inference.fill_mask import NextSentence
from bert_jax.interop.huggingface.families import family_of, origins
from bert_jax.models.config import EncoderConfig
from bert_jax.models.model import ModelConfig, part_of
from bert_jax.models.variants import variant
from bert_jax.runs.work_dir import read_model
from bert_jax.tokenizers.tokenizer import Tokenizer

from .conftest import LABELS, card_code, change_config, tensors_of
from .families import CASES, CONFIGS, HEADS, class_of, make, make_other_roberta

TITLES = {
    "Roberta": "RoBERTa",
    "Albert": "ALBERT",
    "DistilBert": "DistilBERT",
    "Electra": "ELECTRA",
    "ModernBert": "ModernBERT",
}
IDS = [f"{family}-{head}" for family, head in CASES]


@pytest.mark.parametrize(("family", "head"), CASES, ids=IDS)
def test_import_and_export(family, head, bert_jax_here, tmp_path, monkeypatch):
    theirs, ours, back = tmp_path / "theirs", tmp_path / "ours", tmp_path / "back"
    make(theirs, family, head)
    imported = bert_jax_here("import", theirs, "--output", ours)
    assert imported.code == 0, imported.errors
    # Four of ModernBERT's tensors each contain several parameters.
    more = {"ModernBert": 2 * (2 + 1)}.get(family, 0)
    assert f"{len(tensors_of(theirs)) + more} parameters imported" in imported.output
    assert "  - " not in imported.output and "  + " not in imported.output
    assert f"ours: {TITLES[family]} ({head!r} head)" in imported.output

    if head == "pretraining":  # Only ALBERT has this head.
        with pytest.raises(
            ValueError, match="trained to predict whether two sentences are in order"
        ):
            NextSentence(ours)

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
    model, loading = class_of(family, head).from_pretrained(back, output_loading_info=True)
    assert not any(loading[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    if head in LABELS:
        assert list(model.config.id2label.values()) == LABELS[head]
    monkeypatch.chdir(back)
    names: dict[str, object] = {}
    exec(card_code(back), names)
    assert names["outputs"]


@pytest.mark.parametrize(
    ("name", "head"),
    [*(("XLMRoberta", head) for head in HEADS), ("Camembert", "masked_lm"), ("Camembert", "span")],
)
def test_other_names_of_roberta(name, head, bert_jax_here, tmp_path):
    """Test XLM-RoBERTa and CamemBERT, which are exported as RoBERTa with a different vocabulary."""
    theirs, ours, back = tmp_path / "theirs", tmp_path / "ours", tmp_path / "back"
    make_other_roberta(theirs, name, head)
    imported = bert_jax_here("import", theirs, "--output", ours)
    assert imported.code == 0, imported.errors
    assert f"ours: RoBERTa ({head!r} head)" in imported.output
    assert "  - " not in imported.output and "  + " not in imported.output
    words = ("export", ours, "--format", "huggingface", "--output", back)
    assert bert_jax_here(*words).code == 0
    assert type(transformers.AutoConfig.from_pretrained(back)).__name__ == "RobertaConfig"
    for other in (ours, back):
        verified = bert_jax_here("verify", theirs, other)
        assert verified.code == 0, verified.output + verified.errors
        assert "not compared" not in verified.output
    tokenizer = Tokenizer.load(ours / "tokenizer")
    drawn = {token for token, at in tokenizer.vocabulary.items() if at in tokenizer.random_ids}
    assert {"▁it", "é"} <= drawn and not any(token.endswith("NOTUSED") for token in drawn)
    before, after = map(transformers.AutoTokenizer.from_pretrained, (theirs, back))
    pairs = [("it rains so wet", "a<mask> b"), ("é", "it  rains ?")]
    assert after(pairs)["input_ids"] == before(pairs)["input_ids"]
    assert (after.pad_token_id, after.cls_token_id) == (before.pad_token_id, before.cls_token_id)


def test_a_class_of_another_task_is_recognized_by_its_other_name(bert_jax_here, tmp_path):
    make_other_roberta(tmp_path / "theirs", "XLMRoberta", "tagging")
    words = ("--head", "classification", "--output", tmp_path / "ours")
    refused = bert_jax_here("import", tmp_path / "theirs", *words)
    assert (
        refused.code == 2
        and "no such classifier, so a new one would be randomly initialized" in refused.errors
    )


@pytest.mark.parametrize("form", ["onnx", "stablehlo"])
@pytest.mark.parametrize(
    ("family", "head"),
    [
        ("Roberta", "classification"),
        ("Albert", "pretraining"),
        ("DistilBert", "classification"),
        ("Electra", "classification"),
        ("Electra", "replaced_token"),
        ("ModernBert", "classification"),
        *(
            pytest.param(family, head, marks=pytest.mark.slow)
            for family in ("Electra", "ModernBert")
            for head in ("masked_lm", "tagging", "span")
        ),
    ],
)
def test_other_formats(form, family, head, bert_jax_here, tmp_path):
    theirs, ours, out = tmp_path / "theirs", tmp_path / "ours", tmp_path / "out"
    make(theirs, family, head)
    assert bert_jax_here("import", theirs, "--output", ours).code == 0
    words = ("export", ours, "--format", form, "--output", out, "--hidden-states")
    assert bert_jax_here(*words).code == 0
    verified = bert_jax_here("verify", theirs, out)
    assert verified.code == 0, verified.output + verified.errors
    assert "layer 2" in verified.output and "not compared" not in verified.output


@pytest.mark.parametrize(
    ("family", "changes"),
    [*((family, {}) for family in CONFIGS), ("Roberta", {"type_vocab_size": 2})],
)
def test_a_bare_model_becomes_a_classifier_of_pairs(family, changes, bert_jax_here, tmp_path):
    make(tmp_path / "theirs", family, "masked_lm", **changes)
    words = ("--head", "classification", "--labels", "no", "yes", "--max-positions", "20")
    imported = bert_jax_here("import", tmp_path / "theirs", "--output", tmp_path / "ours", *words)
    assert imported.code == 0, imported.errors
    assert "classifier.kernel: randomly initialized" in imported.output
    config, _ = read_model(tmp_path / "ours")
    assert (config.labels, config.encoder.max_positions) == (("no", "yes"), 20)
    words = ("export", tmp_path / "ours", "--format", "huggingface", "--output", tmp_path / "back")
    assert bert_jax_here(*words).code == 0
    model = class_of(family, "classification").from_pretrained(tmp_path / "back")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "back")
    assert tokenizer.model_max_length == 20
    pair = tokenizer("ab. c", "d?", return_tensors="pt")
    if config.encoder.num_segments > 1:
        assert sorted(set(pair["token_type_ids"][0].tolist())) == [0, 1]
    found = model(**pair).logits.softmax(-1)[0].tolist()
    ours = Classify(tmp_path / "ours", max_length=20)(("ab. c", "d?"))
    assert [ours.scores["no"], ours.scores["yes"]] == pytest.approx(found, abs=1e-6)


def test_encoders_are_the_families_own(bert_jax_here, tmp_path):
    expected = {
        "Roberta": dict(position_offset=2, num_segments=1, pooler_dropout=True),
        "Albert": dict(embedding_dim=16, sharing="all", num_groups=2, activation="gelu_tanh"),
        "DistilBert": dict(num_segments=0, pooler_activation="relu", max_positions=40),
        "Electra": dict(embedding_dim=16, pooler_activation="gelu", pooler_dropout=True),
        "ModernBert": dict(positions="rotary", attention_window=9, local_rotary_theta=1e4),
    }
    for family, values in expected.items():
        make(tmp_path / family, family, "masked_lm")
        assert bert_jax_here("import", tmp_path / family, "--output", tmp_path / "o").code == 0
        encoder = read_model(tmp_path / "o")[0].encoder
        assert {name: getattr(encoder, name) for name in values} == values
        (tmp_path / "o").rename(tmp_path / f"o-{family}")


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        ("Albert", dict(inner_group_num=2), "inner_group_num is 2; only 1 is supported"),
        ("Albert", dict(num_hidden_groups=3), "num_groups=3: does not divide num_layers=2"),
        ("Albert", dict(embedding_size=16.5), "embedding_size is 16.5; expected a whole number"),
        ("Electra", dict(summary_type="mean"), "summary_type is 'mean'; only 'first' is supported"),
        ("DistilBert", dict(activation="elu"), "activation is 'elu'; expected one of gelu"),
        ("ModernBert", dict(decoder_bias=False), "decoder_bias is False; only True is supported"),
        (
            "ModernBert",
            dict(mlp_bias=True),
            "attention_bias=False, mlp_bias=True, classifier_bias=False: expected the same value",
        ),
        (
            "ModernBert",
            dict(classifier_activation="relu"),
            "classifier_activation is 'relu'; only the value of hidden_activation, 'gelu', is",
        ),
        (
            "ModernBert",
            dict(layer_types=["sliding_attention", "full_attention"]),
            "layer_types is ['sliding_attention', 'full_attention']; expected 'full_attention' in",
        ),
        (
            "ModernBert",
            dict(rope_parameters={"full_attention": {"rope_type": "yarn", "rope_theta": 1e4}}),
            "rope_type is ['yarn']; only 'default' is supported",
        ),
        (
            "Roberta",
            dict(model_type="xlnet"),
            "model_type is 'xlnet'; expected one of 'bert'",
        ),
    ],
)
def test_unsupported_configs_are_refused(family, changes, message, bert_jax_here, tmp_path):
    make(tmp_path / "theirs", family, "masked_lm")
    change_config(tmp_path / "theirs", **changes)
    refused = bert_jax_here("import", tmp_path / "theirs", "--output", tmp_path / "ours")
    assert refused.code == 2 and not (tmp_path / "ours").exists()
    assert message in refused.errors


@pytest.mark.parametrize(
    ("name", "changes", "head", "message"),
    [
        ("roberta-base", {}, "pretraining", "RoBERTa has no class for the 'pretraining' head"),
        (
            "distilbert",
            {},
            "encoder",
            "a pooler on the bare encoder is not supported",
        ),
        (
            "distilbert",
            dict(pooler_activation="tanh"),
            "multiple_choice",
            "supports only 'relu'",
        ),
        (
            "albert-base-v2",
            dict(sharing="ffn"),
            "masked_lm",
            "model.sharing='ffn' is not supported by",
        ),
        ("base", dict(sharing="all"), "masked_lm", "always projects its embeddings"),
        ("base", dict(gated_ffn=True), "masked_lm", "model.gated_ffn=True is not supported by Hug"),
        ("neobert", {}, "masked_lm", "which supports only"),
        ("modernbert-base", {}, "encoder", "a pooler on the bare encoder is not supported"),
        ("albert-base-v2", dict(position_offset=2), "masked_lm", "model.position_offset or"),
        (
            "roberta-base",
            dict(activation="gelu_tanh"),
            "masked_lm",
            "which always uses 'gelu' in that head",
        ),
        (
            "electra-base",
            dict(activation="gelu_tanh"),
            "masked_lm",
            "which always uses 'gelu' in that head",
        ),
        ("electra-base", {}, "encoder", "a pooler on the bare encoder is not supported"),
        (
            "electra-base",
            dict(embedding_dim=768),
            "replaced_token",
            "projects embeddings only to a different dimension",
        ),
        ("electra-base", dict(sharing="all"), "replaced_token", "layers with their own parameters"),
        (
            "electra-base",
            dict(positions="rotary", num_segments=0, gated_ffn=True),
            "replaced_token",
            "^model.norm='post', model.first_norm=True, model.classifier_transform='pooler', "
            "model.pooler_dropout=True are not supported by Hugging Face's ModernBERT, which "
            "supports only model.norm='pre', model.first_norm=False, model.classifier_transform=",
        ),
        (
            "modernbert-base",
            {},
            "replaced_token",
            "'replaced_token' head. To export only part of the model, set head to 'encoder'$",
        ),
        (
            "roberta-base",
            dict(activation="gelu_tanh"),
            "pretraining",
            "To export only part of the model, set head to 'encoder'$",
        ),
        (
            "modernbert-base",
            {},
            "pretraining",
            "To export only part of the model, set head to 'encoder' or 'masked_lm'$",
        ),
    ],
)
def test_models_without_a_hugging_face_class_are_refused(name, changes, head, message):
    with pytest.raises(ValueError, match=message):
        origins(ModelConfig(variant(name, **changes), head))


@pytest.mark.parametrize("head", ["encoder", "masked_lm"])
def test_the_parts_named_in_a_refusal_can_be_exported(head):
    config = ModelConfig(variant("modernbert-base"), "pretraining")
    with pytest.raises(ValueError, match=f"set head to .*'{head}'"):
        origins(config)
    part = part_of(config, head)
    assert origins(dataclasses.replace(part, pooler=part.pooler and head != "encoder"))


def test_albert_without_sharing_has_one_group_per_layer():
    encoder = dataclasses.replace(
        EncoderConfig(num_layers=3, hidden_dim=24, embedding_dim=8), layer_norm_epsilon=1e-6
    )
    names = [place.name for place in origins(ModelConfig(encoder, "masked_lm")).values()]
    assert "albert.encoder.albert_layer_groups.2.albert_layers.0.ffn.weight" in names
    assert family_of(encoder).write(encoder)["num_hidden_groups"] == 3


def test_tokenizers_of_models_without_segments_return_no_type_ids(bert_jax_here, tmp_path):
    make(tmp_path / "theirs", "DistilBert", "masked_lm")
    assert bert_jax_here("import", tmp_path / "theirs", "--output", tmp_path / "ours").code == 0
    words = ("export", tmp_path / "ours", "--format", "huggingface", "--output", tmp_path / "back")
    assert bert_jax_here(*words).code == 0
    config = json.loads((tmp_path / "back/tokenizer_config.json").read_text())
    assert config["model_input_names"] == ["input_ids", "attention_mask"]
    fill = transformers.pipeline("fill-mask", model=str(tmp_path / "back"))
    assert len(fill("a[MASK]b")) == 5


def test_an_offset_that_hugging_face_cannot_express_is_refused(bert_jax_here, tmp_path):
    make(tmp_path / "theirs", "Roberta", "masked_lm")
    assert bert_jax_here("import", tmp_path / "theirs", "--output", tmp_path / "ours").code == 0
    content = json.loads((tmp_path / "ours/model.json").read_text())
    content["model"]["encoder"] |= {"position_offset": 4, "max_positions": 78}
    (tmp_path / "ours/model.json").write_text(json.dumps(content))
    words = ("export", tmp_path / "ours", "--format", "huggingface", "--output", tmp_path / "back")
    refused = bert_jax_here(*words)
    assert refused.code == 2 and "would begin at 2 instead of the trained offset" in refused.errors
    # ONNX supports the position offset. The export has no config.json, because that file could not
    # describe this model.
    onnx = tmp_path / "onnx"
    words = ("export", tmp_path / "ours", "--format", "onnx", "--output", onnx)
    assert bert_jax_here(*words).code == 0
    assert (onnx / "model.onnx").is_file() and not (onnx / "config.json").exists()


def test_one_segment_and_pairs_of_texts(bert_jax_here, make_bert, tmp_path):
    source = make_bert("classification", type_vocab_size=1)
    assert bert_jax_here("import", source, "--output", tmp_path / "ours").code == 0
    words = ("export", tmp_path / "ours", "--format", "huggingface", "--output", tmp_path / "back")
    assert bert_jax_here(*words).code == 0
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "back")
    model = class_of("Bert", "classification").from_pretrained(tmp_path / "back")
    assert model(**tokenizer("a b", "c d", return_tensors="pt")).logits.shape == (1, 3)


@pytest.mark.parametrize(("head", "rate"), [("classification", 0.2), ("tagging", 0.3)])
def test_dropout_rates_of_distilbert_classifiers(head, rate, bert_jax_here, tmp_path):
    """Test that DistilBERT's two classifiers read their dropout rates from different keys."""
    theirs, ours, back = tmp_path / "theirs", tmp_path / "ours", tmp_path / "back"
    make(theirs, "DistilBert", head)
    change_config(theirs, dropout=0.3, seq_classif_dropout=0.2)
    model = class_of("DistilBert", head).from_pretrained(theirs)
    assert model.dropout.p == rate
    assert bert_jax_here("import", theirs, "--output", ours).code == 0
    config, _ = read_model(ours)
    assert (config.head_dropout, config.encoder.hidden_dropout) == (rate, 0.3)
    exported = bert_jax_here("export", ours, "--format", "huggingface", "--output", back)
    assert exported.code == 0, exported.errors
    again = class_of("DistilBert", head).from_pretrained(back)
    assert (again.dropout.p, again.config.dropout) == (rate, 0.3)


@pytest.mark.parametrize("head", ["tagging", "multiple_choice"])
def test_a_roberta_classifier_for_another_task_is_replaced(head, bert_jax_here, tmp_path):
    """Test that the classifier's dense layer is randomly initialized too."""
    make(tmp_path / "theirs", "Roberta", head)
    words = ("--head", "classification", "--labels", "no", "yes")
    imported = bert_jax_here("import", tmp_path / "theirs", "--output", tmp_path / "ours", *words)
    assert imported.code == 0, imported.errors
    for name in ("pooler.dense.kernel", "classifier.kernel"):
        assert f"{name}: randomly initialized" in imported.output
    assert len(Classify(tmp_path / "ours")("a b").scores) == 2


def test_a_bare_distilbert_is_exported_without_the_pooler(bert_jax_here, tmp_path):
    make(tmp_path / "theirs", "DistilBert", "classification")
    assert bert_jax_here("import", tmp_path / "theirs", "--output", tmp_path / "ours").code == 0
    words = ("--head", "encoder", "--output", tmp_path / "back", "--format", "huggingface")
    exported = bert_jax_here("export", tmp_path / "ours", *words)
    assert exported.code == 0, exported.errors
    note = "NOTE  the pooler is left out, since DistilBERT's bare encoder has none"
    assert note in exported.output
    assert bert_jax_here("verify", tmp_path / "ours", tmp_path / "back").code == 0


def test_the_kind_of_sentence_pairs_is_exported_and_imported(bert_jax_here, tmp_path):
    make(tmp_path / "theirs", "Albert", "pretraining")
    assert bert_jax_here("import", tmp_path / "theirs", "--output", tmp_path / "ours").code == 0
    content = json.loads((tmp_path / "ours/model.json").read_text())
    assert content["origin"]["sentence_pairs"] == "sentence_order"
    # Hugging Face's ALBERT models never have this objective.
    content["origin"]["sentence_pairs"] = "next_sentence"
    (tmp_path / "ours/model.json").write_text(json.dumps(content))
    words = ("--format", "huggingface", "--output", tmp_path / "back")
    assert bert_jax_here("export", tmp_path / "ours", *words).code == 0
    assert bert_jax_here("import", tmp_path / "back", "--output", tmp_path / "again").code == 0
    assert read_model(tmp_path / "again")[1]["sentence_pairs"] == "next_sentence"
    class_of("Albert", "pretraining").from_pretrained(tmp_path / "back")
    (tmp_path / "back/SHA256SUMS").unlink()
    change_config(tmp_path / "back", sentence_pairs="some")
    refused = bert_jax_here("import", tmp_path / "back", "--output", tmp_path / "third")
    assert refused.code == 2 and "sentence_pairs is 'some'" in refused.errors


def test_the_tokenizer_of_an_onnx_export_returns_all_inputs(bert_jax_here, tmp_path):
    make(tmp_path / "theirs", "Roberta", "classification")
    assert bert_jax_here("import", tmp_path / "theirs", "--output", tmp_path / "ours").code == 0
    back = tmp_path / "back"
    words = ("--format", "onnx", "--output", back)
    assert bert_jax_here("export", tmp_path / "ours", *words).code == 0
    tokenizer = transformers.AutoTokenizer.from_pretrained(back)
    positions = read_model(tmp_path / "ours")[0].encoder.max_positions
    assert tokenizer.model_max_length == positions
    pairs = [("a b", "c"), ("it rains " * 40, "so wet")]
    session = onnxruntime.InferenceSession(back / "model.onnx")
    classify = Classify(tmp_path / "ours")
    for pair in pairs:
        fed = dict(tokenizer(*pair, return_tensors="np", truncation=True))
        (logits,) = session.run(None, fed)
        scores = np.exp(logits[0] - logits[0].max())
        np.testing.assert_allclose(
            scores / scores.sum(), list(classify([pair])[0].scores.values()), rtol=1e-4
        )


def test_roberta_needs_a_padding_id(bert_jax_here, tmp_path):
    make(tmp_path / "theirs", "Roberta", "masked_lm")
    file = tmp_path / "theirs/config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"pad_token_id": None}))
    refused = bert_jax_here("import", tmp_path / "theirs", "--output", tmp_path / "ours")
    assert refused.code == 2
    assert "config.json: pad_token_id is None; expected a whole number" in refused.errors


@pytest.mark.parametrize("family", ["Albert", "ModernBert"])
def test_an_untied_output_layer_is_kept(family, bert_jax_here, tmp_path):
    theirs, ours, back = tmp_path / "theirs", tmp_path / "ours", tmp_path / "back"
    make(theirs, family, "masked_lm", tie_word_embeddings=False)
    assert bert_jax_here("import", theirs, "--output", ours).code == 0
    assert not read_model(ours)[0].encoder.tied_output
    assert bert_jax_here("export", ours, "--format", "huggingface", "--output", back).code == 0
    expected, found = tensors_of(theirs), tensors_of(back)
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        # This tensor is not used, since the output layer has its own bias.
        if name != "predictions.bias":
            np.testing.assert_array_equal(found[name], array, err_msg=name)
    for other in (ours, back):
        verified = bert_jax_here("verify", theirs, other)
        assert verified.code == 0, verified.output + verified.errors
