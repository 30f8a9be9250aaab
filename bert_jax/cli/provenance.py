"""What figures were made on and with."""

from __future__ import annotations

import importlib.metadata
import platform
from pathlib import Path

from jax.sharding import Mesh

from bert_jax import __version__

_PACKAGES = ("jax", "flax", "optax", "numpy")


def hardware(mesh: Mesh) -> str:
    """The devices of a mesh; where they are CPUs, the processor."""
    kind = mesh.devices.flat[0].device_kind
    name = f"{kind} ({_processor()})" if kind == "cpu" else kind
    return f"{mesh.size} x {name}"


def versions() -> dict[str, str]:
    """Of this package, Python and what computes."""
    others = {name: importlib.metadata.version(name) for name in _PACKAGES}
    return {"bert_jax": __version__, "Python": platform.python_version(), **others}


def _processor() -> str:
    """Its name, as Linux tells it, or else as Python does."""
    file = Path("/proc/cpuinfo")
    for line in file.read_text(encoding="utf-8").splitlines() if file.is_file() else ():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
