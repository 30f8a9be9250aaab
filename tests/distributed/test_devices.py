"""Test that a run's losses do not depend on the number of devices or on the mesh."""

from __future__ import annotations

import jax
import pytest

pytestmark = pytest.mark.slow

MESHES = {
    "data": {"data": 8},
    "fsdp": {"data": 1, "fsdp": 8},
    "all": {"data": 2, "fsdp": 2, "tensor": 2},
}


@pytest.mark.parametrize("mesh", MESHES.values(), ids=MESHES)
def test_eight_devices_have_the_losses_of_one(
    bert_jax_here, short_run, one_device, assert_same_history, mesh, tmp_path
):
    assert jax.device_count() == 8
    axes = [f"mesh.{axis}={size}" for axis, size in mesh.items()]
    finished = bert_jax_here(*short_run(tmp_path, *axes))
    assert finished.code == 0, finished.errors
    axes_line = " x ".join(f"{size} {axis}" for axis, size in mesh.items() if size > 1)
    assert f"8 x cpu ({axes_line})" in finished.output
    assert_same_history(tmp_path, one_device)
