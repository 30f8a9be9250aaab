"""FLOPs and parameters by part, against published counts and the compiler's own."""

import jax
import jax.numpy as jnp
import pytest

from bert_jax.analysis.counts import (
    counts_by_part,
    encoder_training_flops,
    layer_flops,
    parameters_by_part,
    pretraining_flops,
)
from bert_jax.models.config import ComputeConfig, EncoderConfig, variant
from bert_jax.models.encoder import Encoder, Layer, SharedLayer, apply_layer
from bert_jax.models.model import ModelConfig, define_model, infer
from bert_jax.models.parameters import count, define
from bert_jax.tasks.pretraining import Pretraining

BASE = EncoderConfig()
PLAIN = ComputeConfig(dtype="float32", attention="xla")


def test_one_base_layer_at_128_tokens_costs_what_is_published() -> None:
    layer = layer_flops(BASE, 128)
    assert layer.projections == 452_984_832
    assert layer.attention == 201_326_592
    assert layer.ffn == 1_207_959_552
    assert layer.total == 1_862_270_976


def products_of(program: str) -> int:
    """2 x (elements of the result) x (contracted size), over all dots of StableHLO text."""
    total = 0
    for line in program.split("\n"):
        if "stablehlo.dot_general" not in line:
            continue
        shapes = line.rsplit(":", 1)[1].replace("(", "").replace(")", "").split("tensor<")[1:]
        left, _, result = ([int(n) for n in s.split(">")[0].split("x")[:-1]] for s in shapes)
        contracted = line.split("contracting_dims = [")[1].split("]")[0]
        size = left[int(contracted)]
        for dim in result:
            size *= dim
        total += 2 * size
    return total


def test_the_count_is_that_of_the_products_in_the_program() -> None:
    config = variant("mini", attention_dropout=0.0, hidden_dropout=0.0)
    definition = define(lambda rngs: Layer(config, PLAIN, rngs, attention=True, ffn=True))
    x = jnp.zeros((1, 128, config.hidden_dim))

    def forward(params: dict[str, jax.Array], x: jax.Array) -> jax.Array:
        layer = definition.module(params)
        return apply_layer(config, SharedLayer(layer, layer), x, None, False, None)[0]

    text = jax.jit(forward).lower(definition.shapes, x).as_text()
    assert products_of(text) == layer_flops(config, 128).total


@pytest.mark.parametrize("learning", [0, 1, 3, 4])
def test_a_frozen_layer_costs_its_forward_pass_alone(learning: int) -> None:
    """Against the products in the program of the encoder's gradient."""
    config = variant("mini", attention_dropout=0.0, hidden_dropout=0.0)
    definition = define(lambda rngs: Encoder(config, PLAIN, rngs))
    first = config.num_layers - learning
    names = tuple(f"layers.{number}." for number in range(first, config.num_layers))
    learns = {name for name in definition.shapes if learning and name.startswith(names)}
    token_ids = jnp.zeros((1, 128), jnp.int32)

    def loss(learning: dict[str, jax.Array], frozen: dict[str, jax.Array]) -> jax.Array:
        return definition.module({**frozen, **learning})(token_ids).hidden.sum()

    parts = [
        {n: x for n, x in definition.shapes.items() if (n in learns) == which}
        for which in (True, False)
    ]
    text = jax.jit(jax.value_and_grad(loss)).lower(*parts).as_text()
    # The lowest layer that learns sends no gradient further down: no product for the input of its
    # query, key and value.
    unsent = layer_flops(config, 128).projections if learning else 0
    assert products_of(text) == encoder_training_flops(config, 128, learning) - unsent


def test_training_is_three_forward_passes_and_heads_count_only_where_used() -> None:
    flops = pretraining_flops(BASE, 512, 77, next_sentence=True)
    assert flops.layers == 12 * layer_flops(BASE, 512).total
    assert flops.masked_lm == 2 * 77 * 768 * (768 + 30_522)
    assert flops.next_sentence == 2 * 768 * (768 + 2)
    assert flops.training == 3 * (flops.layers + flops.masked_lm + flops.next_sentence)
    assert pretraining_flops(BASE, 512, 77, next_sentence=False).next_sentence == 0


def test_a_factorised_table_costs_its_own_products() -> None:
    """Against the products of the program of ALBERT's pretraining heads, but for choosing rows."""
    config = variant("albert-base-v2", vocab_size=96, num_layers=2)
    definition = define_model(ModelConfig(config), PLAIN)
    ids = jnp.zeros((1, 64), jnp.int32)

    def forward(params: dict[str, jax.Array]) -> dict[str, jax.Array]:
        return infer(definition.module(params), ids, None, None)

    text = jax.jit(forward).lower(definition.shapes).as_text()
    assert products_of(text) == pretraining_flops(config, 64, 64, next_sentence=True).forward


def test_parts_add_up_to_the_model() -> None:
    task = Pretraining(BASE, PLAIN)
    parts = counts_by_part(task.definition.shapes)
    assert sum(parts.values()) == count(task.definition.shapes) == 110_106_428
    assert parts["token embedding"] == 30_522 * 768
    # Twelve blocks of query, key, value and output projection with biases.
    assert parts["self-attention"] == 12 * 2_362_368
    assert "final LayerNorm" not in parts


def test_a_pre_norm_model_has_a_final_norm_and_nothing_unnamed() -> None:
    config = variant("tiny", norm="pre", positions="sinusoidal")
    parts = counts_by_part(Pretraining(config, PLAIN, sentence_pairs="none").definition.shapes)
    assert parts["final LayerNorm"] == 2 * 128
    assert "position embedding" not in parts and "pooler" not in parts


def test_shared_layers_are_counted_once() -> None:
    config = variant("albert-base-v2")
    task = Pretraining(config, PLAIN)
    parts = counts_by_part(task.definition.shapes)
    assert sum(parts.values()) == count(task.definition.shapes) == 11_813_810
    assert parts["self-attention"] == 2_362_368
    assert parts["embedding projection"] == 128 * 768 + 768


def test_a_parameter_of_no_known_part_is_refused() -> None:
    shapes = Pretraining(BASE, PLAIN).definition.shapes
    with pytest.raises(ValueError, match="parameter encoder.mystery belongs to no known part"):
        parameters_by_part({**shapes, "encoder.mystery": next(iter(shapes.values()))})
