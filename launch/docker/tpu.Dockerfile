# An image with bert-jax for Cloud TPUs, such as the nodes of GKE. Build it from the root of the repository:
#
#   docker build --file launch/docker/tpu.Dockerfile --tag bert_jax:tpu .
#
# launch/docker/lock.sh writes the lock file.
FROM python:3.11-slim-bookworm

ENV PYTHONUNBUFFERED=1

WORKDIR /bert_jax
COPY launch/docker/requirements-tpu.lock launch/docker/requirements-tpu.lock
RUN pip install --no-cache-dir --require-hashes --requirement launch/docker/requirements-tpu.lock

COPY LICENSE README.md pyproject.toml setup.py ./
COPY bert_jax bert_jax
COPY configs configs
RUN pip install --no-cache-dir --no-deps --no-build-isolation . \
    && pip check \
    && bert-jax --version

WORKDIR /workspace
CMD ["bert-jax", "--help"]
