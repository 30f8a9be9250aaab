"""Load and save model parameters without the rest of a run's state."""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from orbax.checkpoint import v1 as ocp

from bert_jax.local_paths import local_path
from bert_jax.models.heads import TRAINING_ONLY
from bert_jax.models.parameters import ModelDefinition, Parameters, check_names
from bert_jax.storage.partial import remote_files
from bert_jax.training.agreement import FailedElsewhere, on_all_processes
from bert_jax.training.checkpoint_checksums import (
    CHECKSUMS_MARK,
    PARAMETERS,
    flush,
    verify,
    write_checksums,
)
from bert_jax.training.checkpoint_files import (
    DamagedCheckpoint,
    damaged,
    newest_step,
    require_intact,
    require_step,
)
from bert_jax.training.distributed import agreed

_WRITE_BYTES = 1 << 28


def load_parameters(
    directory: Path,
    definition: ModelDefinition[Any],
    shardings: Mapping[str, Any],
    step: int | None = None,
    part: str = PARAMETERS,
) -> Parameters:
    """Load a checkpoint's parameters, for inference or to initialize a run.

    All processes of a run must call this together. Parameters that are needed only in training
    (`TRAINING_ONLY`) are not loaded, unless `definition` includes them.

    Args:
      directory: the directory that holds the checkpoints.
      definition: the model.
      shardings: a dict from parameter name to sharding.
      step: the checkpoint's step; if None, the newest.
      part: the part of the checkpoint: `PARAMETERS`, or `AVERAGE` for their moving average.

    Raises:
      DamagedCheckpoint: a file differs from what was saved; the message lists the intact steps.
      OSError: the checkpoint is intact but cannot be loaded.
      ValueError: there is no checkpoint at this step, or its parameters do not fit the model; the
        message lists the steps, names or shapes.
    """
    if not directory.is_dir():
        raise ValueError(
            f"{directory}: no such directory; expected a run's `checkpoints` directory."
        )
    # All processes must use the same step, even if another job saves a checkpoint in the meantime.
    step = agreed(newest_step(directory) if step is None else step)
    require_step(directory, step)
    if part != PARAMETERS and not (directory / str(step) / part).is_dir():
        raise ValueError(
            f"{directory / str(step)}: the checkpoint has no moving average of the parameters, "
            "which a run keeps if averaging.ema_decay is not 0. Use its parameters."
        )
    require_intact_everywhere(directory, step, part)
    stored = stored_arrays(directory, step, part)
    try:
        shapes = definition.shapes
        check_names([n for n in stored if n in shapes or not n.startswith(TRAINING_ONLY)], shapes)
    except ValueError as error:
        raise ValueError(f"{directory / str(step)}: {error}") from error
    for name, expected in definition.shapes.items():
        if tuple(stored[name].shape) != tuple(expected.shape):
            raise ValueError(
                f"{directory}: {name} has shape {tuple(stored[name].shape)}, but the model expects "
                f"{tuple(expected.shape)}"
            )
    abstract = {
        name: jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=shardings[name])
        for name, shape in definition.shapes.items()
    }
    context = ocp.Context()
    context.pytree.loading.partial_load = True
    try:
        with context:
            path = directory.absolute() / str(step)  # Orbax does not accept relative paths
            loaded = ocp.load_checkpointables(path, {part: abstract})
    except Exception as error:
        raise not_loaded(directory, step, error) from error
    parameters: Parameters = loaded[part]
    return parameters


def save_parameters(
    directory: Path, params: Mapping[str, np.ndarray], identity: Mapping[str, Any], step: int = 0
) -> None:
    """Save parameters as a checkpoint without optimizer state, and flush it to disk.

    Args:
      directory: the directory that holds the checkpoints.
      params: the parameters.
      identity: an identity that no run has, so that no run resumes from the checkpoint.
      step: the checkpoint's step.
    """
    # The arrays do not change during the save, so they need not be copied. Limit the number of
    # bytes that are written at a time, but allow for the largest array, which is written in one
    # piece. Compression would save 7% of BERT-large's size on disk, but need 0.8 GB more memory.
    largest = max(array.nbytes for array in params.values())
    metadata = {"identity": dict(identity), CHECKSUMS_MARK: True}
    context = saving_context(directory, step, metadata)
    context.memory.write_concurrent_bytes = max(_WRITE_BYTES, largest)
    context.memory.deepcopy_host_arrays = False
    context.array.saving.use_compression = False
    with context, ocp.training.Checkpointer(local_path(directory).absolute()) as checkpointer:
        checkpointer.save_checkpointables(
            step, {PARAMETERS: dict(params)}, custom_metadata=metadata
        )
    flush(directory / str(step))


