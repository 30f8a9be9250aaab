"""Test that communication is counted correctly in programs whose communication is known."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from bert_jax.analysis.collectives import Traffic, collectives, group_size
from bert_jax.analysis.hlo import array_bytes

ROWS, COLUMNS = 16, 32


def compiled_text(function, in_spec: PartitionSpec, out_spec: PartitionSpec) -> str:
    """Compile a function of a float32 [ROWS, COLUMNS] array for a mesh of 2 x 4 devices."""
    mesh = jax.make_mesh((2, 4), ("a", "b"), axis_types=(AxisType.Auto,) * 2)
    x = jax.ShapeDtypeStruct((ROWS, COLUMNS), jnp.float32, sharding=NamedSharding(mesh, in_spec))
    jitted = jax.jit(function, out_shardings=NamedSharding(mesh, out_spec))
    return jitted.lower(x).compile().as_text()


def test_a_sum_over_rows_is_one_all_reduce() -> None:
    text = compiled_text(lambda x: x.sum(axis=0), PartitionSpec("a"), PartitionSpec())
    size = COLUMNS * 4
    # In groups of 2, the ring algorithm sends 2 * (2 - 1) / 2 times the bytes.
    assert collectives(text, 8) == {"all-reduce": Traffic(1, size, size)}


def test_a_gather_along_one_axis_counts_the_gathered_bytes() -> None:
    text = compiled_text(lambda x: x * 2, PartitionSpec("b"), PartitionSpec())
    size = ROWS * COLUMNS * 4
    assert collectives(text, 8) == {"all-gather": Traffic(1, size, size * 3 // 4)}


@pytest.mark.parametrize("trips", [1, 3, 7])
def test_collectives_in_loops_are_counted_per_iteration(trips: int) -> None:
    def repeated(x: jax.Array) -> jax.Array:
        def body(carry: jax.Array, _: None) -> tuple[jax.Array, None]:
            return jnp.sin(carry + jnp.cos(x * carry).sum(axis=0)), None

        return jax.lax.scan(body, jnp.ones(COLUMNS), None, length=trips)[0]

    text = compiled_text(repeated, PartitionSpec(("a", "b")), PartitionSpec())
    traffic = collectives(text, 8)["all-reduce"]
    size = COLUMNS * 4
    assert traffic == Traffic(trips, trips * size, trips * (2 * size * 7 // 8))


def test_programs_on_one_device_have_no_communication() -> None:
    text = jax.jit(lambda x: x @ x.T).lower(jnp.ones((4, 4))).compile().as_text()
    assert collectives(text, 1) == {}


# Sample output from the TPU compiler: a gather spread over two fusions, a loop without a trip
# count, and an asynchronous permute.
TPU = """HloModule jit_step, is_scheduled=true

%fused.1 (p: bf16[4,8]) -> bf16[16,8] {
  %p = bf16[4,8]{1,0} parameter(0)
  ROOT %all-gather.1 = bf16[16,8]{1,0:T(8,128)(2,1)} all-gather(%p), channel_id=7, replica_groups=mesh['x'=4,'y'=2] {'x'}, dimensions={0}
}

%fused.2 (p: bf16[4,8]) -> bf16[16,8] {
  %p = bf16[4,8]{1,0} parameter(0)
  ROOT %all-gather.2 = bf16[16,8]{1,0} all-gather(%p), channel_id=7, replica_groups=mesh['x'=4,'y'=2] {'x'}, dimensions={0}
}

%condition (q: (u32[], f32[8])) -> pred[] {
  %constant.5 = u32[]{:T(128)} constant(5), metadata={op_name="while"}
  %q = (u32[]{:T(128)}, f32[8]{0}) parameter(0)
  %i = u32[]{:T(128)} get-tuple-element(%q), index=0
  ROOT %less = pred[]{:T(512)} compare(%i, %constant.5), direction=LT
}

%body (r: (u32[], f32[8])) -> (u32[], f32[8]) {
  %r = (u32[], f32[8]{0}) parameter(0)
  %v = f32[8]{0} get-tuple-element(%r), index=1
  %permute-start = (f32[8]{0}, f32[8]{0}, u32[], u32[]) collective-permute-start(%v), channel_id=9, source_target_pairs={{0,1},{1,0}}
  %permute-done = f32[8]{0} collective-permute-done(%permute-start)
  %i = u32[] get-tuple-element(%r), index=0
  ROOT %t = (u32[], f32[8]{0}) tuple(%i, %permute-done)
}

ENTRY %main (x: bf16[4,8], y: (u32[], f32[8])) -> bf16[16,8] {
  %x = bf16[4,8]{1,0} parameter(0)
  %y = (u32[], f32[8]{0}) parameter(1)
  %begin = bf16[16,8]{1,0} fusion(%x), kind=kLoop, calls=%fused.1
  %loop = (u32[], f32[8]{0}) while(%y), condition=%condition, body=%body
  ROOT %end = bf16[16,8]{1,0} fusion(%x), kind=kLoop, calls=%fused.2
}
"""  # noqa: E501


def test_programs_of_the_tpu_compiler_are_supported() -> None:
    gathered, permuted = 16 * 8 * 2, 8 * 4
    assert collectives(TPU, 8) == {
        "all-gather": Traffic(1, gathered, gathered * 3 // 4),
        "collective-permute": Traffic(5, 5 * permuted, 5 * permuted),
    }


@pytest.mark.parametrize(
    ("groups", "size"),
    [
        ("replica_groups={{0,1,2},{3,4,5}}", 3),
        ("replica_groups=[4,2]<=[2,4]T(1,0)", 2),
        ("replica_groups=mesh['a'=2,'b'=4] {'a','b'}", 8),
        ("replica_groups=mesh['a'=2,'b'=4], device_ids=([2,4]T(1,0)) {'b':(1)2}", 2),
        ("replica_groups={}", 6),
    ],
)
def test_all_notations_of_groups_are_supported(groups: str, size: int) -> None:
    assert group_size(f"%x), channel_id=1, {groups}, use_global_device_ids=true", 6) == size


def test_sizes_of_shapes_in_bytes() -> None:
    assert array_bytes("f32[16,64]{1,0:T(8,128)}") == 16 * 64 * 4
    assert array_bytes("(bf16[3]{0}, /*index=1*/s32[], pred[5,2]{1,0})") == 6 + 4 + 10
    assert array_bytes("(f32[2]{0}, token[])") == 8
    with pytest.raises(ValueError, match="c64"):
        array_bytes("c64[2]")
