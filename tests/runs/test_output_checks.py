"""Test that no output is written into a directory that clearly contains something else."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from bert_jax.corpus import workspace
from bert_jax.corpus.inputs import PrepareOptions
from bert_jax.corpus.prepare import make_corpus
from bert_jax.corpus.synthetic import random_documents, write_corpus
from bert_jax.corpus.workspace import check_output, directory_kind
from bert_jax.finetuning import sweep_directory
from bert_jax.interop import onnx, stablehlo
from bert_jax.runs import work_dir
from bert_jax.runs.outputs import check_output_file, check_work_dir_kind

from ..commands import REPOSITORY


@pytest.fixture
def directories(tmp_path: Path) -> dict[str, Path]:
    """Return a dict that maps each kind of directory to an example with its identifying files."""
    files = {
        "sweep": ["sweep.json", "results.json"],
        "work directory": ["model.json", "config.json"],
        "Hugging Face directory": ["config.json", "model.safetensors", "vocab.txt"],
        "exported model": ["config.json", "model.onnx", "vocab.txt"],
        "tokenizer": ["tokenizer_config.json", "vocab.txt"],
    }
    for kind, names in files.items():
        (tmp_path / kind).mkdir()
        for name in names:
            (tmp_path / kind / name).write_text("{}")
    documents = random_documents(500, 100, seed=0)
    write_corpus(tmp_path / "corpus", documents, documents, max_length=32, vocab_size=100)
    return {kind: tmp_path / kind for kind in (*files, "corpus")}


def contents(directories: dict[str, Path]) -> dict[Path, bytes]:
    return {
        file: file.read_bytes()
        for directory in directories.values()
        for file in directory.rglob("*")
        if file.is_file()
    }


def test_output_files_may_be_in_new_directories_but_not_in_files_or_corpora(directories) -> None:
    check_output_file("new/directory/scores.json", "--output")
    check_output_file("/dev/null", "--output")
    model = directories["work directory"] / "model.json"
    check_output_file(model, "--output")
    wrong = {
        model.parent: f"--output={model.parent}: is a directory. Specify the path of a file.",
        model / "x.json": f"--output={model / 'x.json'}: {model} is not a directory. Use another",
        directories["corpus"] / "x" / "y.json": "inside the corpus",
    }
    for path, message in wrong.items():
        with pytest.raises(ValueError, match=re.escape(message)):
            check_output_file(path, "--output")


def test_names_match_the_written_files() -> None:
    assert workspace.MODEL_NAME == work_dir.MODEL_NAME
    assert workspace.SWEEP_NAME == sweep_directory.IDENTITY_NAME
    assert {onnx.MODEL, stablehlo.PROGRAM} < set(workspace.PROGRAM_NAMES)


def test_a_directory_is_identified_by_its_files(directories, tmp_path) -> None:
    assert {kind: directory_kind(path) for kind, path in directories.items()} == {
        kind: kind for kind in directories
    }
    (tmp_path / "begun/.work").mkdir(parents=True)
    assert directory_kind(tmp_path / "begun") is None
    (tmp_path / "begun/.work/plan.json").touch()
    assert directory_kind(tmp_path / "begun") == "corpus"
    assert directory_kind(tmp_path / "missing") is None and directory_kind(tmp_path) is None


def test_a_kind_that_a_command_continues_is_accepted(directories) -> None:
    check_output(directories["sweep"], "--output", may_be=["sweep"])
    with pytest.raises(ValueError, match="this is a sweep. Choose another directory"):
        check_output(directories["sweep"], "--output")
    check_work_dir_kind(directories["work directory"])
    # An export may be written next to a run's files.
    check_output(directories["work directory"] / "exported", "--output")


COMMANDS = {
    "pretrain": (["--config", REPOSITORY / "configs/pretrain/tiny.py"], "--config.work_dir"),
    "finetune": (
        ["--config", REPOSITORY / "configs/finetune/sst2.py", "--init", "x"],
        "--config.work_dir",
    ),
    "sweep": (["--config", REPOSITORY / "configs/finetune/sst2.py", "--init", "x"], "--output"),
    "train-tokenizer": (["--input", __file__], "--output"),
    "import": ([], "--output"),
    "evaluate": (["x"], "--predictions"),
}
OWN = {"pretrain": "work directory", "finetune": "work directory", "sweep": "sweep"}


@pytest.mark.parametrize("verb", COMMANDS)
def test_every_command_refuses_foreign_directories(
    verb, directories, bert_jax_here, tmp_path
) -> None:
    words, option = COMMANDS[verb]
    if verb == "import":
        words = [directories["Hugging Face directory"]]
    before = contents(directories)
    for kind, directory in directories.items():
        inside = directory / "new" if kind == "corpus" else None
        for output in filter(None, (directory, inside)):
            if OWN.get(verb) == kind or (verb == "import" and output == directory):
                continue
            refused = bert_jax_here(verb, *words, f"{option}={output}")
            assert refused.code == 2, (verb, kind)
            advice = ("Choose another", "choose another", "not a file", "already exists")
            assert any(words in refused.errors for words in advice), refused.errors
            assert contents(directories) == before and not (directory / "new").exists()


def test_a_corpus_is_not_prepared_inside_another(directories, tmp_path) -> None:
    (tmp_path / "a.txt").write_text("text\n")
    with pytest.raises(ValueError, match="inside the corpus"):
        make_corpus(
            [str(tmp_path / "a.txt")], None, directories["corpus"] / "b", PrepareOptions(), 1
        )


def test_a_report_does_not_replace_another_sweeps_report(directories, bert_jax_here) -> None:
    other = directories["sweep"]
    refused = bert_jax_here("sweep", "--report-only", other.parent / "x", "--output", other)
    assert refused.code == 2 and "this is a sweep. Choose another directory" in refused.errors
    assert json.loads((other / "results.json").read_text()) == {}
