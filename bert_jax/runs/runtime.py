"""The software and hardware of a process: versions, compiled programs, bfloat16 support."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections import Counter
from pathlib import Path
from types import TracebackType
from typing import Any

import jax
from jax.sharding import Mesh

from bert_jax.models.config import ComputeConfig
from bert_jax.version import __version__


def enable_compilation_cache() -> None:
    """Has JAX keep what takes it a second or more to compile, in JAX_COMPILATION_CACHE_DIR.

    Where that is not set, a process alone keeps it in bert_jax/programs of the user's cache
    directory. Of several the first alone writes, and where the others do not see its directory they
    would compile what it finds there; on GPUs they then wait for its share of the tuning for ever.
    Runs that differ in seed, learning rate or number of steps alone have the same programs. To be
    called when the processes have joined.
    """
    alone = jax.process_count() == 1
    if alone and jax.config.values["jax_compilation_cache_dir"] is None:
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        jax.config.update("jax_compilation_cache_dir", str(home / "bert_jax" / "programs"))


# What JAX calls the steps that are compiled for every length of rows.
_STEPS = {"jit(train_step)": "to train", "jit(prediction_step)": "to predict"}
_COMPILED = "/jax/core/compile/backend_compile_duration"
_KEPT = "/jax/compilation_cache/cache_hits"


class Compilations:
    """Counts, while it is entered, what JAX compiles or finds in its cache on disk.

    seconds: of XLA, or of reading from the cache, for all programs; tracing is not among them.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._programs: Counter[str] = Counter()
        self._kept, self._found = 0, False

    def __enter__(self) -> Compilations:
        jax.monitoring.register_event_duration_secs_listener(self._took)
        jax.monitoring.register_event_listener(self._happened)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        jax.monitoring.unregister_event_duration_listener(self._took)
        jax.monitoring.unregister_event_listener(self._happened)

    def lines(self) -> list[str]:
        """A line for people, of the steps' programs and the seconds of all; none without any."""
        if not self._programs:
            return []
        told = [f"{self._programs[name]} {what}" for name, what in _STEPS.items()]
        kept = f" ({self._kept} of them from the cache)" * bool(self._kept)
        return [f"programs   {', '.join(told)}{kept}; compiling took {self.seconds:.1f} s in all"]

    def _happened(self, event: str, **_: Any) -> None:
        self._found = self._found or event == _KEPT

    def _took(self, event: str, duration_secs: float, **about: Any) -> None:
        if event != _COMPILED:
            return
        self.seconds += duration_secs
        if (name := about.get("fun_name")) in _STEPS:
            self._programs[name] += 1
            self._kept += self._found
        self._found = False


# As Linux calls Intel's AMX, and what AVX-512 has for bfloat16 (AMD's processors since Zen 4).
_INSTRUCTIONS = {"amx_bf16", "avx512_bf16"}


def multiplies_bfloat16(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether the processor multiplies bfloat16, as Linux tells; False where it does not tell.

    BERT-mini's train step of 64 x 128 tokens takes 0.7 s in bfloat16 on 2 cores with AMX, and
    1.3 s in float32 (2026-11); fine-tuned on short sentences it gains 1.4 times. With AVX-512's
    (2 cores of an AMD EPYC, 2026-11) a step of 32 x 128 tokens takes 0.39 s, and 0.71 s in float32.
    """
    try:
        lines = cpuinfo.read_text(encoding="utf-8").splitlines()
    except OSError:
        return False
    flags = (line.split() for line in lines if line.startswith("flags"))
    return any(_INSTRUCTIONS.intersection(each) for each in flags)


def dtype_hint(asked: ComputeConfig, platform: str) -> list[str]:
    """A line where "auto" is float32 and bfloat16 would be faster."""
    if asked.dtype != "auto" or platform != "cpu" or not multiplies_bfloat16():
        return []
    return [
        "hint       this processor multiplies bfloat16 matrices itself: "
        "--config.compute.dtype=bfloat16 is faster, the more so the longer the rows"
    ]


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
