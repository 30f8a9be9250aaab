"""The other processes of a run: joining them wherever it was launched, and being of one mind."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import threading
from collections.abc import Mapping
from typing import NoReturn

import jax
import numpy as np
from jax.experimental import multihost_utils

from bert_jax.training.lost_process import explain_aborts

# How many processes a launcher started together. Slurm sets SLURM_NTASKS in the shell of `salloc`
# and in a batch script too, where a process is alone: only `srun` sets the tasks of a step.
_SIZE_VARIABLES = ("SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE")
_LOCAL_VARIABLES = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")
# How long a process that failed waits for the others to fail too, and all to end as they should.
_LEAVING_SECONDS = 15.0


def join(force: bool = False) -> None:
    """Connects this process to the others; does nothing where it is alone.

    Looks at JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID (launch/local.sh sets
    them), else lets `jax.distributed.initialize` find a Slurm, Open MPI or TPU cluster. To be
    called before anything else touches a device.

    Args:
      force: connect even where nothing here tells of other processes, as on a Cloud TPU pod, whose
        hosts learn of each other from the metadata server.

    Raises:
      ValueError: only some of the three variables are set, or they are not numbers.
    """
    given = [name for name in _LOCAL_VARIABLES if os.environ.get(name)]
    if given:
        _join_given(given)
    elif force or _cluster_size() > 1:
        jax.distributed.initialize()
    if jax.distributed.is_initialized():
        explain_aborts()


def leave(code: int, *, lost: bool = False) -> None:
    """Ends this process, which has failed, with exit code `code` if others of the run go on.

    Args:
      lost: whether it failed because another process ended. Only process 0, the coordinator, waits
        in that case; in the others JAX would abort if process 0 is the one that ended.

    Returns where it is alone, and where the others have come to their end as well. JAX would wait
    for them for 5 minutes: for so long the others compute nothing, since they wait for what this
    one was to send, and the launcher that would end them hears of nothing.
    """
    if not jax.distributed.is_initialized():
        return
    if lost and jax.process_index() != 0:
        _end(code)
    ending = threading.Thread(target=jax.distributed.shutdown, daemon=True)
    ending.start()
    ending.join(_LEAVING_SECONDS)
    if ending.is_alive():
        _end(code)


def _end(code: int) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def launched_together() -> int:
    """How many processes a launcher told this one that they are; 1 where it is alone."""
    told = os.environ.get("JAX_NUM_PROCESSES", "")
    return max(int(told) if told.isdigit() else 1, _cluster_size())


def agreed(found: int) -> int:
    """What the first process found, for all of them, which must all ask.

    Each sees files for itself, and another run may write them while they look.
    """
    return int(multihost_utils.broadcast_one_to_all(np.int32(found)))


def check_same(given: Mapping[str, object]) -> None:
    """Refuses a run whose processes were given different things, before they learn apart by them.

    JAX takes what each process passes to a step for the same and does not look.

    Args:
      given: plain JSON values by name, of the same names on all processes, which must all ask.

    Raises:
      ValueError: on every process; names what differs from the first process's, and where.
    """
    texts = [json.dumps(value, sort_keys=True) for value in given.values()]
    digests = [np.frombuffer(hashlib.sha256(text.encode()).digest(), np.uint8) for text in texts]
    gathered = multihost_utils.process_allgather(np.stack(digests), tiled=False)
    by_process = np.asarray(gathered).reshape(-1, len(given), 32)
    lines = []
    for place, name in enumerate(given):
        others = np.flatnonzero((by_process[:, place] != by_process[0, place]).any(-1))
        if len(others):
            lines.append(f"  {name}: of process {', '.join(map(str, others))}")
    if lines:
        raise ValueError(
            "the processes of this run were given different things. Not as of process 0:\n"
            + "\n".join(lines)
            + "\nStart all with the same command, config files, data and versions"
        )


def _join_given(given: list[str]) -> None:
    if len(given) < len(_LOCAL_VARIABLES):
        missing = [name for name in _LOCAL_VARIABLES if name not in given]
        raise ValueError(f"{', '.join(given)} set without {', '.join(missing)}: set all or none")
    address, count, index = (os.environ[name] for name in _LOCAL_VARIABLES)
    try:
        num_processes, process_id = int(count), int(index)
    except ValueError:
        raise ValueError(
            f"JAX_NUM_PROCESSES={count!r} and JAX_PROCESS_ID={index!r} must be whole numbers"
        ) from None
    jax.distributed.initialize(address, num_processes, process_id)


def _cluster_size() -> int:
    sizes = [os.environ.get(name, "1") for name in _SIZE_VARIABLES]
    hosts = os.environ.get("TPU_WORKER_HOSTNAMES", "").split(",")
    return max([int(size) for size in sizes if size.isdigit()] + [len(hosts)])
