r"""Kill a pretraining run 100 times at random, and compare it with a run that was not killed.

    python experiments/long_run/run.py --work runs/long-run

Both runs use the same config: a tiny BERT on the documentation that comes with Python. One of them
is trained without interruption. The other one is killed with SIGKILL while it is starting, while it
is training, and while it is saving a checkpoint. After the last kill, it is trained to the end. The
script checks that both runs end with the same parameters, bit for bit, and with the same losses,
and writes results.json with the goodput of both. The same command resumes the experiment if it was
interrupted.

A start is a fork of this process, which has imported the package but has not used JAX yet. This
saves the time of importing JAX, which would be most of each start. Compiled programs are cached.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT), str(HERE.parent), str(HERE.parent / "faults")]
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"

import jax  # noqa: E402
from commands import bert_jax as run  # noqa: E402
from commands import write_config  # noqa: E402
from parameters import digest, losses  # noqa: E402

import bert_jax.downstream.pretraining  # noqa: E402, F401  (imported once for all starts)
from bert_jax.cli.main import main as bert_jax_main  # noqa: E402
from bert_jax.files import write_file  # noqa: E402
from bert_jax.goodput.account import Account  # noqa: E402
from bert_jax.goodput.entries import GOODPUT_NAME, read_entries  # noqa: E402
from bert_jax.processes import command_begins  # noqa: E402

STEPS, SAVE_EVERY, REPORT_EVERY = 5_000, 50, 10
MODES = {"while starting": 0.2, "while training": 0.4, "while saving": 0.4}
POLL_SECONDS = 0.004
LONGEST_WAIT = 900.0  # This is the maximum number of seconds until a start is ready to be killed.


def main() -> int:
    """Perform the remaining starts, write the results, and return 1 if the two runs differ."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, required=True, help="folder for all files")
    parser.add_argument("--kills", type=int, default=100, help="number of kills (default: 100)")
    parser.add_argument("--seed", type=int, default=0, help="seed for the times of the kills")
    args = parser.parse_args()
    work = args.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    jax.config.update("jax_compilation_cache_dir", str(work / "programs"))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    config = prepare(work)
    killed, whole = work / "killed", work / "whole"
    run_to_the_end(config, whole)
    kills = kill_repeatedly(config, killed, work / "kills.jsonl", args.kills, args.seed)
    run_to_the_end(config, killed)
    results = compare(whole, killed, kills[: args.kills])
    write_file(HERE / "results.json", json.dumps(results, indent=1) + "\n")
    print(json.dumps(results, indent=1))
    return 0 if results["same parameters"] and results["same losses"] else 1


def prepare(work: Path) -> Path:
    """Prepare the corpus and the config, unless they exist, and return the config's path."""
    text, tokenizer, corpus = work / "text.jsonl", work / "tokenizer", work / "corpus"
    if not (corpus / "manifest.json").is_file():
        run("demo-corpus", "--output", text)
        run("train-tokenizer", "--input", text, "--output", tokenizer, "--vocab-size", "2000")
        inputs = ["--input", text, "--tokenizer", tokenizer, "--output", corpus]
        run("prepare", *inputs, "--max-length", "32", "--held-out", "0.02", "--workers", "1")
    file = work / "config.py"
    sizes = dict(hidden_dim=32, num_layers=1, num_heads=2, ffn_dim=64)
    phase = dict(corpus=str(corpus), sequence_length=32, batch_size=8, num_steps=STEPS)
    write_config(
        dict(
            work_dir=str(work / "killed"),
            model=dict(vocab_size=2000, max_positions=32, **sizes),
            phases=dict(phase1=phase),
            optimizer=dict(peak_learning_rate=1e-3, warmup_steps=200),
            evaluation=dict(every_steps=1000),
            checkpoint=dict(every_steps=SAVE_EVERY),
            reporting=dict(every_steps=REPORT_EVERY, tensorboard=False),
        ),
        file,
    )
    return file


