"""Test that no command or function treats gs://bucket/x as a directory named "gs:"."""

from __future__ import annotations

import argparse
import re
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bert_jax.argument_parser import URL_ARGUMENTS, check_paths, free_text
from bert_jax.cli.main import main
from bert_jax.config_keys import sections
from bert_jax.conversion import to_dataclass, without_none
from bert_jax.files import write_file
from bert_jax.interop.huggingface.import_config import ImportOptions
from bert_jax.interop.huggingface.load import open_directory
from bert_jax.interop.tensorflow_import import checkpoint_prefix
from bert_jax.interop.verify_backends import open_model
from bert_jax.local_paths import PathOrUrl, check_local, is_path, make_directory
from bert_jax.recipes.load import CONFIGS, load_config
from bert_jax.runs.outputs import new_directory
from bert_jax.runs.ownership import ResolvedConfig
from bert_jax.runs.work_dir import read_model
from bert_jax.text.documents import SourceOptions
from bert_jax.text.python_docs import write_python_docs
from bert_jax.training.checkpoint import Checkpointer
from bert_jax.training.checkpoint_files import CheckpointConfig
from bert_jax.training.checkpoint_parameters import save_parameters
from bert_jax.training.metrics_log import MetricsLog
from bert_jax.verbs import VERBS, Verb, make_parser

from ..commands import REPOSITORY

BUCKET, OTHER = "gs://bucket/x", "az://container/x"
REFUSAL = "gs:// is not supported"
# These arguments are not paths: a sentence, a label or a column name may be a URL.
TEXTS = {
    "bench prepare --text-field",
    "fill-mask sentence",
    "fill-mask work_dir",  # This argument may be a sentence; a path is checked when it is opened.
    "import --labels",
    "look second",
    "look text",
    "prepare --runner-args",
    "prepare --text-field",
    "sweep --vary",  # A path in a value is checked when the config is loaded.
    "tokenize second",
    "tokenize text",
    "train-tokenizer --text-field",
}
# Config keys that hold text other than paths, identified by their last component.
NOT_PATHS = {
    *("best_metric", "metrics", "task", "delimiter"),
    *("first", "second", "label", "separator", "index", "labels", "label_names"),
    "skip_labels",  # The value consists of columns and labels.
    *("context", "beginning", "endings", "tag", "word", "comment"),
    # The value consists of patterns that match parameter names.
    "train_only",
    # The value is a shell command.
    "notify",
}


@pytest.fixture(autouse=True)
def empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Change to an empty directory for the test, and check at the end that it is still empty."""
    directory = tmp_path / "here"
    directory.mkdir()
    monkeypatch.chdir(directory)
    yield directory
    assert list(directory.iterdir()) == []


def verbs(table: typing.Mapping[str, Verb], before: str = "") -> Iterator[tuple[str, Verb]]:
    for name, verb in table.items():
        yield from verbs(verb.verbs, f"{name} ") if verb.verbs else [(before + name, verb)]


def takes_text(action: argparse.Action) -> bool:
    """Return whether an argument accepts arbitrary text as its value."""
    return action.nargs != 0 and action.type not in (int, float) and not action.choices


def name_of(action: argparse.Action) -> str:
    return action.option_strings[-1] if action.option_strings else action.dest


ARGUMENTS = [
    (words, verb, name_of(action))
    for words, verb in verbs(VERBS)
    for action in make_parser(verb, words)._actions
    if takes_text(action)
]


def words_for(action: argparse.Action, value: str | None = None) -> list[str]:
    """Return the command-line words that set an argument to a value, by default a valid one."""
    if value is None:
        value = str(list(action.choices)[0]) if action.choices else "1"
    return [*action.option_strings[-1:], value]


@pytest.mark.parametrize(
    ("words", "verb", "name"), ARGUMENTS, ids=[f"{words} {name}" for words, _, name in ARGUMENTS]
)
def test_every_argument_of_every_verb_is_checked(
    words: str, verb: Verb, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Get the arguments from the parsers, so that new options are tested automatically."""
    actions = make_parser(verb, words)._actions
    (chosen,) = (action for action in actions if name_of(action) == name)
    if f"{words} {name}" in TEXTS:
        assert chosen.type is free_text
        return
    if f"{words} {name}" in URL_ARGUMENTS:
        parser = make_parser(verb, words)
        given = {action.dest: None for action in actions} | {chosen.dest: [BUCKET]}
        check_paths(parser, argparse.Namespace(**given))
        given[chosen.dest] = [OTHER]
        with pytest.raises(ValueError, match=f"={OTHER}: az:// is not supported"):
            check_paths(parser, argparse.Namespace(**given))
        return
    command = words.split()
    for action in actions:
        if action is chosen:
            command += words_for(action, BUCKET)
        elif action.required or not action.option_strings:
            command += words_for(action)
    assert main(command) == 2
    if chosen.type not in (None, Path):  # Other types reject a URL themselves.
        assert f"error: {name}: " in capsys.readouterr().err
        return
    error = capsys.readouterr().err
    assert f"={BUCKET}: {REFUSAL}" in error and "Traceback" not in error


