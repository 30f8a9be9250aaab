"""Test that compute options do not change outputs, and which operations run in float32."""

import dataclasses
import math
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal

from bert_jax.models.compute_config import ComputeConfig
from bert_jax.models.config import EncoderConfig
from bert_jax.models.embeddings import Embeddings, sinusoidal_positions
from bert_jax.models.encoder import Encoder
from bert_jax.models.parameters import define
from bert_jax.tasks import task
from bert_jax.tasks.pretraining import Pretraining
from bert_jax.tasks.task import Metrics, cross_entropy, total_loss

CONFIG = EncoderConfig(
    vocab_size=40,
    hidden_dim=16,
    num_layers=2,
    num_heads=2,
    ffn_dim=32,
    max_positions=12,
    initializer_range=0.2,
)
PLAIN = ComputeConfig(dtype="float32", attention="xla")
Batch = dict[str, np.ndarray]
Parameters = dict[str, jax.Array]


@pytest.fixture(scope="module")
def batch(draw_document: Callable, lay_out: Callable) -> Batch:
    rng = np.random.default_rng(0)
    rows = [[draw_document(rng, size, 40) for size in sizes] for sizes in ([12], [5, 6], [4, 4])]
    return lay_out(rows, length=12, predictions=5, documents_per_row=2)


@pytest.fixture(scope="module")
def params() -> Parameters:
    definition = Pretraining(CONFIG, PLAIN).definition
    noise = np.random.default_rng(1)
    return {
        name: value + 0.1 * noise.standard_normal(value.shape, np.float32)
        for name, value in jax.jit(definition.init)(jax.random.key(0)).items()
    }


def loss_function(compute: ComputeConfig, config: EncoderConfig = CONFIG) -> Callable[..., Any]:
    """Return a function that maps (parameters, batch, dropout key) to (loss, metrics)."""
    task = Pretraining(config, compute)

    def loss(params: Parameters, batch: Any, key: jax.Array | None) -> tuple[jax.Array, Metrics]:
        metrics = task.metrics(task.definition.module(params), batch, key)
        return total_loss(task, metrics, task.loss_weights(batch)), metrics

    return loss


def value_and_grad(compute: ComputeConfig) -> Callable[..., Any]:
    return jax.jit(jax.value_and_grad(loss_function(compute), has_aux=True))


@pytest.fixture(scope="module")
def plain(params: Parameters, batch: Batch) -> Any:
    """Return ((loss, metrics), gradients) for dropout key 2 and the simplest compute options."""
    return jax.device_get(value_and_grad(PLAIN)(params, batch, jax.random.key(2)))


@pytest.mark.parametrize(
    "changes",
    [
        {"scan_layers": True},
        {"remat": "layer"},
        {"remat": "dots"},
        {"scan_layers": True, "remat": "layer"},
    ],
    ids=str,
)
def test_scanning_and_rematerialization_do_not_change_the_results(
    changes: dict[str, Any], params: Parameters, batch: Batch, plain: Any
) -> None:
    compute = dataclasses.replace(PLAIN, **changes)
    (loss, _), grads = jax.device_get(value_and_grad(compute)(params, batch, jax.random.key(2)))
    (expected, _), expected_grads = plain
    assert_allclose(loss, expected, rtol=1e-6)
    for name, gradient in grads.items():
        assert_allclose(gradient, expected_grads[name], rtol=0, atol=2e-6, err_msg=name)


@pytest.mark.slow
def test_fp8_products_do_not_depend_on_scanning_and_rematerialization(
    params: Parameters, batch: Batch
) -> None:
    fp8 = ComputeConfig(dtype="bfloat16", attention="xla", products="fp8_emulated")

    def results(**changes: Any) -> tuple[jax.Array, Parameters]:
        loss = loss_function(dataclasses.replace(fp8, **changes))
        # Without this option, XLA skips some conversions to bfloat16, but not always the same ones.
        exact = {"xla_allow_excess_precision": False}
        step = jax.jit(jax.value_and_grad(loss, has_aux=True), compiler_options=exact)
        (value, _), grads = jax.device_get(step(params, batch, jax.random.key(2)))
        return value, grads

    loss, grads = results()
    for changes in ({"remat": "layer"}, {"remat": "dots"}, {"scan_layers": True}):
        found, found_grads = results(**changes)
        assert found == loss
        for name, gradient in found_grads.items():
            assert_allclose(gradient, grads[name], rtol=0, atol=1e-6, err_msg=str((changes, name)))
    # Rounding to FP8 changes a number by up to 1/16. It must change the loss, but not by much.
    in_bfloat16, _ = results(products="dtype")
    assert 0 < abs(loss - in_bfloat16) < 0.02 * in_bfloat16