def context_for(*, divided: bool) -> Any:
    """Return an Orbax context for saving checkpoints.

    Args:
      divided: whether every process has its own directory and writes its part of each checkpoint
        there. Otherwise, all processes write to the same directory.
    """
    context = ocp.Context()
    if divided:
        # Each process creates, completes and removes the checkpoints in its directory itself. It
        # writes the same values as it would to a shared directory.
        context.multiprocessing.primary_host = jax.process_index()
        context.async_options.create_directories_asynchronously = False
        # This directory lacks the other processes' parts, which Orbax would look for.
        context.array.saving.enable_post_merge_validation = False
        context.array.saving.array_metadata_store = _without_comparison(
            context.array.saving.array_metadata_store
        )
    return context


def _without_comparison(store: Any) -> Any:
    """Return a copy of Orbax's store of array metadata that reads only one process's metadata.

    Orbax reads the metadata of all processes only to compare it; the copy returns None instead.
    """
    store = copy.copy(store)
    read = store.read

    async def read_one(checkpoint_dir: Any, process_index: int | None = None) -> Any:
        return None if process_index is None else await read(checkpoint_dir, process_index)

    store.read = read_one
    return store


def saving_context(
    directory: Path, step: int, metadata: Mapping[str, Any], *, divided: bool = False
) -> Any:
    """Return an Orbax context that writes a checkpoint's checksums before it is committed.

    Orbax runs the context's callback after every process has written its part, and before the
    checkpoint gets its final name and older checkpoints are removed. It runs on the first process,
    or on all of them if `divided` is set; see `context_for`.
    """

    def complete() -> None:
        (temporary,) = directory.absolute().glob(f"{step}.orbax-checkpoint-tmp*")
        write_checksums(temporary, step, metadata)

    context = context_for(divided=divided)
    context.async_options.post_finalization_callback = complete
    return context


def require_intact_everywhere(directory: Path, step: int, *parts: str) -> None:
    """Raise an error on every process if one of them finds damage.

    The first process checks a directory on disk. For a checkpoint in a bucket, every process has a
    directory of its own, to which it copies the checkpoint if necessary.

    Raises:
      DamagedCheckpoint: a file is missing or differs from what was saved, or cannot be read by
        another process.
    """

    def check() -> None:
        if jax.process_index() == 0 or remote_files(directory / str(step)).url is not None:
            require_intact(directory, step, parts=parts)

    try:
        on_all_processes(check)
    except FailedElsewhere as error:
        raise DamagedCheckpoint(str(error)) from error


def load_parts(directory: Path, step: int, parts: Mapping[str, Any]) -> Mapping[str, Any]:
    """Load parts of a checkpoint whose files have been verified.

    Args:
      directory: the directory that holds the checkpoints.
      step: the checkpoint's step.
      parts: the shapes, dtypes and shardings of the arrays in each part.
    """
    try:
        loaded: Mapping[str, Any] = ocp.load_checkpointables(directory / str(step), parts)
    except Exception as error:
        raise not_loaded(directory, step, error) from error
    return loaded


def stored_arrays(directory: Path, step: int, part: str) -> Mapping[str, Any]:
    """Return the shape and dtype of every array in one part of a checkpoint, keyed by name."""
    try:
        # Read only this part, since a damaged optimizer state does not affect the parameters.
        stored: Any = ocp.metadata(directory.absolute() / str(step), part).metadata
    except Exception as error:
        raise not_loaded(directory, step, error) from error
    if stored is None:
        raise damaged(directory, step, f"it has no readable {part}")
    arrays: Mapping[str, Any] = stored
    return arrays


def not_loaded(directory: Path, step: int, error: Exception) -> ValueError | OSError:
    """Return the error to raise when a checkpoint cannot be loaded.

    If its files match their checksums, the checkpoint is not damaged, so the cause must be a lack
    of memory or a problem with the file system.
    """
    outcome = verify(directory, step, quick=True)
    if outcome.problem is None and outcome.has_checksums:
        return OSError(
            f"{directory / str(step)}: the checkpoint is intact but cannot be loaded: "
            f"{cause_of(error)}"
        )
    return damaged(directory, step, outcome.problem or cause_of(error))


def cause_of(error: BaseException) -> str:
    """Summarize the cause of an error, without the pages of detail that libraries add."""
    text = str(error).strip()
    if isinstance(error, OSError) and error.strerror:
        return error.strerror + (f" ({error.filename})" if error.filename else "")
    # TensorStore repeats paths before it states the cause.
    code, path = re.search(r"os_error_code='(\d+)'", text), re.search(r'"(/[^"]+)"', text)
    if code is not None and path is not None:
        return f"{os.strerror(int(code[1]))} ({path[1]})"
    lines = text.splitlines() or [type(error).__name__]
    return lines[0].rstrip(". ")[:300]
