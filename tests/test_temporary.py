"""Test that temporary files are kept while their process runs, and removed if it was killed."""

from __future__ import annotations

import errno
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bert_jax.files import sync_directory, temporary_beside, write_file
from bert_jax.runs.outputs import new_directory

from .commands import REPOSITORY

WRITER = """
import sys, time
from pathlib import Path
from bert_jax.files import temporary_beside
with temporary_beside(Path(sys.argv[1]), directory=sys.argv[2] == "directory") as temporary:
    if temporary.is_dir():
        (temporary / "sub").mkdir()
        (temporary / "sub/half").write_text("half")
    print("ready", flush=True)
    time.sleep(600)
"""


@pytest.fixture(params=["file", "directory"])
def writer(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Start a process that is writing `output` through a temporary file or directory."""
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path / "output"), request.param],
        stdout=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
    )
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    yield process
    process.kill()
    process.communicate()


def write(output: Path, temporary: Path) -> None:
    """Write a directory if `temporary` is a directory, and a file otherwise."""
    if temporary.is_dir():
        with new_directory(output) as directory:
            (directory / "whole").write_text("whole")
    else:
        write_file(output, "whole")


def test_leftovers_are_removed_once_their_writer_has_ended(
    writer: subprocess.Popen[str], tmp_path: Path
) -> None:
    output = tmp_path / "output"
    (temporary,) = tmp_path.iterdir()
    assert re.fullmatch(rf"output\.{re.escape(socket.gethostname())}\.\d+\.tmp", temporary.name)
    write(output, temporary)
    assert set(tmp_path.iterdir()) == {output, temporary}
    writer.kill()
    writer.wait()
    if output.is_dir():
        (output / "whole").unlink()
    write(output, temporary)
    assert list(tmp_path.iterdir()) == [output]


def test_files_of_other_machines_and_outputs_are_kept(tmp_path: Path) -> None:
    host = socket.gethostname()
    others = [f"output.else-{host}.1.tmp", f"output.txt.{host}.1.tmp", f"output.{host}.x.tmp"]
    for name in others:
        (tmp_path / name).write_text("unrelated")
    write_file(tmp_path / "output", "whole")
    assert {path.name for path in tmp_path.iterdir()} == {*others, "output"}


def test_leftovers_on_a_file_system_without_locks_are_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Give leftover files this process's ID, since IDs in different containers often coincide."""

    def without_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", without_locks)
    with temporary_beside(tmp_path / "output") as temporary:
        pass
    temporary.write_text("left by a process that was killed")
    (tmp_path / f"output.{socket.gethostname()}.{os.getpid()}.tmp").write_text("likewise")
    write_file(tmp_path / "output", "whole")
    assert (tmp_path / "output").read_text() == "whole"


def test_a_directory_that_cannot_be_flushed_is_not_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(code: int) -> Callable[[int], None]:
        def fsync(descriptor: int) -> None:
            raise OSError(code, os.strerror(code))

        return fsync

    monkeypatch.setattr("os.fsync", failing(errno.EINVAL))
    sync_directory(tmp_path)
    monkeypatch.setattr("os.fsync", failing(errno.EIO))
    with pytest.raises(OSError, match="Input/output error"):
        sync_directory(tmp_path)


@pytest.mark.parametrize("directory", [False, True])
def test_a_failure_leaves_nothing_behind(tmp_path: Path, directory: bool) -> None:
    with pytest.raises(KeyboardInterrupt):
        with temporary_beside(tmp_path / "output", directory=directory) as temporary:
            if directory:
                (temporary / "half").write_text("half")
            raise KeyboardInterrupt
    assert not list(tmp_path.iterdir())


def test_outputs_get_the_usual_permissions(tmp_path: Path) -> None:
    write_file(tmp_path / "output", "whole")
    (tmp_path / "other").write_text("whole")
    modes = {path.stat().st_mode for path in tmp_path.iterdir()}
    assert len(modes) == 1
