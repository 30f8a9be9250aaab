"""What examples are called in files of predictions."""

from __future__ import annotations

from collections.abc import Sequence

from bert_jax.data.finetuning.splits import Split


def check_ids(ids: Sequence[str], places: Sequence[str], split: Split, breaks: str) -> None:
    """Refuses an id that a file of predictions cannot hold, of a test set also one that repeats.

    breaks: the characters that would end a cell of it or a line. Nothing is predicted for the
    training set. Raises ValueError naming file, line and value.
    """
    if split == "train":
        return
    seen: dict[str, str] = {}
    for index, place in zip(ids, places, strict=True):
        if any(character in index for character in breaks):
            signs = ", ".join(map(repr, breaks))
            raise ValueError(
                f"{place}: index {index[:80]!r}; expected none of {signs} in it, which break the "
                "lines of predictions. Change it, or name no index column to number the rows."
            )
        # A validation set is scored, whatever its rows are called.
        if split == "test" and (before := seen.setdefault(index, place)) != place:
            raise ValueError(
                f"{place}: index {index[:80]!r} is that of {before} too; expected one of its own "
                "for each row. Is it the right column?"
            )
