import argparse
import errno
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from bert_jax.cli import main as cli
from bert_jax.cli.main import main
from bert_jax.verbs import VERBS, Verb, make_parser


@pytest.fixture
def echo(monkeypatch: pytest.MonkeyPatch) -> list[argparse.Namespace]:
    """Add the verbs `echo` and `fail`; return the list in which `echo` records its arguments.

    `fail` raises an error.
    """
    recorded: list[argparse.Namespace] = []

    def add_arguments(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--output", required=True)
        parser.add_argument("--config")

    def run(args: argparse.Namespace) -> int:
        recorded.append(args)
        return 0

    def fail(args: argparse.Namespace) -> int:
        raise {"value": ValueError, "key": KeyError, "stop": KeyboardInterrupt}[args.output]("why")

    for name, function in (("echo_verb", run), ("fail_verb", fail)):
        module = ModuleType(name, "Echo the arguments.")
        module.add_arguments, module.run = add_arguments, function  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, name, module)
    verbs = {"echo": Verb("say", "echo_verb"), "fail": Verb("fail", "fail_verb")}
    monkeypatch.setattr(cli, "VERBS", {**VERBS, **verbs, "all": Verb("a group", verbs=verbs)})
    return recorded


def test_help_lists_every_verb_without_jax() -> None:
    program = (
        "import sys; from bert_jax.cli.main import main; code = main(['--help']);"
        "assert 'jax' not in sys.modules and 'numpy' not in sys.modules; sys.exit(code)"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert all(f"  {name} " in result.stdout for name in VERBS)


def test_no_verb_shows_the_help_and_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert main(["bench"]) == 2
    assert "data" in capsys.readouterr().out


def test_a_verb_receives_its_arguments_and_overrides(echo: list[argparse.Namespace]) -> None:
    words = ["--config=c.py", "--config.a.b=a value with spaces", "--output", "o"]
    assert main(["echo", *words]) == 0
    assert main(["all", "echo", *words]) == 0
    for args in echo:
        assert (args.config, args.output) == ("c.py", "o")
        assert args.config_overrides == ["--config.a.b=a value with spaces"]
    assert len(echo) == 2


def test_verbs_may_share_a_module(monkeypatch, capsys) -> None:
    """Check that each verb uses its own functions, and that `--help` shows their docstrings."""

    def add_count_arguments(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("first", nargs="?")
        parser.add_argument("rest", nargs="*")
        parser.add_argument("--times", type=int, default=1)

    def count(args: argparse.Namespace) -> int:
        """Count words.

        count a b c
        """
        print(args.times * len([args.first, *args.rest]))
        return 0

    module = ModuleType("shared_verbs", "Not shown.")
    module.count, module.add_count_arguments = count, add_count_arguments  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "shared_verbs", module)
    verb = Verb("count words", "shared_verbs", "count", mixed=True)
    monkeypatch.setattr(cli, "VERBS", {"count": verb})
    assert main(["count", "a", "--times", "10", "b", "c"]) == 0
    assert capsys.readouterr().out == "30\n"
    assert main(["count", "a", "--tmes", "10"]) == 2
    with pytest.raises(SystemExit):
        main(["count", "--help"])
    assert "\nCount words.\n\ncount a b c\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["pretrian"], "bert-jax has no verb 'pretrian'; nearest: pretrain"),
        (["bench", "dta"], "bert-jax bench has no verb 'dta'; nearest: data"),
        (["xyz"], "available: .*fill-mask"),
        (["echo", "--ouput=o"], "bert-jax echo has no option --ouput; nearest: --output"),
        (
            ["echo", "--output=o", "a.b=3"],
            "error: a.b=3: not an option. To set a key, use --config.a.b=3",
        ),
        (["echo", "--a.b=c d"], "--a.b=c d: not an option. To set a key, use --config.a.b=c d"),
        (["echo"], "error: the following arguments are required: --output. See `bert-jax echo -"),
        (["echo", "--output"], "error: --output: expected one argument. See `bert-jax echo -"),
        (["fail", "--output", "value"], "error: why"),
    ],
)
def test_mistakes_are_reported_without_a_traceback(
    words: list[str],
    message: str,
    echo: list[argparse.Namespace],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(words) == 2
    error = capsys.readouterr().err
    assert re.search(message, error)
    assert "Traceback" not in error and "usage:" not in error


def test_the_value_of_an_option_may_look_like_a_key(echo: list[argparse.Namespace]) -> None:
    assert main(["echo", "--output", "runs.rate=0.1"]) == 0
    assert echo[0].output == "runs.rate=0.1"


def test_a_mistake_prints_one_line() -> None:
    words = [sys.executable, "-m", "bert_jax.cli.main", "pretrain", "--cnfig", "c.py"]
    result = subprocess.run(words, capture_output=True, text=True)
    assert result.returncode == 2
    assert result.stderr.splitlines() == [
        "bert-jax: error: bert-jax pretrain has no option --cnfig; nearest: --config"
    ]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="requires a Linux device")
