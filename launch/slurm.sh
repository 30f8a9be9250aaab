#!/usr/bin/env bash
# Run a bert-jax subcommand on a Slurm cluster. jax.distributed connects the processes.
#
#   sbatch --nodes=4 launch/slurm.sh pretrain --config bert_base --config.work_dir=/shared/runs/base
#
# Submit the job from the repository, whose .venv must contain bert-jax with JAX for GPUs
# (.venv/bin/pip install -e '.[cuda13]'). All nodes must have access to the repository, the corpora
# and the work directory. Under Slurm, JAX uses one GPU per task, so request as many tasks as GPUs.
# Options of sbatch override the #SBATCH lines below, which describe nodes with 8 GPUs and 64 cores.
# Partitions, accounts and modules depend on the site.
#
# Two minutes before its time limit, or when it is preempted, the job receives SIGTERM, saves a
# checkpoint and exits with code 143. It then requeues itself and resumes the run. If the cluster
# preempts jobs without a GraceTime, Slurm requeues the job itself, and the checkpoint must be
# complete within the cluster's KillWait, 30 seconds by default. A job that is canceled with
# `scancel` is not requeued.
#
# To run in a container with pyxis (github.com/NVIDIA/pyxis), name an image that contains bert-jax,
# such as one built from launch/docker/cuda.Dockerfile, and the folders to mount:
#
#   BERT_JAX_IMAGE=registry.example#bert_jax:cuda BERT_JAX_MOUNTS=/shared:/shared sbatch …
#
# The folder from which you submit the job is mounted too.

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
if [[ $# -eq 0 || -z ${SLURM_JOB_ID-} ]]; then
  echo "usage: sbatch [options] launch/slurm.sh VERB [options]" >&2
  exit 2
fi

# After a checkpoint, the first task to exit must not terminate the others before they are done. If
# a task fails, the others notice this and exit too. If they hang, srun ends them after 5 minutes.
options=(--kill-on-bad-exit=0 --wait=300 --label)
# Since Slurm 22.05, srun does not inherit this option from sbatch.
[[ -z ${SLURM_CPUS_PER_TASK-} ]] || options+=("--cpus-per-task=$SLURM_CPUS_PER_TASK")
if [[ -n ${BERT_JAX_IMAGE-} ]]; then
  program=bert-jax
  # Python packages in the home directory would take precedence over those in the image.
  options+=("--container-image=$BERT_JAX_IMAGE" --no-container-mount-home
    "--container-mounts=$PWD:$PWD${BERT_JAX_MOUNTS:+,$BERT_JAX_MOUNTS}" "--container-workdir=$PWD")
else
  program=.venv/bin/bert-jax
  if [[ ! -x $program ]]; then
    echo "$program is missing in $PWD: submit the job from the repository, after 'make demo' or" \
      "'pip install' has installed bert-jax there, or set BERT_JAX_IMAGE" >&2
    exit 2
  fi
fi

srun "${options[@]}" "$program" "$@"
code=$?
if ((code == 143)) && ! scontrol requeue "$SLURM_JOB_ID"; then
  echo "the run has saved a checkpoint, but Slurm does not requeue the job; submit it again" >&2
fi
exit "$code"
