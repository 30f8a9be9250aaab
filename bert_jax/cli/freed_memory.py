"""What malloc does with freed buffers: keeps those of train steps, returns those of weights."""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import logging
import os
import platform

from bert_jax.machine_memory import memory_bytes

# malloc.h of glibc
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8

_LARGEST_INT = 2**31 - 1
_SMALLEST_RETURNED = 1 << 16  # bytes


def keep_freed_memory() -> None:
    """Tells malloc to keep freed blocks up to `largest_block`; to be called before threads start.

    XLA's CPU client allocates all temporary buffers of a step as one block, from a thread of its
    own, and frees it after the step. glibc gets such a block from the kernel and gives it back,
    so that every step touches all its pages anew: BERT-mini at 32 x 128 tokens took 640 ms with
    its 716 MB kept and 690 to 860 ms without (2 cores of a virtual machine, 2026-11).
    Up to three such blocks were seen kept, as the next step may begin before the last one's is
    freed; smaller ones stay as well.

    Nothing is changed where it would not help or is decided already: without glibc, where JAX may
    find an accelerator, and where GLIBC_TUNABLES is set, if only to nothing, or a variable of
    malloc's own (MALLOC_ARENA_MAX, ...).
    """
    if _is_open() and not accelerators_possible():
        keep_blocks(largest_block(memory_bytes()))


def return_freed_memory() -> None:
    """Tells malloc to give freed arrays back to the system at once; nothing where it is decided.

    glibc comes to keep freed blocks of up to 32 MiB, which weights that are turned and passed on
    one by one leave as holes: exporting BERT-large held 2.6 GiB without this and 1.7 GiB with it.
    """
    if _is_open():
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _SMALLEST_RETURNED)


def _is_open() -> bool:
    """Whether malloc is glibc's and nobody has told it what to do."""
    decided = any(name == "GLIBC_TUNABLES" or name.startswith("MALLOC_") for name in os.environ)
    return platform.libc_ver()[0] == "glibc" and not decided


def largest_block(memory: int) -> int:
    """Bytes: 1/16 of the memory, so that what is kept cannot fill it, and less than 2 GiB."""
    return min(memory // 16, _LARGEST_INT)  # mallopt takes an int


def keep_blocks(largest: int) -> None:
    """Keeps every freed block below `largest` bytes, whichever thread allocates it."""
    mallopt = ctypes.CDLL(None).mallopt
    # glibc before 2.35 takes no threshold above 32 MiB.
    if not mallopt(_M_MMAP_THRESHOLD, largest):
        logging.getLogger(__name__).info(
            "glibc %s keeps no large buffers: steps on a CPU are slower", platform.libc_ver()[1]
        )
        return
    mallopt(_M_TRIM_THRESHOLD, -1)
    # A thread's own arena holds blocks of up to 64 MiB; larger ones come from the kernel again.
    mallopt(_M_ARENA_MAX, 1)


def accelerators_possible() -> bool:
    """Whether JAX might run on something else than the CPU, told without starting it."""
    wanted = os.environ.get("JAX_PLATFORMS", "")
    if wanted:
        return wanted != "cpu"
    installed = importlib.metadata.entry_points(group="jax_plugins")
    return bool(installed) or any(map(importlib.util.find_spec, ("jax_plugins", "libtpu")))
