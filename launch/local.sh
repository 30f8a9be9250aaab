#!/usr/bin/env bash
# Run a bert-jax subcommand as N processes on this machine, connected by jax.distributed.
#
#   launch/local.sh 2 pretrain --config tiny
#
# This script is for trying out multi-process runs on a single machine. Normally, one process uses
# all of a machine's CPUs or GPUs. XLA_FLAGS=--xla_force_host_platform_device_count=4 gives each
# process four CPU devices. PYTHON is the interpreter (default: the one in .venv).
#
# Each line of output begins with the number of its process. SIGTERM and SIGINT are forwarded to all
# processes. If a process fails, the others have GRACE seconds (default: 30) to exit before they are
# terminated, and the script exits with the failed process's exit code.

set -u
# Give each process its own group, so that on Ctrl-C it receives SIGINT only once, from this script.
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
  trap '' INT TERM # keep reading until the process has written its last output
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
