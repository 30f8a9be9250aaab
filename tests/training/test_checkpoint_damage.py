"""Test that damaged checkpoints are reported and never used, and that runs resume without them."""

import gc
import io
import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

from bert_jax.cli.main import main
from bert_jax.error_advice import library_message
from bert_jax.runs.runtime import Compilations
from bert_jax.storage.partial import RemoteFiles
from bert_jax.tasks.task import Task
from bert_jax.training.checkpoint import Checkpointer, CheckpointNotSaved, _Save
from bert_jax.training.checkpoint_checksums import CHECKSUMS_NAME, verify
from bert_jax.training.checkpoint_files import (
    ASIDE_NAME,
    CheckpointConfig,
    DamagedCheckpoint,
    newest_step,
    recover,
    saved_run,
    steps_in,
)
from bert_jax.training.checkpoint_parameters import load_parameters
from bert_jax.training.evaluation import TrainingDiverged, require_finite_state
from bert_jax.training.optimizer import OptimizerConfig, make_optimizer
from bert_jax.training.sharding import MeshConfig, make_mesh, parameter_shardings
from bert_jax.training.state import TrainState, abstract_state, init_state

IDENTITY = {"model": "tiny"}
KEEP_ALL = CheckpointConfig(keep_last=100, keep_best=0)
OPTIMIZER = make_optimizer(OptimizerConfig())
METRICS = {"mlm_loss": 1.5}


@pytest.fixture(scope="module")
def mesh() -> Mesh:
    return make_mesh(MeshConfig(), jax.devices()[:1])


@pytest.fixture(scope="module")
def task(make_task: Callable[[int], Task]) -> Task:
    return make_task(8)


def at(state: TrainState, step: int) -> TrainState:
    return TrainState(jnp.asarray(step, jnp.int32), state.params, state.opt_state)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory, task: Task, mesh: Mesh) -> Path:
    """Return a directory for tests to copy, with checkpoints at steps 10, 20 and 30."""
    directory = tmp_path_factory.mktemp("saved") / "run" / "checkpoints"
    state = init_state(task.definition, OPTIMIZER, mesh, seed=0)
    with Checkpointer(directory, KEEP_ALL, IDENTITY) as checkpointer:
        for step in (10, 20, 30):
            checkpointer.save(at(state, step), METRICS)
    return directory


@pytest.fixture
def checkpoints(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "run" / "checkpoints"))


def files_of(checkpoint: Path) -> list[Path]:
    return sorted(path for path in checkpoint.rglob("*") if path.is_file())


def flip_bit(path: Path, rng: random.Random) -> None:
    content = bytearray(path.read_bytes())
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(bytes(content))


def test_every_flipped_bit_of_the_data_is_detected(checkpoints: Path) -> None:
    """Flip bits; without checksums, 40 of 40 checkpoints with a flipped bit loaded normally."""
    rng = random.Random(0)
    for part in ("params", "optimizer", "metrics"):
        files = [path for path in files_of(checkpoints / "30" / part) if path.stat().st_size]
        for path in [*files, *rng.choices(files, k=40 - len(files))]:
            before = path.read_bytes()
            flip_bit(path, rng)
            name = path.relative_to(checkpoints / "30").as_posix()
            assert verify(checkpoints, 30).problem == (
                f"{name} does not match the checksum recorded when it was saved"
            )
            path.write_bytes(before)
    assert verify(checkpoints, 30).problem is None


def test_no_flipped_bit_of_the_metadata_changes_the_identity(
    checkpoints: Path, saved: Path
) -> None:
    """Flip bits, which may go unnoticed only in certain places.

    These are timestamps, whitespace, and data that Orbax itself checks.
    """
    rng, path = random.Random(1), checkpoints / "30" / "_CHECKPOINT_METADATA"
    before = path.read_bytes()
    for _ in range(60):
        flip_bit(path, rng)
        assert verify(checkpoints, 30).problem or saved_run(checkpoints) == saved_run(saved)
        path.write_bytes(before)


