import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bert_jax.text.documents import SourceCounts, SourceOptions
from bert_jax.text.sources import read_documents


def read(path, **options):
    counts = SourceCounts()
    return list(read_documents([str(path)], SourceOptions(**options), counts)), counts


def test_rows_of_many_row_groups_are_streamed(tmp_path):
    path = tmp_path / "a.parquet"
    rows = [f"row {i}" for i in range(10_000)]
    table = pa.table({"id": range(10_000), "text": rows, "other": rows})
    pq.write_table(table, path, row_group_size=700)
    counts = SourceCounts()
    positions = []
    documents = []
    for document in read_documents([str(path)], SourceOptions(), counts):
        documents.append(document)
        positions.append(counts.bytes_read)
    assert [document.text for document in documents] == rows
    assert documents[7_000].source == f"{path}:row 7000"
    assert positions == sorted(positions)
    assert counts.bytes_read == path.stat().st_size > positions[0]


@pytest.mark.parametrize(
    "kind",
    [
        pa.string(),
        pa.large_string(),
        pa.string_view(),
        pa.binary(),
        pa.dictionary(pa.int32(), pa.string()),
    ],
    ids=str,
)
def test_all_column_types_for_text_are_read(tmp_path, kind):
    path = tmp_path / "a.parquet"
    column = pa.array(["one é", "two", "", None, "two"], pa.string())
    column = column.dictionary_encode() if pa.types.is_dictionary(kind) else column.cast(kind)
    pq.write_table(pa.table({"text": column}), path)
    documents, counts = read(path, on_bad_line="skip")
    assert [document.text for document in documents] == ["one é", "two", "two"]
    assert (counts.bad_lines, counts.empty_documents) == (1, 1)


def test_errors_name_the_parquet_file_and_row(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": [b"good", b"b\xffd", None]}), path)
    with pytest.raises(
        ValueError, match=r"a\.parquet:row 1: column 'text' is not UTF-8: byte 0xff"
    ):
        read(path)
    documents, counts = read(path, on_bad_line="skip")
    assert [document.text for document in documents] == ["good"]
    assert counts.bad_lines == 2
    with pytest.raises(ValueError, match=r"a\.parquet: no column 'body'; the columns are 'text'"):
        read(path, text_field="body", on_bad_line="skip")
    data = path.read_bytes()
    for damaged in (data[: len(data) // 2], data[:-9], data[:30] + b"\xff" * 60 + data[90:]):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"a\.parquet: not a complete Parquet file"):
            read(path, on_bad_line="skip")
    pq.write_table(pa.table({"text": [1, 2]}), path)
    with pytest.raises(ValueError, match="column 'text' contains int64; expected strings"):
        read(path, on_bad_line="skip")