def test_rematerialization_recomputes_and_scanning_compiles_one_layer(
    params: Parameters, batch: Batch
) -> None:
    def dots(**changes: Any) -> int:
        loss = loss_function(dataclasses.replace(PLAIN, **changes))
        gradient = jax.make_jaxpr(jax.grad(lambda *args: loss(*args)[0]))
        jaxpr = gradient(params, batch, jax.random.key(0)).jaxpr
        return sum(equation.primitive.name == "dot_general" for equation in equations(jaxpr))

    # One layer's forward pass has eight matmuls: four projections, two in attention and two in the
    # FFN.
    layer, layers = 8, CONFIG.num_layers
    unrolled = dots()
    assert dots(remat="layer") > unrolled
    assert dots(scan_layers=True) == unrolled - (layers - 1) * 3 * layer
    # "dots" keeps the outputs of dense layers and of attention, but recomputes the scores.
    assert dots(remat="dots") == unrolled + layers < dots(remat="layer")


@pytest.mark.parametrize("backend", ["cudnn", "splash", "flash_gpu", "flash_tpu"])
def test_fused_attention_is_not_recomputed_if_its_results_are_kept(
    backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if backend == "cudnn":
        kernel = pytest.importorskip("jax._src.cudnn.fused_attention_stablehlo")
        if not hasattr(kernel, "check_cudnn_version"):
            pytest.skip("this version of JAX detects cuDNN differently")
        monkeypatch.setattr(kernel, "check_cudnn_version", lambda: 91_000)
    dims = dict(hidden_dim=128, num_heads=2, max_positions=128)
    config = dataclasses.replace(CONFIG, **dims, attention_dropout=0.0)
    ids = jax.ShapeDtypeStruct((2, 128), jnp.int32)

    def kernels(**changes: Any) -> int:
        compute = ComputeConfig(dtype="bfloat16", attention=backend, **changes)
        definition = define(lambda rngs: Encoder(config, compute, rngs))

        def total(params: Parameters, ids: jax.Array) -> jax.Array:
            hidden = definition.module(params)(ids, document_ids=ids).hidden
            return jnp.sum(hidden.astype(jnp.float32))

        jaxpr = jax.make_jaxpr(jax.grad(total))(definition.shapes, ids).jaxpr
        # Compilers remove calls whose results are not used, but JAX may keep them.
        used = {id(x) for body in bodies(jaxpr) for x in body.outvars}
        used |= {id(x) for equation in equations(jaxpr) for x in equation.invars}
        return sum(
            any(id(x) in used for x in equation.outvars)
            for equation in equations(jaxpr)
            if equation.primitive.name.startswith(("dot_product_attention", "pallas_call"))
        )

    assert kernels(remat="dots") == kernels() > 0
    assert kernels(remat="layer") == kernels() + config.num_layers


def test_returned_hidden_states_match_a_scan(params: Parameters, batch: Batch) -> None:
    inputs = [batch[f"{name}_ids"] for name in ("token", "segment", "position", "document")]

    @jax.jit
    def both(params: Parameters) -> Any:
        compute = dataclasses.replace(PLAIN, scan_layers=True)
        encoder = Pretraining(CONFIG, compute).definition.module(params).encoder
        return encoder(*inputs), encoder(*inputs, return_hidden_states=True)

    scanned, unrolled = both(params)
    assert scanned.hidden_states is None
    assert len(unrolled.hidden_states) == CONFIG.num_layers + 1
    assert_allclose(scanned.hidden, unrolled.hidden_states[-1], rtol=0, atol=2e-6)


ROTARY: dict[str, Any] = {"positions": "rotary", "norm": "pre"}


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize(
    "changes",
    [{}, {"norm": "pre"}, ROTARY, ROTARY | {"attention_window": 5, "global_every": 2}],
    ids=["post", "pre", "rotary", "local"],
)
def test_the_last_layer_can_be_computed_at_a_few_positions(
    changes: dict[str, Any], packed: bool, batch: Batch
) -> None:
    definition = Pretraining(dataclasses.replace(CONFIG, **changes), PLAIN).definition
    model = definition.module(definition.init(jax.random.key(2)))
    inputs = [batch[f"{name}_ids"] for name in ("token", "segment", "position", "document")]
    if not packed:
        inputs[2:] = [None, (batch["document_ids"] > 0).astype(np.int32)]
    positions = np.array([[3, 0], [11, 3], [5, 5]])
    whole = model.encoder(*inputs, packed=packed).hidden
    few = model.encoder(*inputs, packed=packed, positions=jnp.asarray(positions)).hidden
    assert_allclose(few, np.take_along_axis(np.asarray(whole), positions[..., None], 1), atol=1e-6)


def test_positions_can_be_chosen_if_layers_are_scanned(batch: Batch) -> None:
    inputs = [batch[f"{name}_ids"] for name in ("token", "segment", "position", "document")]
    positions = jnp.array([[3, 0], [11, 3], [5, 5]])
    results = []
    for scan in (False, True):
        compute = dataclasses.replace(PLAIN, scan_layers=scan)
        definition = Pretraining(CONFIG, compute).definition
        model = definition.module(definition.init(jax.random.key(2)))
        results.append(model.encoder(*inputs, positions=positions).hidden)
    assert_allclose(*results, rtol=0, atol=1e-6)


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_compute_options_do_not_change_attention_scores(norm: str, batch: Batch) -> None:
    """Also test the gradients that flow through the scores, since distillation needs them."""
    config = dataclasses.replace(CONFIG, norm=norm, sharing="all", num_groups=CONFIG.num_layers)
    inputs = [batch[f"{name}_ids"] for name in ("token", "segment", "position", "document")]
    ways = [{}, {"scan_layers": True}, {"remat": "layer"}, {"remat": "dots"}]
    results = []
    for way in ways:
        definition = Pretraining(config, dataclasses.replace(PLAIN, **way)).definition
        params = definition.init(jax.random.key(0))

        def total(params: Parameters, definition: Any = definition) -> tuple[jax.Array, Any]:
            encoder = definition.module(params).encoder
            key = jax.random.key(1)
            scores = encoder(*inputs, return_attention_scores=True, dropout_key=key)
            assert scores.hidden_states is None
            stacked = jnp.stack(scores.attention_scores)
            return jnp.sum(jnp.sin(stacked)), stacked

        gradient, scores = jax.device_get(jax.jit(jax.grad(total, has_aux=True))(params))
        results.append((scores, gradient))
    for scores, gradient in results[1:]:
        assert_allclose(scores, results[0][0], rtol=0, atol=2e-6)
        for name, value in gradient.items():
            assert_allclose(value, results[0][1][name], rtol=1e-4, atol=2e-5, err_msg=name)


def bodies(jaxpr: Any) -> Iterator[Any]:
    """Yield a program and the bodies of its loops, branches, calls and custom derivatives."""
    yield jaxpr
    for equation in jaxpr.eqns:
        for value in equation.params.values():
            for inner in value if isinstance(value, (tuple, list)) else [value]:
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns"):
                    yield from bodies(inner)


def equations(jaxpr: Any) -> Iterator[Any]:
    """Yield all operations in a program and its `bodies`."""
    for body in bodies(jaxpr):
        yield from body.eqns


def test_bfloat16_models_compute_the_documented_parts_in_float32(
    params: Parameters, batch: Batch
) -> None:
    compute = ComputeConfig(dtype="bfloat16", attention="xla")
    loss = loss_function(compute)
    jaxpr = jax.make_jaxpr(loss)(params, batch, jax.random.key(0)).jaxpr
    dtypes_by_operation: dict[str, set[str]] = {}
    for equation in equations(jaxpr):
        dtypes = {str(variable.aval.dtype) for variable in equation.invars}
        dtypes_by_operation.setdefault(equation.primitive.name, set()).update(dtypes)
    # Softmax and losses use exp, losses use log, LayerNorm statistics use rsqrt, and all of them
    # use reduce_sum. GELU uses erf and is rounded only at the end.
    for name in ("exp", "log", "rsqrt", "reduce_max", "erf"):
        assert dtypes_by_operation[name] == {"float32"}, name
    assert "bfloat16" not in dtypes_by_operation["reduce_sum"]
    assert dtypes_by_operation["dot_general"] == {"bfloat16"}
    result, metrics = jax.eval_shape(loss, params, batch, None)
    assert result.dtype == jnp.float32
    assert {leaf.dtype for leaf in jax.tree.leaves(metrics)} == {jnp.dtype("float32")}
    grads = jax.eval_shape(jax.grad(loss, has_aux=True), params, batch, None)[0]
    assert {leaf.dtype for leaf in grads.values()} == {jnp.dtype("float32")}


@pytest.mark.parametrize("num_segments", [1, 2])
@pytest.mark.parametrize("packed", [True, False])
def test_no_gradient_is_accumulated_in_bfloat16(
    num_segments: int, packed: bool, batch: Batch
) -> None:
    config = dataclasses.replace(CONFIG, num_segments=num_segments)
    compute = ComputeConfig(dtype="bfloat16", attention="xla")
    definition = define(partial(Embeddings, config, compute))
    params = jax.eval_shape(definition.init, jax.random.key(0))
    positions = batch["position_ids"] if packed else None
    segments = batch["segment_ids"] if packed else None

    def loss(params: Parameters) -> jax.Array:
        x = definition.module(params)(batch["token_ids"], segments, positions, None)
        return jnp.sum(x.astype(jnp.float32) ** 2)

    jaxpr = jax.make_jaxpr(jax.grad(loss))(params).jaxpr
    names = ("reduce_sum", "scatter-add")
    summed = {
        str(variable.aval.dtype)
        for equation in equations(jaxpr)
        if equation.primitive.name in names
        for variable in equation.invars
        if not str(variable.aval.dtype).startswith(("int", "uint"))
    }
    assert summed == {"float32"}


def test_bfloat16_is_near_float32(params: Parameters, batch: Batch, plain: Any) -> None:
    compute = ComputeConfig(dtype="bfloat16", attention="xla")
    (loss, _), grads = jax.device_get(value_and_grad(compute)(params, batch, jax.random.key(2)))
    (expected, _), expected_grads = plain
    # bfloat16's rounding error is 2^-9, so about 30 roundings in a row stay within a few percent.
    assert_allclose(loss, expected, rtol=0.02)
    for name, gradient in grads.items():
        like = expected_grads[name.replace(".key.bias", ".query.bias")]
        error = np.linalg.norm(gradient - expected_grads[name])
        assert error < 0.1 * np.linalg.norm(like), name


def test_the_gradient_of_a_frequent_token_is_accumulated_in_float32() -> None:
    # One token occurs 4,096 times, about as often as `[MASK]` in 256 sequences of 128 tokens.
    config = dataclasses.replace(CONFIG, max_positions=128, hidden_dropout=0.0)
    rng = np.random.default_rng(5)
    token_ids = np.full((32, 128), 7, np.int32)
    cotangent = rng.standard_normal((32, 128, 16)) + rng.standard_normal(16)
    grads = {}
    for dtype in ("bfloat16", "float32"):
        compute = ComputeConfig(dtype=dtype, attention="xla")
        definition = define(partial(Embeddings, config, compute))
        params = jax.jit(definition.init)(jax.random.key(0))

        def loss(params: Parameters, module: Any = definition.module) -> jax.Array:
            embedded = module(params)(token_ids, None, None, None)
            return jnp.sum(embedded.astype(jnp.float32) * cotangent)

        grads[dtype] = jax.jit(jax.grad(loss))(params)["token"][7]
    error = np.linalg.norm(grads["bfloat16"] - grads["float32"])
    assert error < 0.01 * np.linalg.norm(grads["float32"])


def test_the_loss_stays_exact_for_large_logits() -> None:
    logits = np.random.default_rng(0).normal(0, 300, (7, 11)).astype(np.float32)
    labels = np.arange(7)
    expected = torch.nn.functional.cross_entropy(
        torch.from_numpy(logits).double(), torch.from_numpy(labels), reduction="none"
    )
    computed = cross_entropy(jnp.asarray(logits), jnp.asarray(labels))
    assert_allclose(computed.loss, expected, rtol=1e-6, atol=1e-4)
    assert_allclose(computed.correct, logits.argmax(axis=1) == labels)
    weights = jnp.linspace(0.0, 2.0, len(labels))
    gradient = jax.grad(lambda x: jnp.sum(weights * cross_entropy(x, jnp.asarray(labels)).loss))
    wide = torch.from_numpy(logits).double().requires_grad_()
    losses = torch.nn.functional.cross_entropy(wide, torch.from_numpy(labels), reduction="none")
    (losses * torch.from_numpy(np.array(weights)).double()).sum().backward()
    assert_allclose(gradient(jnp.asarray(logits)), wide.grad, rtol=1e-5, atol=1e-6)
    assert (
        cross_entropy(jnp.asarray(logits, jnp.bfloat16), jnp.asarray(labels)).loss.dtype
        == jnp.float32
    )


@pytest.mark.parametrize("scale", [0.1, 10.0, 1000.0])
def test_one_pass_over_the_logits_finds_the_same_maximum_and_sum(scale: float) -> None:
    logits = np.random.default_rng(0).normal(0, scale, (50, 3001)).astype(np.float32)
    logits[0, :2000] = -np.inf
    # Sort the logits in ascending order, so that each one is a new maximum.
    logits[1] = np.sort(logits[1])
    highest, total = jax.jit(task._in_one_pass)(logits)
    assert_array_equal(highest, logits.max(axis=1))
    expected = torch.logsumexp(torch.from_numpy(logits).double(), dim=1)
    assert_allclose(np.log(np.float64(total)) + highest, expected, rtol=1e-6, atol=1e-6)


def test_only_gpus_read_the_logits_in_one_pass() -> None:
    loss = jax.grad(lambda x: jnp.sum(cross_entropy(x, jnp.zeros(4, int)).loss))
    for platform, passes in (("cpu", 2), ("tpu", 2), ("cuda", 1)):
        lowered = jax.jit(loss).trace(jnp.ones((4, 9))).lower(lowering_platforms=(platform,))
        found = re.findall(r"stablehlo.reduce\(%.*tensor<4x9xf32>", lowered.as_text())
        assert len(found) == passes, platform


@pytest.mark.parametrize("offset", [0.0, 1e4, 1e6])
def test_the_loss_and_its_gradient_do_not_depend_on_an_offset(offset: float) -> None:
    def loss(logits: jax.Array) -> jax.Array:
        return jnp.sum(cross_entropy(logits, jnp.asarray([0, 2])).loss)

    logits = jnp.asarray([[0.0, 0.0, -1.0], [3.0, 1.0, 2.0]])
    assert_allclose(loss(logits + offset), loss(logits), rtol=1e-6)
    assert_allclose(jax.grad(loss)(logits + offset), jax.grad(loss)(logits), rtol=1e-6)


def test_the_gradient_of_the_loss_contains_no_scatter() -> None:
    labels = jnp.asarray([0, 2])

    def program(loss: Callable) -> str:
        return str(jax.make_jaxpr(jax.grad(lambda x: jnp.sum(loss(x))))(jnp.ones((2, 3))))

    def plain(logits: jax.Array) -> jax.Array:
        at_label = jnp.take_along_axis(logits, labels[:, None], axis=1)[:, 0]
        return jax.nn.logsumexp(logits, axis=1) - at_label

    assert "scatter" not in program(lambda x: cross_entropy(x, labels).loss)
    assert "scatter" in program(plain)  # The custom gradient avoids this scatter.


def test_sinusoidal_positions_follow_the_formula() -> None:
    table = sinusoidal_positions(50, 12)
    assert table.shape == (50, 12)
    for position in (0, 1, 17, 49):
        for i in range(6):
            angle = position / 10_000 ** (2 * i / 12)
            assert table[position, 2 * i] == pytest.approx(math.sin(angle), abs=1e-12)
            assert table[position, 2 * i + 1] == pytest.approx(math.cos(angle), abs=1e-12)


def test_sinusoidal_positions_equal_a_learned_table(params: Parameters, batch: Batch) -> None:
    config = dataclasses.replace(CONFIG, positions="sinusoidal")
    name = "encoder.embeddings.position"
    without = {key: value for key, value in params.items() if key != name}
    table = jnp.asarray(sinusoidal_positions(CONFIG.max_positions, CONFIG.hidden_dim), "float32")
    fixed = jax.jit(loss_function(PLAIN, config))(without, batch, None)[0]
    learned = jax.jit(loss_function(PLAIN))(params | {name: table}, batch, None)[0]
    assert_allclose(fixed, learned, rtol=1e-6)


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_norm_placements_match_torch(norm: Any, batch: Batch) -> None:
    config = dataclasses.replace(CONFIG, norm=norm, layer_norm_epsilon=1e-5)
    definition = Pretraining(config, PLAIN, sentence_pairs="none").definition
    rng = np.random.default_rng(4)
    params = {
        name: 0.3 * rng.standard_normal(shape.shape, np.float32)
        for name, shape in definition.shapes.items()
    }
    assert ("encoder.final_norm.scale" in params) == (norm == "pre")
    dim = config.hidden_dim
    layer = torch.nn.TransformerEncoderLayer(
        dim,
        config.num_heads,
        config.ffn_dim,
        dropout=0.0,
        activation="gelu",
        batch_first=True,
        norm_first=norm == "pre",
    )
    final = torch.nn.LayerNorm(dim) if norm == "pre" else None
    stack = torch.nn.TransformerEncoder(
        layer, config.num_layers, norm=final, enable_nested_tensor=False
    )
    load_torch(stack, params)

    @jax.jit
    def encode(params: Parameters) -> Any:
        encoder = definition.module(params).encoder
        ids = (batch["document_ids"] == 1).astype(np.int32)
        return encoder(batch["token_ids"], None, None, ids, return_hidden_states=True)

    hidden, states, _ = jax.device_get(encode(params))
    real = batch["document_ids"] == 1
    with torch.no_grad():
        expected = stack(torch.tensor(states[0]), src_key_padding_mask=torch.from_numpy(~real))
    assert_allclose(hidden[real], expected.numpy()[real], rtol=0, atol=1e-5)
    np.testing.assert_array_equal(states[-1], hidden)


def load_torch(stack: torch.nn.TransformerEncoder, params: dict[str, np.ndarray]) -> None:
    """Copy parameters to PyTorch, which stores query, key and value in one matrix."""

    def copy(target: torch.nn.Parameter, *names: str) -> None:
        value = np.concatenate([params[name].T for name in names])
        assert target.shape == value.shape
        target.copy_(torch.from_numpy(value))

    with torch.no_grad():
        for number, layer in enumerate(stack.layers):
            prefix = f"encoder.layers.{number}"
            projections = [f"{prefix}.attention.{name}" for name in ("query", "key", "value")]
            copy(layer.self_attn.in_proj_weight, *(f"{p}.kernel" for p in projections))
            copy(layer.self_attn.in_proj_bias, *(f"{p}.bias" for p in projections))
            copy(layer.self_attn.out_proj.weight, f"{prefix}.attention.output.kernel")
            copy(layer.self_attn.out_proj.bias, f"{prefix}.attention.output.bias")
            for module, name in ((layer.linear1, "ffn.up"), (layer.linear2, "ffn.down")):
                copy(module.weight, f"{prefix}.{name}.kernel")
                copy(module.bias, f"{prefix}.{name}.bias")
            for module, name in ((layer.norm1, "attention_norm"), (layer.norm2, "ffn_norm")):
                copy(module.weight, f"{prefix}.{name}.scale")
                copy(module.bias, f"{prefix}.{name}.bias")
        if stack.norm is not None:
            copy(stack.norm.weight, "encoder.final_norm.scale")
            copy(stack.norm.bias, "encoder.final_norm.bias")


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        ({"sharing": "ffn"}, "sharing='ffn'"),
        ({"attention_window": 5, "global_every": 2}, "attention_window=5"),
        ({"norm": "pre", "first_norm": False}, "first_norm=False"),
    ],
)
def test_layers_that_differ_cannot_be_scanned(changes: dict[str, Any], difference: str) -> None:
    compute = ComputeConfig(dtype="float32", attention="xla", scan_layers=True)
    with pytest.raises(ValueError, match=f"with model.{difference}, the layers differ"):
        Pretraining(dataclasses.replace(CONFIG, **changes), compute)
