"""Test the table of chip specifications and the lower bounds on step time."""

import pytest

from bert_jax.analysis.chips import Roofline, chip, peak_flops, roofline


@pytest.mark.parametrize("kind", ["TPU v4", "TPU v5 lite", "TPU v5", "TPU v6 lite"])
def test_chips_have_a_peak(kind: str) -> None:
    assert chip(kind) is not None
    assert peak_flops(kind, "bfloat16") is not None


def test_similar_chips_are_distinguished() -> None:
    lite, full = chip("TPU v5 lite"), chip("TPU v5")
    assert lite is not None and full is not None
    assert lite.memory_bytes == 16 * 2**30 < full.memory_bytes
    assert chip("cpu") is None


def test_the_slowest_resource_is_the_bound() -> None:
    v5e = chip("TPU v5 lite")
    assert v5e is not None
    bound = roofline(v5e, 100e12, flops=1e12, memory_bytes=8.19e9, sent_bytes=1e9)
    assert bound.compute == pytest.approx(0.01)
    assert bound.memory == pytest.approx(0.01)
    assert bound.links == pytest.approx(0.005)
    assert Roofline(1.0, 2.0, 3.0).bound == "links"
    assert Roofline(3.0, 2.0, 1.0).bound == "compute"
    assert Roofline(1.0, 2.0, 1.0).seconds == 2.0
