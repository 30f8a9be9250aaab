"""Test the commands in launch/sky.yaml, and parse the file with SkyPilot if it is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

import bert_jax as bj

from ..commands import REPOSITORY

FILE = REPOSITORY / "launch/sky.yaml"
TASK = yaml.safe_load(FILE.read_text())
RECORDER = """#!/bin/sh
echo "$JAX_COORDINATOR_ADDRESS $JAX_NUM_PROCESSES $JAX_PROCESS_ID"
printf '%s\\n' "$@"
"""
CHECK = """
import sys, sky
task = sky.Task.from_yaml(sys.argv[1])
(resources,) = task.resources
print(task.num_nodes, resources.accelerators, resources.use_spot, resources.job_recovery)
"""


def test_the_machines_find_each_other_and_run_a_recipe(tmp_path):
    program = tmp_path / ".venv/bin/bert-jax"
    program.parent.mkdir(parents=True)
    program.write_text(RECORDER)
    program.chmod(0o755)
    variables = {
        "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2",
        "SKYPILOT_NUM_NODES": "2",
        "SKYPILOT_NODE_RANK": "1",
    }
    done = subprocess.run(
        ["bash", "-c", TASK["run"]],
        env=os.environ | variables,
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    connection, verb, flag, recipe, work_dir = done.stdout.splitlines()
    assert connection == "10.0.0.1:8476 2 1"
    assert (verb, flag) == ("pretrain", "--config")
    path = work_dir.removeprefix("--config.work_dir=")
    assert bj.load_config(recipe, {"work_dir": path})
    assert path.startswith(tuple(TASK["volumes"]))


def test_the_setup_installs_the_locked_versions(tmp_path):
    uv = tmp_path / "bin/uv"
    uv.parent.mkdir()
    uv.write_text('#!/bin/sh\necho "$*"\n')
    uv.chmod(0o755)
    path = f"{uv.parent}:{os.environ['PATH']}"
    words = ["bash", "-c", TASK["setup"]]
    environment = os.environ | {"PATH": path, "HOME": str(tmp_path)}
    done = subprocess.run(words, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    venv, locked, package = done.stdout.splitlines()
    assert venv == "venv --quiet --python 3.11 .venv"
    lock = locked.rpartition(" ")[2]
    assert "--require-hashes" in locked and (REPOSITORY / lock).exists()
    assert package.endswith("--no-deps --editable .")


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("sky"), reason="needs SkyPilot: pip install skypilot")
def test_skypilot_accepts_the_file(tmp_path):
    python = Path(shutil.which("sky")).with_name("python")
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(python), "-c", CHECK, str(FILE)],
        env=clean | {"HOME": str(tmp_path)},
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("2 {'H100': 8} True {")
    assert "recover_on_exit_codes" in done.stdout
