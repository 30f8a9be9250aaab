#!/usr/bin/env bash
# Runs one bert-jax verb on every host of a Cloud TPU slice.
#
#   launch/cloud_tpu.sh NAME ZONE pretrain --config configs/pretrain/bert_base.py \
#       --config.work_dir=/shared/runs/base
#
# NAME is a TPU VM whose hosts all have this repository in ~/bert_jax, installed by
#   python3 -m venv .venv && .venv/bin/pip install -e '.[tpu]'
# and a file system in common for the corpora and the work directory: Filestore, or another that
# can rename directories (gcsfuse can where the bucket has a hierarchical namespace). --distributed
# makes the hosts find each other through the metadata server, so it is added to the verb. After a
# maintenance event the same command goes on where the run was.
#
# An example, checked by no test here.

set -eu
[[ $# -ge 3 ]] || { echo "usage: launch/cloud_tpu.sh NAME ZONE VERB [options]" >&2; exit 2; }
name=$1 zone=$2
shift 2
printf -v words ' %q' "$@"
exec gcloud compute tpus tpu-vm ssh "$name" --zone "$zone" --worker=all \
  --command "cd bert_jax && .venv/bin/bert-jax$words --distributed"
