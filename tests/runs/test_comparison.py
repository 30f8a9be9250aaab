"""Compare runs of different lengths and kinds, and test which comparisons are refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from bert_jax.cli.main import main
from bert_jax.runs.comparison import compare_runs, flattened


def write_run(
    path: Path, steps: int, loss: float, *, config: dict[str, Any], metric: str = "mlm_loss"
) -> Path:
    path.mkdir(parents=True)
    lines: list[dict[str, Any]] = []
    for step in range(1, steps + 1):
        train = {metric: loss / step, "learning_rate": 0.1, "tokens_per_second": 5.0}
        lines.append({"kind": "train", "step": step, **train, "compiling": step == 1})
        if step % 5 == 0:
            lines.append({"kind": "evaluation", "step": step, metric: 2 * loss / step})
        if step == 3:
            lines.append({"kind": "skip", "step": step, "loss": None, "batch": 2})
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (path / "config.json").write_text(json.dumps({"work_dir": str(path), **config}))
    (path / "model.json").write_text("{}")
    return path


CONFIG: dict[str, Any] = {"seed": 0, "optimizer": {"name": "adamw", "peak": 0.1}, "phases": {}}


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    changed = {**CONFIG, "optimizer": {"name": "lamb", "peak": 0.1}, "init_from": "models/<base>"}
    first = write_run(tmp_path / "a" / "one", 10, 4.0, config=CONFIG)
    second = write_run(tmp_path / "two", 17, 8.0, config=changed)
    third = write_run(tmp_path / "tuned", 4, 1.0, config={"seed": 1}, metric="accuracy")
    (second / "config-until-12.json").write_text("{}")
    return [first, second, third]


def test_the_tables_show_the_last_values_and_the_differing_keys(runs: list[Path]) -> None:
    comparison = compare_runs(runs)
    assert comparison.last_values() == [
        ["last step", "10", "17", "4"],
        ["mlm_loss", "0.800", "1.067 (step 15)", "-"],
        ["accuracy", "-", "-", "25.0%"],
    ]
    assert comparison.differing_keys() == [
        ["init_from", "-", "models/<base>", "-"],
        ["optimizer.name", "adamw", "lamb", "-"],
        ["optimizer.peak", "0.1", "0.1", "-"],
        ["phases", "{}", "{}", "-"],
        ["seed", "0", "0", "1"],
    ]
    text = str(comparison)
    assert re.search(r"^config key +one +two +tuned$", text, re.MULTILINE)
    assert "two: its config changed at step 12" in text


def test_training_values_are_marked_next_to_held_out_values(tmp_path: Path) -> None:
    lengths = {"evaluated": 10, "started": 4}
    paths = [write_run(tmp_path / name, n, 4.0, config=CONFIG) for name, n in lengths.items()]
    assert compare_runs(paths).last_values()[1] == ["mlm_loss", "0.800", "1.000 (training)"]
    another = write_run(tmp_path / "another", 2, 4.0, config=CONFIG)
    assert compare_runs([paths[1], another]).last_values()[1] == ["mlm_loss", "1.000", "2.000"]


def test_the_page_and_the_plot_contain_every_run(runs: list[Path], tmp_path: Path) -> None:
    comparison = compare_runs(runs)
    axes = [axis for axis in comparison.figure().axes if axis.axison]
    assert [axis.get_title(loc="left") for axis in axes] == [
        *("Masked-token loss (nats)", "Accuracy", "Learning rate", "Real tokens per second")
    ]
    # The first panel has two runs with training and held-out curves, and three legend entries.
    drawn = [line for line in axes[0].lines if len(line.get_xdata())]
    assert sorted(len(line.get_xdata()) for line in drawn) == [2, 3, 10, 17]
    page = tmp_path / "pages" / "runs.html"
    comparison.save_page(page)
    html = page.read_text("utf-8")
    assert "models/&lt;base&gt;" in html and "data:image/png;base64," in html
    assert not re.search(r'(src|href)="(?!data:)', html)
    with pytest.raises(ValueError, match="not an HTML file"):
        comparison.save_page(tmp_path / "runs.txt")


def test_runs_with_the_same_name_are_distinguished(tmp_path: Path) -> None:
    paths = [write_run(tmp_path / x / "run", 5, 1.0, config=CONFIG) for x in "ab"]
    comparison = compare_runs(paths)
    assert [run.name for run in comparison.runs] == list(map(str, paths))
    assert "the configs are equal" in str(comparison)


def test_other_directories_are_refused(runs: list[Path], tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "imported").mkdir()
    (tmp_path / "imported" / "model.json").write_text("{}")
    (tmp_path / "file").write_text("")
    for other, problem in (
        ("missing", "there is no such directory"),
        ("file", "it is a file"),
        ("empty", "this is not a work directory"),
        ("imported", "contains no metrics.jsonl"),
        ("two", "the same run is specified twice"),
    ):
        with pytest.raises(ValueError, match=problem):
            compare_runs([runs[1], tmp_path / other])
    with pytest.raises(ValueError, match="1 work directory: expected 2 to 10"):
        compare_runs(runs[:1])


def test_the_command(runs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.html"
    assert main(["compare-runs", *map(str, runs), "--page", str(page)]) == 0
    assert "optimizer.name" in capsys.readouterr().out and page.is_file()
    assert main(["compare-runs", str(runs[0]), str(tmp_path / "missing")]) == 2
    assert "there is no such directory" in capsys.readouterr().err


def test_nested_values_get_dotted_keys() -> None:
    nested = {"a": {"b": {"c": 1}, "d": [1, {"e": 2}]}, "f": {}}
    assert flattened(nested) == {"a.b.c": 1, "a.d": [1, {"e": 2}], "f": {}}
