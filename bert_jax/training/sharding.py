"""Shard tensors: map their logical axes to mesh axes, and derive layouts from this mapping."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.experimental.mesh_utils import create_hybrid_device_mesh
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from bert_jax.models.layout import Axes, Layout, use_layout
from bert_jax.models.parameters import LogicalAxes

# Maps logical axes to mesh axes. Parameters are split over `fsdp` (gathered layer by layer) and
# `tensor` (never gathered, Shoeybi et al. 2019, "Megatron-LM", section 3). Batches are split over
# `data` and `fsdp`. Looking up a logical axis that is not in the table raises KeyError.
TABLE: dict[str, tuple[str, ...]] = {
    "batch": ("data", "fsdp"),
    "embed": ("fsdp",),
    "vocab": ("tensor",),
    "heads": ("tensor",),
    "ffn": ("tensor",),
    "norm": (),
}


@dataclass(frozen=True)
class MeshConfig:
    """The number of devices on each mesh axis.

    Attributes:
      data: the number of devices that split only batches.
      fsdp: the number of devices that split batches and parameters.
      tensor: the number of devices that split individual matrix multiplications.

    One of the three may be -1, which means all remaining devices.
    """

    data: int = -1
    fsdp: int = 1
    tensor: int = 1

    def __post_init__(self) -> None:
        sizes = self.sizes()
        if any(size < 1 and size != -1 for size in sizes.values()):
            raise ValueError(
                f"mesh {sizes}: every axis needs at least 1 device, or -1 for all remaining ones."
            )
        if list(sizes.values()).count(-1) > 1:
            raise ValueError(f"mesh {sizes}: only one axis may be -1.")

    def sizes(self) -> dict[str, int]:
        """Return the number of devices on each axis, in mesh order."""
        return {"data": self.data, "fsdp": self.fsdp, "tensor": self.tensor}


def make_mesh(config: MeshConfig, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """Arrange devices in a mesh.

    If the devices belong to several TPU slices, which are connected only by the data-center
    network, the outermost part of the axis `data` runs across the slices. The gradients are then
    first reduced within each slice. `fsdp` and `tensor`, which communicate in every layer, stay
    within a slice.

    Args:
      config: the number of devices on each axis.
      devices: the devices; if None, all devices of all processes.

    Raises:
      ValueError: the product of the axis sizes is not the number of devices, or `data` cannot be
        divided by the number of slices.
    """
    devices = jax.devices() if devices is None else list(devices)
    sizes = config.sizes()
    product = math.prod(size for size in sizes.values() if size != -1)
    filled = {axis: len(devices) // product if n == -1 else n for axis, n in sizes.items()}
    if math.prod(filled.values()) != len(devices):
        raise ValueError(
            f"mesh {sizes} does not fit {len(devices)} devices: the product of its sizes must be "
            f"{len(devices)}. Set one axis to -1 to use all remaining devices."
        )
    shape = tuple(filled.values())
    auto = (AxisType.Auto,) * len(shape)
    slices = num_slices(devices)
    if slices == 1:
        return jax.make_mesh(shape, tuple(filled), axis_types=auto, devices=devices)
    if filled["data"] % slices:
        raise ValueError(
            f"mesh.data={filled['data']}: the devices form {slices} slices, and only `data` may "
            f"run across slices, so it must be a multiple of {slices}. Make `fsdp` or `tensor` "
            "smaller."
        )
    within = (filled["data"] // slices, *shape[1:])
    across = (slices, *(1 for _ in shape[1:]))
    arranged = create_hybrid_device_mesh(
        within, across, devices=devices, allow_split_physical_axes=True
    )
    return Mesh(arranged, tuple(filled), axis_types=auto)


def num_slices(devices: Sequence[jax.Device]) -> int:
    """Return the number of TPU slices to which devices belong, or 1 for other devices."""
    if devices[0].platform != "tpu":
        return 1
    return len({getattr(device, "slice_index", 0) for device in devices})


def mesh_axes(axes: Sequence[str | None], mesh: Mesh) -> list[tuple[str, ...]]:
    """Return the mesh axes that split each dim of a tensor, given the tensor's logical axes.

    A dim that is not split gets (). Axes of size 1 are left out, which gives an equivalent layout
    and shorter messages.

    Raises:
      KeyError: a logical axis is not in the table.
      AssertionError: two dims are split over the same mesh axis.
    """
    entries = [() if axis is None else TABLE[axis] for axis in axes]
    used = [axis for entry in entries for axis in entry]
    assert len(used) == len(set(used)), f"logical axes {axes} use a mesh axis twice: {used}"
    return [tuple(axis for axis in entry if mesh.shape[axis] > 1) for entry in entries]


def named_sharding(shape: Sequence[int], axes: Sequence[str | None], mesh: Mesh) -> NamedSharding:
    """Return a tensor's sharding; dims not evenly divisible by their mesh axes stay whole."""
    entries = [
        entry if entry and size % _extent(entry, mesh) == 0 else None
        for size, entry in zip(shape, mesh_axes(axes, mesh), strict=True)
    ]
    return NamedSharding(mesh, PartitionSpec(*entries))


