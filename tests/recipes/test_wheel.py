"""Test that an installed wheel contains the command, the recipes and the type marker."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ..commands import REPOSITORY

# A recipe that imports another recipe.
NARROW = """
from ..tiny import get_config as tiny

def get_config():
    config = tiny()
    config.model.update(hidden_dim=16, ffn_dim=32, vocab_size=300, max_positions=64)
    return config
"""
# A user's config file that is based on a recipe.
OWN = NARROW.replace("from ..tiny", "from bert_jax.recipes.pretrain.tiny")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build a wheel, install it, and return the directory in which it is installed."""
    directory = tmp_path_factory.mktemp("wheel")
    source = directory / "source"
    for name in ("bert_jax", "configs"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(REPOSITORY / name, source / name, ignore=ignored)
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, source)
    (source / "configs/pretrain/small/narrow.py").write_text(NARROW)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    built = ["wheel", "--no-build-isolation", "--no-deps", "--wheel-dir", directory / "built"]
    subprocess.run([*pip, *built, source], check=True)
    (wheel,) = (directory / "built").glob("*.whl")
    into = ["--no-deps", "--target", directory / "installed"]
    subprocess.run([*pip, "install", *into, wheel], check=True)
    shutil.rmtree(source)
    return directory / "installed"


@pytest.mark.slow
def test_the_installed_command_trains_with_a_recipe(
    installed: Path, tiny_config: Path, tmp_path: Path
) -> None:
    def bert_jax(*words: str | Path) -> str:
        command = [sys.executable, installed / "bin/bert-jax", *words]
        environment = {**os.environ, "PYTHONPATH": str(installed)}
        result = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    assert (installed / "bert_jax/py.typed").is_file()
    assert "phases.NAME.corpus" in bert_jax("keys", "pretrain")
    phase = {"corpus": tiny_config.parent / "32", "sequence_length": 32, "num_steps": 2}
    words = [f"--config.phases.phase1.{key}={value}" for key, value in phase.items()]
    sizes = {"hidden_dim": 16, "ffn_dim": 32, "vocab_size": 300, "max_positions": 64}
    words += [f"--config.model.{key}={value}" for key, value in sizes.items()]
    words += ["--config.optimizer.warmup_steps=1", "--config.evaluation.every_steps=2"]
    bert_jax("pretrain", "--config", "tiny", *words)
    assert (tmp_path / "runs/tiny/model.json").is_file()
    (tmp_path / "own.py").write_text(OWN)
    tables = set()
    for config in ("small/narrow", "own.py"):
        title, table = bert_jax("inspect", "--config", config).split("\n\n", maxsplit=1)
        assert title == f"config {config}"
        tables.add(table)
    assert len(tables) == 1