def test_flipped_bits_of_the_checksums_are_detected(checkpoints: Path) -> None:
    rng, path = random.Random(1), checkpoints / "30" / CHECKSUMS_NAME
    before = path.read_bytes()
    for _ in range(60):
        flip_bit(path, rng)
        changed = path.read_bytes().decode("utf-8", "replace")
        space_only = changed.split() == before.decode().split()
        assert space_only or verify(checkpoints, 30).problem
        path.write_bytes(before)


@pytest.fixture(params=["truncated", "emptied", "removed", "part removed", "no metadata",
                        "no checksums", "empty directory", "renamed"])  # fmt: skip
def damaged(checkpoints: Path, request: pytest.FixtureRequest) -> tuple[Path, int, str]:
    """Return (directory, step of its damaged newest checkpoint, part of the error message)."""
    newest = checkpoints / "30"
    (data,) = (newest / "params" / "d").iterdir()
    name = data.relative_to(newest).as_posix()
    match request.param:
        case "truncated":
            os.truncate(data, data.stat().st_size - 1)
            return checkpoints, 30, f"{name} has"
        case "emptied":
            data.write_bytes(b"")
            return checkpoints, 30, f"{name} has 0 bytes"
        case "removed":
            data.unlink()
            return checkpoints, 30, f"{name} is missing"
        case "part removed":
            shutil.rmtree(newest / "params")
            return checkpoints, 30, "params/_METADATA is missing"
        case "no metadata":
            (newest / "_CHECKPOINT_METADATA").unlink()
            return checkpoints, 30, "_CHECKPOINT_METADATA is missing"
        case "no checksums":
            (newest / CHECKSUMS_NAME).unlink()
            return checkpoints, 30, f"{CHECKSUMS_NAME} is missing"
        case "empty directory":
            (checkpoints / "500").mkdir()
            return checkpoints, 500, "_CHECKPOINT_METADATA is missing"
        case "renamed":
            newest.rename(checkpoints / "300")
            return (
                checkpoints,
                300,
                "was saved as step 30 according to checksums.json, so the directory was renamed",
            )
        case _:
            raise AssertionError(request.param)


def test_a_damaged_checkpoint_is_named_and_the_intact_ones_listed(
    damaged: tuple[Path, int, str], task: Task, mesh: Mesh
) -> None:
    directory, step, problem = damaged
    shardings = parameter_shardings(task.definition.shapes, task.definition.logical_axes, mesh)
    assert newest_step(directory) == step
    with pytest.raises(DamagedCheckpoint) as error:
        load_parameters(directory, task.definition, shardings)
    intact = "10, 20, 30" if step == 500 else "10, 20"
    assert f"{directory / str(step)}: the checkpoint at step {step}" in str(error.value)
    assert problem in str(error.value) and f"(intact: {intact})" in str(error.value)


def test_a_run_resumes_from_the_newest_intact_checkpoint(
    damaged: tuple[Path, int, str], task: Task, mesh: Mesh
) -> None:
    directory, step, problem = damaged
    recovery = recover(directory, IDENTITY)
    expected = 30 if step == 500 else 20
    assert recovery.step == expected
    (line,) = recovery.lines
    assert problem in line and line.endswith(f"; resuming from step {expected}")
    # Nothing is deleted, and a new checkpoint can be saved at that step.
    assert (directory.parent / ASIDE_NAME / str(step)).is_dir()
    with Checkpointer(directory, KEEP_ALL, IDENTITY, verified=expected) as checkpointer:
        state = checkpointer.restore(abstract_state(task.definition, OPTIMIZER, mesh))
        assert int(state.step) == expected
        checkpointer.save(at(state, step), None)
    assert verify(directory, step).problem is None
    assert recover(directory, IDENTITY).lines == ()


