"""Run a Slurm cluster of one node, with its own configuration, keys and daemons in a directory."""

from __future__ import annotations

import getpass
import os
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "scancel", "squeue")
# Jobs in the partition `high` preempt the others: those in `low` are warned GraceTime seconds in
# advance, and those in `lowest` are not. A requeued job starts when its old credential has expired,
# which takes two minutes by default, but only a few seconds with cred_expire=5.
CONFIG = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
SlurmctldPort={controller_port}
SlurmdPort={node_port}
AuthType=auth/munge
AuthInfo=socket={directory}/munge.socket,cred_expire=5
CredType=cred/munge
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/spool
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/slurmd.pid
SlurmctldLogFile={directory}/slurmctld.log
SlurmdLogFile={directory}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmdParameters=config_overrides
SchedulerParameters=bf_interval=1,sched_interval=2,batch_sched_delay=0
NodeName=localhost NodeHostname={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=low Nodes=localhost Default=YES PriorityTier=1 PreemptMode=REQUEUE GraceTime={grace}
PartitionName=lowest Nodes=localhost PriorityTier=1 PreemptMode=REQUEUE
PartitionName=high Nodes=localhost PriorityTier=10 PreemptMode=OFF
"""


def missing_programs() -> list[str]:
    """Return the programs of Slurm that are not installed."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin"
    return [name for name in PROGRAMS if not shutil.which(name, path=path)]


class SlurmCluster:
    """A running cluster with one node.

    Args:
      directory: an empty directory for everything that the daemons write.
      cpus: how many CPUs the node pretends to have.
      grace: the number of seconds between the warning and the end of a preempted job.
    """

    def __init__(self, directory: Path, *, cpus: int, grace: int = 120):
        self._directory = directory
        self._daemons: list[subprocess.Popen[bytes]] = []
        for name in ("state", "spool"):
            (directory / name).mkdir()
        key = directory / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(secrets.token_bytes(1024))
        config = directory / "slurm.conf"
        controller_port, node_port = _free_ports(2)
        config.write_text(
            CONFIG.format(
                host=socket.gethostname().partition(".")[0],
                user=getpass.getuser(),
                directory=directory,
                controller_port=controller_port,
                node_port=node_port,
                cpus=cpus,
                grace=grace,
            )
        )
        self.environment = {
            "SLURM_CONF": str(config),
            "PATH": f"{os.environ.get('PATH', '')}:/usr/sbin",
        }

    def __enter__(self) -> SlurmCluster:
        files = ("key-file", "socket", "pid-file", "log-file", "seed-file")
        # munged would otherwise insist on its own directory and account.
        munge = ["munged", "--foreground", "--force"]
        munge += [f"--{name}={self._directory}/munge.{name.partition('-')[0]}" for name in files]
        try:
            self._start(munge)
            _wait("munged", (self._directory / "munge.socket").exists)
            self._start(["slurmctld", "-D"])
            self._start(["slurmd", "-D"])
            _wait("the node", lambda: "idle" in self.run("sinfo", "--noheader", check=False))
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.run("scancel", "--full", f"--user={getpass.getuser()}", check=False)
            _wait("the end of all jobs", lambda: not self.run("squeue", "--noheader"))
        finally:
            self._stop()

    def run(
        self,
        *words: str | Path,
        check: bool = True,
        cwd: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> str:
        """Run a program of Slurm and return its output."""
        done = subprocess.run(
            list(map(str, words)),
            env=dict(environment or os.environ) | self.environment,
            capture_output=True,
            text=True,
            cwd=cwd,
        )
        assert done.returncode == 0 or not check, done.stdout + done.stderr
        return done.stdout.strip()

    def job(self, number: str) -> dict[str, str]:
        """Return what `scontrol show job` prints, such as JobState and Restarts."""
        output = self.run("scontrol", "--oneliner", "show", "job", number)
        return dict(word.split("=", 1) for word in output.split() if "=" in word)

    def _start(self, words: list[str]) -> None:
        output = (self._directory / f"{words[0]}.output").open("wb")
        with output:
            self._daemons.append(
                subprocess.Popen(
                    words, env=os.environ | self.environment, stdout=output, stderr=output
                )
            )

    def _stop(self) -> None:
        for daemon in reversed(self._daemons):
            daemon.terminate()
            try:
                daemon.wait(timeout=30)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()


def _free_ports(count: int) -> list[int]:
    """Return distinct ports that no program is using."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def _wait(what: str, condition: Callable[[], bool], *, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        time.sleep(0.1)