def parameter_shardings(
    shapes: Mapping[str, jax.ShapeDtypeStruct], logical_axes: LogicalAxes, mesh: Mesh
) -> dict[str, NamedSharding]:
    """Return the sharding of every parameter, keyed by name.

    To list the dims that cannot be split evenly over the mesh, call `undivided`.
    """
    return {
        name: named_sharding(shape.shape, logical_axes[name], mesh)
        for name, shape in shapes.items()
    }


def undivided(
    shapes: Mapping[str, jax.ShapeDtypeStruct], logical_axes: LogicalAxes, mesh: Mesh
) -> list[str]:
    """Return a message for every parameter dim that cannot be split evenly over the mesh.

    For example, BERT's vocabulary size, 30,522 = 2 x 3 x 5,087, is not divisible by 4.
    """
    lines = []
    for name, shape in shapes.items():
        entries = mesh_axes(logical_axes[name], mesh)
        for dim, (size, entry) in enumerate(zip(shape.shape, entries, strict=True)):
            if size % _extent(entry, mesh):
                lines.append(
                    f"{name}: dim {dim}, of size {size}, is not divisible by "
                    f"{_extent(entry, mesh)} ({', '.join(entry)}) and stays whole on every device"
                )
    return lines


def _extent(axes: tuple[str, ...], mesh: Mesh) -> int:
    return math.prod(mesh.shape[axis] for axis in axes)


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Return a batch's sharding, which splits only the rows, along the batch axes."""
    return NamedSharding(mesh, PartitionSpec(mesh_axes(("batch",), mesh)[0] or None))


def batch_extent(mesh: Mesh) -> int:
    """Return the number of parts into which the mesh splits a batch."""
    return math.prod(mesh.shape[axis] for axis in TABLE["batch"])


@contextlib.contextmanager
def layout(mesh: Mesh) -> Iterator[None]:
    """Shard the model's activations according to the table while a function is traced."""

    def constrain(x: jax.Array, axes: tuple[str | None, ...]) -> jax.Array:
        return jax.lax.with_sharding_constraint(x, named_sharding(x.shape, axes, mesh))

    def split(
        function: Callable[..., Any],
        arguments: Sequence[jax.Array | None],
        axes: Sequence[Axes],
        result_axes: Axes | list[Axes],
        sum_over: str | None,
    ) -> Any:
        sizes = {
            axis: size
            for argument, names in zip(arguments, axes, strict=True)
            if argument is not None
            for axis, size in zip(names, argument.shape, strict=True)
        }

        def spec(axes: Axes) -> PartitionSpec:
            return named_sharding([sizes[axis] for axis in axes], axes, mesh).spec

        def on_this_device(*parts: jax.Array | None) -> Any:
            result = function(*parts)
            # If the dim is not split, every device has computed the whole sum.
            summed = None if sum_over is None else spec((sum_over,))[0]
            return result if summed is None else jax.lax.psum(result, summed)

        # Disable `check_vma`, since the type system of `shard_map` does not support Pallas kernels.
        divided = jax.shard_map(
            on_this_device,
            mesh=mesh,
            in_specs=tuple(map(spec, axes)),
            out_specs=tuple(map(spec, result_axes))
            if isinstance(result_axes, list)
            else spec(result_axes),
            check_vma=False,
        )
        return divided(*arguments)

    def divides(axis: str) -> bool:
        return bool(mesh_axes((axis,), mesh)[0])

    with use_layout(Layout(constrain, split, divides) if mesh.size > 1 else None):
        yield


def local_rows(mesh: Mesh, batch_size: int) -> np.ndarray:
    """Return the indices of the global batch's rows that this process must supply, in order.

    Raises:
      ValueError: `batch_size` is not divisible by the batch axes of the mesh.
    """
    parts = batch_extent(mesh)
    if batch_size % parts:
        raise ValueError(
            f"batch_size={batch_size} is not divisible by the {parts} parts that the mesh splits a "
            f"batch into ({' x '.join(TABLE['batch'])}). Use a multiple of {parts}."
        )
    slices = batch_sharding(mesh).addressable_devices_indices_map((batch_size,)).values()
    rows = [np.arange(batch_size)[index] for index in slices if index is not None]
    return np.unique(np.concatenate(rows))


def to_global(
    batch: Mapping[str, np.ndarray], mesh: Mesh, rows: np.ndarray, batch_size: int
) -> dict[str, jax.Array]:
    """Assemble the global batch; this process contributes `rows` and puts them on its devices."""
    sharding = batch_sharding(mesh)

    def place(local: np.ndarray) -> jax.Array:
        def shard(index: tuple[slice, ...] | None) -> np.ndarray:
            assert index is not None
            start, stop, _ = index[0].indices(batch_size)
            first = int(np.searchsorted(rows, start))
            assert rows[first] == start and rows[first + stop - start - 1] == stop - 1
            return local[first : first + stop - start]

        return jax.make_array_from_callback((batch_size, *local.shape[1:]), sharding, shard)

    return {name: place(array) for name, array in batch.items()}