def test_an_older_damaged_checkpoint_is_moved_aside_too(checkpoints: Path) -> None:
    shutil.rmtree(checkpoints / "10" / "metrics")
    recovery = recover(checkpoints, IDENTITY)
    assert recovery.step == 30 and steps_in(checkpoints) == [20, 30]
    assert "step 10: metrics/commit_success.txt is missing" in recovery.lines[0]


def test_a_run_never_restarts_over_damaged_checkpoints(checkpoints: Path) -> None:
    for step in (10, 20, 30):
        (checkpoints / str(step) / CHECKSUMS_NAME).write_text("[]")
    with pytest.raises(DamagedCheckpoint, match="all checkpoints are damaged .*step 10: .*step 30"):
        recover(checkpoints, IDENTITY)
    assert steps_in(checkpoints) == [10, 20, 30]


def test_restore_verifies_the_checkpoint(checkpoints: Path, task: Task, mesh: Mesh) -> None:
    flip_bit(next((checkpoints / "30" / "optimizer" / "d").iterdir()), random.Random(2))
    with (
        Checkpointer(checkpoints, KEEP_ALL, IDENTITY) as checkpointer,
        pytest.raises(
            DamagedCheckpoint, match=r"step 30 is damaged: optimizer/d/\w+ does not match"
        ),
    ):
        checkpointer.restore(abstract_state(task.definition, OPTIMIZER, mesh))


def test_parameters_load_although_the_optimizer_is_damaged(
    checkpoints: Path, task: Task, mesh: Mesh
) -> None:
    shutil.rmtree(checkpoints / "30" / "optimizer" / "d")
    shardings = parameter_shardings(task.definition.shapes, task.definition.logical_axes, mesh)
    assert load_parameters(checkpoints, task.definition, shardings).keys() == shardings.keys()


@pytest.fixture
def earlier_version(checkpoints: Path) -> Path:
    """Return checkpoints that lack checksums, like those from earlier versions."""
    for checkpoint in checkpoints.iterdir():
        (checkpoint / CHECKSUMS_NAME).unlink()
        path = checkpoint / "_CHECKPOINT_METADATA"
        content = json.loads(path.read_text())
        del content["custom_metadata"]["checksums"]
        path.write_text(json.dumps(content))
    return checkpoints


def test_checkpoints_of_earlier_versions_still_load(
    earlier_version: Path, task: Task, mesh: Mesh
) -> None:
    assert recover(earlier_version, IDENTITY) == recover(earlier_version, IDENTITY)
    assert recover(earlier_version, IDENTITY).step == 30
    with Checkpointer(earlier_version, KEEP_ALL, IDENTITY) as checkpointer:
        state = checkpointer.restore(abstract_state(task.definition, OPTIMIZER, mesh))
    assert int(state.step) == 30
    shutil.rmtree(earlier_version / "30" / "params")
    assert recover(earlier_version, IDENTITY).step == 20


@pytest.fixture
def orbax_left_behind() -> Iterator[None]:
    """Garbage-collect coroutines from failed operations, so that other tests get no warnings."""
    yield
    gc.collect()


# When an operation fails, Orbax closes its event loop before TensorStore has finished.
FAILED_OPERATION = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@FAILED_OPERATION
@pytest.mark.usefixtures("orbax_left_behind")
def test_data_that_orbax_cannot_read_is_reported_in_one_sentence(
    earlier_version: Path, task: Task, mesh: Mesh
) -> None:
    for path in files_of(earlier_version / "30" / "params" / "d"):
        path.write_bytes(b"no array")
    shardings = parameter_shardings(task.definition.shapes, task.definition.logical_axes, mesh)
    with pytest.raises(DamagedCheckpoint, match="step 30 is damaged: ") as error:
        load_parameters(earlier_version, task.definition, shardings)
    assert "\n" not in str(error.value)


