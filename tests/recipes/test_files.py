"""Test that recipes are found by name, and that config files can import each other."""

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from bert_jax import recipes
from bert_jax.finetuning.config import FinetuneConfig
from bert_jax.pretraining.config import PretrainConfig
from bert_jax.recipes import files
from bert_jax.recipes.files import find_config, read_config_file, recipe_names
from bert_jax.recipes.load import load_config

CONFIGS = Path(__file__).parents[2] / "configs"


def test_recipes_are_found_by_name_from_any_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    paths = sorted(CONFIGS.rglob("*.py"))
    names = [f"{kind}/{name}" for kind in files.KINDS for name in recipe_names(kind)]
    assert sorted(names) == sorted(path.relative_to(CONFIGS).as_posix()[:-3] for path in paths)
    for path in paths:
        kind, _, name = path.relative_to(CONFIGS).with_suffix("").as_posix().partition("/")
        assert find_config(f"{kind}/{name}") == find_config(name) == path


def test_the_best_checkpoint_of_a_recipe_is_chosen_on_the_same_text() -> None:
    """Check that the metric is not a held-out loss, which would depend on the phase's corpus."""
    long = CONFIGS.glob("pretrain/*_long.py")
    best = [file for file in long if "--step best" in file.read_text(encoding="utf-8")]
    assert [file.stem for file in best] == ["modernbert_large_long"]
    config = load_config(best[0], kind="pretrain")
    assert config.checkpoint.best_metric in config.evaluation.language_metrics
    assert config.optimizer.decay_steps // config.evaluation.every_steps >= 9
    averaged = load_config("modernbert_base_long", kind="pretrain")
    assert averaged.checkpoint.keep_best == 0 and averaged.checkpoint.keep_last == 4


def test_the_kind_of_a_config_is_determined_from_its_keys() -> None:
    words = {"init_from": "models/base"}
    assert isinstance(load_config("pretrain/tiny"), PretrainConfig)
    assert isinstance(load_config("bert_base"), PretrainConfig)
    assert load_config("small/bert_base") != load_config("bert_base")
    assert load_config("finetune/sst2", words) == load_config("sst2", words, kind="finetune")
    assert isinstance(load_config(CONFIGS / "finetune/sst2.py", words), FinetuneConfig)
    content = read_config_file(CONFIGS / "pretrain/tiny.py")
    assert load_config(content) == load_config(content.to_dict()) == load_config("tiny")
    with pytest.raises(ValueError, match="not a pretraining or fine-tuning config"):
        load_config({"seed": 1})


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("bert_bse", "bert_bse: no such recipe or file; nearest: bert_base"),
        ("sst", "sst: no such recipe or file; nearest: .*sst2"),
        ("pretrain/tinny", "pretrain/tinny: no such recipe or file; nearest: pretrain/tiny"),
        (
            "configs/pretrain/tiny.py",
            "^configs/.*: no such file. .* its name: pretrain/tiny$",
        ),
        ("README", "README: not a Python file"),
    ],
)
def test_errors_suggest_the_nearest_names(
    name: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("README").touch()
    with pytest.raises(ValueError, match=message):
        load_config(name)


def test_the_command_determines_the_kind_of_ambiguous_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(CONFIGS, tmp_path / "configs")
    shutil.copy(CONFIGS / "finetune/sst2.py", tmp_path / "configs/finetune/tiny.py")
    monkeypatch.setattr(files, "RECIPES", tmp_path / "configs")
    with pytest.raises(ValueError, match="Specify pretrain/tiny or finetune/tiny"):
        load_config("tiny")
    assert isinstance(load_config("tiny", kind="pretrain"), PretrainConfig)
    init = ["--config.init_from=models/base"]
    assert isinstance(load_config("tiny", init, kind="finetune"), FinetuneConfig)


def test_config_files_can_import_each_other(tmp_path: Path) -> None:
    """Resolve imports relative to the file, rerun them on every load, and do not cache modules."""
    directory = tmp_path / "my.configs"
    (directory / "small").mkdir(parents=True)
    shutil.copy(CONFIGS / "pretrain/tiny.py", directory / "base.py")
    (directory / "wide.py").write_text(
        "from .base import get_config as base\n"
        "def get_config():\n"
        "    config = base()\n"
        "    config.model.hidden_dim = 256\n"
        "    return config\n"
    )
    (directory / "small/one.layer.py").write_text(
        "from ..wide import get_config as wide\n"
        "def get_config(work_dir='runs/one'):\n"
        "    from ..base import get_config as base\n"
        "    assert base().model.hidden_dim == 128\n"
        "    config = wide()\n"
        "    config.model.num_layers, config.work_dir = 1, work_dir\n"
        "    return config\n"
    )
    before = set(sys.modules)
    config = load_config(f"{directory}/small/one.layer.py:runs/two")
    assert (config.model.hidden_dim, config.model.num_layers) == (256, 1)
    assert config.work_dir == "runs/two"
    assert not {name for name in set(sys.modules) - before if "bert_jax_config" in name}
    text = (directory / "base.py").read_text()
    (directory / "base.py").write_text(text.replace("num_heads=2", "num_heads=16"))
    assert load_config(directory / "wide.py").model.num_heads == 16


def test_a_config_file_can_import_a_recipe(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from bert_jax.recipes.pretrain.small.bert_base import get_config as base\n"
        "def get_config():\n"
        "    return base()\n"
    )
    assert load_config(file) == load_config("small/bert_base")
    assert recipes.RECIPES == CONFIGS


@pytest.mark.parametrize(
    ("source", "options", "problem"),
    [
        ("tiny", {"kind": "pretraining"}, "kind='pretraining': expected one of None, 'pretrain'"),
        (3, {}, "source=3: expected the name of a recipe"),
    ],
)
def test_wrong_arguments_are_refused(source: Any, options: Any, problem: str) -> None:
    with pytest.raises(ValueError, match=f"^{problem}"):
        load_config(source, **options)
