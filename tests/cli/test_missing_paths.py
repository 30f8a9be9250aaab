"""Test that the message about a missing file names the option that the path comes from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from bert_jax.cli.main import main
from bert_jax.verbs import VERBS, make_parser

from ..commands import Finished
from ..interop.conftest import make
from .test_local_paths import TEXTS, name_of, verbs

# Options whose value is not the path of an existing file or directory.
OTHERS = {
    *(f"{verb} --output" for verb, _ in verbs(VERBS)),
    *(f"{verb} --plot" for verb, _ in verbs(VERBS)),
    *(f"{verb} --prompt-name" for verb, _ in verbs(VERBS)),
    *(f"{verb} --text-field" for verb, _ in verbs(VERBS)),
    *(f"{verb} --encoding" for verb, _ in verbs(VERBS)),
    # TensorFlow Datasets creates this directory.
    *(f"{verb} --tfds-data-dir" for verb, _ in verbs(VERBS)),
    *("evaluate --predictions", "extract --step", "import --revision", "prepare --language"),
    *("bench step --phase", "plan --topology", "prune-heads --set-name"),
    *("compare-runs --page", "inspect --page", "prepare --keep-languages", "prepare --part"),
    *("prepare --quality-rules", "prepare --runner"),
}
TASK = "--config table --config.max_length=32"
NO_FILE = "no such file"
NO_MODEL = "contains no model.json (there is no such directory)"
# For every other option: the words that precede the option on the command line, and the problem
# that the message states.
COMMANDS: dict[str, tuple[str, str]] = {
    "add-words --words": ("add-words MODEL --output out", NO_FILE),
    "bench data --corpus": ("bench data", "no such directory"),
    "bench prepare --input": ("bench prepare --tokenizer MODEL", NO_FILE),
    "bench prepare --tokenizer": ("bench prepare --input TEXT", "this tokenizer does not exist"),
    "bench step --config": ("bench step", "no such recipe or file"),
    "compare --treebank": ("compare MODEL", NO_FILE),
    "evaluate --config": ("evaluate MODEL", "no such recipe or file"),
    "evaluate --data": (f"evaluate MODEL {TASK}", NO_FILE),
    "evaluate --minimal-pairs": ("evaluate MODEL", NO_FILE),
    "evaluate --text": ("evaluate MODEL", NO_FILE),
    "fill-mask --work-dir": ("fill-mask [MASK]", NO_MODEL),
    "finetune --config": ("finetune", "no such recipe or file"),
    "finetune --data": (f"finetune {TASK} --config.work_dir=out --init MODEL", NO_FILE),
    "finetune --init": (f"finetune {TASK} --config.work_dir=out --data TABLE", NO_MODEL),
    "follow --config": ("follow PRETRAINED", "no such recipe or file"),
    "import --tokenizer": ("import SOURCE --output out", "this tokenizer does not exist"),
    "inspect --config": ("inspect", "no such recipe or file"),
    "plan --config": ("plan --topology cpu:8", "no such recipe or file"),
    "predict --input": ("predict MODEL", NO_FILE),
    "prepare --decontaminate": (
        "prepare --input TEXT --tokenizer MODEL --output out --workers 1",
        NO_FILE,
    ),
    "prepare --held-out-input": (
        "prepare --input TEXT --tokenizer MODEL --output out --workers 1",
        NO_FILE,
    ),
    "prepare --input": ("prepare --tokenizer MODEL --output out --workers 1", NO_FILE),
    "prepare --tokenizer": (
        "prepare --input TEXT --output out --workers 1",
        "this tokenizer does not exist",
    ),
    "pretrain --config": ("pretrain --config.work_dir=out", "no such recipe or file"),
    "pretrain --corpus": (
        "pretrain --config tiny --config.work_dir=out",
        "this corpus does not exist",
    ),
    "pretrain --init": ("pretrain --config.work_dir=out", NO_MODEL),
    "probe --treebank": ("probe MODEL", NO_FILE),
    "prune-heads --config": ("prune-heads MODEL", "no such recipe or file"),
    "prune-heads --data": (f"prune-heads MODEL {TASK}", NO_FILE),
    "show-batch --config": ("show-batch", "no such recipe or file"),
    "sweep --config": ("sweep --output out", "no such recipe or file"),
    "sweep --data": (f"sweep {TASK} --init MODEL --output out", NO_FILE),
    "sweep --init": (f"sweep {TASK} --data TABLE --output out", NO_MODEL),
    "sweep --report-only": ("sweep", "contains no results.json"),
    "train-tokenizer --input": ("train-tokenizer --output out", NO_FILE),
}


def test_every_path_option_is_listed() -> None:
    options = {
        f"{words} {name_of(action)}"
        for words, verb in verbs(VERBS)
        for action in make_parser(verb, words)._actions
        if action.option_strings and action.nargs != 0
        if action.type in (None, Path) and not action.choices
    }
    assert options - TEXTS - OTHERS == set(COMMANDS)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return models and data files, keyed by the words that stand for them in `COMMANDS`."""
    directory = tmp_path_factory.mktemp("files")
    make(directory / "source", "classification")
    for name, more in (("model", []), ("encoder", ["--head", "encoder"])):
        words = ["import", str(directory / "source"), "--output", str(directory / name), *more]
        assert main(words) == 0
    (directory / "text.csv").write_text("text,label\n" + "wet,no\ndry,yes\n" * 4)
    (directory / "text.txt").write_text("wet roads\n")
    paths = {"MODEL": "model", "PRETRAINED": "encoder", "SOURCE": "source"}
    paths |= {"TEXT": "text.txt", "TABLE": "text.csv"}
    return {word: str(directory / name) for word, name in paths.items()}


@pytest.mark.parametrize("option", COMMANDS)
def test_the_message_names_the_option_of_a_missing_path(
    option: str,
    files: dict[str, str],
    bert_jax_here: Callable[..., Finished],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    before, problem = COMMANDS[option]
    name = option.split()[-1]
    command = [files.get(word, word) for word in before.split()]
    refused = bert_jax_here(*command, name, "nowhere")
    assert refused.code == 2, refused.output
    assert refused.errors.startswith(f"bert-jax: error: {name} nowhere: {problem}")
    assert "Traceback" not in refused.errors
    assert list(tmp_path.iterdir()) == []