def test_returning_to_a_step_moves_later_checkpoints_aside_once(checkpoints: Path) -> None:
    (checkpoints.parent / "metrics.jsonl").write_text('{"kind": "train", "step": 25}\n')
    recovery = recover(checkpoints, IDENTITY, from_step=10)
    aside = checkpoints.parent / ASIDE_NAME
    assert recovery.step == 10 and steps_in(checkpoints) == [10]
    assert recovery.lines == (f"from step  10: later checkpoints (20, 30) moved to {aside}",)
    assert verify(aside, 30).problem is None and verify(aside, 20).problem is None
    assert (aside / "metrics-up-to-30.jsonl").read_text().count("\n") == 1
    # By the time a scheduler repeats the command, the run has continued training.
    shutil.copytree(aside / "20", checkpoints / "20")
    again = recover(checkpoints, IDENTITY, from_step=10)
    assert again.step == 20 and "was already applied by an earlier command" in again.lines[0]
    # Going back a second time does not overwrite the checkpoints set aside the first time.
    (aside / "from-step.json").unlink()
    assert recover(checkpoints, IDENTITY, from_step=10).step == 10
    assert {path.name for path in aside.iterdir() if path.is_dir()} == {"20", "30", "20.1"}


def test_returning_to_a_step_of_another_run_moves_nothing(checkpoints: Path) -> None:
    with pytest.raises(ValueError, match="belongs to another run .*\n  model: 'tiny' -> 'base'"):
        recover(checkpoints, {"model": "base"}, from_step=10)
    assert steps_in(checkpoints) == [10, 20, 30]
    assert not (checkpoints.parent / ASIDE_NAME).exists()
    # It is fine if parts of the identity are still unknown.
    assert recover(checkpoints, {}, from_step=10).step == 10


@pytest.mark.parametrize("step", [15, 20])
def test_returning_to_a_step_needs_an_intact_checkpoint(checkpoints: Path, step: int) -> None:
    shutil.rmtree(checkpoints / "20" / "params")
    available = "Available steps: 10, 20, 30"
    with pytest.raises(ValueError, match=f"no checkpoint at step 15. {available}|step 20"):
        recover(checkpoints, IDENTITY, from_step=step)
    assert steps_in(checkpoints) == [10, 20, 30]


