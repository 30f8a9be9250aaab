"""Test the names of topologies and the descriptions of devices that are not present."""

import importlib.util
import math
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bert_jax.analysis import topology
from bert_jax.analysis.chips import chip, clock_rate, peak_flops
from bert_jax.analysis.topology import slice_topology, topology_devices

GPU_TARGETS = Path(topology.__file__).parent / "gpu_targets"


# These shapes are listed in Google Cloud's documentation of TPU v4, v5e, v5p and v6e.
@pytest.mark.parametrize(
    ("name", "shape", "chips"),
    [
        ("v4-8", "v4:2x2x1", 4),
        ("v4-32", "v4:2x2x4", 16),
        ("v5p-128", "v5p:4x4x4", 64),
        ("v5p-12288", "v5p:16x16x24", 6144),
        ("v5e-64", "v5e:8x8", 64),
        ("v5litepod-16", "v5e:4x4", 16),
        ("V5LitePod-256", "v5e:16x16", 256),
        ("v6e-8", "v6e:2x4", 8),
    ],
)
def test_numbers_count_cores_or_chips(name: str, shape: str, chips: int) -> None:
    assert slice_topology(name) == shape
    shape = shape.partition(":")[2]
    assert math.prod(int(dim) for dim in shape.split("x")) == chips


def test_other_names_are_unchanged_or_rejected() -> None:
    assert slice_topology("v5e:4x4") == "v5e:4x4"
    assert slice_topology("cpu:8") == "cpu:8"
    assert slice_topology("h100-8") == "h100-8"
    with pytest.raises(ValueError, match=r"v5litepod-12: .*1, 4, 8.*\(chips\).*as v5e:4x4"):
        slice_topology("v5litepod-12")
    with pytest.raises(ValueError, match=r"v4-4: .* 8, 16, 32.*\(cores\).*as v4:2x2x2"):
        slice_topology("v4-4")


@pytest.mark.parametrize(
    ("kind", "bandwidth", "gigabytes"), [("h100", 3.35e12, 80), ("h200", 4.8e12, 141)]
)
def test_gpus_that_are_not_present_are_described(
    kind: str, bandwidth: float, gigabytes: int
) -> None:
    """Compare the bandwidth and the memory size with NVIDIA's datasheets."""
    text = (GPU_TARGETS / f"{kind}.txtpb").read_text(encoding="utf-8")
    assert "from openxla/xla (Apache License 2.0)" in text.splitlines()[0]
    fields = dict(re.findall(r'^ (\w+): "?([^"\n]+)"?$', text, re.MULTILINE))
    figures = chip(fields["name"])
    assert figures is not None and figures.memory_bytes == int(fields["device_memory_size"])
    assert figures.memory_bytes / 1e9 == pytest.approx(gigabytes, rel=0.08)
    assert figures.memory_bandwidth == pytest.approx(bandwidth, rel=0.01)
    assert float(fields["memory_bandwidth"]) == pytest.approx(bandwidth, rel=0.01)
    assert peak_flops(fields["name"], "bfloat16") == 989.5e12
    assert clock_rate(fields["name"]) is None


@pytest.mark.parametrize("shape", ["0", "9", "2x4"])
def test_gpus_are_in_one_machine(shape: str) -> None:
    with pytest.raises(ValueError, match=f"=h200:{shape}: expected a number of GPUs in one mach"):
        topology_devices(f"h200:{shape}")


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("jax_cuda13_plugin") is None,
    reason="compiling for a GPU requires JAX's CUDA plugin",
)
def test_a_program_can_be_compiled_for_gpus_that_are_not_present() -> None:
    program = """
from bert_jax.analysis.topology import topology_devices
devices = topology_devices("h200:8")
assert (devices[0].platform, devices[0].compute_capability, len(devices)) == ("gpu", "9.0", 8)
import jax
from jax.sharding import SingleDeviceSharding
x = jax.ShapeDtypeStruct((256, 256), "bfloat16", sharding=SingleDeviceSharding(devices[0]))
from bert_jax.training.planning import read_compiled
step = read_compiled(jax.jit(lambda x: x @ x).lower(x).compile())
assert step.flops is None and "cublas" in step.text
"""
    subprocess.run([sys.executable, "-c", program], check=True)
