"""Test that the names of slices in Google Cloud are accepted as topologies."""

import math

import pytest

from bert_jax.analysis.topology import slice_topology


# Shapes in Google Cloud's documentation of TPU v4, v5e, v5p and v6e.
@pytest.mark.parametrize(
    ("name", "topology", "chips"),
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
def test_numbers_count_cores_or_chips(name: str, topology: str, chips: int) -> None:
    assert slice_topology(name) == topology
    shape = topology.partition(":")[2]
    assert math.prod(int(dim) for dim in shape.split("x")) == chips


def test_other_names_are_unchanged_or_rejected() -> None:
    assert slice_topology("v5e:4x4") == "v5e:4x4"
    assert slice_topology("cpu:8") == "cpu:8"
    assert slice_topology("h100-8") == "h100-8"
    with pytest.raises(ValueError, match=r"v5litepod-12: .*1, 4, 8.*\(chips\).*as v5e:4x4"):
        slice_topology("v5litepod-12")
    with pytest.raises(ValueError, match=r"v4-4: .* 8, 16, 32.*\(cores\).*as v4:2x2x2"):
        slice_topology("v4-4")
