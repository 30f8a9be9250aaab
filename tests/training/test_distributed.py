"""Test that a process joins a distributed run if its launcher's environment variables say so."""

from typing import Any

import jax
import pytest

from bert_jax.training import distributed
from bert_jax.training.distributed import lost_process

VARIABLES = (
    "JAX_COORDINATOR_ADDRESS",
    "JAX_NUM_PROCESSES",
    "JAX_PROCESS_ID",
    "SLURM_NTASKS",
    "SLURM_STEP_NUM_TASKS",
    "OMPI_COMM_WORLD_SIZE",
    "TPU_WORKER_HOSTNAMES",
)


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Record the arguments of every call to `jax.distributed.initialize`."""
    calls: list[tuple[Any, ...]] = []
    monkeypatch.setattr(jax.distributed, "initialize", lambda *words: calls.append(words))
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    return calls


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, []),
        # The shell in which eight tasks were allocated is not itself a task.
        ({"SLURM_NTASKS": "8"}, []),
        ({"SLURM_NTASKS": "8", "SLURM_STEP_NUM_TASKS": "1"}, []),
        ({"SLURM_NTASKS": "8", "SLURM_STEP_NUM_TASKS": "8"}, [()]),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, [()]),
        ({"TPU_WORKER_HOSTNAMES": "localhost"}, []),
        ({"TPU_WORKER_HOSTNAMES": "a,b"}, [()]),
        (dict(zip(VARIABLES[:3], ("host:1", "2", "1"), strict=True)), [("host:1", 2, 1)]),
    ],
    ids=str,
)
def test_a_process_joins_the_processes_of_its_launcher(
    monkeypatch: pytest.MonkeyPatch,
    joined: list[tuple[Any, ...]],
    variables: dict[str, str],
    expected: list[tuple[Any, ...]],
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    distributed.join()
    assert joined == expected
    assert (distributed.launched_together() > 1) == bool(expected)


def test_force_joins_a_pod_without_variables(joined: list[tuple[Any, ...]]) -> None:
    distributed.join(force=True)
    assert joined == [()]


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        (
            ("host:1", "2", ""),
            "JAX_NUM_PROCESSES set without JAX_PROCESS_ID: set all three or none",
        ),
        (("host:1", "two", "0"), "JAX_NUM_PROCESSES='two' and JAX_PROCESS_ID='0' must be whole"),
    ],
)
def test_incomplete_variables_are_refused(
    monkeypatch: pytest.MonkeyPatch,
    joined: list[tuple[Any, ...]],
    variables: tuple[str, ...],
    message: str,
) -> None:
    for name, value in zip(VARIABLES[:3], variables, strict=True):
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=message):
        distributed.join()
    assert joined == []


@pytest.mark.parametrize("kind", [jax.errors.JaxRuntimeError, ValueError])
@pytest.mark.parametrize(
    ("message", "lost"),
    [
        ("UNKNOWN: Gloo all-reduce failed: [pair.cc:547] Connection closed by peer [::1]:5", True),
        ("INTERNAL: NCCL operation failed: remote process exited or there was a network err", True),
        ("RESOURCE_EXHAUSTED: Out of memory allocating 5 bytes", False),
        ("INVALID_ARGUMENT: shapes differ", False),
    ],
)
def test_the_end_of_another_process_is_reported(
    monkeypatch: pytest.MonkeyPatch, message: str, lost: bool, kind: type[Exception]
) -> None:
    error = kind(message)
    # The run has only this process, so no other process can be lost.
    assert lost_process(error) is None
    monkeypatch.setattr(jax.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    sentence = lost_process(error)
    assert (sentence is not None and sentence.startswith("process 1 ")) == lost
    if "peer [::1]" in message:
        assert sentence is not None and "(last seen at [::1]:5)" in sentence
    assert lost_process(KeyError(message)) is None
