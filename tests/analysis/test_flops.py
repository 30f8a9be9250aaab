"""Compare the FLOPs and parameters of each part with published counts and compiled programs."""

import jax
import jax.numpy as jnp
import pytest

from bert_jax.analysis.counts import counts_by_part, parameters_by_part
from bert_jax.analysis.flops import encoder_training_flops, layer_flops, pretraining_flops
from bert_jax.analysis.tables import parameter_table
from bert_jax.models.attention import View, window_mask
from bert_jax.models.compute_config import ComputeConfig
from bert_jax.models.config import EncoderConfig
from bert_jax.models.encoder import Encoder
from bert_jax.models.model import ModelConfig, define_model, infer
from bert_jax.models.parameters import count, define
from bert_jax.models.transformer_layer import Layer, SharedLayer, apply_layer
from bert_jax.models.variants import variant
from bert_jax.tasks.pretraining import Pretraining

BASE = EncoderConfig()
PLAIN = ComputeConfig(dtype="float32", attention="xla")


def test_flops_of_a_base_layer_match_published_numbers() -> None:
    layer = layer_flops(BASE, 128)
    assert layer.projections == 452_984_832
    assert layer.attention == 201_326_592
    assert layer.ffn == 1_207_959_552
    assert layer.total == 1_862_270_976


def products_of(program: str) -> int:
    """Return the total FLOPs of all dots in a program's StableHLO text.

    Each dot takes 2 * (elements in the result) * (contracted size) FLOPs.
    """
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


def test_flops_of_a_layer_match_the_program() -> None:
    config = variant("mini", attention_dropout=0.0, hidden_dropout=0.0)
    definition = define(lambda rngs: Layer(config, PLAIN, rngs, attention=True, ffn=True))
    x = jnp.zeros((1, 128, config.hidden_dim))

    def forward(params: dict[str, jax.Array], x: jax.Array) -> jax.Array:
        layer = definition.module(params)
        return apply_layer(config, SharedLayer(layer, layer), x, View(None, packed=False), None)[0]

    text = jax.jit(forward).lower(definition.shapes, x).as_text()
    assert products_of(text) == layer_flops(config, 128).total


@pytest.mark.parametrize("num_trainable", [0, 1, 3, 4])
def test_frozen_layers_have_no_backward_pass(num_trainable: int) -> None:
    """Compare the count with the matmuls in the program that computes the encoder's gradient."""
    config = variant("mini", attention_dropout=0.0, hidden_dropout=0.0)
    definition = define(lambda rngs: Encoder(config, PLAIN, rngs))
    first = config.num_layers - num_trainable
    prefixes = tuple(f"layers.{number}." for number in range(first, config.num_layers))
    names = {name for name in definition.shapes if num_trainable and name.startswith(prefixes)}
    token_ids = jnp.zeros((1, 128), jnp.int32)

    def loss(trainable: dict[str, jax.Array], frozen: dict[str, jax.Array]) -> jax.Array:
        return definition.module({**frozen, **trainable})(token_ids).hidden.sum()

    params = [
        {name: x for name, x in definition.shapes.items() if (name in names) == trainable}
        for trainable in (True, False)
    ]
    text = jax.jit(jax.value_and_grad(loss)).lower(*params).as_text()
    # The lowest trainable layer skips the gradient with respect to the inputs of its query, key and
    # value projections, since only the layers below would need this gradient.
    skipped = layer_flops(config, 128).projections if num_trainable else 0
    assert products_of(text) == encoder_training_flops(config, 128, num_trainable) - skipped


def test_training_flops_are_three_times_the_forward_pass_with_used_heads() -> None:
    flops = pretraining_flops(BASE, 512, 77, next_sentence=True)
    assert flops.layers == 12 * layer_flops(BASE, 512).total
    assert flops.masked_lm == 2 * 77 * 768 * (768 + 30_522)
    assert flops.next_sentence == 2 * 768 * (768 + 2)
    assert flops.training == 3 * (flops.layers + flops.masked_lm + flops.next_sentence)
    assert pretraining_flops(BASE, 512, 77, next_sentence=False).next_sentence == 0


def test_flops_of_factorized_embeddings_match_the_program() -> None:
    """Compare the count with an ALBERT program that applies both heads at all positions."""
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
    # Count query, key, value and output projections with biases in twelve layers.
    assert parts["self-attention"] == 12 * 2_362_368
    assert "final LayerNorm" not in parts


def test_all_parts_of_a_pre_norm_model_are_known() -> None:
    config = variant("tiny", norm="pre", positions="sinusoidal")
    parts = counts_by_part(Pretraining(config, PLAIN, sentence_pairs="none").definition.shapes)
    assert parts["final LayerNorm"] == 2 * 128
    assert "position embedding" not in parts and "pooler" not in parts


def test_titles_contain_the_kind_of_norm() -> None:
    config = variant("tiny", norm="pre", norm_kind="rms", norm_bias=False)
    lines = parameter_table(Pretraining(config, PLAIN).definition.shapes, config.norm_kind)
    titles = [line.split("  ")[1] for line in lines]
    assert [title for title in titles if "norm" in title.lower()] == [
        "embedding RMSNorm", "attention RMSNorm", "feed-forward RMSNorm", "final RMSNorm"
    ]  # fmt: skip


def test_shared_layers_are_counted_once() -> None:
    config = variant("albert-base-v2")
    task = Pretraining(config, PLAIN)
    parts = counts_by_part(task.definition.shapes)
    assert sum(parts.values()) == count(task.definition.shapes) == 11_813_810
    assert parts["self-attention"] == 2_362_368
    assert parts["embedding projection"] == 128 * 768 + 768


def test_unknown_parameters_are_rejected() -> None:
    shapes = Pretraining(BASE, PLAIN).definition.shapes
    with pytest.raises(
        ValueError, match="parameter encoder.mystery does not belong to any known part"
    ):
        parameters_by_part({**shapes, "encoder.mystery": next(iter(shapes.values()))})


@pytest.mark.parametrize(("length", "window"), [(12, 5), (3, 9), (7, 1)])
def test_a_local_layer_counts_only_the_pairs_in_its_window(length: int, window: int) -> None:
    config = variant(
        "mini", positions="rotary", attention_window=window, global_every=2, gated_ffn=True
    )
    dim, pairs = config.hidden_dim, int(window_mask(length, window).sum())
    layer = layer_flops(config, length, 1)
    assert layer.attention == 2 * 2 * pairs * dim + 2 * length * dim * dim
    assert layer.ffn == 3 * 2 * length * dim * config.ffn_dim
    whole = layer_flops(config, length, 0).total
    assert (
        encoder_training_flops(config, length, 1) == 2 * whole + 2 * layer.total + 2 * layer.total
    )


def test_the_masked_lm_head_is_not_called_tied_if_it_has_its_own_output_layer() -> None:
    for tied, title in (
        (True, "masked-LM head (output tied to the token embedding)"),
        (False, "masked-LM head"),
    ):
        config = variant("tiny", vocab_size=50, tied_output=tied)
        shapes = define_model(ModelConfig(config, "masked_lm"), PLAIN).shapes
        counts = counts_by_part(shapes)
        assert title in counts
        assert ("masked-LM output layer" in counts) is not tied
