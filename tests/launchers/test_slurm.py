"""Test launch/slurm.sh on a real Slurm cluster of one node.

The tests start Slurm's daemons, so they run only if BERT_JAX_TEST_SLURM is set.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bert_jax.training.metrics_log import read_metrics

from ..commands import REPOSITORY, TIMEOUT
from ..distributed.conftest import one_device, short_run  # noqa: F401
from .slurm_cluster import SlurmCluster, missing_programs

pytestmark = pytest.mark.slow

SCRIPT = REPOSITORY / "launch/slurm.sh"
STEPS = 150
# The test node has no GPUs.
OPTIONS = ("--ntasks-per-node=2", "--gpus-per-node=0", "--cpus-per-task=1", "--output=run.log")
PROGRAM = '#!/bin/sh\nPYTHONPATH="{repository}" exec "{python}" -m bert_jax.cli.main "$@"\n'


@pytest.fixture(scope="module")
def cluster(tmp_path_factory) -> Iterator[SlurmCluster]:
    if not os.environ.get("BERT_JAX_TEST_SLURM"):
        pytest.skip("starts Slurm's daemons only if BERT_JAX_TEST_SLURM=1 is set")
    if missing := missing_programs():
        pytest.skip(f"needs Slurm (Debian: slurm-wlm, munge): {', '.join(missing)} not found")
    with SlurmCluster(tmp_path_factory.mktemp("slurm"), cpus=2) as running:
        yield running


@pytest.fixture
def checkout(tmp_path) -> Path:
    """Return a directory with .venv/bin/bert-jax, which runs the tests' own interpreter."""
    (tmp_path / "checkout/.venv/bin").mkdir(parents=True)
    install(tmp_path / "checkout", PROGRAM.format(repository=REPOSITORY, python=sys.executable))
    return tmp_path / "checkout"


def install(checkout: Path, program: str) -> None:
    path = checkout / ".venv/bin/bert-jax"
    path.write_text(program)
    path.chmod(0o755)


def wait_for(condition: Callable[[], bool], what: str, log: Path) -> None:
    deadline = time.monotonic() + TIMEOUT
    while not condition():
        assert time.monotonic() < deadline, (what, log.read_text() if log.exists() else "no log")
        time.sleep(0.05)


def losses(work_dir: Path) -> dict[int, float]:
    entries = read_metrics(work_dir / "metrics.jsonl")
    return {entry["step"]: entry["loss"] for entry in entries if entry["kind"] == "train"}


def test_a_preempted_job_requeues_itself_and_ends_with_the_same_losses(
    cluster,
    checkout,
    bert_jax,
    short_run,  # noqa: F811
    tmp_path,
):
    settings = [f"phases.only.num_steps={STEPS}", f"evaluation.every_steps={STEPS}"]
    settings += ["checkpoint.every_steps=50", "checkpoint.keep_last=2"]
    bert_jax(*short_run(tmp_path / "whole", *settings), launcher=2)
    work_dir, log = tmp_path / "preempted", checkout / "run.log"
    submit = ["sbatch", "--parsable", *OPTIONS, SCRIPT, *short_run(work_dir, *settings)]
    job = cluster.run(*submit, cwd=checkout, environment=bert_jax.environment())

    def reported(step: int) -> bool:
        metrics = work_dir / "metrics.jsonl"
        return metrics.exists() and f'"step": {step},' in metrics.read_text()

    def restarts(count: int) -> bool:
        return cluster.job(job)["Restarts"] == str(count)

    wait_for(lambda: reported(10), "the first steps", log)
    cluster.run("scancel", "--signal=TERM", job)
    wait_for(lambda: restarts(1), "the first requeue", log)
    first_stop = max(losses(work_dir))
    wait_for(lambda: reported(first_stop + 10), "more steps", log)
    cluster.run("sbatch", "--partition=high", "--exclusive", "--wrap=true", cwd=checkout)
    wait_for(lambda: restarts(2), "the second requeue", log)
    second_stop = max(losses(work_dir))
    wait_for(lambda: cluster.job(job)["JobState"] == "COMPLETED", "the end", log)

    output = log.read_text()
    print(*(line for line in output.splitlines() if not line.startswith("0: step")), sep="\n")
    print(f"job {job} stopped after steps {first_stop} and {second_stop}")
    assert first_stop < second_stop < STEPS
    assert output.count("run the same command to resume") == 2
    assert output.count("this run's checkpoint at step") == 2
    assert "0: devices    2 x cpu (2 data)" in output
    assert losses(work_dir) == losses(tmp_path / "whole")


