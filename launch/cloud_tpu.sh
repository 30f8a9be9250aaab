#!/usr/bin/env bash
# Run a bert-jax subcommand on all hosts of a Cloud TPU slice.
#
#   launch/cloud_tpu.sh NAME ZONE pretrain --config bert_base --config.work_dir=/shared/runs/base
#
# NAME is a TPU VM. Each of its hosts needs this repository in ~/bert_jax, installed with
#   python3 -m venv .venv && .venv/bin/pip install -e '.[tpu]'
# All hosts must share a file system for the corpora and the work directory: Filestore, or another
# file system that can rename directories (such as gcsfuse with a hierarchical namespace). The
# script adds the option --distributed, which lets the hosts find each other through the metadata
# server. After a maintenance event, repeat the command to resume the run.
#
# This script is an untested example.

set -eu
[[ $# -ge 3 ]] || { echo "usage: launch/cloud_tpu.sh NAME ZONE VERB [options]" >&2; exit 2; }
name=$1 zone=$2
shift 2
printf -v words ' %q' "$@"
exec gcloud compute tpus tpu-vm ssh "$name" --zone "$zone" --worker=all \
  --command "cd bert_jax && .venv/bin/bert-jax$words --distributed"
