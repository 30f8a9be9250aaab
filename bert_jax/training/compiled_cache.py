"""Keep the statistics of steps that were compiled for devices that are not present.

JAX's own cache cannot be used, because it keeps compiled programs, which cannot be loaded for such
devices.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from jax.sharding import Mesh

from bert_jax.files import write_file
from bert_jax.json_files import expecting_fields, read_json_object
from bert_jax.local_paths import cache_directory, make_directory
from bert_jax.training.compiled_step import CompiledStep

# The packages that contain compilers, and the environment variables that affect them.
_COMPILERS = ("jaxlib", "libtpu", "jax-cuda12-pjrt", "jax-cuda13-pjrt")
_VARIABLES = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")


def cached_step(lowered: Any, mesh: Mesh, compile: Callable[[], CompiledStep]) -> CompiledStep:
    """Return the statistics of a step, compiling it only if no earlier call has done so.

    Steps for devices that are present are always compiled, since JAX's own cache works for them.

    Args:
      lowered: the lowered step.
      mesh: the device mesh.
      compile: compiles the step.

    Raises:
      ValueError: a file in the cache is damaged.
    """
    client = mesh.devices.flat[0].client
    if client.runtime_type != "compile_only_runtime":
        return compile()
    file = _file(lowered, mesh)
    if file.exists():
        fix = "Delete this file"
        with expecting_fields(file, fix):
            return replace(CompiledStep(**read_json_object(file, fix)), cached=True)
    step = compile()
    # A step that cannot be stored, for example because the home directory is read-only, is compiled
    # again by the next call.
    with suppress(OSError):
        make_directory(file.parent)
        write_file(file, json.dumps(asdict(step), indent=1) + "\n")
    return step


def _file(lowered: Any, mesh: Mesh) -> Path:
    """Return the file for a step; its name depends on everything that affects the compilation."""
    devices = mesh.devices.flat
    parts = [
        lowered.as_text(debug_info=True),  # includes source lines, which the statistics refer to
        devices[0].client.platform_version,
        str([device.coords for device in devices]),
        *(f"{package} {_version(package)}" for package in _COMPILERS),
        *(os.environ.get(variable, "") for variable in _VARIABLES),
    ]
    digest = hashlib.sha256("\0".join(parts).encode("utf-8")).hexdigest()
    return cache_directory() / "plans" / f"{digest}.json"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
