"""Test that a notification command receives data about the run, and can never harm the run."""

from __future__ import annotations

import json
import logging
import time
from contextlib import suppress
from pathlib import Path

import pytest

from bert_jax.goodput.ledger import Ledger
from bert_jax.training.notification import Notifier
from bert_jax.training.reports import DivergenceReport, EvaluationReport

SAVE_FACTS = """
cat > "$OUT/$BERT_JAX_EVENT.json"
echo "$BERT_JAX_STEP $BERT_JAX_MESSAGE" >> "$OUT/log"
"""


@pytest.fixture
def out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OUT", str(tmp_path))
    return tmp_path


def test_the_command_gets_the_facts(out: Path) -> None:
    ledger = Ledger()
    ledger.step = 5
    notifier = Notifier(SAVE_FACTS, ledger, out / "run", 20)
    with notifier.notifying():
        ledger.step = 8
        notifier(EvaluationReport(8, {"mlm_loss": 2.5}))
        notifier(DivergenceReport("skip", 9, {}, "not worth a message"))
        notifier(DivergenceReport("rollback", 9, {}, 'it\'s "back"; $(rm x)\nnow'))
        ledger.step = 20
        ledger.finish("finished")
    assert sorted(path.name for path in out.iterdir()) == [
        *("divergence.json", "end.json", "log", "start.json")
    ]
    lines = (out / "log").read_text()
    assert lines == '5 started at step 5\n9 it\'s "back"; $(rm x)\nnow\n20 finished\n'
    facts = json.loads((out / "divergence.json").read_text())
    assert facts["step"] == 9 and facts["total_steps"] == 20 and facts["event"] == "divergence"
    assert facts["metrics"] == {"mlm_loss": 2.5} and facts["work_dir"] == str(out / "run")


def test_a_failure_sends_a_notification(out: Path) -> None:
    with pytest.raises(ValueError, match="bad"):
        with Notifier(SAVE_FACTS, Ledger(), out, 3).notifying():
            raise ValueError("bad luck")
    assert json.loads((out / "failure.json").read_text())["message"] == "ValueError: bad luck"


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ("echo gone >&2; exit 3", "failed with exit code 3: gone"),
        ("no-such-command", "failed with exit code 127"),
        ("sleep 60 & sleep 60", "took longer than 0.2 s and was killed"),
    ],
)
def test_a_failing_or_hanging_command_is_logged(
    command: str, problem: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    notifier = Notifier(command, Ledger(), tmp_path, 3, timeout=0.2)
    began = time.monotonic()
    with caplog.at_level(logging.WARNING), notifier.notifying():
        assert time.monotonic() - began < 30
    assert problem in caplog.text and "The run is not affected" in caplog.text


def test_commands_do_not_pile_up(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    notifier = Notifier("sleep 60", Ledger(), tmp_path, 3, timeout=0.05)
    with caplog.at_level(logging.WARNING):
        for number in range(20):
            notifier.send("divergence", f"number {number}")
        # Leaving this context waits for all commands.
        with suppress(RuntimeError), notifier.notifying():
            raise RuntimeError
    assert "earlier commands have not ended, so there is none for: number" in caplog.text


def test_without_a_command_nothing_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[object] = []
    monkeypatch.setattr("subprocess.Popen", lambda *words, **_: started.append(words))
    with Notifier("", Ledger(), tmp_path, 3).notifying():
        pass
    assert not started
