"""Test reading GLUE from official directories and TFDS, and writing submissions."""

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

# The published numbers of train, dev and test examples, and of dev examples in the second class.
COUNTS = {
    "CoLA": (8_551, 1_043, 1_063, 721),
    "SST-2": (67_349, 872, 1_821, 444),
    "MRPC": (3_668, 408, 1_725, 279),
    "STS-B": (5_749, 1_500, 1_379, None),
    "RTE": (2_490, 277, 3_000, 131),
}


@pytest.mark.parametrize("name", COUNTS)
def test_official_directories_have_the_published_sizes(shared_data: Path, name: str) -> None:
    files = glue_files(name, str(shared_data / "glue" / name))
    train = read_sentences(files.train, "train", labeled=True)
    dev = read_sentences(files.validation["validation"], "validation", labeled=True)
    test = read_sentences(files.test[name], "test", labeled=False)
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
    paths = [part.validation for part in files.validation.values()]
    assert paths == [f"{tmp_path}/dev_matched.tsv", f"{tmp_path}/dev_mismatched.tsv"]
    for part in files.validation.values():
        examples = read_sentences(part, "validation", labeled=True)
        assert examples.labels is not None
        assert [examples.labels.count(label) for label in part.labels] == [16, 16, 16]
    assert len(read_sentences(files.test["MNLI-mm"], "test", labeled=False)) == 48


def test_missing_test_sets_are_skipped(tmp_path: Path) -> None:
    assert glue_files("RTE", str(tmp_path)).test == {}
    assert list(glue_files("RTE", str(tmp_path)).validation) == ["validation"]
    (tmp_path / "test_mismatched.tsv.xz").touch()
    (tmp_path / "test.tsv").mkdir()  # This path is not a file.
    tests = glue_files("MNLI", str(tmp_path)).test
    assert {name: files.test for name, files in tests.items()} == {
        "MNLI-mm": f"{tmp_path}/test_mismatched.tsv"
    }
    assert glue_files("RTE", str(tmp_path)).test == {}


