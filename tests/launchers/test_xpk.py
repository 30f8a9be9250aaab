"""Test launch/xpk.sh with a program that records its arguments, and with XPK if it is installed."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest
import yaml

from ..commands import REPOSITORY
from .test_jobset import container, ignored

WORDS = ("cluster", "v5litepod-16", "r/bert_jax:tpu", "run-1", "pretrain", "--config", "a b.py")


def launch(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    script = ["bash", str(REPOSITORY / "launch/xpk.sh"), *words]
    return subprocess.run(script, env=os.environ | variables, capture_output=True, text=True)


def test_xpk_gets_the_command_and_the_restarts(tmp_path):
    fake = tmp_path / "xpk"
    fake.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    fake.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = launch(*WORDS, PATH=path, XPK_OPTIONS="--project=p --storage=shared")
    assert done.stdout.splitlines() == [
        "workload",
        "create",
        "--cluster=cluster",
        "--tpu-type=v5litepod-16",
        "--docker-image=r/bert_jax:tpu",
        "--workload=run-1",
        "--max-restarts=20",
        "--restart-on-exit-codes=2",
        "--termination-grace-period-seconds=180",
        "--project=p",
        "--storage=shared",
        r"--command=exec bert-jax pretrain --config a\ b.py --distributed",
    ]
    assert launch(*WORDS[:4], PATH=path).returncode == 2


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("xpk"), reason="needs XPK: pip install xpk")
def test_xpk_makes_a_job_set_that_restarts(tmp_path):
    manifest = tmp_path / "manifest.yaml"
    options = "--dry-run --skip-validation --project=p --zone=us-central2-b "
    options += f"--output-manifest-file={manifest}"
    done = launch(*WORDS, XPK_OPTIONS=options)
    assert done.returncode == 0, done.stdout + done.stderr
    job_set = yaml.safe_load(manifest.read_text())
    spec = job_set["spec"]["replicatedJobs"][0]["template"]["spec"]
    assert job_set["spec"]["failurePolicy"]["maxRestarts"] == 20
    assert spec["template"]["spec"]["terminationGracePeriodSeconds"] == 180
    (rule,) = spec["podFailurePolicy"]["rules"]
    # With any other code, the workload fails.
    assert rule["action"] == "FailJob" and rule["onExitCodes"]["operator"] == "NotIn"
    assert {2, 137, 143} <= set(rule["onExitCodes"]["values"])
    command = container(job_set)["command"][2]
    assert r"(exec bert-jax pretrain --config a\ b.py --distributed) &" in command
    assert all("serviceAccountName" in path or "env" in path for path in ignored(job_set))
