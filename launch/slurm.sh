#!/usr/bin/env bash
# Runs one bert-jax verb on a Slurm cluster; jax.distributed finds the other processes by itself.
#
#   sbatch --nodes=4 launch/slurm.sh pretrain --config configs/pretrain/bert_base.py \
#       --config.work_dir=/shared/runs/base
#
# Submit from the repository, which every node must see, as must the corpora and the work directory.
# Under Slurm JAX gives every task one GPU: ask for as many tasks as GPUs.
#
# Two minutes before its time is up, or when it is preempted, the job gets SIGTERM, saves a
# checkpoint and leaves with exit code 143; it is then queued again and goes on where it was.

# An example, checked by no test here: partitions, accounts and modules differ from site to site.

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
# The first to leave after a checkpoint must not take the others with it before they are done.
srun --kill-on-bad-exit=0 --label .venv/bin/bert-jax "$@"
code=$?
((code != 143)) || scontrol requeue "$SLURM_JOB_ID"
exit "$code"