# A few rows for each task, in the format of the official files.
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
def test_tfds_has_the_same_examples(
    official: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tensorflow_datasets as tfds

    before = "tensorflow" in sys.modules
    manager = tfds.download.DownloadManager
    monkeypatch.setattr(manager, "download_and_extract", lambda self, url: official)
    config = glue_task(name).tfds_config
    builder = tfds.builder(f"glue/{config}", data_dir=tmp_path, file_format="array_record")
    builder.download_and_prepare()
    tfds_sets = glue_files(name, f"tfds:glue/{config}")
    official_sets = glue_files(name, str(official / name))
    pairs = [("train", tfds_sets.train, official_sets.train)]
    if name != "QQP":  # QQP's broken row is accepted only in the training set.
        validation = zip(
            tfds_sets.validation.values(), official_sets.validation.values(), strict=True
        )
        pairs += [("validation", *pair) for pair in validation]
    for split, tfds_files, official_files in pairs:
        _assert_same(tfds_files, official_files, split, str(tmp_path))
    for submission in submission_names(glue_task(name)):
        pair = tfds_sets.test[submission], official_sets.test[submission]
        _assert_same(*pair, "test", str(tmp_path))
    assert ("tensorflow" in sys.modules) == before


def _assert_same(tfds_files, official_files, split, data_dir: str) -> None:
    labeled = split != "test"
    form = replace(tfds_files.form, tfds_data_dir=data_dir)
    actual = read_sentences(replace(tfds_files, form=form), split, labeled=labeled)
    expected = read_sentences(official_files, split, labeled=labeled)
    rows = [actual.ids.index(number) for number in sorted(actual.ids, key=int)]
    assert [actual.firsts[row] for row in rows] == expected.firsts
    if expected.seconds is not None:
        assert actual.seconds is not None
        assert [actual.seconds[row] for row in rows] == expected.seconds
    if not labeled:
        assert [actual.ids[row] for row in rows] == expected.ids
        return
    assert actual.labels is not None and expected.labels is not None
    if not official_files.labels:
        assert [float(actual.labels[row]) for row in rows] == list(map(float, expected.labels))
        return
    numbers = [tfds_files.labels.index(actual.labels[row]) for row in rows]
    assert numbers == [official_files.labels.index(label) for label in expected.labels]


def test_the_diagnostic_set_is_a_test_set_of_mnli_only(tmp_path, monkeypatch) -> None:
    import tensorflow_datasets as tfds

    (tmp_path / "diagnostic.tsv").write_text(
        'index\tsentence1\tsentence2\n0\tA "b.\tB.\n1\tC.\tD.\n'
    )
    assert glue_files("RTE", str(tmp_path)).test == {}
    tests = glue_files("MNLI", str(tmp_path)).test
    assert list(tests) == ["AX"]
    examples = read_sentences(tests["AX"], "test", labeled=False)
    assert (examples.firsts, examples.seconds) == (['A "b.', "C."], ["B.", "D."])
    assert examples.ids == ["0", "1"]
    manager = tfds.download.DownloadManager
    monkeypatch.setattr(manager, "download", lambda self, url: tmp_path / "diagnostic.tsv")
    builder = tfds.builder("glue/ax", data_dir=tmp_path / "t", file_format="array_record")
    builder.download_and_prepare()
    tfds_tests = glue_files("MNLI", "tfds:glue/ax").test
    assert list(tfds_tests) == ["AX"]
    _assert_same(tfds_tests["AX"], tests["AX"], "test", str(tmp_path / "t"))
    with pytest.raises(ValueError, match="'tfds:glue/ax' does not contain RTE. Use tfds:glue/rte"):
        glue_files("RTE", "tfds:glue/ax")
    for source in ("tfds:glue/axb", "tfds:glue/ax:test"):
        message = (
            f"'{source}' does not contain MNLI. Use tfds:glue/mnli or tfds:glue/ax, without a split"
        )
        with pytest.raises(ValueError, match=message):
            glue_files("MNLI", source)


def test_metrics_are_the_same_as_in_the_papers() -> None:
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
def test_submissions_have_the_official_format(
    tmp_path: Path, task: str, file: str, predictions, lines
) -> None:
    ids = [str(index) for index in range(len(predictions))]
    write_glue_submission(glue_task(task), predictions, ids, tmp_path / file)
    expected = "\n".join(["index\tprediction", *lines]) + "\n"
    assert (tmp_path / file).read_text() == expected


@pytest.mark.parametrize(
    "task, file, predictions, message",
    [
        ("MNLI", "MNLI.tsv", [0], "must be called MNLI-m.tsv or MNLI-mm.tsv or AX.tsv"),
        ("RTE", "AX.tsv", [0], "must be called RTE.tsv"),
        ("RTE", "RTE.tsv", [0, 2], "prediction 1 is 2, not an integer from 0 to 1"),
        ("RTE", "RTE.tsv", [0.5], "prediction 0 is 0.5, not an integer"),
        ("RTE", "RTE.tsv", [], "no predictions"),
        ("STS-B", "STS-B.tsv", [float("nan")], "prediction 0 is nan, not a finite number"),
    ],
)
def test_invalid_submissions_are_rejected(tmp_path: Path, task, file, predictions, message) -> None:
    with pytest.raises(ValueError, match=message):
        ids = [str(index) for index in range(len(predictions))]
        write_glue_submission(glue_task(task), predictions, ids, tmp_path / file)


def test_the_tfds_directory_is_only_allowed_with_tfds() -> None:
    message = "tfds_data_dir='/tfds': only supported for 'tfds:glue/...'"
    with pytest.raises(ValueError, match=message):
        glue_files("MRPC", "data/MRPC", "/tfds")


@pytest.mark.parametrize(
    ("name", "directory", "expected", "beginning"),
    [
        ("RTE", "MRPC", "the columns 'sentence1', 'sentence2', 'label'", "'Quality', '#1 ID',"),
        ("RTE", "CoLA", "the columns 'sentence1', 'sentence2', 'label'", "'gj04', '1', '',"),
        ("CoLA", "RTE", "no header and a label in column 1", "'index', 'sentence1',"),
        ("CoLA", "SST-2", "no header and a label in column 1", "'sentence', 'label'."),
    ],
)
def test_the_directory_of_another_task_is_rejected(
    shared_data: Path, name: str, directory: str, expected: str, beginning: str
) -> None:
    source = str(shared_data / "glue" / directory)
    begins = f"The file begins with {beginning}"
    message = f":1: this is not {name}'s train.tsv, which has {expected}. {begins}"
    with pytest.raises(ValueError, match=re.escape(message)):
        glue_files(name, source)


def test_unknown_names_are_rejected() -> None:
    with pytest.raises(ValueError, match="unknown GLUE task 'cola'. Use one of CoLA"):
        glue_files("cola", "anywhere")
    for source in ("tfds:glue/sst2", "tfds:glue/cola:train", "tfds:cola"):
        with pytest.raises(
            ValueError, match=f"'{source}' does not contain CoLA. Use tfds:glue/cola"
        ):
            glue_files("CoLA", source)
    assert glue_files("CoLA", "tfds:glue/cola:2.0.0").train.train == "tfds:glue/cola:2.0.0:train"


def test_submissions_are_sorted_by_id(tmp_path: Path) -> None:
    """Check the order, since TensorFlow Datasets and the official files order rows differently."""
    file = tmp_path / "SST-2.tsv"
    write_glue_submission(glue_task("SST-2"), [0, 0, 1, 0], ["2", "0", "10", "1"], file)
    assert file.read_text() == "index\tprediction\n0\t0\n1\t0\n2\t0\n10\t1\n"


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (["0", "a"], "b: index 'a' is not a non-negative integer"),
        (["0", "-1"], "b: index '-1' is not a non-negative integer"),
        (["3", "03"], "b: index '03' is also used by a"),
    ],
)
def test_invalid_ids_for_submissions_are_rejected(ids: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_submission_ids(ids, ["a", "b"])