def test_an_intact_checkpoint_that_fails_to_load_is_not_reported_as_damaged(
    checkpoints: Path, task: Task, mesh: Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(*_: object) -> None:
        raise RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 5 bytes")

    monkeypatch.setattr("orbax.checkpoint.v1.load_checkpointables", load)
    shardings = parameter_shardings(task.definition.shapes, task.definition.logical_axes, mesh)
    with pytest.raises(OSError, match="is intact but cannot be loaded: RESOURCE_EXH") as error:
        load_parameters(checkpoints, task.definition, shardings)
    assert "out of memory" in str(library_message(error.value, "predict"))
    with (
        Checkpointer(checkpoints, KEEP_ALL, IDENTITY) as checkpointer,
        pytest.raises(OSError, match="is intact but cannot be loaded: RESOURCE_EXHAUSTED"),
    ):
        checkpointer.restore(abstract_state(task.definition, OPTIMIZER, mesh))


def test_a_checkpoint_removed_during_the_check_is_not_reported_as_damaged(
    checkpoints: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Remove a checkpoint during the check, as a run in progress may do."""
    open_file = RemoteFiles.open

    def remove_and_open(files: RemoteFiles, name: str) -> io.BufferedReader | io.FileIO:
        if files.directory == checkpoints / "20":
            shutil.rmtree(files.directory, ignore_errors=True)
        return open_file(files, name)

    monkeypatch.setattr(RemoteFiles, "open", remove_and_open)
    assert main(["verify-checkpoint", str(checkpoints)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ", 1)[1].split()[0] for line in lines] == ["intact", "removed", "intact"]
    assert verify(checkpoints, 20).problem == "the directory is missing"


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system of only 256 KiB."""
    target = tmp_path / "full"
    target.mkdir()
    if os.system(f"mount -t tmpfs -o size=256k none {target} 2>/dev/null"):
        pytest.skip("only root can mount a small file system")
    yield target
    os.system(f"umount -l {target}")


@FAILED_OPERATION
@pytest.mark.usefixtures("orbax_left_behind")
def test_a_failed_save_is_reported_at_the_next_step(
    full_disk: Path, make_task: Callable[[int], Task], mesh: Mesh
) -> None:
    state = init_state(make_task(2048).definition, OPTIMIZER, mesh, seed=0)
    noise = np.random.default_rng(0).standard_normal((2048, 4)).astype(np.float32)
    state = TrainState(state.step, state.params | {"dense.kernel": noise}, state.opt_state)
    directory = full_disk / "checkpoints"
    with Checkpointer(directory, KEEP_ALL, IDENTITY) as checkpointer:
        checkpointer.save(at(state, 1), None)
        checkpointer.raise_if_failed(wait=True)
        (full_disk / "other").write_bytes(bytes(90_000))
        with pytest.raises(CheckpointNotSaved) as error:
            checkpointer.save(at(state, 2), None)
            checkpointer.raise_if_failed(wait=True)
    message = str(error.value)
    assert f"{directory / '2'}: the checkpoint cannot be saved: " in message
    assert "No space left" in message and "its newest intact checkpoint is step 1" in message
    assert "\n" not in message and "run the same command again to resume" in message
    assert [path.name for path in directory.iterdir()] == ["1"]
    assert recover(directory, IDENTITY).step == 1


def test_a_save_that_times_out_is_a_failure(checkpoints: Path) -> None:
    """Raise a TimeoutError without a message, which is a failure if `raise_if_failed` waits.

    If it does not wait, the error only means that the save is still running.
    """

    class Response:
        def result(self, timeout: float | None) -> None:
            raise TimeoutError

    with Checkpointer(checkpoints, KEEP_ALL, IDENTITY) as checkpointer:
        checkpointer._save = _Save(40)
        checkpointer._save.response = Response()
        checkpointer.raise_if_failed()
        with pytest.raises(CheckpointNotSaved, match="its newest intact checkpoint is step 30"):
            checkpointer.raise_if_failed(wait=True)


def test_a_removed_directory_stops_the_run(checkpoints: Path, task: Task, mesh: Mesh) -> None:
    state = init_state(task.definition, OPTIMIZER, mesh, seed=0)
    with Checkpointer(checkpoints, KEEP_ALL, IDENTITY) as checkpointer:
        shutil.rmtree(checkpoints.parent)
        with pytest.raises(CheckpointNotSaved, match="was removed during the run"):
            checkpointer.save(at(state, 40), None)
    assert not checkpoints.exists()


@pytest.mark.parametrize("part", ["params", "opt_state"])
def test_the_message_names_parameters_that_are_not_finite(
    task: Task, mesh: Mesh, part: str
) -> None:
    state: Any = init_state(task.definition, OPTIMIZER, mesh, seed=0)
    require_finite_state(state, mesh)
    with Compilations() as compiled:
        # Every run in a sweep has its own mesh object for the same devices.
        require_finite_state(state, make_mesh(MeshConfig(), jax.devices()[:1]))
    assert compiled.seconds == 0
    broken = {
        "params": lambda: TrainState(
            state.step, state.params | {"dense.bias": jnp.full(4, jnp.inf)}, state.opt_state
        ),
        "opt_state": lambda: TrainState(
            state.step, state.params, jax.tree.map(lambda x: x * jnp.nan, state.opt_state)
        ),
    }[part]()
    message = r"the update made these values NaN or infinite: .*dense.bias.*--from-step N"
    with pytest.raises(TrainingDiverged, match=message):
        require_finite_state(broken, mesh)