def test_a_refusal_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["finetune", "--config", f"{BUCKET}.py"]) == 2
    assert "A config file is Python code, which is run only from a" in capsys.readouterr().err


def test_every_output_file_is_checked_before_the_command_starts() -> None:
    unchecked = []
    for words, verb in verbs(VERBS):
        parser = make_parser(verb, words)
        for action in parser._actions:
            if action.metavar == "FILE" and name_of(action) in ("--output", "--plot"):
                given = argparse.Namespace(**{each.dest: None for each in parser._actions})
                setattr(given, action.dest, "x")
                if parser.output_files(given) != {name_of(action): "x"}:
                    unchecked.append(f"{words} {name_of(action)}")
    assert not unchecked


def test_the_listed_texts_and_urls_are_arguments() -> None:
    assert TEXTS | URL_ARGUMENTS <= {f"{words} {name}" for words, _, name in ARGUMENTS}


# A minimal config for every optional section.
FILES = {"validation": "x"}
TASKS: dict[str, dict[str, Any]] = {
    "glue": {"task": "SST-2", "directory": "x"},
    "sentences": {"files": FILES},
    "choices": {"files": FILES | {"endings": ("a", "b")}},
    "tags": {"files": FILES},
    "spans": {"files": FILES},
}


def smallest(kind: str, section: str) -> dict[str, Any]:
    """Return the values of the smallest config that contains this section."""
    if kind == "finetune":
        task = section if section in TASKS else "glue"
        return {"work_dir": "x", "init_from": "y", task: TASKS[task]}
    sizes = {"vocab_size": 8, "hidden_dim": 8, "num_layers": 1, "num_heads": 1, "ffn_dim": 8}
    return {
        "work_dir": "x",
        "model": sizes,
        "phases": {"NAME": {"corpus": "x", "num_steps": 1}},
        **({"distillation": {"teacher": "x"}} if section == "distillation" else {}),
    }


def with_value(values: dict[str, Any], key: str, value: object) -> dict[str, Any]:
    """Return a copy of the values in which the value of a dotted key is replaced."""
    first, _, rest = key.partition(".")
    inner = with_value(values.get(first, {}), rest, value) if rest else value
    return {**values, first: inner}


KEYS = [
    (kind, f"{section.path}.{name}".lstrip("."), hint)
    for kind, cls in CONFIGS.items()
    for section in sections(cls)
    for name, hint in typing.get_type_hints(section.cls, include_extras=True).items()
    if name in section.values
]


def holds_text(hint: Any) -> bool:
    plain = without_none(hint)[0]
    many = typing.get_origin(plain) is tuple and str in typing.get_args(plain)
    return plain is str or many or is_path(hint)


@pytest.mark.parametrize(("kind", "key", "hint"), [key for key in KEYS if is_path(key[2])])
def test_every_path_of_every_config_is_checked(kind: str, key: str, hint: object) -> None:
    in_buckets = hint == PathOrUrl or PathOrUrl in typing.get_args(hint)
    refused = OTHER if in_buckets else BUCKET
    value = (refused,) if typing.get_origin(hint) is tuple else refused
    values = with_value(smallest(kind, key.partition(".")[0]), key, value)
    message = f"{key}={refused}: {'az:// is not supported' if in_buckets else REFUSAL}"
    with pytest.raises(ValueError, match=re.escape(message)):
        to_dataclass(CONFIGS[kind], values)
    if in_buckets:
        value = (BUCKET,) if typing.get_origin(hint) is tuple else BUCKET
        to_dataclass(CONFIGS[kind], with_value(values, key, value))
    tfds = "tfds:glue/sst2"
    if key.endswith((".directory", ".train")):
        to_dataclass(CONFIGS[kind], with_value(values, key, tfds))


