#!/usr/bin/env bash
# Runs one bert-jax verb as N processes on this machine, joined by jax.distributed.
#
#   launch/local.sh 2 pretrain --config configs/pretrain/tiny.py
#
# It is for trying out several processes where there is one machine: a single process drives all of
# a machine's CPUs or GPUs by itself. XLA_FLAGS=--xla_force_host_platform_device_count=4 gives each
# process four devices of the CPU. PYTHON names the interpreter (default: that of .venv).
#
# Every line of output begins with the number of its process. SIGTERM and SIGINT are passed on to
# all processes. When one fails, the others get GRACE seconds (default: 30) to end by themselves
# before they are ended, and its exit code is the exit code of the whole.

set -u
# Every process in a group of its own: a Ctrl-C then comes to it from here alone, and once.
set -m

usage() {
  echo "usage: launch/local.sh N VERB [options], such as launch/local.sh 2 pretrain --config FILE" >&2
  exit 2
}

[[ $# -ge 2 && $1 =~ ^[1-9][0-9]*$ ]] || usage
count=$1
shift
root=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-$root/.venv/bin/python}
grace=${GRACE:-30}

port=$("$python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])') || exit
export JAX_COORDINATOR_ADDRESS=127.0.0.1:$port JAX_NUM_PROCESSES=$count

prefixed() {
  trap '' INT TERM # what the process says as it ends is still to be read
  local line
  while IFS= read -r line || [[ -n $line ]]; do printf '[%s] %s\n' "$1" "$line"; done
}

send() {
  local pid
  for pid in "${pids[@]}"; do kill "-$1" "$pid" 2>/dev/null; done
}

pids=()
trap 'send TERM' TERM
trap 'send INT' INT
for ((index = 0; index < count; index++)); do
  JAX_PROCESS_ID=$index "$python" -m bert_jax.cli.main "$@" </dev/null \
    > >(prefixed "$index") 2> >(prefixed "$index" >&2) &
  pids[index]=$!
done

code=0
while ((${#pids[@]})); do
  sleep 0.2
  for index in "${!pids[@]}"; do
    kill -0 "${pids[index]}" 2>/dev/null && continue
    wait "${pids[index]}"
    status=$?
    unset "pids[index]"
    if ((status != 0 && code == 0)); then
      code=$status
      deadline=$((SECONDS + grace))
    fi
  done
  if ((code != 0 && SECONDS >= deadline)); then
    send TERM
    ((SECONDS < deadline + grace)) || send KILL
  fi
done
exit "$code"
