"""Run jobs in processes forked from this one, in which everything is already imported.

Forking takes a hundredth of the time that a new interpreter needs to import JAX, and a crash in one
process does not affect the others. Forking is safe, since JAX starts its threads on first use and
this process never uses JAX.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import resource
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from cases import VALUE, Case, Ended, Job, Steps

_POLL_SECONDS = 0.02
_PAGE = os.sysconf("SC_PAGE_SIZE")
# A process that uses more memory than this is killed before it can exhaust the machine's memory.
_KILL_MEMORY = 4 << 30
# The number of characters that are kept from a process's output.
_KEPT_CHARACTERS = 20_000
# Modules that commands import on demand.
_MODULES = (
    "bert_jax.cli.main",
    "bert_jax.cli.pretrain",
    "bert_jax.cli.finetune",
    "bert_jax.cli.evaluate",
    "bert_jax.cli.sweep",
    "bert_jax.cli.import_model",
    "bert_jax.cli.export",
    "bert_jax.cli.checkpoints",
    "bert_jax.cli.predict",
    "bert_jax.cli.prepare",
    "bert_jax.cli.train_tokenizer",
    "bert_jax.cli.plan",
    "pyarrow.parquet",
    "tensorboardX",
    "torch",
)


@dataclass
class _Active:
    """A case in progress and its current process."""

    case: Case
    steps: Steps
    here: Path
    job: Job
    lane: int
    pid: int = 0
    started: float = 0.0
    memory: int = 0
    signalled: bool = False
    hung: bool = False
    number: int = 0
    ended: list[Ended] = field(default_factory=list)


@dataclass(frozen=True)
class Outcome:
    """A finished case, with the results of its jobs and the problems found."""

    case: Case
    ended: list[Ended]
    problems: list[str]


def warm_up(cache: Path) -> None:
    """Import everything that commands need; `cache` is the compilation cache directory."""
    os.environ |= {
        "JAX_PLATFORMS": "cpu",
        "JAX_COMPILATION_CACHE_DIR": str(cache),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.05",
        "XLA_FLAGS": "--xla_backend_optimization_level=0",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }
    os.environ.pop("BERT_JAX_TRACEBACK", None)
    # Data workers import the package from here.
    os.environ["PYTHONPATH"] = str(Path(__file__).resolve().parents[2])
    for name in _MODULES:
        importlib.import_module(name)


def run_cases(cases: Iterator[Case], work: Path, lanes: int) -> Iterator[Outcome]:
    """Run `lanes` cases at a time, each in its own folder, and yield their outcomes."""
    free, active = set(range(lanes)), list[_Active]()
    more = True
    try:
        while more or active:
            while free and more:
                case = next(cases, None)
                more = case is not None
                if case is None:
                    break
                here = work / "cases" / case.key
                shutil.rmtree(here, ignore_errors=True)
                here.mkdir(parents=True)
                begun = _begin(case, here, free.pop())
                if isinstance(begun, Outcome):  # The case finished without starting a process.
                    yield begun
                    free = set(range(lanes)) - {each.lane for each in active}
                else:
                    active.append(begun)
            time.sleep(_POLL_SECONDS)
            for each in list(active):
                ended = _look(each)
                if ended is None:
                    continue
                outcome = _advance(each, ended)
                if outcome is not None:
                    active.remove(each)
                    free.add(each.lane)
                    if not outcome.problems:
                        shutil.rmtree(each.here, ignore_errors=True)
                    yield outcome
    finally:
        for each in active:
            _kill(each)
            each.steps.close()


def _begin(case: Case, here: Path, lane: int) -> _Active | Outcome:
    steps = case.steps(here)
    try:
        job = next(steps)
    except StopIteration as end:
        return Outcome(case, [], end.value)
    active = _Active(case, steps, here, job, lane)
    _start(active)
    return active


def _advance(active: _Active, ended: Ended) -> Outcome | None:
    active.ended.append(ended)
    try:
        active.job = active.steps.send(ended)
    except StopIteration as end:
        return Outcome(active.case, active.ended, end.value)
    _start(active)
    return None


def _start(active: _Active) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    active.number += 1
    pid = os.fork()
    if pid == 0:
        try:
            _become(active)
        finally:
            os._exit(70)
    active.pid, active.started = pid, time.monotonic()
    active.memory, active.signalled, active.hung = 0, False, False


def _become(active: _Active) -> None:
    """Run a job in this forked process, and exit."""
    os.setsid()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for descriptor, kind in ((1, "out"), (2, "err")):
        path = active.here / f".{kind}{active.number}"
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), descriptor)
    os.chdir(active.here)
    os.environ |= active.job.environment
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    import jax

    # JAX does not write cache entries atomically, so every lane has its own cache, and jobs that
    # may be killed only read it.
    cache = Path(os.environ["JAX_COMPILATION_CACHE_DIR"]) / str(active.lane)
    jax.config.update("jax_compilation_cache_dir", str(cache))
    if active.job.signal is not None:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 1e9)
    code = 1
    try:
        if active.job.call is not None:
            print(VALUE + json.dumps(active.job.call()))
            code = 0
        else:
            main = importlib.import_module("bert_jax.cli.main")
            sys.modules["__main__"] = main  # Spawned data workers import the module `__main__`.
            sys.argv = ["bert-jax", *active.job.words]
            code = main.main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    # Ignore SIGINT from here on. This process has imported libraries that the command would not
    # import, such as PyTorch, and their exit handlers must not be interrupted.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _look(active: _Active) -> Ended | None:
    """Return a process's result, or None while it runs; signal or kill it when necessary."""
    pid, status, usage = os.wait4(active.pid, os.WNOHANG)
    seconds = time.monotonic() - active.started
    if pid == 0:
        active.memory = max(active.memory, _tree_memory(active.pid))
        job = active.job
        if job.signal is not None and not active.signalled and seconds >= job.after:
            active.signalled = True
            (os.killpg if job.to_group else os.kill)(active.pid, job.signal)
        if seconds > job.seconds or active.memory > _KILL_MEMORY:
            active.hung = seconds > job.seconds
            _kill_group(active.pid)
        return None
    _kill_group(active.pid)  # Kill any child processes that the job has left behind.
    output, errors = (
        (active.here / f".{kind}{active.number}").read_text(errors="backslashreplace")
        for kind in ("out", "err")
    )
    return Ended(
        os.waitstatus_to_exitcode(status),
        seconds,
        max(active.memory, usage.ru_maxrss * 1024),
        output[-_KEPT_CHARACTERS:],
        errors[-_KEPT_CHARACTERS:],
        active.hung,
    )


def _tree_memory(pid: int) -> int:
    """Return the resident memory of a process and its descendants, in bytes."""
    total, waiting = 0, [pid]
    while waiting:
        each = waiting.pop()
        try:
            total += int(Path(f"/proc/{each}/statm").read_text().split()[1]) * _PAGE
            for task in os.listdir(f"/proc/{each}/task"):
                children = Path(f"/proc/{each}/task/{task}/children").read_text()
                waiting += map(int, children.split())
        except OSError:  # The process has just ended.
            continue
    return total


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _kill(active: _Active) -> None:
    _kill_group(active.pid)
    with suppress(ChildProcessError):  # The process may already have ended and been reaped.
        os.waitpid(active.pid, 0)
