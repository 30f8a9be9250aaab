"""Test parameter counts, initialization and the flat dict of parameters."""

import math
import re

import jax
import numpy as np
import pytest
import torch
import transformers

from bert_jax.models.compute_config import ComputeConfig
from bert_jax.models.config import EncoderConfig
from bert_jax.models.model import ModelConfig, define_model
from bert_jax.models.parameters import ModelDefinition, count
from bert_jax.models.pretraining_models import PretrainingModel
from bert_jax.models.variants import VARIANTS, variant
from bert_jax.tasks.pretraining import Pretraining

BERTS = ("tiny", "mini", "small", "medium", "base", "large")
FLOAT32 = ComputeConfig(dtype="float32", attention="xla")


def definition_of(config: EncoderConfig) -> ModelDefinition[PretrainingModel]:
    return Pretraining(config, FLOAT32).definition


def part(definition: ModelDefinition[PretrainingModel], *prefixes: str) -> int:
    return count({n: s for n, s in definition.shapes.items() if n.startswith(prefixes)})


@pytest.fixture(scope="module")
def tiny() -> ModelDefinition[PretrainingModel]:
    return definition_of(variant("tiny", vocab_size=500, num_layers=1))


@pytest.mark.parametrize("name", BERTS)
def test_parameter_counts_of_bert_match_hugging_face(name: str) -> None:
    config = variant(name)
    hf_config = transformers.BertConfig(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_dim,
        num_hidden_layers=config.num_layers,
        num_attention_heads=config.num_heads,
        intermediate_size=config.ffn_dim,
    )
    with torch.device("meta"):
        whole = transformers.BertForPreTraining(hf_config)
    definition = definition_of(config)
    assert count(definition.shapes) == whole.num_parameters()
    assert part(definition, "encoder.", "pooler.") == whole.bert.num_parameters()


def theirs_of(name: str, config: EncoderConfig) -> tuple[torch.nn.Module, torch.nn.Module]:
    """Return Hugging Face's (bare, pretraining) models; `bare` has a pooler if its family does."""
    sizes = dict(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_dim,
        num_hidden_layers=config.num_layers,
        num_attention_heads=config.num_heads,
        intermediate_size=config.ffn_dim,
    )
    if name.startswith("roberta"):
        roberta = transformers.RobertaConfig(
            max_position_embeddings=514, type_vocab_size=1, **sizes
        )
        return transformers.RobertaModel(roberta), transformers.RobertaForMaskedLM(roberta)
    if name.startswith("albert"):
        albert = transformers.AlbertConfig(embedding_size=128, **sizes)
        return transformers.AlbertModel(albert), transformers.AlbertForPreTraining(albert)
    if name.startswith("electra"):
        electra = transformers.ElectraConfig(embedding_size=config.table_dim, **sizes)
        is_generator = name.endswith("generator")
        whole = (
            transformers.ElectraForMaskedLM if is_generator else transformers.ElectraForPreTraining
        )
        return transformers.ElectraModel(electra), whole(electra)
    if name.startswith("modernbert"):
        modernbert = transformers.ModernBertConfig(**sizes)
        return transformers.ModernBertModel(modernbert), transformers.ModernBertForMaskedLM(
            modernbert
        )
    distilbert = transformers.DistilBertConfig(
        vocab_size=config.vocab_size,
        dim=config.hidden_dim,
        n_layers=config.num_layers,
        n_heads=config.num_heads,
        hidden_dim=config.ffn_dim,
    )
    return (
        transformers.DistilBertModel(distilbert),
        transformers.DistilBertForMaskedLM(distilbert),
    )


