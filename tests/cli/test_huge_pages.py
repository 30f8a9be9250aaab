"""Starting again on huge pages: once, under the same process id, and only where it helps."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bert_jax.cli import main as command
from bert_jax.cli.huge_pages import STARTED_AGAIN, TUNABLE, start_again_on_huge_pages

OURS = ("GLIBC_TUNABLES", STARTED_AGAIN)
SCRIPT = """
import os, sys
from pathlib import Path
from bert_jax.cli.huge_pages import start_again_on_huge_pages
print(os.getpid(), os.environ.get("GLIBC_TUNABLES"), sys.argv[2:])
start_again_on_huge_pages(Path(sys.argv[1]))
print("goes on")
"""


def start(setting: Path, tunables: str | None) -> list[str]:
    environment = {name: text for name, text in os.environ.items() if name not in OURS}
    if tunables is not None:
        environment["GLIBC_TUNABLES"] = tunables
    command = [sys.executable, "-c", SCRIPT, str(setting), "two words", "--x=1"]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return result.stdout.splitlines()


def test_a_process_starts_again_once(tmp_path: Path) -> None:
    setting = tmp_path / "enabled"
    setting.write_text("always [madvise] never\n")
    first, second, last = start(setting, None)
    process = first.split()[0]
    assert first == f"{process} None ['two words', '--x=1']"
    assert second == f"{process} {TUNABLE} ['two words', '--x=1']"
    assert last == "goes on"


def test_a_system_that_drops_the_tunable_does_not_start_us_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[object] = []
    (tmp_path / "enabled").write_text("always [madvise] never\n")
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    monkeypatch.setenv(STARTED_AGAIN, "1")
    monkeypatch.setattr(sys, "argv", ["-c", *sys.orig_argv[2:]])
    monkeypatch.setattr(os, "execve", lambda *arguments: started.append(arguments))
    start_again_on_huge_pages(tmp_path / "enabled")
    assert not started


@pytest.mark.parametrize(
    ("text", "tunables"),
    [
        ("[always] madvise never\n", None),
        ("always madvise [never]\n", None),
        ("always [madvise] never\n", "glibc.malloc.check=0"),
        ("always [madvise] never\n", ""),
    ],
)
def test_a_process_goes_on_where_it_would_not_help(
    tmp_path: Path, text: str, tunables: str | None
) -> None:
    setting = tmp_path / "enabled"
    setting.write_text(text)
    lines = start(setting, tunables)
    assert len(lines) == 2
    assert f" {tunables} " in lines[0]


def test_a_process_goes_on_where_there_is_no_such_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[object] = []
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    monkeypatch.delenv(STARTED_AGAIN, raising=False)
    monkeypatch.setattr(sys, "argv", ["-c", *sys.orig_argv[2:]])
    monkeypatch.setattr(os, "execve", lambda *arguments: started.append(arguments))
    start_again_on_huge_pages(tmp_path / "absent")
    assert not started
    (tmp_path / "present").write_text("always [madvise] never\n")
    start_again_on_huge_pages(tmp_path / "present")
    assert len(started) == 1
    monkeypatch.setattr(sys, "argv", ["bert-jax", "pretrain"])  # a program that calls the command
    start_again_on_huge_pages(tmp_path / "present")
    assert len(started) == 1


def test_only_verbs_that_train_ask_for_it_and_only_as_a_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []
    monkeypatch.setattr(command, "start_again_on_huge_pages", lambda: asked.append(True))
    words = {"pretrain": ["pretrain"], "step": ["bench", "step"], "data": ["bench", "data"]}
    for name, verb in words.items():
        monkeypatch.setattr(sys, "argv", ["bert-jax", *verb, "--hepl"])
        assert command.main() == command.USER_MISTAKE
        assert bool(asked) == (name != "data")
        asked.clear()
        assert command.main([*verb, "--hepl"]) == command.USER_MISTAKE
        assert not asked
    capsys.readouterr()