def test_a_full_standard_output_is_named() -> None:
    words = [sys.executable, "-m", "bert_jax.cli.main", "keys", "finetune"]
    with open("/dev/full", "w") as full:
        result = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True)
    assert result.returncode == 2
    reason = os.strerror(errno.ENOSPC)
    assert result.stderr == f"bert-jax: error: standard output: cannot be written: {reason}\n"


def test_imported_objects_are_exempt_from_garbage_collection() -> None:
    program = """
import gc, sys
from bert_jax.cli.main import main
from bert_jax.processes import importing
sys.argv = ["bert-jax", "keys", "pretrain"]
assert main() == 0
assert gc.isenabled() and gc.get_freeze_count() > 100_000
try:
    with importing():
        assert not gc.isenabled()
        raise ImportError
except ImportError:
    assert gc.isenabled()
"""
    subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.DEVNULL)


def test_warnings_are_marked() -> None:
    program = (
        "import logging, sys; from bert_jax.terminal import log_to; log_to(sys.stderr);"
        "logger = logging.getLogger('bert_jax.x'); logger.info('a'); logger.warning('b')"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.stderr == "a\nwarning: b\n"


def test_a_verb_without_config_refuses_overrides(
    echo: list[argparse.Namespace],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    plain = ModuleType("plain_verb", "Takes no configuration.")
    plain.add_arguments = plain.run = lambda _: 0  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "plain_verb", plain)
    monkeypatch.setitem(cli.VERBS, "plain", Verb("plain", "plain_verb"))
    assert main(["plain"]) == 0
    assert main(["plain", "--config.seed=1"]) == 2
    assert "--config.seed=1: bert-jax plain does not read a config" in capsys.readouterr().err


def _single_options() -> list[tuple[str, Verb, argparse.Action]]:
    verbs = {**VERBS, **{f"bench {name}": verb for name, verb in VERBS["bench"].verbs.items()}}
    return [
        (words, verb, action)
        for words, verb in verbs.items()
        if verb.module
        for action in make_parser(verb, words)._actions
        if action.option_strings
        and action.nargs != 0
        and "extend" not in type(action).__name__.lower()
    ]


@pytest.mark.parametrize(
    ("words", "verb", "action"),
    _single_options(),
    ids=[f"{words} {action.option_strings[-1]}" for words, _, action in _single_options()],
)
def test_a_repeated_option_is_refused_if_only_the_last_would_count(
    words: str, verb: Verb, action: argparse.Action, capsys: pytest.CaptureFixture[str]
) -> None:
    option = action.option_strings[-1]
    assert main([*words.split(), option, "1", f"{option}=2"]) == 2
    assert f"{option} is given 2 times. Specify it once." in capsys.readouterr().err


def test_bugs_keep_their_traceback(
    echo: list[argparse.Namespace], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(KeyError):
        main(["fail", "--output=key"])
    monkeypatch.setenv("BERT_JAX_TRACEBACK", "1")
    with pytest.raises(ValueError, match="why"):
        main(["fail", "--output=value"])


def test_an_interruption_prints_one_line(
    echo: list[argparse.Namespace], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fail", "--output=stop"]) == 130
    assert capsys.readouterr().err == "\nbert-jax: interrupted\n"


def test_a_closed_output_pipe_prints_nothing() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    command = [sys.executable, "-m", "bert_jax.cli.main", "--help"]
    result = subprocess.run(command, stdout=write_end, stderr=subprocess.PIPE, text=True)
    os.close(write_end)
    assert (result.returncode, result.stderr) == (1, "")


def test_every_verb_has_a_module() -> None:
    root = Path(cli.__file__).parents[2]
    verbs = [*VERBS.values(), *VERBS["bench"].verbs.values()]
    missing = [
        verb.module
        for verb in verbs
        if verb.module and not (root / (verb.module.replace(".", "/") + ".py")).is_file()
    ]
    assert missing == []
