"""Flip bits in checkpoints, corpora, tokenizers and exports, and remove parts of checkpoints."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from assets import Assets, prepare_words
from cases import Case, Expectation, Job, Steps, problems_of
from damage import flip_bit
from parameters import digest, losses

# The step of the tiny run's second-to-last checkpoint, from which the run resumes.
NEWEST = "20"
CHECKPOINT = f"run/checkpoints/{NEWEST}"
Damage = Callable[[Path, random.Random], str]


def files_below(directory: Path) -> list[str]:
    """Return the relative paths of all nonempty files in a directory tree."""
    files = (file for file in sorted(directory.rglob("*")) if file.is_file())
    return [str(file.relative_to(directory)) for file in files if file.stat().st_size]


def exported_files(assets: Assets, kind: str) -> list[str]:
    """Return the files in an export, except the model card, which users may edit."""
    return [file for file in files_below(assets / kind) if file != "README.md"]


def checkpoint_files(assets: Assets) -> list[str]:
    """Return the files in the newest checkpoint, except one that is never read."""
    return [file for file in files_below(assets / CHECKPOINT) if file != "commit_success.txt"]


def flip_cases(assets: Assets, seed: int) -> Iterator[Case]:
    """Yield cases that run a command on a copy in which one bit of one file is flipped."""
    rng = random.Random(f"{seed}/flips")
    for number, make in enumerate(_all(assets, rng), 1):
        yield make(f"{number:03d}")


def _all(assets: Assets, rng: random.Random) -> Iterator[Callable[[str], Case]]:
    checkpoint = checkpoint_files(assets)
    for file in [*checkpoint, *rng.sample(checkpoint, len(checkpoint) // 2)]:
        yield partial(_flipped_checkpoint, assets, file, rng.random())
    for file in rng.sample(checkpoint, 8):
        yield partial(_resumed, assets, f"flip in {file}", partial(_flip, file), rng.random())
    for file in [*files_below(assets / "corpus")] * 3:
        yield partial(_flipped, assets, "corpus", file, _prepared_again, rng.random())
    for kind, more in (("wordpiece", 4), ("byte-bpe", 3), ("sentencepiece", 3)):
        for file in files_below(assets / kind) * more:
            yield partial(_flipped, assets, kind, file, _prepared_with, rng.random())
    for kind, command in (
        ("huggingface", _imported),
        ("huggingface", _verified),
        ("onnx", _verified),
        ("stablehlo", _verified),
    ):
        for file in exported_files(assets, kind):
            yield partial(_flipped, assets, kind, file, command, rng.random())


def _prepared_again(assets: Assets, given: Path) -> tuple[str, ...]:
    return prepare_words(assets / "text.txt", assets / "wordpiece", given)


def _prepared_with(assets: Assets, given: Path) -> tuple[str, ...]:
    return prepare_words(assets / "text.txt", given, given.parent / "corpus")


def _imported(_: Assets, given: Path) -> tuple[str, ...]:
    return ("import", str(given), "--output", str(given.parent / "model"))


def _verified(assets: Assets, given: Path) -> tuple[str, ...]:
    return ("verify", str(assets / "run"), str(given))


def _flipped(
    assets: Assets,
    source: str,
    file: str,
    command: Callable[[Assets, Path], tuple[str, ...]],
    seed: float,
    number: str,
) -> Case:
    def steps(here: Path) -> Steps:
        given = here / "given"
        shutil.copytree(assets / source, given)
        flip_bit(given / file, random.Random(seed))
        ended = yield Job(command(assets, given))
        # If the flipped bit is in a file name in SHA256SUMS, the only effect is that a file is not
        # checked.
        expectation: Expectation = "anything" if file == "SHA256SUMS" else "refused"
        return problems_of(ended, expectation, "given")

    return Case("flips", f"{number} {source} {file}".replace("/", "|"), steps)


def _flipped_checkpoint(assets: Assets, file: str, seed: float, number: str) -> Case:
    def steps(here: Path) -> Steps:
        given = here / "given"
        shutil.copytree(assets / "run", given)
        flip_bit(given / "checkpoints" / NEWEST / file, random.Random(seed))
        words = ("extract", str(given), "--step", NEWEST, "--output", str(here / "out"))
        ended = yield Job(words)
        return problems_of(ended, "refused", "given")

    return Case("flips", f"{number} extract {file}".replace("/", "|"), steps)


def part_cases(assets: Assets, seed: int) -> Iterator[Case]:
    """Yield cases with a missing, truncated, empty or renamed file in the newest checkpoint."""
    rng = random.Random(f"{seed}/parts")
    checkpoint = assets / CHECKPOINT
    files = checkpoint_files(assets)
    damages: list[tuple[str, Damage]] = []
    for file in rng.sample(files, min(8, len(files))):
        damages.append((f"without {file}", partial(_remove, file)))
    for file in rng.sample(files, min(8, len(files))):
        damages.append((f"cut {file}", partial(_cut, file)))
        damages.append((f"emptied {file}", partial(_empty, file)))
    for file in rng.sample(files, 4):
        damages.append((f"renamed {file}", partial(_rename, file)))
    folders = [f for f in sorted(checkpoint.rglob("*")) if f.is_dir()]
    for folder in rng.sample(folders, min(6, len(folders))):
        name = str(folder.relative_to(checkpoint))
        damages.append((f"without {name}|", partial(_remove, name)))
    damages.append(("empty", partial(_remove_all, "")))
    for number, (name, damage) in enumerate(damages, 1):
        yield _resumed(assets, name, damage, rng.random(), f"{number:03d}", group="parts")


def _resumed(
    assets: Assets, name: str, damage: Damage, seed: float, number: str, group: str = "flips"
) -> Case:
    """Return a case whose run must resume from an older checkpoint and end as if undisturbed."""

    def steps(here: Path) -> Steps:
        given = here / "given"
        shutil.copytree(assets / "run", given)
        shutil.rmtree(given / "checkpoints/24")
        damage(given / "checkpoints" / NEWEST, random.Random(seed))
        ended = yield Job(assets.words("pretrain", "pretrain", f"work_dir={given}"))
        problems = problems_of(ended, "accepted")
        said = (ended.output + ended.errors).splitlines()
        lines = [line for line in said if "damaged checkpoint" in line and f"step {NEWEST}" in line]
        if len(lines) != 1:
            problems.append(f"{len(lines)} lines name the damaged checkpoint")
        if ended.code == 0:
            result = yield Job(call=lambda: [digest(given), digest(assets / "run")])
            if len(set(result.value)) > 1:
                problems.append("wrong result: parameters differ from the undisturbed run's")
            if losses(given) != losses(assets / "run"):
                problems.append("wrong result: losses differ from the undisturbed run's")
        return problems

    return Case(group, f"{number} {name}".replace("/", "|"), steps, "accepted")


def _flip(file: str, checkpoint: Path, rng: random.Random) -> str:
    flip_bit(checkpoint / file, rng)
    return file


def _remove(name: str, checkpoint: Path, _: random.Random) -> str:
    path = checkpoint / name
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    return name


def _remove_all(name: str, checkpoint: Path, _: random.Random) -> str:
    shutil.rmtree(checkpoint)
    checkpoint.mkdir()
    return name


def _cut(file: str, checkpoint: Path, rng: random.Random) -> str:
    data = (checkpoint / file).read_bytes()
    (checkpoint / file).write_bytes(data[: rng.randrange(max(1, len(data) - 1))])
    return file


def _empty(file: str, checkpoint: Path, _: random.Random) -> str:
    (checkpoint / file).write_bytes(b"")
    return file


def _rename(file: str, checkpoint: Path, _: random.Random) -> str:
    (checkpoint / file).rename(checkpoint / f"{file}.old")
    return file
