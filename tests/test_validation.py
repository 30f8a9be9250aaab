"""Parameter names in error messages are replaced by the caller's names."""

from __future__ import annotations

import pytest

from bert_jax.validation import renamed_in_errors

NAMES = {"max_length": "--max-length", "form.kind": "sentences.files.form.kind"}


@pytest.mark.parametrize(
    ("message", "renamed"),
    [
        ("max_length=1: expected 8", "--max-length=1: expected 8"),
        ("set max_length=8.", "set --max-length=8."),
        ("set form.kind='csv'", "set sentences.files.form.kind='csv'"),
        ("model.max_length, max_lengths, a/max_length and max_length/b", None),
        ("sentences.files.form.kind", None),
    ],
)
def test_names_are_replaced(message: str, renamed: str | None) -> None:
    with pytest.raises(ValueError, match=".") as error, renamed_in_errors(NAMES):
        raise ValueError(message)
    assert str(error.value) == (renamed or message)


def test_other_exception_types_are_not_changed() -> None:
    with pytest.raises(KeyError, match="max_length"), renamed_in_errors(NAMES):
        raise KeyError("max_length")
