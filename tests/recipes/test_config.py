"""Test loading configs from files, and overriding keys on the command line and from Python."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest

from bert_jax.conversion import to_dataclass
from bert_jax.pretraining.prepared_run import PretrainResult
from bert_jax.recipes.command_line import add_override
from bert_jax.recipes.files import Kind, read_config_file
from bert_jax.recipes.load import Overrides, fill_config, load_config
from bert_jax.runs.ownership import ResolvedConfig


@dataclass(frozen=True)
class Optimizer:
    name: Literal["adamw", "lamb"] = "adamw"
    peak_learning_rate: float = 1e-4
    betas: tuple[float, float] = (0.9, 0.999)
    clip_norm: float | None = 1.0

    def __post_init__(self) -> None:
        if self.peak_learning_rate <= 0:
            raise ValueError(f"peak_learning_rate must be positive, got {self.peak_learning_rate}")


@dataclass(frozen=True)
class Phase:
    corpus: str
    num_steps: int
    layers: tuple[int, ...] = ()


@dataclass(frozen=True)
class Run:
    work_dir: str
    seed: int = 0
    next_sentence: bool = True
    keep_every: int | None = None
    optimizer: Optimizer = field(default_factory=Optimizer)
    warm_start: Optimizer | None = None
    phases: dict[str, Phase] = field(default_factory=dict)


FILE = """
from ml_collections import ConfigDict

def get_config(size="small"):
    config = ConfigDict()
    config.work_dir = "runs/" + size
    config.optimizer = ConfigDict({"peak_learning_rate": 1, "betas": (0.9, 0.98)})
    config.phases = ConfigDict({
        "phase1": {"corpus": "a", "num_steps": 9, "layers": [1, 2]},
        "phase2": {"corpus": "b", "num_steps": 1},
    })
    return config