# This script replaces a run of bert-jax. At its first start, it waits for SIGTERM and takes two
# seconds to save a checkpoint. After a restart, it ends by itself.
WAITS = """#!/bin/bash
[[ -z ${SLURM_RESTART_COUNT-} ]] || { echo "resumed"; exit 0; }
trap 'sleep 2; echo "saved"; exit 143' TERM
echo "waiting"
while :; do sleep 0.1; done
"""


def submit(cluster: SlurmCluster, checkout: Path, *options: str) -> str:
    words = ["sbatch", "--parsable", *OPTIONS, *options, SCRIPT, "pretrain"]
    return cluster.run(*words, cwd=checkout)


def wait_for_state(cluster: SlurmCluster, job: str, state: str, log: Path) -> None:
    wait_for(lambda: cluster.job(job)["JobState"] == state, state, log)


def assert_saved_and_resumed(cluster: SlurmCluster, job: str, log: Path) -> None:
    wait_for_state(cluster, job, "COMPLETED", log)
    assert cluster.job(job)["Restarts"] == "1"
    lines = re.findall(r"^[01]: (?:waiting|saved|resumed)$", log.read_text(), re.M)
    expected = [[f"{task}: {word}" for task in (0, 1)] for word in ("waiting", "saved", "resumed")]
    assert [sorted(lines[start : start + 2]) for start in (0, 2, 4)] == expected
    assert len(lines) == 6


def waiting(log: Path) -> bool:
    return log.exists() and log.read_text().count("waiting") == 2


def test_a_job_is_requeued_before_its_time_limit(cluster, checkout):
    install(checkout, WAITS)
    job = submit(cluster, checkout, "--time=1", "--signal=TERM@50")
    assert_saved_and_resumed(cluster, job, checkout / "run.log")


def test_a_job_that_is_preempted_without_a_warning_still_saves(cluster, checkout):
    install(checkout, WAITS)
    job = submit(cluster, checkout, "--partition=lowest")
    wait_for(lambda: waiting(checkout / "run.log"), "the start", checkout / "run.log")
    cluster.run("sbatch", "--partition=high", "--exclusive", "--wrap=true", cwd=checkout)
    assert_saved_and_resumed(cluster, job, checkout / "run.log")


def test_a_canceled_job_is_not_requeued(cluster, checkout):
    install(checkout, WAITS)
    job = submit(cluster, checkout)
    wait_for(lambda: waiting(checkout / "run.log"), "the start", checkout / "run.log")
    cluster.run("scancel", job)
    wait_for(lambda: not cluster.run("squeue", "--noheader"), "the end", checkout / "run.log")
    assert cluster.job(job)["JobState"] == "CANCELLED"
    assert cluster.job(job)["Restarts"] == "0"
    assert (checkout / "run.log").read_text().count("saved") == 2


def test_a_failed_task_fails_the_job_after_the_others_have_ended(cluster, checkout):
    install(
        checkout, "#!/bin/bash\n[[ $SLURM_PROCID == 0 ]] && exit 2\nsleep 2; echo done; exit 1\n"
    )
    job = submit(cluster, checkout)
    wait_for_state(cluster, job, "FAILED", checkout / "run.log")
    assert cluster.job(job)["ExitCode"] == "2:0"
    assert "1: done" in (checkout / "run.log").read_text()
