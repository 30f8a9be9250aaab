#!/usr/bin/env bash
# Run a bert-jax subcommand on a GKE cluster that XPK has created
# (github.com/AI-Hypercomputer/xpk).
#
#   launch/xpk.sh CLUSTER v5litepod-16 REGISTRY/bert_jax:tpu NAME \
#       pretrain --config bert_base --config.work_dir=/shared/runs/base
#
# launch/docker/tpu.Dockerfile builds the image. NAME is the name of the workload. The variable
# XPK_OPTIONS may contain more options for `xpk workload create`, such as the project, the zone, and
# the storage for the corpora and the work directory, which all pods must share:
#
#   export XPK_OPTIONS='--project=P --zone=Z --storage=shared'
#
# XPK starts the workload again, up to 20 times, if its pods are evicted or fail.

set -eu
if [[ $# -lt 5 ]]; then
  echo "usage: launch/xpk.sh CLUSTER TPU_TYPE IMAGE NAME VERB [options]" >&2
  exit 2
fi
cluster=$1 type=$2 image=$3 name=$4
shift 4
printf -v words ' %q' "$@"
read -r -a more <<<"${XPK_OPTIONS-}"
# XPK forwards SIGTERM to the shell that runs the command. `exec` replaces this shell with bert-jax,
# which then saves a checkpoint. Processes that have lost another process exit with code 2. XPK
# itself adds the codes of killed processes.
exec xpk workload create --cluster="$cluster" --tpu-type="$type" --docker-image="$image" \
  --workload="$name" --max-restarts=20 --restart-on-exit-codes=2 \
  --termination-grace-period-seconds=180 ${more[@]+"${more[@]}"} \
  --command="exec bert-jax$words --distributed"
