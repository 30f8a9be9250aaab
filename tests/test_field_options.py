"""Test options that are derived from the fields of a dataclass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pytest

from bert_jax.argument_parser import ArgumentParser
from bert_jax.field_options import add_field_options, option, option_values


@dataclass(frozen=True)
class Settings:
    hidden: int = 7
    max_length: int = option(512, "number of positions")
    rate: float | None = option(None, "fraction of documents (default: none)", metavar="FRACTION")
    mode: Literal["error", "skip"] = option("error", "how to handle bad lines")
    title: str = option("a://b", "title of the page", metavar="TEXT", any_text=True)
    data_dir: str | None = option(None, "directory", metavar="DIR")
    files: tuple[str, ...] = option((), "files to read", metavar="FILE")
    strict: bool = option(False, "reject everything")


def parsed(*words: str, names: tuple[str, ...] | None = None) -> dict[str, object]:
    parser = ArgumentParser(prog="verb")
    add_field_options(parser, Settings, names)
    return option_values(Settings, parser.parse_words(words))


def test_values_of_omitted_options_are_the_defaults() -> None:
    assert Settings(**parsed()) == Settings()


def test_each_type_of_field_is_parsed() -> None:
    words = ["--max-length", "8", "--rate", "0.5", "--mode", "skip", "--title", "s3://x"]
    words += ["--data-dir", "here", "--files", "a", "b", "--files", "c", "--strict"]
    expected = Settings(7, 8, 0.5, "skip", "s3://x", "here", ("a", "b", "c"), True)
    assert Settings(**parsed(*words)) == expected


def test_only_the_named_options_are_declared_and_returned() -> None:
    assert parsed("--rate", "0.5", names=("rate", "mode")) == {"rate": 0.5, "mode": "error"}
    with pytest.raises(ValueError, match="no option --max-length"):
        parsed("--max-length", "8", names=("rate",))


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--mode", "other"), "invalid choice"),
        (("--max-length", "x"), "invalid int value"),
        (("--hidden", "1"), "no option --hidden"),
        (("--files", "ftp://host/a"), "ftp:// is not supported"),
        (("--data-dir", "ftp://host/a"), "ftp:// is not supported"),
    ],
)
def test_unusable_words_are_rejected(words: tuple[str, ...], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        parsed(*words)


def test_help_texts_state_defaults() -> None:
    parser = ArgumentParser(prog="verb")
    add_field_options(parser, Settings)
    text = " ".join(parser.format_help().split())
    assert "--max-length N number of positions (default: 512)" in text
    assert "--rate FRACTION fraction of documents (default: none)" in text
    assert "--mode {error,skip} how to handle bad lines (default: error)" in text
    assert "--strict reject everything" in text
