"""Provide CPUs (`cpu:8`), a TPU slice or GPUs to compile for, even if none are present."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import jax


_TPU = re.compile(r"v[2-9][a-z]*|tpu.*")  # This pattern does not match NVIDIA's V100.
EXAMPLES = "cpu:8, v5e:4x4, v6e-8, v5p-128, v4:2x2x4 or h100:8"

# The directory with XLA's descriptions of GPUs.
_GPU_TARGETS = Path(__file__).parent / "gpu_targets"
_GPUS_PER_MACHINE = 8
_CUDA_PLUGINS = ("jax_cuda13_plugin", "jax_cuda12_plugin")
# Without a GPU, XLA cannot measure which tile sizes are fast for a matrix product that it compiles
# with Triton, so it uses tiny tiles. The first flag makes it use cuBLAS, which chooses tile sizes
# itself. The second flag makes XLA write the times that its cost model expects into the compiled
# program.
_GPU_FLAGS = (
    "--xla_gpu_enable_triton_gemm=false",
    "--xla_gpu_collect_cost_model_stats=true",
)

# The slices that Google Cloud documents for each kind of chip, keyed by the number in names such as
# v5litepod-16. This is the number of chips for v5e and v6e, but the number of cores for v4 and
# v5p, which have two cores per chip.
_FLAT_SLICES = {
    **{1: "1x1", 4: "2x2", 8: "2x4", 16: "4x4", 32: "4x8", 64: "8x8", 128: "8x16"},
    256: "16x16",
}
_CUBIC_SLICES = {
    **{8: "2x2x1", 16: "2x2x2", 32: "2x2x4", 64: "2x4x4", 128: "4x4x4", 256: "4x4x8"},
    **{512: "4x8x8", 1024: "8x8x8", 2048: "8x8x16", 4096: "8x16x16"},
}
_SLICES: Mapping[str, Mapping[int, str]] = {
    "v4": _CUBIC_SLICES,
    "v5litepod": _FLAT_SLICES,
    "v5e": _FLAT_SLICES,
    "v5p": _CUBIC_SLICES | {8192: "16x16x16", 12288: "16x16x24"},
    "v6e": _FLAT_SLICES,
}

# Without the first three variables, libtpu requests its settings from a Cloud TPU host's metadata
# server and waits for a response. For compiling, any values will do. The last variable lets several
# processes load libtpu.
_NO_TPU_HOST = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-16",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}


def topology_devices(name: str) -> list[jax.Device]:
    """Return a topology's devices, which can form a mesh to compile for.

    Call this function before JAX initializes its devices. On TPU v4, a device is a chip with two
    cores, as it is by default on real hardware.

    Args:
      name: the name of the topology, such as "v5e:4x4" or "cpu:8", or of a slice in Google Cloud,
        such as "v5litepod-16" or "v4-32". "2xv5e:4x4" means two TPU slices.

    Raises:
      ValueError: the topology does not exist or consists of devices that cannot be compiled for,
        JAX has already initialized other devices, or libtpu or JAX's CUDA plugin is missing.
    """
    name = slice_topology(name)
    pattern = r"(?:([1-9][0-9]*)x)?([a-z][a-z0-9]*):([0-9]+(?:x[0-9]+){0,2})"
    match = re.fullmatch(pattern, name.lower())
    if not match:
        raise ValueError(f"--topology={name}: expected a kind and a shape, such as {EXAMPLES}")
    slices, kind, shape = match.groups()
    dims = [int(dim) for dim in shape.split("x")]
    if slices and (kind == "cpu" or kind in _gpu_kinds()):
        raise ValueError(
            f"--topology={name}: only TPUs have slices. Remove {slices}x from the name"
        )
    if kind == "cpu":
        if len(dims) > 1 or dims[0] < 1:
            raise ValueError(f"--topology={name}: expected the number of devices, such as cpu:8")
        return _cpu_devices(dims[0])
    if kind in _gpu_kinds():
        if len(dims) > 1 or not 1 <= dims[0] <= _GPUS_PER_MACHINE:
            raise ValueError(
                f"--topology={name}: expected a number of GPUs in one machine, from 1 to "
                f"{_GPUS_PER_MACHINE}, such as {kind}:8"
            )
        return _gpu_devices(name, kind, dims[0])
    if not _TPU.fullmatch(kind):
        raise ValueError(
            f"--topology={name}: `plan` compiles only for TPU slices, CPUs and some GPUs "
            f"({', '.join(_gpu_kinds())}), not for {kind}. Examples are {EXAMPLES}. To measure the "
            "time and memory of the step on a GPU, run `bert-jax bench step --config FILE` on a "
            "machine that has one"
        )
    return _tpu_devices(f"{kind}:{shape}", kind, dims, int(slices or 1))


def slice_topology(name: str) -> str:
    """Return the topology of a slice in Google Cloud, such as "v4:2x2x4" for "v4-32".

    Any other name is returned unchanged. "2xv4-32" means two such slices.

    Raises:
      ValueError: Google Cloud has no slice of this size.
    """
    match = re.fullmatch(r"((?:[1-9]\d*x)?)(v\d[a-z]*)-(\d+)", name.lower())
    if not match or match[2] not in _SLICES:
        return name
    kind, sizes = match[2].replace("v5litepod", "v5e"), _SLICES[match[2]]
    if int(match[3]) not in sizes:
        unit = "cores" if sizes[8] == "2x2x1" else "chips"
        raise ValueError(
            f"--topology={name}: the number must be {', '.join(map(str, sizes))} ({unit}). For "
            f"other slices, give the shape, such as {kind}:{sizes[16]}"
        )
    return f"{match[1]}{kind}:{sizes[int(match[3])]}"


def _cpu_devices(count: int) -> list[jax.Device]:
    os.environ["JAX_PLATFORMS"] = "cpu"
    import jax  # JAX reads this variable on import.

    try:
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", count)
    except RuntimeError:
        pass  # JAX has already initialized its devices. Use them if there are enough.
    devices = jax.devices("cpu")
    if len(devices) < count:
        raise ValueError(
            f"--topology=cpu:{count}: JAX is already initialized with {len(devices)} CPU devices "
            "in this process. Run `bert-jax plan` in a separate process"
        )
    return devices[:count]


def _tpu_devices(name: str, kind: str, dims: list[int], slices: int) -> list[jax.Device]:
    if "TPU_LIBRARY_PATH" not in os.environ and importlib.util.find_spec("libtpu") is None:
        raise ValueError(
            f"--topology={name}: compiling for a TPU requires libtpu, which is not installed. Run "
            "pip install -e '.[tpu]' (no TPU is needed), or use --topology=cpu:N"
        )
    for variable, value in (_NO_TPU_HOST | {"JAX_PLATFORMS": "cpu"}).items():
        os.environ.setdefault(variable, value)
    import jax
    from jax.experimental import topologies

    options: dict[str, object] = {}
    if kind == "v4":
        options["chip_config_name"] = "megacore"
    if max(dims) == 1:  # Describe a single chip instead of all 2 x 2 chips on a host.
        options["chips_per_host_bounds"] = [1, 1, 1]
    if slices > 1:
        options["num_slices"] = slices
    try:
        description = topologies.get_topology_desc(platform="tpu", topology_name=name, **options)
    except jax.errors.JaxRuntimeError as error:
        reason = str(error).splitlines()[0].removeprefix("INVALID_ARGUMENT: ")
        raise ValueError(
            f"--topology={name}: libtpu does not support this slice ({reason}). Use a name such "
            f"as {EXAMPLES}"
        ) from error
    return list(description.devices)


def _gpu_kinds() -> list[str]:
    return sorted(path.stem for path in _GPU_TARGETS.glob("*.txtpb"))


def _gpu_devices(name: str, kind: str, count: int) -> list[jax.Device]:
    if not any(importlib.util.find_spec(plugin) for plugin in _CUDA_PLUGINS):
        raise ValueError(
            f"--topology={name}: compiling for a GPU requires JAX's CUDA plugin, which is not "
            "installed. Run pip install -e '.[cuda13]' (no GPU is needed), or use --topology=cpu:N"
        )
    flags = os.environ.get("XLA_FLAGS", "")
    added = [flag for flag in _GPU_FLAGS if flag.split("=")[0] not in flags]
    os.environ["XLA_FLAGS"] = " ".join([*flags.split(), *added])
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    import jax
    from jax.experimental import topologies

    target = (_GPU_TARGETS / f"{kind}.txtpb").read_text(encoding="utf-8")
    try:
        description = topologies.get_topology_desc(
            platform="cuda", target_config=target, topology=f"1x1x{count}"
        )
    except jax.errors.JaxRuntimeError as error:
        raise ValueError(
            f"--topology={name}: JAX's CUDA plugin cannot compile for this GPU "
            f"({str(error).splitlines()[0]}). Install the plugin for JAX {jax.__version__}"
        ) from error
    return list(description.devices)
