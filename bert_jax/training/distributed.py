"""Joining the other processes of a run, wherever it was launched."""

from __future__ import annotations

import os

import jax

# How many processes a launcher started together. Slurm sets SLURM_NTASKS in the shell of `salloc`
# and in a batch script too, where a process is alone: only `srun` sets the tasks of a step.
_SIZE_VARIABLES = ("SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE")
_LOCAL_VARIABLES = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")


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
