"""Test the commands that launch/slurm.sh executes, with programs that record their arguments."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from ..commands import REPOSITORY

# This script appends its name and arguments to a file, and exits with the code in a variable.
RECORDER = """#!/bin/bash
{ printf '%s' "${0##*/}"; printf ' <%s>' "$@"; echo; } >> "$RECORD"
code="${0##*/}_code"
exit "${!code-0}"
"""


@pytest.fixture
def launch(tmp_path):
    """Return a function that runs the script and returns it with the recorded calls."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("srun", "scontrol"):
        (programs / name).write_text(RECORDER)
        (programs / name).chmod(0o755)
    submit_dir = tmp_path / "submit"
    (submit_dir / ".venv/bin").mkdir(parents=True)
    program = submit_dir / ".venv/bin/bert-jax"
    program.touch(mode=0o755)

    def run(*words: str, **variables: str) -> tuple[subprocess.CompletedProcess[str], list[str]]:
        record = tmp_path / "record"
        clean = {name: value for name, value in os.environ.items() if "SLURM" not in name}
        environment = {"SLURM_JOB_ID": "7", "RECORD": str(record)} | variables
        environment["PATH"] = f"{programs}:{os.environ['PATH']}"
        done = subprocess.run(
            ["bash", str(REPOSITORY / "launch/slurm.sh"), *words],
            env=clean | environment,
            cwd=submit_dir,
            capture_output=True,
            text=True,
        )
        return done, record.read_text().splitlines() if record.exists() else []

    run.program = program
    return run


COMMON = "srun <--kill-on-bad-exit=0> <--wait=300> <--label>"


def test_srun_starts_the_program_of_the_checkout(launch):
    done, calls = launch("pretrain", "--config", "with space.py", SLURM_CPUS_PER_TASK="8")
    assert (done.returncode, done.stderr) == (0, "")
    assert calls == [
        f"{COMMON} <--cpus-per-task=8> <.venv/bin/bert-jax> <pretrain> <--config> <with space.py>"
    ]


def test_pyxis_gets_the_image_and_the_mounts(launch):
    launch.program.unlink()  # The program is not needed here, since the image contains it.
    image = "registry.example#bert_jax:cuda"
    mounts = "/data:/data:ro,/runs:/runs"
    done, calls = launch("pretrain", BERT_JAX_IMAGE=image, BERT_JAX_MOUNTS=mounts)
    here = launch.program.parents[2]
    assert done.returncode == 0, done.stderr
    assert calls == [
        f"{COMMON} <--container-image={image}> <--no-container-mount-home> "
        f"<--container-mounts={here}:{here},{mounts}> <--container-workdir={here}> "
        "<bert-jax> <pretrain>"
    ]
    _, calls = launch("pretrain", BERT_JAX_IMAGE=image)
    assert f" <--container-mounts={here}:{here}> " in calls[-1]


@pytest.mark.parametrize(("code", "requeued"), [(143, True), (0, False), (2, False), (137, False)])
def test_only_a_stopped_run_is_requeued(launch, code, requeued):
    done, calls = launch("pretrain", srun_code=str(code))
    assert done.returncode == code
    assert calls[1:] == (["scontrol <requeue> <7>"] if requeued else [])


def test_a_refused_requeue_is_reported(launch):
    done, _ = launch("pretrain", srun_code="143", scontrol_code="1")
    assert done.returncode == 143
    assert "submit it again" in done.stderr


def test_mistakes_are_refused_before_anything_starts(launch):
    for words, variables in [((), {}), (("pretrain",), {"SLURM_JOB_ID": ""})]:
        done, calls = launch(*words, **variables)
        assert (done.returncode, calls) == (2, [])
        assert done.stderr.startswith("usage: sbatch")
    launch.program.unlink()
    done, calls = launch("pretrain")
    assert (done.returncode, calls) == (2, [])
    assert f".venv/bin/bert-jax is missing in {Path(launch.program.parents[2])}" in done.stderr
