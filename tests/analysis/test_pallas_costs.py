"""Test how the work of Pallas kernels is counted, and which kernels compute gradients."""

from __future__ import annotations

import re
from functools import partial

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl

from bert_jax.analysis.custom_calls import Work, attention_work, is_backward
from bert_jax.analysis.hlo import Instruction
from bert_jax.analysis.kernel_times import PALLAS_TPU_SHARES, TpuTimes
from bert_jax.analysis.pallas_costs import pallas_costs
from bert_jax.models.splash_attention import splash_attention

ROWS, HEADS, DIM = 2, 4, 64


def test_cost_estimates_are_read_from_the_traced_program() -> None:
    def double(x: jax.Array, flops: int) -> jax.Array:
        def kernel(x: jax.Array, y: jax.Array) -> None:
            y[...] = 2 * x[...]

        cost = pl.CostEstimate(flops=flops, transcendentals=0, bytes_accessed=8 * flops)
        shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return pl.pallas_call(kernel, shape, name="double", cost_estimate=cost)(x)

    def program(x: jax.Array) -> jax.Array:
        y, _ = jax.lax.scan(lambda x, _: (double(x, 100), None), x, length=3)
        return jax.jit(double, static_argnums=1)(y, 300)

    costs = pallas_costs(jax.jit(program).trace(jnp.ones((8, 128))).jaxpr)
    assert costs == {"double": Work(200, 1600)}


def splash_costs(length: int, *windows: int | None) -> dict[str, Work]:
    """Return the work of JAX's splash attention kernels for each of these windows."""
    array = jax.ShapeDtypeStruct((ROWS, length, HEADS, DIM), jnp.bfloat16)
    ids = jax.ShapeDtypeStruct((ROWS, length), jnp.int32)

    def gradients(query: jax.Array, ids: jax.Array) -> list[jax.Array]:
        attends = [partial(splash_attention, packed=True, window=window) for window in windows]
        return [
            jax.grad(lambda x, attend=attend: attend(x, x, x, ids).astype(float).sum())(query)
            for attend in attends
        ]

    return dict(pallas_costs(jax.jit(gradients).trace(array, ids).jaxpr))


def test_the_products_of_a_kernel_without_a_cost_estimate_are_counted() -> None:
    product = 2 * ROWS * HEADS * 1024**2 * DIM
    assert splash_costs(1024, None) == {
        "splash_mha_fwd_segmented_residuals": Work(2 * product),
        "splash_mha_dq_segmented_no_residuals": Work(3 * product),
        "splash_mha_dkv_segmented_no_residuals": Work(4 * product),
    }


def test_only_the_blocks_in_a_window_are_counted() -> None:
    # A block of 128 queries attends to the keys in the same block, the previous one and the next
    # one.
    product = 2 * ROWS * HEADS * 2048 * (3 * 128) * DIM
    windowed = splash_costs(2048, 129)
    assert windowed["splash_mha_fwd_segmented_residuals"] == Work(2 * product)
    both, whole = splash_costs(2048, 129, None), splash_costs(2048, None)
    for name, work in both.items():
        assert work == Work((windowed[name].flops + whole[name].flops) // 2)


def test_a_loop_of_unknown_length_makes_the_flops_unknown() -> None:
    def costs(length: int | None) -> dict[str, Work]:
        def kernel(x: jax.Array, count: jax.Array, y: jax.Array) -> None:
            end = count[0] if length is None else length
            y[...] = jax.lax.fori_loop(0, end, lambda _, z: z @ x[...], x[...])

        def program(x: jax.Array, count: jax.Array) -> jax.Array:
            shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
            return pl.pallas_call(kernel, shape, grid=(5,), name="power")(x, count)

        return dict(pallas_costs(jax.jit(program).trace(jnp.ones((8, 8)), jnp.ones(1, int)).jaxpr))

    assert costs(3) == {"power": Work(5 * 3 * 2 * 8**3)}
    assert costs(None) == {}


@pytest.mark.parametrize(
    ("path", "share"),
    [("jvp(f)/splash", PALLAS_TPU_SHARES[0]), ("transpose(jvp(f))/splash", PALLAS_TPU_SHARES[1])],
)
def test_a_tpu_kernel_may_be_estimated_by_its_name(path: str, share: float) -> None:
    times = TpuTimes(1.5e9, 197e12, 819e9, {"splash": Work(10**12)})
    text = f'%x), custom_call_target="tpu_custom_call", metadata={{op_name="{path}/pallas_call"}}'
    time = times(Instruction("splash.1", "bf16[8]", "custom-call", text), {}, 0)
    assert time is not None
    assert time.seconds == pytest.approx(1e12 / (share * 197e12))


def operations(*, recomputes: bool) -> set[str]:
    """Return the paths of the operations in the gradient of two sines."""

    def apply(x: jax.Array) -> jax.Array:
        return jnp.sin(jnp.sin(x))

    function = jax.checkpoint(apply) if recomputes else apply
    lowered = jax.jit(jax.grad(lambda x: function(x).sum())).lower(jnp.ones(4))
    return set(re.findall(r'"(jit[^"]*)"', lowered.as_text(debug_info=True)))


@pytest.mark.parametrize("recomputes", [False, True])
def test_recomputed_operations_count_as_forward_pass(recomputes: bool) -> None:
    paths = operations(recomputes=recomputes)
    assert any("transpose(" in path and path.endswith("/sin") for path in paths) == recomputes
    kinds: dict[str, set[bool]] = {}
    for path in paths:
        line = Instruction("x", "f32[4]", "sine", f'%x), metadata={{op_name="{path}"}}')
        kinds.setdefault(path.rpartition("/")[2], set()).add(is_backward(line))
    assert kinds["sin"] == {False} and kinds["mul"] == {True}


@pytest.mark.parametrize(
    ("target", "path", "products"),
    [
        ("Softmax", "jvp()", 2),
        ("Softmax", "transpose(jvp())/checkpoint/rematted_computation", 2),
        ("SoftmaxBackward", "transpose(jvp())/checkpoint", 5),
    ],
)
def test_cudnn_attention_has_two_products_unless_it_is_a_gradient(
    target: str, path: str, products: int
) -> None:
    text = (
        f'%q), custom_call_target="__cudnn$fmha{target}", metadata={{op_name="{path}/attention"}}, '
        'backend_config={"intermediate_tensor_shape": {"dimensions": ["2","4","32","32"]}}'
    )
    line = Instruction("attention.1", "bf16[8]", "custom-call", text)
    work, length = attention_work(line, {"q": "bf16[2,32,4,64]"})
    assert (work, length) == (Work(products * 2 * 2 * 4 * 32 * 32 * 64), 32)