def start(config: Path, work_dir: Path) -> int:
    """Start the run in a separate process, and return the process ID."""
    process = os.fork()
    if process:
        return process
    code = 1
    try:
        _end_with_parent()
        output = os.open(
            work_dir.with_suffix(".txt"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666
        )
        os.dup2(output, 1)
        os.dup2(output, 2)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        command_begins()
        code = bert_jax_main(["pretrain", "--config", str(config), f"--config.work_dir={work_dir}"])
    finally:
        os._exit(code)


def _end_with_parent() -> None:
    """Ask Linux to kill this process when its parent ends."""
    import ctypes

    death_signal = 1  # PR_SET_PDEATHSIG
    ctypes.CDLL(None).prctl(death_signal, signal.SIGKILL)


def run_to_the_end(config: Path, work_dir: Path) -> None:
    """Train a run to its end; exit if it fails."""
    _, status = os.waitpid(start(config, work_dir), 0)
    if status:
        raise SystemExit(f"the run failed; see {work_dir.with_suffix('.txt')}")


def kill_repeatedly(
    config: Path, work_dir: Path, log: Path, count: int, seed: int
) -> list[dict[str, Any]]:
    """Start and kill the run until it has been killed `count` times; return the kills."""
    kills = [json.loads(line) for line in log.read_text().splitlines()] if log.is_file() else []
    durations = [kill["to first step"] for kill in kills if kill["to first step"]]
    for number in range(len(kills), count):
        rng = random.Random(f"{seed}/{number}")
        mode = rng.choices(list(MODES), list(MODES.values()))[0]
        if mode == "while starting" and not durations:
            mode = "while training"
        process, began = start(config, work_dir), time.monotonic()
        first_step = wait(process, work_dir, mode, rng, durations)
        os.kill(process, signal.SIGKILL)
        _, status = os.waitpid(process, 0)
        if not os.WIFSIGNALED(status):
            raise SystemExit(f"start {number + 1} ended by itself; see {work_dir}.txt")
        to_first_step = None if first_step is None else first_step - began
        durations += [to_first_step] if to_first_step else []
        kill = {
            "mode": mode,
            "to first step": to_first_step,
            "seconds": time.monotonic() - began,
            "step": newest_step(work_dir),
            "unfinished save": unfinished(work_dir) is not None,
        }
        with log.open("a") as file:
            file.write(json.dumps(kill) + "\n")
        kills.append(kill)
        print(f"kill {number + 1}: {kill}", file=sys.stderr, flush=True)
    return kills


def wait(
    process: int, work_dir: Path, mode: str, rng: random.Random, durations: list[float]
) -> float | None:
    """Wait until it is time to kill a start; return the time of its first step, or None."""
    began, first_step = time.monotonic(), None
    if mode == "while starting":
        time.sleep(rng.random() * sorted(durations)[len(durations) // 2])
        return None
    former = unfinished(work_dir)
    log = Log(work_dir / "metrics.jsonl")
    target = rng.randrange(1, 130) if mode == "while training" else None
    saves = rng.randrange(1, 3)
    while time.monotonic() - began < LONGEST_WAIT:
        time.sleep(POLL_SECONDS)
        if has_ended(process):  # The start has failed; the caller reports the error.
            return first_step
        steps = log.new_steps()
        if steps and first_step is None:
            first_step = time.monotonic()
        if target is not None:
            if steps >= target:
                time.sleep(rng.random() * 0.05)
                return first_step
        elif first_step is not None and (current := unfinished(work_dir)) not in (None, former):
            former, saves = current, saves - 1
            if not saves:
                time.sleep(rng.random() * 0.1)
                return first_step
    raise SystemExit(f"a start was not ready to be killed after {LONGEST_WAIT:.0f} s")


def has_ended(process: int) -> bool:
    """Return whether a child process has ended, without collecting its exit status."""
    return os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


class Log:
    """A log to which a run appends; a resumed run first removes entries after its checkpoint."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._identity = self._stat()
        self._start: int | None = None

    def _stat(self) -> int | None:
        return self._path.stat().st_ino if self._path.exists() else None

    def new_steps(self) -> int:
        """Return how many steps the run has reported since it rewrote the log."""
        if self._stat() == self._identity or not self._path.exists():
            return 0
        lines = self._path.read_bytes().split(b"\n")[:-1]
        step = json.loads(lines[-1])["step"] if lines else 0
        if self._start is None:
            self._start = step
        return step - self._start


def newest_step(work_dir: Path) -> int:
    """Return the newest step in the run's ledger."""
    ledger = work_dir / GOODPUT_NAME
    entries = read_entries(ledger) if ledger.is_file() else []
    return entries[-1].step if entries else 0


def unfinished(work_dir: Path) -> str | None:
    """Return the name of the checkpoint that is being saved, or None."""
    checkpoints = work_dir / "checkpoints"
    names = sorted(_names(checkpoints)) if checkpoints.is_dir() else []
    return names[-1] if names else None


def _names(directory: Path) -> Iterator[str]:
    return (name for name in os.listdir(directory) if "orbax-checkpoint-tmp" in name)


def compare(whole: Path, killed: Path, kills: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the results: whether the runs are equal, the kills, and the goodput of both runs."""
    return {
        "kills": len(kills),
        "kills by moment": dict(Counter(kill["mode"] for kill in kills)),
        "kills that left an unfinished save": sum(kill["unfinished save"] for kill in kills),
        "same parameters": digest(whole, STEPS) == digest(killed, STEPS),
        "same losses": losses(whole) == losses(killed),
        "entries in the log": len(losses(whole)),
        "parameters": digest(killed, STEPS),
        "goodput": {"whole": goodput(whole), "killed": goodput(killed)},
        "command": "python experiments/long_run/run.py --work runs/long-run",
        "hardware": f"{os.cpu_count()} cores of {processor()}, shared with other programs",
        "date": date.today().isoformat(),
    }


def goodput(work_dir: Path) -> dict[str, Any]:
    """Return the goodput of a run."""
    found = Account(read_entries(work_dir / GOODPUT_NAME)).goodput()
    assert found is not None
    return found.to_json()


def processor() -> str:
    """Return the processor's name as reported by Linux."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


if __name__ == "__main__":
    sys.exit(main())
