"""Freed buffers kept by malloc: those of every thread, up to a size, and only for CPUs."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from bert_jax import processes
from bert_jax.cli import main

MIB = 2**20
library, version = platform.libc_ver()
GLIBC = tuple(map(int, version.split(".")[:2])) if library == "glibc" else (0, 0)
on_glibc = pytest.mark.skipif(GLIBC < (2, 35), reason="malloc of glibc 2.35")

# A thread's block of 100 MiB touched and freed, and the MiB this process holds before and after.
SCRIPT = """
import ctypes, os, threading
from bert_jax import processes as freed_memory
{call}
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes = [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
def resident():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 2**20
def use():
    block = libc.malloc(100 * 2**20)
    ctypes.memset(block, 1, 100 * 2**20)
    libc.free(block)
before = resident()
thread = threading.Thread(target=use)
thread.start()
thread.join()
print(resident() - before)
"""


# Blocks of 8 MiB with something small after each, as weights passed on one by one leave them; the
# first block, freed, raises the size from which malloc returns blocks to the system at once. The
# small ones are too large for the gaps that Python's start left in the heap.
HOLES = (
    SCRIPT[: SCRIPT.index("def use")]
    + """
libc.free(libc.malloc(16 * 2**20))
before = resident()
blocks, pins = [], []
for _ in range(12):
    blocks.append(libc.malloc(8 * 2**20))
    ctypes.memset(blocks[-1], 1, 8 * 2**20)
    pins.append(libc.malloc(512 * 1024))
for block in blocks:
    libc.free(block)
print(resident() - before)
"""
)


def kept(call: str, script: str = SCRIPT, **variables: str) -> int:
    """MiB that a new process keeps of freed blocks of 100 MiB together."""
    decided = ("GLIBC_TUNABLES", "MALLOC_", "LD_PRELOAD")
    environment = {k: text for k, text in os.environ.items() if not k.startswith(decided)}
    result = subprocess.run(
        [sys.executable, "-c", script.format(call=call)],
        env={**environment, **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    return int(result.stdout)


@on_glibc
def test_a_freed_block_of_a_thread_is_kept_up_to_the_size_given() -> None:
    assert kept("pass") < 10
    assert kept(f"freed_memory.keep_blocks({200 * MIB})") > 90
    assert kept(f"freed_memory.keep_blocks({50 * MIB})") < 10


@on_glibc
def test_it_is_kept_for_cpus_alone_and_where_nothing_else_was_decided() -> None:
    call = "freed_memory.memory_bytes = lambda: 2**34; freed_memory.tune_malloc_for_training()"
    assert kept(call, JAX_PLATFORMS="cpu") > 90
    assert kept(call, JAX_PLATFORMS="cuda,cpu") < 10
    assert kept(call, JAX_PLATFORMS="cpu", GLIBC_TUNABLES="") < 10
    assert kept(call, JAX_PLATFORMS="cpu", MALLOC_TRIM_THRESHOLD_="131072") < 10


@on_glibc
def test_freed_weights_leave_no_holes() -> None:
    assert kept("pass", HOLES) > 80
    assert kept("freed_memory.return_freed_memory()", HOLES) < 10
    assert kept("freed_memory.return_freed_memory()", HOLES, GLIBC_TUNABLES="") > 80


def test_a_refusal_is_told_and_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked = []

    class Old:
        def mallopt(self, what: int, value: int) -> int:
            asked.append((what, value))
            return 0

    monkeypatch.setattr("ctypes.CDLL", lambda name: Old())
    caplog.set_level("INFO")
    processes.keep_blocks(100 * MIB)
    assert asked == [(-3, 100 * MIB)]
    assert "keeps no large buffers" in caplog.text


def test_a_block_is_kept_up_to_a_sixteenth_of_the_memory() -> None:
    assert processes.largest_block(16 * MIB) == MIB
    assert processes.largest_block(2**40) == 2**31 - 1  # what mallopt can be told


def test_an_accelerator_is_possible_where_a_plugin_is_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [])
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert not processes.accelerators_possible()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name == "libtpu" or None)
    assert processes.accelerators_possible()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: ["xla_cuda13"])
    assert processes.accelerators_possible()


def test_a_container_may_have_less_memory_than_its_machine(tmp_path: Path) -> None:
    membership = tmp_path / "cgroup"
    machine = processes.memory_bytes(membership, tmp_path)
    assert machine > 2**28
    membership.write_text("5:cpu:/a/job\n4:hugetlb,memory:/a/job\n0::/b/job\n")
    assert processes.memory_bytes(membership, tmp_path) == machine

    def limit(name: str, text: str) -> int:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
        return processes.memory_bytes(membership, tmp_path)

    assert limit("cpu/a/job/memory.limit_in_bytes", "1\n") == machine
    assert limit("memory.max", "max\n") == machine
    assert limit("b/memory.max", "1000000\n") == 1_000_000
    assert limit("b/job/memory.max", "2000000\n") == 1_000_000
    assert limit("memory/a/job/memory.limit_in_bytes", "900000\n") == 900_000


def test_only_verbs_that_train_ask_for_it_and_only_as_a_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []
    monkeypatch.setattr(main, "tune_malloc_for_training", lambda: asked.append(True))
    words = {
        "pretrain": ["pretrain", "--config", "absent.py"],
        "step": ["bench", "step", "--config", "absent.py"],
        "data": ["bench", "data", "--max-length", "0"],
    }
    for name, verb in words.items():
        monkeypatch.setattr(sys, "argv", ["bert-jax", *verb])
        assert main.main() == main.USER_MISTAKE
        assert bool(asked) == (name != "data")
        asked.clear()
        assert main.main(verb) == main.USER_MISTAKE
        assert not asked
    capsys.readouterr()
