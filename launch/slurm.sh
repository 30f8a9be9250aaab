#!/usr/bin/env bash
# Run a bert-jax subcommand on a Slurm cluster. jax.distributed connects the processes.
#
#   sbatch --nodes=4 launch/slurm.sh pretrain --config bert_base --config.work_dir=/shared/runs/base
#
# Submit the job from the repository. All nodes must have access to the repository, the corpora and
# the work directory. Under Slurm, JAX uses one GPU per task, so request as many tasks as GPUs.
#
# Two minutes before its time limit, or when it is preempted, the job receives SIGTERM, saves a
# checkpoint and exits with code 143. It is then requeued and resumes the run.

# This script is an untested example: partitions, accounts and modules depend on the site.

#SBATCH --job-name=bert-jax
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=8
#SBATCH --time=24:00:00
#SBATCH --signal=TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=bert-jax-%j.log

set -u
# After a checkpoint, the first task to exit must not terminate the others before they are done.
srun --kill-on-bad-exit=0 --label .venv/bin/bert-jax "$@"
code=$?
((code != 143)) || scontrol requeue "$SLURM_JOB_ID"
exit "$code"
