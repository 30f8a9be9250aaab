"""Test how options are declared, and which errors an invalid command line causes."""

from __future__ import annotations

import argparse

import pytest

from bert_jax.argument_parser import ArgumentParser, check_repeated


def test_options_that_collect_values_may_be_repeated() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--input", nargs="+", action="extend")
    parser.add_argument("--flag", action="store_true")
    parser.add_argument("--output")
    parser.add_argument("text", nargs="*")
    check_repeated(parser, ["--input", "a", "--input=b", "--flag", "--flag", "--output", "c"])
    # After "--", the last argument is a text, not an option.
    check_repeated(parser, ["--output", "c", "--", "--output"])
    with pytest.raises(ValueError, match="--output is given 3 times"):
        check_repeated(parser, ["--output", "c", "--output", "c", "--output=c"])


@pytest.fixture
def parser() -> ArgumentParser:
    parser = ArgumentParser(prog="program", allow_abbrev=False)
    parser.add_option("--output", "DIR", "new directory", required=True)
    parser.add_option("--rate", "X", "learning rate", kind=float, default=0.5)
    parser.add_number("--seed", "seed of the head")
    parser.add_choice("--kind", ["a", "b"], "kind of the model", default="a")
    parser.add_list("--labels", "NAME", "label names", default=[])
    parser.add_flag("--cased", "unchanged text")
    return parser


def test_every_kind_of_option(parser: ArgumentParser) -> None:
    defaults = vars(parser.parse_words(["--output", "o"]))
    assert defaults == {
        "output": "o",
        "rate": 0.5,
        "seed": None,
        "kind": "a",
        "labels": [],
        "cased": False,
        "config_overrides": [],
    }
    words = "--output o --rate 1e-3 --seed 3 --kind b --labels x y --labels z --cased".split()
    args = parser.parse_words(words)
    assert (args.rate, args.seed, args.kind, args.cased) == (1e-3, 3, "b", True)
    assert args.labels == ["x", "y", "z"]
    assert parser.parse_words(["--output", "o"]).labels == []
    shown = " ".join(parser.format_help().split())
    assert "--rate X learning rate (default: 0.5)" in shown
    assert "--seed N seed of the head --kind" in shown


def test_numbers_have_a_minimum(parser: ArgumentParser) -> None:
    parser.add_number("--repeat", "number of rounds", minimum=1)
    words = ["--output", "o", "--repeat", "2"]
    assert parser.parse_words(words).repeat == 2
    for text in ("0", "-1", "1.5", "two"):
        with pytest.raises(
            ValueError, match=f"expected a whole number of at least 1, not '{text}'"
        ):
            parser.parse_words([*words[:-1], text])


def test_output_files_are_collected(parser: ArgumentParser) -> None:
    parser.add_output_file("--to", "file to write")
    parser.add_output_file("--other-file", "another file to write")
    args = parser.parse_words(["--output", "o", "--to", "-", "--other-file", "x"])
    assert parser.output_files(args) == {"--other-file": "x"}


def test_former_names_of_options_are_accepted(parser: ArgumentParser) -> None:
    parser.accept_former_name("--learning-rate", "--rate")
    for words in (["--learning-rate", "2"], ["--learning-rate=2"], ["--rate", "2"]):
        assert parser.parse_words(["--output", "o", *words]).rate == 2.0
    assert "--learning-rate" not in parser.format_help()
    with pytest.raises(ValueError, match="--rate is given 2 times"):
        parser.parse_words(["--output", "o", "--rate", "1", "--learning-rate", "2"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], r"required: --output. See `program --help`\.$"),
        (["--output", "gs://a/b"], "--output=gs://a/b: gs:// is not supported"),
        (["--output", "o", "--rate", "x"], "--rate: invalid float value: 'x'"),
        (["--output", "o", "--outptu", "o"], "program has no option --outptu; nearest: --output"),
        (["--output", "o", "--config.seed=1"], "program does not read a config"),
    ],
)
def test_a_mistake_raises_an_error(words: list[str], message: str, parser: ArgumentParser) -> None:
    with pytest.raises(ValueError, match=message):
        parser.parse_words(words)


def test_a_key_that_is_set_like_an_option_raises_an_error(parser: ArgumentParser) -> None:
    parser.add_option("--config", "RECIPE", "recipe")
    with pytest.raises(ValueError, match="--config.seed: missing value. Write --config.seed=1"):
        parser.parse_words(["--output", "o", "--config.seed", "1"])
    with pytest.raises(ValueError, match="To set a key, use --config.KEY=VALUE$"):
        parser.parse_words(["--output", "o", "--learning_step", "1"])
