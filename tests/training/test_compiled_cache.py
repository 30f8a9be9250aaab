"""Test that a step for devices that are not present is compiled only once."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bert_jax.training.compiled_cache import cached_step
from bert_jax.training.compiled_step import CompiledStep


class Compiler:
    """A compiler that counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> CompiledStep:
        self.calls += 1
        return CompiledStep(3, 2, 1, None, 4.5, text=f"HloModule number {self.calls}")


def mesh(platform_version: str = "TPU v5 lite", runtime: str = "compile_only_runtime") -> Any:
    client = SimpleNamespace(runtime_type=runtime, platform_version=platform_version)
    devices = [SimpleNamespace(client=client, coords=[i, 0, 0]) for i in range(2)]
    return SimpleNamespace(devices=SimpleNamespace(flat=devices))


def lowered(text: str = "module @step") -> Any:
    return SimpleNamespace(as_text=lambda debug_info: text)


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("XLA_FLAGS", "")
    return tmp_path / "bert_jax" / "plans"


def test_equal_steps_are_compiled_once(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compile = Compiler()
    first = cached_step(lowered(), mesh(), compile)
    assert not first.cached
    second = cached_step(lowered(), mesh(), compile)
    assert compile.calls == 1 and second.cached
    assert (second.memory, second.flops, second.bytes_accessed) == (6, None, 4.5)
    assert second.text == first.text == "HloModule number 1"
    # The step is compiled again after a change to anything that may affect the program.
    cached_step(lowered("module @other"), mesh(), compile)
    cached_step(lowered(), mesh("TPU v6 lite"), compile)
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=dump")
    cached_step(lowered(), mesh(), compile)
    assert compile.calls == len(list(directory.iterdir())) == 4


def test_steps_for_present_devices_are_left_to_jax(directory: Path) -> None:
    compile = Compiler()
    for _ in range(2):
        cached_step(lowered(), mesh(runtime="tfrt"), compile)
    assert compile.calls == 2 and not directory.exists()


def test_a_damaged_file_is_named(directory: Path) -> None:
    cached_step(lowered(), mesh(), Compiler())
    (file,) = directory.iterdir()
    for damage in ("{", '{"arguments": 1}', '{"unknown": 1}'):
        file.write_text(damage)
        with pytest.raises(ValueError, match=rf"{file.name}.*Delete this file"):
            cached_step(lowered(), mesh(), Compiler())


def test_a_step_that_cannot_be_stored_is_returned(directory: Path) -> None:
    directory.parent.parent.mkdir(exist_ok=True)
    directory.parent.write_text("not a directory")
    assert cached_step(lowered(), mesh(), Compiler()).text == "HloModule number 1"
