#!/usr/bin/env bash
# Run a bert-jax subcommand on all hosts of a Cloud TPU slice, and resume it after preemptions.
#
#   launch/cloud_tpu.sh --type v5litepod-16 NAME ZONE \
#       pretrain --config bert_base --config.work_dir=/shared/runs/base
#
# The script requests the queued resource NAME (or uses it if it exists), waits until it is active,
# copies the files of this checkout that git does not ignore to every host, installs the versions in
# launch/docker/requirements-tpu.lock, and starts the subcommand with the option --distributed. If
# the slice is preempted, the script deletes the queued resource, requests it again, and resumes the
# run. The corpora and the work directory must be in a bucket (gs://…), or on a file system that all
# hosts share, which --setup can mount. The script needs gcloud with a default project, and an SSH
# key in an SSH agent.
#
# Options, before NAME:
#   --type TYPE         the accelerator type, needed if NAME does not exist
#   --runtime VERSION   the TPU software version (default: the one for JAX on this type)
#   --on-demand         do not use Spot VMs
#   --create-flag FLAG  another flag for `gcloud compute tpus queued-resources create`; may be repeated
#   --setup COMMAND     run a command on each host after the installation
#   --restarts N        stop after N restarts (default: 20)
#   --delete            delete the queued resource when the run ends or after Ctrl-C, and if this
#                       script has created it but cannot start the run
#
# Ctrl-C ends only this script. The run continues; the same command shows its output again. With
# --delete, Ctrl-C lets the run save a checkpoint and then deletes the queued resource.
# POLL_SECONDS (default: 30) is the time between two requests for the state of the queued resource.

set -uo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
poll=${POLL_SECONDS:-30}
max_failures=5 # consecutive failures of the same connection or request

say() { echo "cloud_tpu.sh: $*" >&2; }
fail() {
  say "$1"
  exit "${2:-1}"
}

if [[ ${1-} == --help || ${1-} == -h ]]; then
  sed -n '2,/^$/s/^#[ ]\{0,1\}//p' "$0"
  exit 0
fi

type='' runtime='' setup='' restarts=20 delete='' spot=(--spot) create_flags=()
while [[ ${1-} == --* ]]; do
  case $1 in
    --on-demand) spot=() ;;
    --delete) delete=yes ;;
    --type | --runtime | --setup | --restarts | --create-flag)
      [[ $# -ge 2 ]] || fail "$1: a value is missing" 2
      case $1 in
        --type) type=$2 ;;
        --runtime) runtime=$2 ;;
        --setup) setup=$2 ;;
        --restarts) restarts=$2 ;;
        --create-flag) create_flags+=("$2") ;;
      esac
      shift
      ;;
    *) fail "$1: unknown option; --help lists them" 2 ;;
  esac
  shift
done
[[ $# -ge 3 ]] || fail "usage: launch/cloud_tpu.sh [options] NAME ZONE VERB [options]; see --help" 2
[[ $restarts =~ ^[0-9]+$ ]] || fail "--restarts $restarts: not a number" 2
name=$1 zone=$2
shift 2
command -v gcloud >/dev/null || fail "gcloud is not installed" 2
if [[ -z $runtime ]]; then
  case $type in
    v5litepod-*) runtime=v2-alpha-tpuv5-lite ;;
    v5p-*) runtime=v2-alpha-tpuv5 ;;
    v6e-*) runtime=v2-alpha-tpuv6e ;;
    *) runtime=tpu-ubuntu2204-base ;;
  esac
fi

resources() { gcloud compute tpus queued-resources "$1" "$name" --zone="$zone" --quiet "${@:2}"; }

# Run a command on all hosts. A host that no longer exists must not block the connection forever.
on_hosts() {
  gcloud compute tpus tpu-vm ssh "$name" --zone="$zone" --quiet --worker=all \
    --ssh-flag=-oServerAliveInterval=30 --ssh-flag=-oServerAliveCountMax=6 --command="$1"
}

host_script() { printf 'bash cloud_tpu_host.sh'; printf ' %q' "$@"; }

child=''
# Run a command in its own process group, so that a signal to this script is handled at once.
interruptible() {
  local code
  set -m
  "$@" </dev/null &
  child=$!
  set +m
  wait "$child"
  code=$?
  child=''
  return "$code"
}

state=''
# Set `state` to the state of the queued resource, or to the empty string if it does not exist.
get_state() {
  local failures=0 errors
  errors=$(mktemp)
  until state=$(resources describe --format='value(state.state)' 2>"$errors"); do
    if grep -q NOT_FOUND "$errors"; then
      state=''
      break
    fi
    ((++failures < max_failures)) || fail "gcloud does not answer: $(<"$errors")"
    sleep "$poll"
  done
  rm -f "$errors"
}