# Exact parameter counts for the bare models, including a pooler if there is one. The papers give
# rounded numbers: "125M" and "355M" in Liu et al. 2019, "12M", "18M", "60M" and "235M" in Lan et
# al. 2020, "66M" in Sanh et al. 2019, "14M", "110M" and "335M" in Clark et al. 2020, and "149M" and
# "395M" in Warner et al. 2024.
PUBLISHED = {
    "roberta-base": 124_645_632,
    "roberta-large": 355_359_744,
    "albert-base-v1": 11_683_584,
    "albert-large-v1": 17_683_968,
    "albert-xlarge-v1": 58_724_864,
    "albert-xxlarge-v1": 222_595_584,
    "albert-base-v2": 11_683_584,
    "albert-large-v2": 17_683_968,
    "albert-xlarge-v2": 58_724_864,
    "albert-xxlarge-v2": 222_595_584,
    "distilbert": 66_362_880,
    "electra-small": 13_483_008,
    "electra-base": 108_891_648,
    "electra-large": 334_092_288,
    "electra-small-generator": 13_483_008,
    "electra-base-generator": 33_511_168,
    "electra-large-generator": 50_999_552,
    "modernbert-base": 149_014_272,
    "modernbert-large": 394_781_696,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameter_counts_of_other_families_match_hugging_face(name: str) -> None:
    config = variant(name)
    with torch.device("meta"):
        bare, whole = theirs_of(name, config)
    has_pooler = not name.startswith(("distilbert", "electra", "modernbert"))
    encoder = define_model(ModelConfig(config, "encoder", pooler=has_pooler), FLOAT32)
    assert PUBLISHED.keys() == VARIANTS.keys() - {*BERTS, "neobert"}
    assert count(encoder.shapes) == bare.num_parameters() == PUBLISHED[name]
    head = "pretraining" if name.startswith("albert") else "masked_lm"
    if name.startswith("electra") and not name.endswith("generator"):
        head = "replaced_token"
    assert count(define_model(ModelConfig(config, head), FLOAT32).shapes) == whole.num_parameters()


def test_neobert_has_the_parameters_that_its_configuration_implies() -> None:
    # Le Breton et al. 2025, table 1, gives 250M. In its release, the gated feed-forward layers have
    # 2/3 x 4 x 768 = 2,048 inner features, and only the output layer has a bias.
    table, layer = 30_522 * 768, 4 * 768 * 768 + 3 * 768 * 2048 + 2 * 768
    model = define_model(ModelConfig(variant("neobert"), "masked_lm"), FLOAT32)
    assert count(model.shapes) == 2 * table + 30_522 + 28 * layer + 768


def test_base_and_large_have_the_published_totals() -> None:
    # Devlin et al. 2019, section 3, gives these counts as "110M" and "340M".
    base = definition_of(variant("base"))
    assert part(base, "encoder.layers.0.attention.") == 2_362_368
    assert part(base, "encoder.layers.11.attention.") == 2_362_368
    assert part(base, "encoder.", "pooler.") == 109_482_240
    assert count(base.shapes) == 110_106_428
    large = definition_of(variant("large"))
    assert part(large, "encoder.", "pooler.") == 335_141_888
    assert count(large.shapes) == 336_226_108


def test_models_without_sentence_pairs_have_neither_pooler_nor_pair_head() -> None:
    config = variant("tiny", vocab_size=500)
    whole = definition_of(config).shapes
    without = Pretraining(config, FLOAT32, sentence_pairs="none").definition.shapes
    gone = set(whole) - set(without)
    assert gone == {
        f"{name}.{leaf}"
        for name in ("pooler.dense", "next_sentence")
        for leaf in ("bias", "kernel")
    }


def test_sinusoidal_positions_and_no_segments_have_no_parameters() -> None:
    config = variant("tiny", vocab_size=8, positions="sinusoidal", num_segments=0)
    names = definition_of(config).shapes
    assert "encoder.embeddings.token" in names
    assert not {"encoder.embeddings.position", "encoder.embeddings.segment"} & set(names)


def test_initial_parameters_are_distributed_as_in_the_original_release(
    tiny: ModelDefinition[PretrainingModel],
) -> None:
    params = jax.jit(tiny.init)(jax.random.key(3))
    assert {name: (p.shape, p.dtype) for name, p in params.items()} == {
        name: (s.shape, s.dtype) for name, s in tiny.shapes.items()
    }
    # Truncating a normal distribution at two standard deviations reduces its standard deviation to
    # 0.8796 of the original (Johnson et al. 1994, 13.10).
    phi = math.exp(-2) / math.sqrt(2 * math.pi)
    expected = 0.02 * math.sqrt(1 - 4 * phi / math.erf(math.sqrt(2)))
    for name, value in jax.device_get(params).items():
        if name.endswith(".bias"):
            assert not value.any(), name
        elif name.endswith(".scale"):
            assert (value == 1).all(), name
        else:
            assert np.abs(value).max() <= 0.04, name
            error = 5 * expected / math.sqrt(2 * value.size)
            assert value.std() == pytest.approx(expected, abs=error), name
            assert abs(value.mean()) < 5 * expected / math.sqrt(value.size), name
    kernels = [value for value in params.values() if value.shape == (128, 128)]
    assert len({value.tobytes() for value in jax.device_get(kernels)}) == len(kernels)


def test_initialization_depends_only_on_the_key(tiny: ModelDefinition[PretrainingModel]) -> None:
    init = jax.jit(tiny.init)
    first, again, other = (jax.device_get(init(jax.random.key(n))) for n in (1, 1, 2))
    name = "encoder.layers.0.ffn.up.kernel"
    np.testing.assert_array_equal(first[name], again[name])
    assert (first[name] != other[name]).mean() > 0.99


def test_a_module_and_its_flat_parameters_correspond(
    tiny: ModelDefinition[PretrainingModel],
) -> None:
    # Fill each parameter with a different number to check that every name refers to its own leaf.
    values = {n: np.full(s.shape, i, np.float32) for i, (n, s) in enumerate(tiny.shapes.items())}
    module = tiny.module(values)
    layer = module.encoder.layers[0]
    assert (
        layer.attention.query.kernel[...] == values["encoder.layers.0.attention.query.kernel"]
    ).all()
    assert (layer.ffn.down.bias[...] == values["encoder.layers.0.ffn.down.bias"]).all()
    assert (module.masked_lm.bias[...] == values["masked_lm.bias"]).all()


def test_wrong_names_are_listed(tiny: ModelDefinition[PretrainingModel]) -> None:
    params: dict[str, object] = dict(tiny.shapes)
    del params["pooler.dense.bias"]
    params["pooler.weight"] = None
    message = "(- missing, + unexpected):\n  - pooler.dense.bias\n  + pooler.weight"
    with pytest.raises(ValueError, match=re.escape(message)):
        tiny.module(params)  # type: ignore[arg-type]
