"""Test that the parts of a checkpoint on several disks are combined into one checkpoint."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tensorstore as ts

from bert_jax.training import checkpoint as checkpoint_module
from bert_jax.training.agreement import FailedElsewhere
from bert_jax.training.checkpoint import Checkpointer
from bert_jax.training.checkpoint_checksums import checksums_of
from bert_jax.training.checkpoint_files import CheckpointConfig
from bert_jax.training.divided_checkpoints import (
    IncompleteCheckpoint,
    combine,
    index_of,
    values_of,
)

ROWS = 6
CONTEXT = ts.Context({"cache_pool": {"total_bytes_limit": 1 << 20}})
KERNEL = np.arange(ROWS * 700, dtype=np.float32).reshape(ROWS, 700)


def store(directory: Path, path: str = "") -> dict[str, object]:
    base = {"driver": "file", "path": f"{directory}/"}
    return {"driver": "ocdbt", "base": base, "path": path}


def array(directory: Path, shape: tuple[int, ...], chunk: tuple[int, ...], name: str) -> object:
    spec = {
        "driver": "zarr3",
        "kvstore": store(directory, f"{name}/"),
        "metadata": {
            "data_type": "float32",
            "shape": shape,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunk}},
        },
    }
    return ts.open(spec, create=True, open=True, context=CONTEXT).result()


def save(checkpoint: Path, process: int, rows: range) -> Path:
    """Write some rows of an array, and a scalar in the first process only, as Orbax does."""
    part = checkpoint / "params"
    own = part / f"ocdbt.process_{process}"
    kernel, scalar = array(own, KERNEL.shape, (1, 700), "kernel"), array(own, (), (), "scalar")
    for row in rows:
        kernel[row].write(KERNEL[row]).result()
    if process == 0:
        scalar.write(np.float32(3.0)).result()
    source, target = (ts.KvStore.open(store(x), context=CONTEXT).result() for x in (own, part))
    source.experimental_copy_range_to(target).result()
    (part / "_METADATA").write_text("{}")
    (part / "array_metadatas").mkdir()
    (part / f"array_metadatas/process_{process}").write_text(str(process))
    files = checksums_of(checkpoint, [path for path in part.rglob("*") if path.is_file()])
    content = {"step": 3, "metadata": "", "files": files}
    (checkpoint / "checksums.json").write_text(json.dumps(content))
    return checkpoint


def sent(checkpoint: Path, target: Path) -> Path:
    """Copy the files that a process sends to the first process."""
    for name in index_of(checkpoint):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(checkpoint / name, target / name)
    return target


def test_the_union_of_all_parts_is_a_checkpoint(tmp_path: Path) -> None:
    rows = (range(0, 2), range(2, 5), range(5, 6))
    parts = [save(tmp_path / str(process), process, each) for process, each in enumerate(rows)]
    copies = [parts[0], *(sent(part, tmp_path / f"sent-{part.name}") for part in parts[1:])]
    assert not list((tmp_path / "sent-1").rglob("ocdbt.process_1"))  # no values are needed
    output = tmp_path / "combined"
    written = combine(copies, output)
    assert {"checksums.json", "params/manifest.ocdbt"} <= set(written) and len(written) == 3
    whole = tmp_path / "whole"
    shutil.copytree(parts[0], whole)
    shutil.rmtree(whole / "params/d")  # the index of the first part
    for process, part in enumerate(parts[1:], start=1):
        for name in values_of(part, process):
            (whole / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(part / name, whole / name)
    shutil.copytree(output, whole, dirs_exist_ok=True)
    read = array(whole / "params", KERNEL.shape, (1, 700), "kernel").read().result()
    np.testing.assert_array_equal(read, KERNEL)
    assert array(whole / "params", (), (), "scalar").read().result() == 3.0
    files = [path for path in whole.rglob("*") if path.is_file() and path.parent != whole]
    recorded = json.loads((whole / "checksums.json").read_text())
    assert recorded["files"] == checksums_of(whole, files)
    assert recorded["step"] == 3


def test_a_missing_chunk_is_noticed(tmp_path: Path) -> None:
    rows = (range(0, 2), range(3, ROWS))
    parts = [save(tmp_path / str(process), process, each) for process, each in enumerate(rows)]
    with pytest.raises(IncompleteCheckpoint, match="saved 5 of 6 chunks of kernel"):
        combine(parts, tmp_path / "combined")


class Copies:
    """A mirror that needs the parts of other processes, and records whether they were awaited."""

    divided, awaited = True, False

    def saved(self, step: int) -> None:
        """Do nothing."""

    def raise_if_failed(self, *, wait: bool = False) -> None:
        """Record whether this process waits for the others."""
        self.awaited |= wait


def test_no_process_waits_for_a_part_that_another_one_cannot_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail_elsewhere(action: Callable[[], None]) -> None:
        action()
        raise FailedElsewhere("process 1: the disk is full")

    monkeypatch.setattr(checkpoint_module, "on_all_processes", fail_elsewhere)
    copies = Copies()
    with Checkpointer(tmp_path, CheckpointConfig(), {}, mirror=copies) as checkpointer:
        with pytest.raises(FailedElsewhere, match="process 1: the disk is full"):
            checkpointer.raise_if_failed(wait=True)
    assert not copies.awaited
