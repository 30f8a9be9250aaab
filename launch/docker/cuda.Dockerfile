# An image with bert-jax for NVIDIA GPUs. Build it from the root of the repository:
#
#   docker build --file launch/docker/cuda.Dockerfile --tag bert_jax:cuda .
#   docker run --gpus all --init --volume /data:/data bert_jax:cuda bert-jax pretrain --config bert_base
#
# The packages contain CUDA and cuDNN; the host needs only NVIDIA's driver (580 or newer, for CUDA 13)
# and its container toolkit. launch/docker/lock.sh writes the lock file.
FROM python:3.11-slim-bookworm

ENV PYTHONUNBUFFERED=1

WORKDIR /bert_jax
COPY launch/docker/requirements-cuda.lock launch/docker/requirements-cuda.lock
RUN pip install --no-cache-dir --require-hashes --requirement launch/docker/requirements-cuda.lock

COPY LICENSE README.md pyproject.toml setup.py ./
COPY bert_jax bert_jax
COPY configs configs
RUN pip install --no-cache-dir --no-deps --no-build-isolation . \
    && pip check \
    && bert-jax --version

WORKDIR /workspace
CMD ["bert-jax", "--help"]
