"""First lines of files without labels: an example, or the names of the columns."""

from __future__ import annotations

from collections.abc import Callable

from bert_jax.data.finetuning.delimited_rows import delimited_cells
from bert_jax.data.finetuning.file_lines import find_file
from bert_jax.data.finetuning.table_format import TableFormat
from bert_jax.data.input_paths import is_tfds


def check_no_header(
    path: str, form: TableFormat, column: str, is_label: Callable[[str], bool]
) -> None:
    """Refuses a file read without a header whose first line is one, judging by its label column.

    It tells where the first row alone has a word there that is no label: other rows may have
    labels, numbers, signs ("?", "-1"), nothing, or no such column, as test sets do. Raises
    ValueError naming file, line and value.
    """
    if form.header or is_tfds(path) or not (column.isascii() and column.isdigit()):
        return

    def word_in(row: list[str]) -> str:
        cell = row[int(column)] if int(column) < len(row) else ""
        return cell if any(map(str.isalpha, cell)) and not is_label(cell) else ""

    rows = delimited_cells(find_file(path), form.of(path))
    place, first = next(rows, ("", []))
    word, others = word_in(first), 0
    if not word:
        return
    for _, row in rows:
        if word_in(row):
            return
        others += 1
    if others:
        raise ValueError(
            f"{place}: {word[:80]!r} in the label column, {column}, is no label, and no other row "
            "has such a word: the line seems to name the columns, but form.header=False says that "
            "it is an example. Remove it, set form.header=True if all files have such a line, "
            "or correct the cell"
        )