@pytest.mark.parametrize(("kind", "key", "hint"), [key for key in KEYS if holds_text(key[2])])
def test_every_text_of_a_config_is_a_path_or_listed_as_none(
    kind: str, key: str, hint: object
) -> None:
    name = key.rpartition(".")[2]
    assert is_path(hint) != (name in NOT_PATHS), f"{key}: use LocalPath, or add it to NOT_PATHS"


def test_an_override_of_a_config_file_is_checked(tmp_path: Path) -> None:
    config = REPOSITORY / "configs/pretrain/tiny.py"
    words = [f"--config.work_dir={OTHER}"]
    with pytest.raises(ValueError, match=f"work_dir={OTHER}: az:// is not supported"):
        load_config(config, words, kind="pretrain")


TINY = np.zeros(1, np.float32)
FUNCTIONS: list[Callable[[], object]] = [
    lambda: SourceOptions(tfds_data_dir=BUCKET),
    lambda: write_python_docs(f"{BUCKET}.jsonl"),
    lambda: write_file(Path(BUCKET), "text"),
    lambda: make_directory(BUCKET),
    lambda: read_model(Path(BUCKET)),
    lambda: open_model(Path(BUCKET)),
    lambda: open_directory(Path(BUCKET), ImportOptions()),
    lambda: checkpoint_prefix(Path(BUCKET)),
    lambda: MetricsLog(f"{BUCKET}/metrics.jsonl", start_step=0),
    lambda: Checkpointer(Path(BUCKET), CheckpointConfig(), {}),
    lambda: save_parameters(Path(BUCKET), {"x": TINY}, {}),
    lambda: ResolvedConfig({}, dict).write(BUCKET),
    lambda: new_directory(Path(BUCKET)).__enter__(),
    lambda: load_config(f"{BUCKET}.py", kind="pretrain"),
]


@pytest.mark.parametrize("number", range(len(FUNCTIONS)))
def test_every_function_that_opens_or_creates_a_path_checks_it(number: int) -> None:
    with pytest.raises(ValueError, match=f"{BUCKET}.*{REFUSAL}"):
        FUNCTIONS[number]()


def test_directories_are_made_by_one_function() -> None:
    """Check that only `local_paths` makes parent directories: `mkdir` would create `./gs:`."""
    made = {
        path.relative_to(REPOSITORY).as_posix()
        for path in (REPOSITORY / "bert_jax").rglob("*.py")
        if re.search(r"mkdir\(\s*parents|makedirs\(", path.read_text(encoding="utf-8"))
    }
    assert made == {"bert_jax/local_paths.py"}


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("gs://bucket/x", "Use a path on a local disk or a mounted file system"),
        ("S3://bucket", "S3://bucket: s3:// is not supported"),
        ("file:///data/x", "Omit the scheme: /data/x."),
        ("file://localhost/data/x", "Omit the scheme: /data/x."),
        ("https://huggingface.co/a/b", "Specify a model on the Hugging Face Hub as OWNER/NAME."),
        ("hf://a/b", "Specify a model on the Hugging Face Hub as OWNER/NAME."),
        ("https://example.org/a.txt", "Download the file and specify its local path."),
        (Path("gs://bucket/x"), "gs://bucket/x: gs:// is not supported"),
    ],
)
def test_the_error_gives_a_fix(path: str | Path, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        check_local(path)


@pytest.mark.parametrize(
    "path",
    [
        *("tfds:glue/sst2", "tfds:wikipedia/20230601.en:train[:10%]", "google-bert/bert-base"),
        *("config.py:argument", "config.py:/data/x", "notes:/x", "/data//x", "./gs", "", "-"),
    ],
)
def test_names_and_local_paths_pass(path: str) -> None:
    check_local(path)
    check_local(Path(path))
