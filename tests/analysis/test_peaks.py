"""Test that a device's peak FLOP/s is looked up correctly from its `device_kind`."""

import pytest

from bert_jax.analysis.chips import peak_flops


@pytest.mark.parametrize(
    ("device_kind", "tflops"),
    [
        ("NVIDIA A100-SXM4-80GB", 312),
        ("NVIDIA A100 80GB PCIe", 312),
        ("NVIDIA H100 80GB HBM3", 989.5),
        ("NVIDIA H100 PCIe", 756.5),
        ("NVIDIA H200", 989.5),
        ("NVIDIA H200 NVL", 835.5),
        ("NVIDIA B200", 2250),
        ("NVIDIA L4", 121),
        ("NVIDIA GeForce RTX 4090", 165.2),
        ("TPU v4", 275),
        ("TPU v5 lite", 197),
        ("TPU v5", 459),
        ("TPU v5p", 459),
        ("TPU v6 lite", 918),
    ],
)
def test_peaks_of_known_devices(device_kind: str, tflops: float) -> None:
    assert peak_flops(device_kind, "bfloat16") == tflops * 1e12
    assert peak_flops(device_kind, "float32") is None


@pytest.mark.parametrize(
    "device_kind",
    [
        "cpu",
        "NVIDIA L40S",
        "NVIDIA A10G",
        "NVIDIA GH200 480GB",
        "NVIDIA GB200",
        "NVIDIA GeForce RTX 4090 D",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        "TPU v4 lite",
        "TPU v3",
    ],
)
def test_related_chips_are_not_confused(device_kind: str) -> None:
    assert peak_flops(device_kind, "bfloat16") is None


def test_t4_has_no_bfloat16_units() -> None:
    assert peak_flops("Tesla T4", "bfloat16") is None
    assert peak_flops("Tesla T4", "float16") == 65e12
