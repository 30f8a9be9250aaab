"""Test reading Arrow files and saved datasets, which are written by `datasets` and PyArrow."""

from __future__ import annotations

import hashlib
from pathlib import Path

import datasets
import pyarrow as pa
import pytest

from bert_jax.text.sources import SourceCounts, SourceOptions, expand_inputs, read_documents

TEXTS = [f"Text {number}: {'word ' * number}ends.\nSecond line, ä漢." for number in range(2500)]


def texts_of(*inputs: Path, counts: SourceCounts | None = None, **options: str) -> list[str]:
    counts = SourceCounts() if counts is None else counts
    names = [str(path) for path in inputs]
    return [each.text for each in read_documents(names, SourceOptions(**options), counts)]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory that `save_to_disk` wrote, in three shards, with a cache next to them."""
    directory = tmp_path_factory.mktemp("saved") / "books"
    rows = {"id": list(range(len(TEXTS))), "text": TEXTS}
    dataset = datasets.Dataset.from_dict(rows).select(range(len(TEXTS) - 1, -1, -1))
    dataset.save_to_disk(str(directory), num_shards=3)
    loaded = datasets.load_from_disk(str(directory))
    loaded.map(lambda row: {"text": "cached"}, cache_file_name=str(directory / "cache-0.arrow"))
    return directory


def test_a_saved_dataset_has_the_rows_that_its_library_loads(saved: Path) -> None:
    counts = SourceCounts(checksums={})
    expected = datasets.load_from_disk(str(saved))["text"]
    assert texts_of(saved, counts=counts) == list(expected) == TEXTS[::-1]
    files = sorted(saved.glob("data-*.arrow"))
    assert expand_inputs([str(saved)]) == [str(file) for file in files] and len(files) == 3
    assert counts.checksums == {
        str(file): hashlib.sha256(file.read_bytes()).hexdigest() for file in files
    }
    assert counts.bytes_read == sum(file.stat().st_size for file in files)
    # The dataset is found even if it is in a subdirectory of the input directory.
    assert texts_of(saved.parent) == TEXTS[::-1]
    ids = read_documents([str(saved)], SourceOptions(), SourceCounts())
    assert next(ids).source == f"{files[0]}:row 0"


def test_the_split_of_a_dataset_dict_must_be_specified(tmp_path: Path) -> None:
    splits = {
        name: datasets.Dataset.from_dict({"text": [f"A text for {name}."]})
        for name in ("train", "test")
    }
    datasets.DatasetDict(splits).save_to_disk(str(tmp_path / "both"))
    message = f"both: this is a DatasetDict with the splits train, test. Specify .* {tmp_path}/both"
    with pytest.raises(ValueError, match=message):
        expand_inputs([str(tmp_path / "both")])
    assert texts_of(tmp_path / "both" / "test") == ["A text for test."]
    datasets.DatasetDict({"train": splits["train"]}).save_to_disk(str(tmp_path / "one"))
    assert texts_of(tmp_path / "one") == ["A text for train."]


@pytest.mark.parametrize("form", ["stream", "file"])
def test_both_arrow_formats_and_all_kinds_of_strings_are_read(tmp_path: Path, form: str) -> None:
    path = tmp_path / "a.arrow"
    kinds = [pa.string(), pa.large_string(), pa.binary(), pa.string_view()]
    columns = [pa.array(TEXTS[:5], kind) for kind in kinds]
    columns.append(pa.array(TEXTS[:5]).dictionary_encode())
    table = pa.table(columns, names=["a", "b", "c", "d", "e"])
    new = pa.ipc.new_stream if form == "stream" else pa.ipc.new_file
    with pa.OSFile(str(path), "wb") as sink, new(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)
    for name in table.column_names:
        assert texts_of(path, text_field=name) == TEXTS[:5]


def test_unusable_arrow_files_are_rejected(tmp_path: Path, saved: Path) -> None:
    (shard, *_) = sorted(saved.glob("data-*.arrow"))
    with pytest.raises(ValueError, match=r"no column 'body'; the columns are 'id', 'text'\. Cho"):
        texts_of(saved, text_field="body")
    with pytest.raises(ValueError, match=r"column 'id' contains int64; expected strings\."):
        texts_of(saved, text_field="id")
    data = shard.read_bytes()
    # A stream that is cut off between two batches would otherwise seem complete.
    for number, cut in enumerate((data[:-8], data[: len(data) // 2], data[:-1], b"no Arrow")):
        path = tmp_path / f"{number}.arrow"
        path.write_bytes(cut)
        with pytest.raises(ValueError, match=r"arrow: not a complete Arrow file \(stopped at row"):
            texts_of(path)
    (tmp_path / "a.arrow.gz").write_bytes(data)
    with pytest.raises(ValueError, match="cannot read a compressed Arrow file. Decompress it fir"):
        texts_of(tmp_path / "a.arrow.gz")
    table = pa.table({"text": pa.array(["One text.", None, "Another text."])})
    with pa.OSFile(str(tmp_path / "n.arrow"), "wb") as sink:
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
    with pytest.raises(ValueError, match=r"n\.arrow:row 1: column 'text' is null\. Fix"):
        texts_of(tmp_path / "n.arrow")
    counts = SourceCounts()
    skipped = texts_of(tmp_path / "n.arrow", counts=counts, on_bad_line="skip")
    assert skipped == ["One text.", "Another text."] and counts.bad_lines == 1


def test_a_missing_file_of_a_saved_dataset_is_noticed(tmp_path: Path) -> None:
    directory = tmp_path / "set"
    datasets.Dataset.from_dict({"text": TEXTS[:9]}).save_to_disk(str(directory), num_shards=3)
    (directory / "data-00001-of-00003.arrow").unlink()
    with pytest.raises(ValueError, match=r"state\.json: 1 of the 3 files that it lists are missin"):
        expand_inputs([str(directory)])
