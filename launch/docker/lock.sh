#!/usr/bin/env bash
# Write the lock files next to this script: the versions and hashes of all packages that bert-jax
# needs on a TPU host and with CUDA, including those for Google Cloud Storage. The script needs uv
# (pip install uv).
#
#   launch/docker/lock.sh
#
# The script locks the versions that are installed in .venv, with which the tests have passed. For
# packages that are not installed there, such as those for CUDA, it locks the newest versions that
# the other packages allow. PYTHON is the interpreter whose packages are used (default: the one in
# .venv).

set -euo pipefail
cd "$(dirname "$0")/../.."
python=${PYTHON:-.venv/bin/python}
constraints=$(mktemp)
trap 'rm -f "$constraints"' EXIT
"$python" -m pip freeze --exclude-editable | grep -E '^[A-Za-z0-9._-]+==[^+]*$' >"$constraints"
for target in tpu:tpu cuda:cuda13; do
  # setuptools installs bert-jax itself. The images have this Python and at least this C library.
  echo 'setuptools>=77' | uv pip compile - setup.py --extra "${target#*:}" --extra gcs \
    --constraints "$constraints" --python-version 3.11 --python-platform x86_64-manylinux_2_31 \
    --generate-hashes --no-annotate --no-header --quiet \
    --output-file "launch/docker/requirements-${target%:*}.lock"
done
