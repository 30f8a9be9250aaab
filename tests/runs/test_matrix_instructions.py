"""Test the hint that bfloat16 would be faster."""

from __future__ import annotations

from pathlib import Path

import pytest

from bert_jax.models.compute_config import ComputeConfig
from bert_jax.runs import runtime
from bert_jax.runs.runtime import dtype_hint, multiplies_bfloat16


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("processor : 0\nflags\t\t: fpu amx_bf16 amx_tile\n", True),
        ("processor : 0\nflags\t\t: fpu avx512_bf16\n", True),
        ("processor : 0\nflags\t\t: fpu avx512f amx_bf16_next\n", False),
        ("model name : amx_bf16\n", False),
        ("", False),
    ],
)
def test_matrix_instructions_are_read_from_the_flags(
    content: str, expected: bool, tmp_path: Path
) -> None:
    file = tmp_path / "cpuinfo"
    file.write_text(content, encoding="utf-8")
    assert multiplies_bfloat16(file) is expected
    # On systems other than Linux, this file does not exist.
    assert not multiplies_bfloat16(tmp_path / "absent")


def test_the_hint_appears_only_if_the_dtype_was_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "multiplies_bfloat16", lambda: True)
    (line,) = dtype_hint(ComputeConfig(), "cpu")
    assert "--config.compute.dtype=bfloat16" in line
    assert not dtype_hint(ComputeConfig(dtype="float32"), "cpu")
    assert not dtype_hint(ComputeConfig(), "gpu")
    monkeypatch.setattr(runtime, "multiplies_bfloat16", lambda: False)
    assert not dtype_hint(ComputeConfig(), "cpu")