used=0 requests=0
count_restart() {
  ((used++ < restarts)) || fail "$1; stopping after $restarts restarts"
  say "$1; restart $used of at most $restarts"
}

create() {
  [[ -n $type ]] || fail "there is no queued resource '$name' in $zone: add --type" 2
  ((requests++ == 0)) || count_restart "$name was preempted or could not be provided"
  say "requesting $name: $type with $runtime"
  resources create --node-id="$name" --accelerator-type="$type" --runtime-version="$runtime" \
    ${spot[@]+"${spot[@]}"} ${create_flags[@]+"${create_flags[@]}"} || fail "the request for $name has failed"
}

remove() {
  say "deleting $name"
  resources delete --force && return
  get_state
  [[ -z $state ]] || fail "$name could not be deleted; it may still cost money"
}

wait_until_active() {
  local last=''
  while true; do
    get_state
    [[ $state == "$last" ]] || say "$name: ${state:-does not exist}"
    last=$state
    case $state in
      '') create ;;
      ACTIVE) return ;;
      FAILED | SUSPENDED)
        remove
        sleep "$poll"
        ;;
      CREATING | ACCEPTED | WAITING_FOR_RESOURCES | PROVISIONING | SUSPENDING | DELETING)
        sleep "$poll"
        ;;
      *) fail "unknown state $state of $name" ;;
    esac
  done
}

# Repeat a command until it succeeds, as long as the slice is active. Return 1 if it is not.
retry_while_active() {
  local failures=0 code
  while true; do
    "$@" && return
    code=$?
    get_state
    [[ $state == ACTIVE ]] || return 1
    ((code == 255 || code == 1)) || exit "$code" # the hosts' own message names the problem
    ((++failures < max_failures)) || fail "the hosts of $name cannot be set up" "$code"
    say "no connection to the hosts; trying again"
    sleep "$poll"
  done
}

pack() {
  local file
  cd "$root" || return
  git ls-files -z --cached --others --exclude-standard | while IFS= read -r -d '' file; do
    [[ ! -e $file ]] || printf '%s\0' "$file"
  done | tar --create --gzip --null --no-recursion --files-from=- --file="$work/bert_jax.tar.gz"
}

install() {
  gcloud compute tpus tpu-vm scp "$work/bert_jax.tar.gz" "$root/launch/cloud_tpu_host.sh" \
    "$name:" --zone="$zone" --quiet --worker=all || return 255
  interruptible on_hosts "$(host_script setup "$setup")"
}

# Follow the run until it ends or the slice is lost. Set `code` to the run's exit code, or to an
# empty string if the slice is lost.
follow() {
  local failures=0 begun
  while true; do
    begun=$SECONDS
    interruptible on_hosts "$(host_script follow "$id")"
    code=$?
    ((code != 0)) || return 0
    # A preempted slice changes its state some time after its hosts have stopped.
    for ((check = 0; check < 4; check++)); do
      get_state
      if [[ $state != ACTIVE ]]; then
        code=''
        return
      fi
      ((code == 255)) && break
      sleep "$poll"
    done
    ((code == 255)) || return 0
    ((SECONDS - begun < 60)) || failures=0
    ((++failures < max_failures)) || fail "no connection to the hosts; the run may continue there" 255
    say "the connection was lost; the run continues"
    sleep "$poll"
  done
}

work=$(mktemp -d)
started=''
# Clean up at exit, since the script may end for many reasons while the queued resource exists.
cleanup() {
  rm -rf "$work"
  [[ -n $state ]] || return
  if [[ -n $delete && -z $started ]] && ((requests > 0)); then
    remove
  else
    say "$name still exists, and costs money"
  fi
}
interrupted() {
  trap '' INT TERM
  [[ -z $child ]] || kill -TERM -- "-$child"
  if [[ -n $delete ]]; then
    say "stopping the run"
    on_hosts "$(host_script stop)"
    remove
  else
    say "the run continues on $name, which costs money; to delete it:" \
      "gcloud compute tpus queued-resources delete $name --zone=$zone --force"
  fi
  state='' # cleanup has nothing to add
  exit 130
}
trap cleanup EXIT
trap interrupted INT TERM

pack || fail "run this script from a git checkout of bert_jax" 2
while true; do
  wait_until_active
  retry_while_active install || continue
  id=$(date +%s)-$used
  retry_while_active on_hosts "$(host_script start "$id" "$@" --distributed)" || continue
  started=yes
  follow
  started=''
  case $code in
    '') say "$name is no longer active" ;;
    # A host was stopped for maintenance, or the process was killed. The run can be resumed there.
    143 | 137) count_restart "the run was stopped with code $code" ;;
    *) break ;;
  esac
done
if [[ -n $delete ]]; then
  remove
  state=''
fi
exit "$code"
