"""Reword error messages for users of the command line, in terms of options and commands."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from bert_jax.local_paths import shown
from bert_jax.validation import renamed_in_errors

# The commands to suggest instead of names in the Python API.
COMMANDS = {
    "bj.AnswerQuestion": "bert-jax predict",
    "bj.Choose": "bert-jax predict",
    "bj.Classify": "bert-jax predict",
    "bj.Embed": "bert-jax predict --task embed",
    "bj.FillMask": "bert-jax fill-mask",
    "bj.NextSentence": "bert-jax predict --task next-sentence",
    "bj.Tag": "bert-jax predict",
    "bj.extract(..., generator=True)": "bert-jax extract --generator",
    "bj.finetune": "bert-jax finetune",
    "bj.pretrain": "bert-jax pretrain",
    "bj.score_minimal_pairs": "bert-jax evaluate --minimal-pairs",
    "bj.score_text": "bert-jax evaluate --text",
}
# Reasons why a path that the user specified cannot be read.
_UNREADABLE = (errno.ENOENT, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR)


@contextmanager
def naming_arguments(
    values: Sequence[tuple[str, str]], short_names: Mapping[str, str]
) -> Iterator[None]:
    """Reword errors raised in a `with` block for users of the command line.

    If a message begins with the value of an option, the name of the option is added before it, as
    in `--input reviews.txt: no such file`. Names in the Python API are replaced by commands.

    Args:
      values: the values of all options; see `ArgumentParser.given_values`.
      short_names: the short names of the small models in the arguments, keyed by path.

    Raises:
      ValueError: the block raised a ValueError, or a path in the options cannot be read.
    """
    try:
        with renamed_in_errors({**COMMANDS, **short_names}):
            yield
    except ValueError as error:
        text = shown(str(error))
        if (message := _with_option(text, values) or text) == str(error):
            raise
        raise ValueError(message) from error
    except OSError as error:
        if error.errno not in _UNREADABLE or not isinstance(error.filename, str):
            raise
        problem = f"{error.filename}: {os.strerror(error.errno).lower()}."
        if (named := _with_option(problem, values)) is None:
            raise
        raise ValueError(named) from error


def _with_option(message: str, values: Iterable[tuple[str, str]]) -> str | None:
    """Return a message that begins with the option that set its path, or None if no option did."""
    for option, value in values:
        path = value.rstrip("/")
        if path and message.startswith((f"{path}:", f"{value}:", f"{value} is a ")):
            return option + message
        if path and message.startswith(f"{path}/") and not Path(path).exists():
            return f"{option}{value}: no such directory."
    return None
