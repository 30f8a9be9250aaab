#!/usr/bin/env bash
# Run a bert-jax subcommand on one host of a Cloud TPU slice. launch/cloud_tpu.sh copies this script
# to every host and calls it there, in the home directory. Calls may be repeated after a lost
# connection, even by gcloud itself, so repeating a call has no further effect.
#
#   cloud_tpu_host.sh setup [COMMAND]    install bert-jax from ~/bert_jax.tar.gz, and run COMMAND
#   cloud_tpu_host.sh start ID WORDS     start `bert-jax WORDS` in the background
#   cloud_tpu_host.sh follow ID          print the run's output, and exit with its exit code
#   cloud_tpu_host.sh stop               let the run save a checkpoint and end
#
# The run does not depend on the connection. Its output is in ~/bert_jax_run/log.

set -eu
run=$HOME/bert_jax_run
root=$HOME/bert_jax
export PATH=$HOME/.local/bin:$PATH

running() {
  # After a restart of the host, the process ID may belong to another process.
  [[ -e $run/pid ]] && grep --quiet --no-messages --text bert_jax_run "/proc/$(<"$run/pid")/cmdline"
}

setup() {
  if running; then
    echo "$(hostname): a run is in progress, nothing is installed"
    return
  fi
  mkdir -p "$root"
  tar --extract --gzip --file "$HOME/bert_jax.tar.gz" --directory "$root"
  cd "$root"
  # The hosts' own Python is too old, so uv installs a newer one.
  command -v uv >/dev/null || python3 -m pip install --user --quiet uv
  [[ -x .venv/bin/python ]] || uv venv --quiet --python 3.11 .venv
  uv pip install --quiet --python .venv/bin/python --require-hashes \
    --requirements launch/docker/requirements-tpu.lock
  uv pip install --quiet --python .venv/bin/python --no-deps --editable .
  [[ -z ${1-} ]] || bash -euc "$1"
}

start() {
  local id=$1
  shift
  if running; then
    if [[ $(<"$run/command") != "$*" ]]; then
      echo "$(hostname): another run is in progress: bert-jax $(<"$run/command")" >&2
      exit 3
    fi
    echo "$id" >"$run/id"
    return
  fi
  [[ ! -e $run/id || $(<"$run/id") != "$id" ]] || return 0 # it has already ended
  mkdir -p "$run"
  rm -f "$run/code"
  echo "$*" >"$run/command"
  echo "$id" >"$run/id"
  cd "$root"
  setsid nohup bash -c '
    echo $$ >"$0/pid"
    .venv/bin/bert-jax "$@" &
    child=$!
    trap "kill -TERM $child" TERM
    while wait $child; code=$?; kill -0 $child 2>/dev/null; do :; done
    echo $code >"$0/code"
  ' "$run" "$@" </dev/null >>"$run/log" 2>&1 &
  for ((try = 0; try < 100; try++)); do
    ! running && [[ ! -e $run/code ]] || return 0
    sleep 0.1
  done
}

follow() {
  if [[ ! -e $run/id || $(<"$run/id") != "$1" ]]; then
    echo "$(hostname): the run has not been started on this host" >&2
    exit 4
  fi
  if running; then
    tail --lines=30 --follow --sleep-interval=0.5 --pid="$(<"$run/pid")" "$run/log"
  else
    tail --lines=30 "$run/log"
  fi
  if [[ ! -e $run/code ]]; then
    echo "$(hostname): the run was killed" >&2
    exit 137
  fi
  exit "$(<"$run/code")"
}

stop() {
  running || return 0
  kill -TERM "$(<"$run/pid")"
  for ((try = 0; try < 600; try++)); do
    running || return 0
    sleep 0.5
  done
  echo "$(hostname): the run has not ended within 5 minutes" >&2
  exit 5
}

case ${1-} in
  setup | start | follow | stop) "$@" ;;
  *)
    echo "usage: cloud_tpu_host.sh setup|start|follow|stop" >&2
    exit 2
    ;;
esac
