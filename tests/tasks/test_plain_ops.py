"""Test that losses have forward-mode and second derivatives if compute.ops is "plain"."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

from bert_jax.models.compute_config import ComputeConfig
from bert_jax.models.config import EncoderConfig
from bert_jax.models.model import ModelConfig
from bert_jax.models.options import Ops
from bert_jax.tasks.finetuning import Classification, Span
from bert_jax.tasks.pretraining import Pretraining
from bert_jax.tasks.task import Task, soft_cross_entropy, total_loss

SIZES: dict[str, Any] = dict(vocab_size=40, hidden_dim=16, num_heads=2, ffn_dim=32)
POST = EncoderConfig(**SIZES, num_layers=1, max_positions=16, hidden_dropout=0.2)
# This config uses options that `POST` does not: fixed positions, pre-norm, tanh GELU, shared layers
# and factorized embeddings.
PRE = EncoderConfig(
    **SIZES,
    num_layers=2,
    max_positions=16,
    positions="sinusoidal",
    norm="pre",
    activation="gelu_tanh",
    pooler_activation="relu",
    sharing="all",
    embedding_dim=8,
    num_segments=1,
)
Loss = Callable[[Any], jax.Array]
MakeTask = Callable[[ComputeConfig], Task]


def pretraining(compute: ComputeConfig) -> Task:
    return Pretraining(POST, compute)


def pretraining_of_another_encoder(compute: ComputeConfig) -> Task:
    return Pretraining(PRE, compute, sentence_pairs="sentence_order")


def classification(compute: ComputeConfig) -> Task:
    model = ModelConfig(POST, "classification", labels=("a", "b", "c"), head_dropout=0.1)
    return Classification(model, compute)


def span(compute: ComputeConfig) -> Task:
    return Span(ModelConfig(PRE, "span"), compute)


TASKS = (pretraining, pretraining_of_another_encoder, classification, span)


@pytest.fixture(scope="module")
def batch(draw_document: Callable, lay_out: Callable) -> dict[str, Any]:
    """Return a batch with the arrays that pretraining and fine-tuning need."""
    rng = np.random.default_rng(0)
    documents = [draw_document(rng, length, 40) for length in (16, 11)]
    laid = lay_out(
        [[document] for document in documents], length=16, predictions=3, documents_per_row=1
    )
    ends = {"start_positions": np.asarray([1, 4]), "end_positions": np.asarray([3, 4])}
    weights = {"example_weights": np.ones(2, np.float32)}
    mask = {"attention_mask": (laid["document_ids"] != 0).astype(np.int32)}
    return {**laid, **ends, **weights, **mask, "labels": np.asarray([2, 0])}


def loss_of(make_task: MakeTask, ops: Ops, batch: Any, dtype: Any = "float32") -> tuple[Loss, Any]:
    """Return (loss, parameters), where `loss` is a function that computes the loss with dropout."""
    task = make_task(ComputeConfig(dtype=dtype, attention="xla", ops=ops))

    def loss(params: Any) -> jax.Array:
        model = task.definition.module(params)
        metrics = task.metrics(model, batch, jax.random.key(7))
        return total_loss(task, metrics, task.loss_weights(batch))

    params = jax.jit(task.definition.init)(jax.random.key(0))
    # Scale the usual initial weights by ten, so that attention and GELU are far from linear.
    return loss, {name: x * 10 if x.ndim == 2 else x for name, x in params.items()}


def directions(params: Any) -> Any:
    rng = np.random.default_rng(1)
    return {name: jnp.asarray(rng.standard_normal(x.shape), x.dtype) for name, x in params.items()}


def distance(actual: Any, expected: Any) -> float:
    """Return the norm of the difference between two trees, relative to the norm of `expected`."""
    pairs = [(np.asarray(actual[name], np.float64), expected[name]) for name in expected]
    difference = sum(float(np.sum((x - y) ** 2)) for x, y in pairs)
    return (difference / sum(float(np.sum(np.square(y))) for _, y in pairs)) ** 0.5


@pytest.mark.slow
@pytest.mark.parametrize("make_task", TASKS)
def test_derivatives_match_the_fast_operations(make_task: MakeTask, batch: Any) -> None:
    """Compare gradients with those of the fast operations, and check the second derivatives.

    The second derivatives are compared with finite differences.
    """
    plain, params = loss_of(make_task, "plain", batch)
    fast = jax.jit(jax.value_and_grad(loss_of(make_task, "fast", batch)[0]))
    tangent = directions(params)
    (loss_value, gradient), (_, product) = jax.jit(
        lambda p, t: jax.jvp(jax.value_and_grad(plain), (p,), (t,))
    )(params, tangent)
    expected, expected_gradient = fast(params)
    # With different dropout masks, the losses would differ by several percent.
    assert_allclose(loss_value, expected, rtol=1e-6)
    assert gradient.keys() == expected_gradient.keys()
    for name, value in expected_gradient.items():
        assert_allclose(gradient[name], value, rtol=1e-4, atol=2e-6, err_msg=name)
    step = 3e-3

    def gradient_at(scale: float) -> Any:
        moved = {name: params[name] + scale * tangent[name] for name in params}
        return jax.device_get(fast(moved)[1])

    ahead, behind = gradient_at(step), gradient_at(-step)
    measured = {name: (ahead[name] - behind[name]) / (2 * step) for name in params}
    assert distance(product, measured) < 1e-2


def test_linearize_agrees_with_the_gradient(batch: Any) -> None:
    plain, params = loss_of(classification, "plain", batch)
    tangent = directions(params)

    @jax.jit
    def linearized(params: Any, tangent: Any) -> tuple[jax.Array, jax.Array]:
        value, linear = jax.linearize(plain, params)
        return value, linear(tangent)

    fast = jax.jit(jax.value_and_grad(loss_of(classification, "fast", batch)[0]))
    expected, gradient = fast(params)
    value, slope = linearized(params, tangent)
    assert_allclose(value, expected, rtol=1e-6)
    along = sum(float(np.vdot(gradient[name], tangent[name])) for name in params)
    assert_allclose(slope, along, rtol=1e-4)


def test_fast_operations_refuse_forward_mode(batch: Any) -> None:
    fast, params = loss_of(pretraining, "fast", batch)
    with pytest.raises(TypeError, match="forward-mode"):
        jax.jvp(fast, (params,), (directions(params),))


def test_gradients_of_bfloat16_tables_are_accumulated_in_float32() -> None:
    # In bfloat16, a sum of 2,048 equal rows would stop growing at 256.
    tokens = {name: np.full((128, 16), x) for name, x in (("token_ids", 3), ("segment_ids", 1))}

    def gradients(ops: Ops) -> Any:
        task = Pretraining(POST, ComputeConfig(dtype="bfloat16", attention="xla", ops=ops))
        params = jax.jit(task.definition.init)(jax.random.key(0))

        def total(params: Any) -> jax.Array:
            embeddings = task.definition.module(params).encoder.embeddings
            embeddings.norm = lambda x: x
            x = embeddings(tokens["token_ids"], tokens["segment_ids"], None, None)
            return jnp.sum(x, dtype=jnp.float32)

        return jax.jit(jax.grad(total))(params)

    for ops in ("fast", "plain"):
        computed = gradients(ops)
        assert_allclose(computed["encoder.embeddings.token"][3], 2048)
        assert_allclose(computed["encoder.embeddings.segment"][1], 2048)
        assert_allclose(computed["encoder.embeddings.position"][5], 128)


def test_bfloat16_losses_support_forward_mode(batch: Any) -> None:
    plain, params = loss_of(pretraining, "plain", batch, "bfloat16")
    gradient = jax.jit(jax.grad(loss_of(pretraining, "fast", batch)[0]))(params)
    tangent = gradient
    slope = jax.jit(lambda p, t: jax.jvp(plain, (p,), (t,))[1])(params, tangent)
    expected = sum(float(jnp.vdot(x, x)) for x in gradient.values())
    assert_allclose(slope, expected, rtol=0.05)


def test_soft_targets_have_second_derivatives() -> None:
    rng = np.random.default_rng(2)
    student, teacher, tangent = (jnp.asarray(rng.normal(size=(3, 5)), "float32") for _ in range(3))

    def loss(x: jax.Array) -> jax.Array:
        return jnp.sum(soft_cross_entropy(x, teacher, 2.0, "plain"))

    # The second derivative of temperature^2 x KL is diag(p) - p p^T, as for logsumexp.
    share = jax.nn.softmax(student / 2.0)
    expected = share * (tangent - jnp.sum(share * tangent, axis=-1, keepdims=True))
    derivative = jax.jvp(jax.grad(loss), (student,), (tangent,))[1]
    assert_allclose(derivative, expected, rtol=1e-4, atol=1e-6)
