"""GLUE as published: official directories, the same rows from TFDS, submissions."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bert_jax.labeled_data.glue import (
    GLUE_TASKS,
    check_submission_ids,
    glue_files,
    glue_task,
    submission_names,
    write_glue_submission,
)
from bert_jax.labeled_data.sentences import read_sentences

# Published counts of (train, dev, test), and of dev's second class where the label is one.
COUNTS = {
    "CoLA": (8_551, 1_043, 1_063, 721),
    "SST-2": (67_349, 872, 1_821, 444),
    "MRPC": (3_668, 408, 1_725, 279),
    "STS-B": (5_749, 1_500, 1_379, None),
    "RTE": (2_490, 277, 3_000, 131),
}


@pytest.mark.parametrize("name", COUNTS)
def test_official_directories_hold_what_was_published(shared_data: Path, name: str) -> None:
    files = glue_files(name, str(shared_data / "glue" / name))
    train = read_sentences(files.train, "train", labelled=True)
    dev = read_sentences(files.validation["validation"], "validation", labelled=True)
    test = read_sentences(files.test[name], "test", labelled=False)
    assert (len(train), len(dev), len(test)) == COUNTS[name][:3]
    assert (dev.seconds is None) == (name in ("CoLA", "SST-2"))
    assert test.ids == [str(row) for row in range(len(test))]
    assert dev.labels is not None
    labels = files.train.labels
    if labels:
        assert dev.labels.count(labels[1]) == COUNTS[name][3]
    else:
        assert all(0 <= float(label) <= 5 for label in dev.labels)


def test_mnli_has_two_validation_and_test_sets(shared_data: Path, tmp_path: Path) -> None:
    sample = (shared_data / "mnli/kshot16-42_dev_matched.original_format.tsv").read_bytes()
    for name in ("train", "dev_matched", "dev_mismatched", "test_matched", "test_mismatched"):
        (tmp_path / f"{name}.tsv").write_bytes(sample)
    files = glue_files("MNLI", str(tmp_path))
    assert list(files.validation) == ["validation_matched", "validation_mismatched"]
    assert list(files.test) == ["MNLI-m", "MNLI-mm"]
    paths = [each.validation for each in files.validation.values()]
    assert paths == [f"{tmp_path}/dev_matched.tsv", f"{tmp_path}/dev_mismatched.tsv"]
    for each in files.validation.values():
        examples = read_sentences(each, "validation", labelled=True)
        assert examples.labels is not None
        assert [examples.labels.count(label) for label in each.labels] == [16, 16, 16]
    assert len(read_sentences(files.test["MNLI-mm"], "test", labelled=False)) == 48


def test_a_test_set_that_is_not_there_is_left_out(tmp_path: Path) -> None:
    assert glue_files("RTE", str(tmp_path)).test == {}
    assert list(glue_files("RTE", str(tmp_path)).validation) == ["validation"]
    (tmp_path / "test_mismatched.tsv.xz").touch()
    (tmp_path / "test.tsv").mkdir()  # no file
    found = glue_files("MNLI", str(tmp_path)).test
    assert {name: each.test for name, each in found.items()} == {
        "MNLI-mm": f"{tmp_path}/test_mismatched.tsv"
    }
    assert glue_files("RTE", str(tmp_path)).test == {}


# A few rows of every task's files, as the official ones are laid out.
OFFICIAL = {
    "CoLA": {
        "train": "gj04\t1\t\tGood \"one.\ngj04\t0\t*\tBad one.\ngj04\t1\t\tThird.\n",
        "test": "index\tsentence\n0\tWhat.\n",
    },
    "SST-2": {
        "train": "sentence\tlabel\nfine film \t1\nbad \" film \t0\nso so \t0\n",
        "test": "index\tsentence\n0\twhat \n",
    },
    "QQP": {
        "train": "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
        "1\t5\t6\tWhy?\tWhy so?\t1\n2\t7\t8\tHow\nbroken?\tWho?\t0\n3\t9\t1\tHow?\tWho?\t0\n",
        "test": "id\tquestion1\tquestion2\n0\tA?\tB?\n",
    },
    "STS-B": {
        "train": "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2"
        "\tscore\n0\tg\tf\t2012\t1\tn\tn\tA plane.\tA jet.\t4.250\n"
        "1\tg\tf\t2012\t1\tn\tn\tOne.\tTwo.\t0.000\n",
        "test": "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\n"
        "0\tg\tf\t2012\t1\tn\tn\tA.\tB.\n",
    },
    "QNLI": {
        "train": "index\tquestion\tsentence\tlabel\n0\tWho?\tHe.\tentailment\n"
        "1\tWhen?\tThere.\tnot_entailment\n",
        "test": "index\tquestion\tsentence\n0\tWhy?\tSo.\n",
    },
    "RTE": {
        "train": "index\tsentence1\tsentence2\tlabel\n0\tA b.\tB.\tentailment\n"
        "1\tC.\tD.\tnot_entailment\n",
        "test": "index\tsentence1\tsentence2\n0\tE.\tF.\n",
    },
    "WNLI": {
        "train": "index\tsentence1\tsentence2\tlabel\n0\tIt fell.\tA fell.\t1\n"
        "1\tIt fell.\tB fell.\t0\n",
        "test": "index\tsentence1\tsentence2\n0\tC.\tD.\n",
    },
    "MNLI": {
        "train": "index\tsentence1\tsentence2\tlabel1\tgold_label\n0\tA.\tB.\tneutral\tentailment\n"
        "1\tC.\tD.\tneutral\tneutral\n2\tE.\tF.\tneutral\tcontradiction\n",
        "test": "index\tsentence1\tsentence2\n0\tE.\tF.\n",
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def official(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("glue_data")
    for name, parts in OFFICIAL.items():
        (root / name).mkdir()
        for suffix in ("_matched", "_mismatched") if name == "MNLI" else ("",):
            (root / name / f"dev{suffix}.tsv").write_text(parts["train"])
            (root / name / f"test{suffix}.tsv").write_text(parts["test"])
        (root / name / "train.tsv").write_text(parts["train"])
    return root


@pytest.mark.parametrize("name", OFFICIAL)
def test_tfds_reads_the_same(
    official: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tensorflow_datasets as tfds

    before = "tensorflow" in sys.modules
    manager = tfds.download.DownloadManager
    monkeypatch.setattr(manager, "download_and_extract", lambda self, url: official)
    config = glue_task(name).tfds_config
    builder = tfds.builder(f"glue/{config}", data_dir=tmp_path, file_format="array_record")
    builder.download_and_prepare()
    theirs, ours = glue_files(name, f"tfds:glue/{config}"), glue_files(name, str(official / name))
    pairs = [("train", theirs.train, ours.train)]
    if name != "QQP":  # whose broken row is refused in a dev set
        for their_set, our_set in zip(
            theirs.validation.values(), ours.validation.values(), strict=True
        ):
            pairs.append(("validation", their_set, our_set))
    for split, their_files, our_files in pairs:
        _assert_same(their_files, our_files, split, str(tmp_path))
    for submission in submission_names(glue_task(name)):
        _assert_same(theirs.test[submission], ours.test[submission], "test", str(tmp_path))
    assert ("tensorflow" in sys.modules) == before


def _assert_same(their_files, our_files, split, data_dir: str) -> None:
    labelled = split != "test"
    form = replace(their_files.form, tfds_data_dir=data_dir)
    theirs = read_sentences(replace(their_files, form=form), split, labelled=labelled)
    ours = read_sentences(our_files, split, labelled=labelled)
    rows = [theirs.ids.index(number) for number in sorted(theirs.ids, key=int)]
    assert [theirs.firsts[row] for row in rows] == ours.firsts
    if ours.seconds is not None:
        assert theirs.seconds is not None
        assert [theirs.seconds[row] for row in rows] == ours.seconds
    if not labelled:
        assert [theirs.ids[row] for row in rows] == ours.ids
        return
    assert theirs.labels is not None and ours.labels is not None
    if not our_files.labels:
        assert [float(theirs.labels[row]) for row in rows] == list(map(float, ours.labels))
        return
    numbers = [their_files.labels.index(theirs.labels[row]) for row in rows]
    assert numbers == [our_files.labels.index(label) for label in ours.labels]


def test_the_diagnostic_set_is_a_test_set_of_mnli_alone(tmp_path, monkeypatch) -> None:
    import tensorflow_datasets as tfds

    (tmp_path / "diagnostic.tsv").write_text(
        'index\tsentence1\tsentence2\n0\tA "b.\tB.\n1\tC.\tD.\n'
    )
    assert glue_files("RTE", str(tmp_path)).test == {}
    found = glue_files("MNLI", str(tmp_path)).test
    assert list(found) == ["AX"]
    examples = read_sentences(found["AX"], "test", labelled=False)
    assert (examples.firsts, examples.seconds) == (['A "b.', "C."], ["B.", "D."])
    assert examples.ids == ["0", "1"]
    manager = tfds.download.DownloadManager
    monkeypatch.setattr(manager, "download", lambda self, url: tmp_path / "diagnostic.tsv")
    builder = tfds.builder("glue/ax", data_dir=tmp_path / "t", file_format="array_record")
    builder.download_and_prepare()
    theirs = glue_files("MNLI", "tfds:glue/ax")
    assert list(theirs.test) == ["AX"]
    _assert_same(theirs.test["AX"], found["AX"], "test", str(tmp_path / "t"))
    with pytest.raises(ValueError, match="RTE is tfds:glue/rte, got 'tfds:glue/ax'"):
        glue_files("RTE", "tfds:glue/ax")
    for where in ("tfds:glue/axb", "tfds:glue/ax:test"):
        with pytest.raises(ValueError, match="MNLI is tfds:glue/mnli or tfds:glue/ax, got"):
            glue_files("MNLI", where)


def test_metrics_are_those_of_the_paper() -> None:
    assert {name: (task.metrics, task.primary) for name, task in GLUE_TASKS.items()} == {
        "CoLA": (("matthews",), "matthews"),
        "SST-2": (("accuracy",), "accuracy"),
        "MRPC": (("accuracy", "f1"), "f1"),
        "QQP": (("accuracy", "f1"), "f1"),
        "STS-B": (("pearson", "spearman"), "spearman"),
        "MNLI": (("accuracy",), "accuracy"),
        "QNLI": (("accuracy",), "accuracy"),
        "RTE": (("accuracy",), "accuracy"),
        "WNLI": (("accuracy",), "accuracy"),
    }


@pytest.mark.parametrize(
    "task, file, predictions, lines",
    [
        ("CoLA", "CoLA.tsv", [1, 0], ["0\t1", "1\t0"]),
        ("MNLI", "MNLI-mm.tsv", [2, 0], ["0\tcontradiction", "1\tentailment"]),
        ("MNLI", "AX.tsv", [1], ["0\tneutral"]),
        ("WNLI", "WNLI.tsv", [1, 0], ["0\t1", "1\t0"]),
        ("QNLI", "QNLI.tsv", [1], ["0\tnot_entailment"]),
        ("STS-B", "STS-B.tsv", [5.25, -1, 2.5], ["0\t5.000000", "1\t0.000000", "2\t2.500000"]),
    ],
)
def test_submissions(tmp_path: Path, task: str, file: str, predictions, lines) -> None:
    ids = [str(index) for index in range(len(predictions))]
    write_glue_submission(glue_task(task), predictions, ids, tmp_path / file)
    expected = "\n".join(["index\tprediction", *lines]) + "\n"
    assert (tmp_path / file).read_text() == expected


@pytest.mark.parametrize(
    "task, file, predictions, message",
    [
        ("MNLI", "MNLI.tsv", [0], "is called MNLI-m.tsv or MNLI-mm.tsv or AX.tsv"),
        ("RTE", "AX.tsv", [0], "is called RTE.tsv"),
        ("RTE", "RTE.tsv", [0, 2], "prediction 1 is 2; expected a whole number of 0 to 1"),
        ("RTE", "RTE.tsv", [0.5], "prediction 0 is 0.5; expected a whole number"),
        ("RTE", "RTE.tsv", [], "no predictions"),
        ("STS-B", "STS-B.tsv", [float("nan")], "prediction 0 is nan; expected a finite number"),
    ],
)
def test_bad_submissions_are_refused(tmp_path: Path, task, file, predictions, message) -> None:
    with pytest.raises(ValueError, match=message):
        ids = [str(index) for index in range(len(predictions))]
        write_glue_submission(glue_task(task), predictions, ids, tmp_path / file)


def test_where_tfds_keeps_its_data_is_no_matter_of_directories() -> None:
    with pytest.raises(ValueError, match="tfds_data_dir='/tfds' is for 'tfds:glue/...'"):
        glue_files("MRPC", "data/MRPC", "/tfds")


@pytest.mark.parametrize(
    ("name", "directory", "has", "begins"),
    [
        ("RTE", "MRPC", "columns 'sentence1', 'sentence2', 'label'", "'Quality', '#1 ID',"),
        ("RTE", "CoLA", "columns 'sentence1', 'sentence2', 'label'", "'gj04', '1', '',"),
        ("CoLA", "RTE", "no names of columns, and column 1 is a label", "'index', 'sentence1',"),
        ("CoLA", "SST-2", "no names of columns, and column 1 is a label", "'sentence', 'label'."),
    ],
)
def test_another_tasks_directory_is_told(
    shared_data: Path, name: str, directory: str, has: str, begins: str
) -> None:
    where = str(shared_data / "glue" / directory)
    message = f":1: not {name}'s train.tsv, which has {has}; this one begins with {begins}"
    with pytest.raises(ValueError, match=re.escape(message)):
        glue_files(name, where)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ValueError, match="no GLUE task is called 'cola'; expected one of CoLA"):
        glue_files("cola", "anywhere")
    for where in ("tfds:glue/sst2", "tfds:glue/cola:train", "tfds:cola"):
        with pytest.raises(ValueError, match="CoLA is tfds:glue/cola, got"):
            glue_files("CoLA", where)
    assert glue_files("CoLA", "tfds:glue/cola:2.0.0").train.train == "tfds:glue/cola:2.0.0:train"


def test_a_submission_is_in_the_order_of_its_numbers(tmp_path: Path) -> None:
    """TensorFlow Datasets has the rows of a test set in an order of its own."""
    file = tmp_path / "SST-2.tsv"
    write_glue_submission(glue_task("SST-2"), [0, 0, 1, 0], ["2", "0", "10", "1"], file)
    assert file.read_text() == "index\tprediction\n0\t0\n1\t0\n2\t0\n10\t1\n"


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (["0", "a"], "b: index 'a'; expected a whole number from 0 on"),
        (["0", "-1"], "b: index '-1'; expected a whole number"),
        (["3", "03"], "b: index '03' is that of a too"),
    ],
)
def test_numbers_of_a_test_set_are_checked(ids: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_submission_ids(ids, ["a", "b"])
