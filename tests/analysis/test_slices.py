"""Test meshes and compiled programs of several TPU slices."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from bert_jax.analysis.collectives import Traffic, between_slices
from bert_jax.analysis.topology import slice_topology, topology_devices
from bert_jax.training.sharding import MeshConfig, make_mesh, num_slices


@dataclass(frozen=True)
class Chip:
    """A TPU chip, with the attributes that JAX reads to arrange devices."""

    id: int
    slice_index: int
    coords: tuple[int, int, int]
    process_index: int = 0
    core_on_chip: int = 0
    platform: str = "tpu"
    device_kind: str = "TPU v5 lite"


def chips(slices: int) -> list[Any]:
    places = [(s, (x, y, 0)) for s in range(slices) for y in range(2) for x in range(4)]
    return [Chip(number, *place, process_index=place[0]) for number, place in enumerate(places)]


@pytest.mark.parametrize("fsdp", [1, 4, 8])
def test_only_the_outermost_part_of_data_runs_across_slices(fsdp: int) -> None:
    devices = chips(2)
    assert num_slices(devices) == 2
    mesh = make_mesh(MeshConfig(fsdp=fsdp), devices)
    assert mesh.axis_names == ("data", "fsdp", "tensor")
    assert mesh.devices.shape == (16 // fsdp, fsdp, 1)
    assert {device.id for device in mesh.devices.flat} == set(range(16))
    indices = np.vectorize(lambda device: device.slice_index)(mesh.devices)
    half = 8 // fsdp
    assert (indices[:half] == 0).all() and (indices[half:] == 1).all()


def test_meshes_whose_other_axes_cross_slices_are_refused() -> None:
    with pytest.raises(ValueError, match=r"mesh.data=1: the devices form 2 slices.*multiple of 2"):
        make_mesh(MeshConfig(fsdp=16), chips(2))


def test_names_may_begin_with_the_number_of_slices() -> None:
    assert slice_topology("2xv5litepod-16") == "2xv5e:4x4"
    assert slice_topology("16xv4-32") == "16xv4:2x2x4"
    with pytest.raises(ValueError, match=r"2xv5litepod-12: the number must be"):
        slice_topology("2xv5litepod-12")
    for name in ("2xcpu:4", "2xh200:8"):
        with pytest.raises(ValueError, match="only TPUs have slices. Remove 2x"):
            topology_devices(name)


# This text was cut from libtpu 0.0.42's output for a gradient on 2 x 4 chips.
GRADIENT = """HloModule jit_f, is_scheduled=true

ENTRY %main (g: f32[512,512]) -> f32[512,512] {
  %g = f32[512,512]{1,0:T(8,128)} parameter(0)
  %after-all = token[] after-all(), frontend_attributes={MegascaleRendezvousKeyName="all-reduce.1_0"}
  %scattered = f32[128,512]{1,0:T(8,128)} reduce-scatter(%g), channel_id=1, replica_groups={{0,1,2,3}}, use_global_device_ids=true, dimensions={0}, to_apply=%add.clone
  %bitcast = f32[64,8,128]{2,1,0:T(8,128)} bitcast(%scattered)
  %send = (f32[64,8,128]{2,1,0:T(8,128)}, u32[], token[]) send(%bitcast, %after-all), channel_id=2, is_host_transfer=true, frontend_attributes={_xla_host_transfer_handler_name="xla_megascale_runtime",_xla_megascale_reduce_operation="SUM"}
  %recv = (f32[64,8,128]{2,1,0:T(8,128)}, u32[], token[]) recv(%after-all), channel_id=1, is_host_transfer=true, frontend_attributes={_xla_host_transfer_handler_name="xla_megascale_runtime",_xla_megascale_reduce_operation="SUM"}
  %send-done = token[] send-done(%send), channel_id=2, is_host_transfer=true, frontend_attributes={_xla_host_transfer_handler_name="xla_megascale_runtime"}
  %recv-done = (f32[64,8,128]{2,1,0:T(8,128)}, token[]) recv-done(%recv), channel_id=1, is_host_transfer=true, frontend_attributes={_xla_host_transfer_handler_name="xla_megascale_runtime"}
  %received = f32[64,8,128]{2,1,0:T(8,128)} get-tuple-element(%recv-done), index=0
  %shard = f32[128,512]{1,0:T(8,128)} bitcast(%received)
  ROOT %sum = f32[512,512]{1,0:T(8,128)} all-gather(%shard), channel_id=1, replica_groups={{0,1,2,3}}, dimensions={0}, use_global_device_ids=true
}
"""  # noqa: E501


def test_transfers_between_slices_are_counted() -> None:
    shard = 128 * 512 * 4
    assert between_slices(GRADIENT, 2) == Traffic(1, shard, shard)
    assert between_slices(GRADIENT, 4) == Traffic(1, shard, 3 * shard // 2)
    plain = GRADIENT.replace('_xla_megascale_reduce_operation="SUM"', "")
    assert between_slices(plain, 4) == Traffic(1, shard, shard)
    local = GRADIENT.replace("xla_megascale_runtime", "other")
    assert between_slices(local, 2) == Traffic(0, 0, 0)


# A linear layer whose gradient is summed over two slices of four chips each.
PROGRAM = """
from bert_jax.analysis.topology import topology_devices
devices = topology_devices("2xv5e:2x2")
import jax, jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
from bert_jax.analysis.collectives import between_slices, collectives
from bert_jax.training.sharding import MeshConfig, make_mesh, num_slices
mesh = make_mesh(MeshConfig(), devices)
everywhere, rows = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in ((), ("data",)))
gradient = jax.jit(
    jax.grad(lambda w, x: ((x @ w) ** 2).sum()),
    in_shardings=(everywhere, rows), out_shardings=everywhere,
)
shapes = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((512, 512), (64, 512))]
text = gradient.lower(*shapes).compile().as_text()
print(num_slices(devices), between_slices(text, 2).bytes, sorted(collectives(text, 8)))
"""


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs libtpu")
def test_gradients_are_reduced_within_a_slice_first() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    # Between the slices, each chip exchanges only its quarter of the gradient.
    expected = f"2 {512 * 512 * 4 // 4} ['all-gather', 'reduce-scatter']"
    assert done.stdout.splitlines()[-1] == expected