"""


def load(path: str, overrides: Overrides = ()) -> Run:
    file, *argument = path.split(":")
    return fill_config(Run, read_config_file(Path(file), *argument), overrides, path)


@pytest.fixture
def config_file(tmp_path: Path) -> str:
    path = tmp_path / "run.py"
    path.write_text(FILE)
    return str(path)


def test_a_file_with_defaults_and_an_argument_is_converted_to_dataclasses(config_file: str) -> None:
    run = load(config_file + ":large")
    assert run == Run(
        work_dir="runs/large",
        optimizer=Optimizer(peak_learning_rate=1.0, betas=(0.9, 0.98)),
        phases={"phase1": Phase("a", 9, (1, 2)), "phase2": Phase("b", 1)},
    )
    assert type(run.optimizer.peak_learning_rate) is float
    assert list(run.phases) == ["phase1", "phase2"]


@pytest.mark.parametrize(
    ("override", "key", "expected"),
    [
        ("optimizer.peak_learning_rate=1e-4", "optimizer.peak_learning_rate", 1e-4),
        ("optimizer.name=lamb", "optimizer.name", "lamb"),
        ("optimizer.betas=(0.8,1)", "optimizer.betas", (0.8, 1.0)),
        ("optimizer.clip_norm=None", "optimizer.clip_norm", None),
        ("seed=7", "seed", 7),
        ("next_sentence=false", "next_sentence", False),
        ("keep_every=1000", "keep_every", 1000),
        ("work_dir=runs/a b=c", "work_dir", "runs/a b=c"),
        ("work_dir=a=None", "work_dir", "a=None"),
        ("phases.phase1.num_steps=3", "phases.phase1.num_steps", 3),
        ("phases.phase2.layers=(4,5,6)", "phases.phase2.layers", (4, 5, 6)),
    ],
)
def test_all_keys_can_be_overridden(
    config_file: str, override: str, key: str, expected: object
) -> None:
    value: object = load(config_file, [f"--config.{override}"])
    for name in key.split("."):
        value = value[name] if isinstance(value, dict) else getattr(value, name)
    assert value == expected
    assert type(value) is type(expected)


@pytest.mark.parametrize("value", ["1", "2", "None"])
def test_repeated_keys_are_rejected(config_file: str, value: str) -> None:
    words = ["--config.keep_every=1", "--config.seed=1", f"--config.keep_every={value}"]
    with pytest.raises(ValueError, match=r"^--config\.keep_every is set twice: .*Set it once"):
        load(config_file, words)
    assert load(config_file, words[1:2]).seed == 1


def test_an_option_and_the_same_key_are_rejected() -> None:
    assert add_override(["--config.seed=1"], "init_from", "a", "--init") == [
        "--config.seed=1",
        "--config.init_from=a",
    ]
    with pytest.raises(ValueError, match="--init=a and --config.init_from=b set the same key"):
        add_override(["--config.init_from=b"], "init_from", "a", "--init")


def test_none_leaves_out_a_section(config_file: str) -> None:
    run = load(config_file, ["--config.phases.phase2=None"])
    assert list(run.phases) == ["phase1"]
    filled = Path(config_file).with_name("filled.py")
    text = FILE.replace("return config", "config.warm_start = ConfigDict()\n    return config")
    filled.write_text(
        text.replace("ConfigDict()\n    return", 'ConfigDict({"name": "lamb"})\n    return')
    )
    assert load(str(filled)).warm_start == Optimizer(name="lamb")
    assert load(str(filled), ["--config.warm_start=None"]).warm_start is None
    with pytest.raises(ValueError, match="--config.optimizer=None: this section is required"):
        load(config_file, ["--config.optimizer=None"])


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("optimizer.peak_learning_rat=1", "nearest: optimizer.peak_learning_rate"),
        ("phases.phase1.num_step=1", "nearest: phases.phase1.num_steps"),
        (
            "num_steps=1",
            r"no such key; did you mean phases.phase1.num_steps, phases.phase2.num_steps\?$",
        ),
        (
            "phases.phase3.num_steps=1",
            r"did you mean phases.phase1.num_steps, phases.phase2.num_steps\? "
            r"To add phases.phase3, use a config file that has it, such as an edited copy of this "
            r"one$",
        ),
        ("adamw.betas=1", r"no such key; did you mean optimizer.betas\?$"),
        ("optimizer=3", "--config.optimizer is a section; its keys are optimizer.betas"),
        ("seed", "missing value. Write --config.seed=VALUE"),
        ("seed=many", "config.seed.*many"),
        ("warm_start=1", "config.warm_start=1: the config file leaves this section empty"),
        (
            "warm_start.a=1",
            "config.warm_start.a=1: the config file leaves .* such as an edited copy of this one",
        ),
        ("seed=1.5", "config.seed.*1.5"),
        ("seed=None", "config.seed: missing"),
        ("next_sentence=perhaps", "config.next_sentence.*perhaps"),
        ("optimizer.name=sgd", "config.optimizer.name: 'sgd' is not one of 'adamw', 'lamb'"),
        ("seed=1.5", r"--config.seed=1.5: expected an integer"),
        (
            "optimizer.peak_learning_rate=big",
            r"--config.optimizer.peak_learning_rate=big: expected a number",
        ),
        ("optimizer.betas=(0.9,)", r"config.optimizer.betas: expected 2 values, got 1"),
        ("optimizer.peak_learning_rate=-1", "config.optimizer: peak_learning_rate must be"),
    ],
)
def test_invalid_overrides_are_reported(config_file: str, override: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load(config_file, [f"--config.{override}"])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("config.sed = 1", "config.sed: no such key; nearest: seed"),
        ("config.optimizer.nam = 'lamb'", "config.optimizer.nam: no such key; nearest: name"),
        ("config.seed = '1'", r"config.seed: expected int, got '1' \(str\)"),
        ("config.seed = True", r"config.seed: expected int, got True \(bool\)"),
        (
            "del config.optimizer; config.optimizer = 4",
            "config.optimizer: expected a section with the keys",
        ),
        (
            "del config.phases; config.phases = 4",
            "config.phases: expected a section",
        ),
        ("del config.work_dir", "config.work_dir: missing"),
        ("del config.phases.phase1.corpus", "config.phases.phase1.corpus: missing"),
        ("config.phases.phase1.layers = (1, 'x')", r"layers\[1\]: expected int, got 'x'"),
        ("config = None", "must return a ConfigDict"),
        ("1 +", "SyntaxError: .*line 12"),
        ("import sys; sys.exit()", "run.py:12: SystemExit"),
        ("config.missing.key = 1", r"run.py:12: the config has no key 'missing'. To add a section"),
        ("config.phasse.key = 1", r"run.py:12: the config has no key 'phasse' \(Did .*phases"),
        ("config.work_dir.key = 1", r"run.py:12: AttributeError: 'str' object"),
    ],
)
def test_invalid_files_are_reported(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "run.py"
    path.write_text(FILE.replace("return config", f"config.unlock(); {line}\n    return config"))
    with pytest.raises(ValueError, match=message):
        load(str(path))


def test_required_keys_can_be_set_by_overrides(tmp_path: Path) -> None:
    path = tmp_path / "run.py"
    path.write_text(FILE.replace("return config", "del config.work_dir\n    return config"))
    assert load(str(path), ["--config.work_dir=here"]).work_dir == "here"


def test_errors_about_missing_files_suggest_similar_files(config_file: str) -> None:
    with pytest.raises(ValueError, match=".*runn.py: no such file; nearest: .*run.py"):
        load_config(config_file.replace("run.py", "runn.py"))


def test_resolved_configs_are_complete_and_can_be_read(config_file: str, tmp_path: Path) -> None:
    run = load(config_file, ["--config.seed=3"])
    path = ResolvedConfig.of(run).write(tmp_path / "work")
    values = json.loads(path.read_text())
    assert values["optimizer"]["clip_norm"] == 1.0
    assert values["warm_start"] is None
    assert to_dataclass(Run, values) == run
    assert [entry.name for entry in path.parent.iterdir()] == ["config.json"]


def test_configs_for_the_other_command_are_rejected() -> None:
    root = Path(__file__).parents[2] / "configs"
    cases: tuple[tuple[Kind, str, str], ...] = (
        ("pretrain", "finetune/sst2", "glue"),
        ("finetune", "pretrain/tiny", "phases"),
    )
    for other, name, key in cases:
        kind = name.split("/")[0]
        for source in (root / f"{name}.py", name, name.split("/")[1]):
            with pytest.raises(ValueError) as error:
                load_config(source, kind=other)
            expected = f"{source}: this is a config for `bert-jax {kind}`, because it has the key"
            assert f"{expected} {key!r}" in str(error.value)
            assert f"configs/{other}" in str(error.value)


def test_keys_of_other_libraries_are_translated() -> None:
    cases: dict[Kind, dict[str, str]] = {
        "pretrain": {
            "lr": "optimizer.peak_learning_rate",
            "learning_rate": "optimizer.peak_learning_rate",
            "optimizer.lr": "optimizer.peak_learning_rate",
            "max_steps": "phases.phase1.num_steps",
            "epochs": "phases.phase1.num_steps",
            "batch": "phases.phase1.batch_size",
            "evaluation.batch": "evaluation.batch_size",
            "batch_size": "phases.phase1.batch_size",
        },
        "finetune": {
            "lr": "optimizer.peak_learning_rate",
            "optimizer.learning_rate": "optimizer.peak_learning_rate",
            "max_steps": "num_epochs",
            "epochs": "num_epochs",
            "batch": "batch_size",
        },
    }
    for kind, answers in cases.items():
        source = {"pretrain": "tiny", "finetune": "sst2"}[kind]
        for key, answer in answers.items():
            overrides: tuple[Overrides, ...] = ([f"--config.{key}=1"], {key: 1})
            for override in overrides:
                with pytest.raises(ValueError) as error:
                    load_config(source, override)
                # If an override is a Python dict, the suggestion is relative to the section with
                # the unknown key.
                section = "" if isinstance(override, list) else f"{key.rpartition('.')[0]}."
                assert str(error.value).endswith(
                    f"{key}: no such key; did you mean {answer.removeprefix(section)}?"
                )


@pytest.mark.parametrize("key", ["bogus", "optimizer.bogus", "stepz", "optimizer", "files"])
def test_at_most_five_keys_are_suggested(key: str) -> None:
    with pytest.raises(ValueError) as error:
        load_config(
            "table", {"init_from": "models/base", key: 1} if key == "bogus" else [f"{key}=1"]
        )
    assert 0 <= str(error.value).count(",") <= 5


def test_python_values_override_keys_and_sections(config_file: str) -> None:
    run = load(
        config_file,
        {
            "work_dir": Path("runs/mine"),
            "optimizer.betas": [0.8, 1],
            "optimizer": {"clip_norm": None},
            "warm_start": Optimizer(name="lamb"),
            "phases.phase2": None,
            "phases": {"phase3": {"corpus": Path("c"), "num_steps": 5}},
        },
    )
    assert run == Run(
        work_dir="runs/mine",
        optimizer=Optimizer(peak_learning_rate=1.0, betas=(0.8, 1.0), clip_norm=None),
        warm_start=Optimizer(name="lamb"),
        phases={"phase1": Phase("a", 9, (1, 2)), "phase3": Phase("c", 5)},
    )


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"sed": 1}, "config.sed: no such key; nearest: seed"),
        ({"phases.phase1.num_step": 1}, "config.phases.phase1.num_step: .* nearest: num_steps"),
        ({"seed": "1"}, r"config.seed: expected int, got '1' \(str\)"),
        ({"seed.x": 1}, r"config.seed: expected int"),
        ({"optimizer": None}, "optimizer: this section is required and cannot be None"),
        ({"optimizer": 3}, "config.optimizer: expected a section"),
        ({"optimizer.name": "lamb", "optimizer": {"name": "adamw"}}, "optimizer.name is set twice"),
        ("seed=1", "expected a mapping or a list of strings"),
    ],
)
def test_invalid_python_values_are_reported(
    config_file: str, overrides: Overrides, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        load(config_file, overrides)


def test_results_of_runs_are_paths() -> None:
    source = PretrainResult(True, 1, {}, Path("runs/source"))
    config = load_config("finetune/sst2", {"init_from": source}, kind="finetune")
    assert config.init_from == "runs/source"
