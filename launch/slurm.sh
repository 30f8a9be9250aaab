#!/usr/bin/env bash
# Run a bert-jax subcommand on a Slurm cluster. The processes find each other by jax.distributed.
#
#   sbatch --nodes=4 launch/slurm.sh pretrain --config configs/pretrain/bert_base.py \
#       --config.work_dir=/shared/runs/base
#
# Submit the job in the repository. All nodes must have access to the repository, the corpora and
# the work directory. With Slurm, JAX uses one GPU per task, so request as many tasks as GPUs.
#
# Two minutes before the time limit, or when it is preempted, the job receives SIGTERM, saves a
# checkpoint and exits with code 143. It is then requeued and resumes the run.

# This is an example, which is not tested: partitions, accounts and modules depend on the site.

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
# The first task that exits after a checkpoint must not end the others before they are done.
srun --kill-on-bad-exit=0 --label .venv/bin/bert-jax "$@"
code=$?
((code != 143)) || scontrol requeue "$SLURM_JOB_ID"
exit "$code"
