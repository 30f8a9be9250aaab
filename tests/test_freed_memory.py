"""Test that malloc keeps freed buffers up to a limit, but only when training on CPUs."""

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
on_glibc = pytest.mark.skipif(GLIBC < (2, 35), reason="requires malloc from glibc 2.35")

# A script in which a thread touches and frees a block of 100 MiB. It then prints how much the
# process has grown, in MiB.
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


# A script that allocates blocks of 8 MiB, each followed by a small block, as happens when weights
# are converted one by one. Freeing the very first block raises the threshold above which malloc
# returns blocks to the system immediately. The small blocks are still too large for the gaps that
# Python's startup leaves in the heap.
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
    """Run a script that frees about 100 MiB, and return how many of those MiB the process keeps.

    Args:
      call: the statement that configures malloc, run before `script`.
      script: the script to run.
      variables: the environment variables to set.
    """
    prefixes = ("GLIBC_TUNABLES", "MALLOC_", "LD_PRELOAD")
    environment = {k: text for k, text in os.environ.items() if not k.startswith(prefixes)}
    result = subprocess.run(
        [sys.executable, "-c", script.format(call=call)],
        env={**environment, **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    return int(result.stdout)


@on_glibc
def test_freed_blocks_of_threads_are_kept_up_to_the_given_size() -> None:
    assert kept("pass") < 10
    assert kept(f"freed_memory.keep_blocks({200 * MIB})") > 90
    assert kept(f"freed_memory.keep_blocks({50 * MIB})") < 10


@on_glibc
def test_freed_blocks_are_kept_only_on_cpus_and_if_malloc_is_not_configured() -> None:
    call = "freed_memory.memory_bytes = lambda: 2**34; freed_memory.tune_malloc_for_training()"
    assert kept(call, JAX_PLATFORMS="cpu") > 90
    assert kept(call, JAX_PLATFORMS="cuda,cpu") < 10
    assert kept(call, JAX_PLATFORMS="cpu", GLIBC_TUNABLES="") < 10
    assert kept(call, JAX_PLATFORMS="cpu", MALLOC_TRIM_THRESHOLD_="131072") < 10


@on_glibc
def test_freed_weights_leave_no_holes_in_memory() -> None:
    assert kept("pass", HOLES) > 80
    assert kept("freed_memory.return_freed_memory()", HOLES) < 10
    assert kept("freed_memory.return_freed_memory()", HOLES, GLIBC_TUNABLES="") > 80


def test_an_old_glibc_is_logged_and_not_configured_further(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    calls = []

    class OldLibrary:
        def mallopt(self, parameter: int, value: int) -> int:
            calls.append((parameter, value))
            return 0

    monkeypatch.setattr("ctypes.CDLL", lambda name: OldLibrary())
    caplog.set_level("INFO")
    processes.keep_blocks(100 * MIB)
    assert calls == [(-3, 100 * MIB)]
    assert "cannot keep large freed buffers" in caplog.text


def test_the_largest_kept_block_is_a_sixteenth_of_the_memory() -> None:
    assert processes.largest_block(16 * MIB) == MIB
    # This is the largest argument that mallopt accepts.
    assert processes.largest_block(2**40) == 2**31 - 1


def test_an_accelerator_is_possible_if_a_plugin_is_installed(
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


def test_cgroups_limit_the_memory(tmp_path: Path) -> None:
    membership_file = tmp_path / "cgroup"
    machine_memory = processes.memory_bytes(membership_file, tmp_path)
    assert machine_memory > 2**28
    membership_file.write_text("5:cpu:/a/job\n4:hugetlb,memory:/a/job\n0::/b/job\n")
    assert processes.memory_bytes(membership_file, tmp_path) == machine_memory

    def memory_with_limit(name: str, text: str) -> int:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
        return processes.memory_bytes(membership_file, tmp_path)

    assert memory_with_limit("cpu/a/job/memory.limit_in_bytes", "1\n") == machine_memory
    assert memory_with_limit("memory.max", "max\n") == machine_memory
    assert memory_with_limit("b/memory.max", "1000000\n") == 1_000_000
    assert memory_with_limit("b/job/memory.max", "2000000\n") == 1_000_000
    assert memory_with_limit("memory/a/job/memory.limit_in_bytes", "900000\n") == 900_000


def test_malloc_is_configured_only_by_training_commands_run_as_the_main_program(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = []
    monkeypatch.setattr(main, "tune_malloc_for_training", lambda: calls.append(True))
    words = {
        "pretrain": ["pretrain", "--config", "absent.py"],
        "step": ["bench", "step", "--config", "absent.py"],
        "data": ["bench", "data", "--max-length", "0"],
    }
    for name, verb in words.items():
        monkeypatch.setattr(sys, "argv", ["bert-jax", *verb])
        assert main.main() == main.USER_MISTAKE
        assert bool(calls) == (name != "data")
        calls.clear()
        assert main.main(verb) == main.USER_MISTAKE
        assert not calls
    capsys.readouterr()
