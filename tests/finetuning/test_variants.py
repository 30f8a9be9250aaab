"""Test how the values that a sweep varies are parsed, named, ordered, stored and displayed."""

from __future__ import annotations

import copy
import dataclasses
import functools
import io
import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_hex
from PIL import Image

from bert_jax.conversion import to_plain
from bert_jax.finetuning.hyperparameters import Grid, Hyperparameters
from bert_jax.finetuning.sweep_directory import claim, kept_before, shared_config
from bert_jax.finetuning.sweep_durations import Durations
from bert_jax.finetuning.sweep_plot import draw_sweep, sweep_figure
from bert_jax.finetuning.sweep_results import (
    Provenance,
    RunResult,
    SweepResults,
    VariantFacts,
    read_results,
    write_results,
)
from bert_jax.finetuning.sweep_tables import comparison, summary, tables, verdict
from bert_jax.finetuning.variants import Variant
from bert_jax.recipes.load import load_config
from bert_jax.recipes.sweep_arguments import SweepArguments, split_values

KEY = "tuning.top_layers"
LAYERS = tuple(Variant.of({KEY: layers}) for layers in (-1, 2, 0))


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("-1,2, 0", ["-1", "2", "0"]),
        ("1", ["1"]),
        ("", [""]),
        ("a,", ["a", ""]),
        ("'a,b',c", ["a,b", "c"]),
        ("\"a,'b'\",''", ["a,'b'", ""]),
        ("('a', 'b'),('c',),()", ["('a', 'b')", "('c',)", "()"]),
        ("('a,)', \"(\"),b", ["('a,)', \"(\")", "b"]),
        ("'(1',it's,data(1).csv", ["(1", "it's", "data(1).csv"]),
        ("'a'+'b'", ["'a'+'b'"]),
        ("a)b", ["a)b"]),
    ],
)
def test_values_are_split_at_commas_outside_quotes_and_brackets(text: str, values: list) -> None:
    assert split_values(text, "--vary x") == values


@pytest.mark.parametrize(("text", "missing"), [("(1,2", ")"), ("'a,b", "'"), ("[(1]", ")")])
def test_an_open_quote_or_bracket_is_refused(text: str, missing: str) -> None:
    with pytest.raises(ValueError) as error:
        split_values(text, f"--vary x={text}")
    assert str(error.value).startswith(f"--vary x={text}: {missing} is missing. ")


def test_values_have_the_types_of_overrides() -> None:
    vary = {
        KEY: "-1,2,0",
        "dropout": "0,-1,1e-1",
        "from_scratch": "True,false",
        "best_metric": ",loss",
        "init_from": "a,'b,c'",
        "sentences.files.labels": "('x','y'),('None','z')",
        "sentences.files.separator": "',','|'",
    }
    words = [f"{key}={text}" for key, text in vary.items()]
    arguments = SweepArguments("table", ["--config.max_length=64"], None, None, "out", words)
    config, values = arguments.load()
    assert values == {
        KEY: [-1, 2, 0],
        "dropout": [0.0, -1.0, 0.1],
        "from_scratch": [True, False],
        "best_metric": ["", "loss"],
        "init_from": ["a", "b,c"],
        "sentences.files.labels": [["x", "y"], ["None", "z"]],
        "sentences.files.separator": [",", "|"],
    }
    first = {key: choices[0] for key, choices in values.items()}
    given = first | {"max_length": 64, "work_dir": "out"}
    assert config == load_config("table", given, kind="finetune")
    command = arguments.command(Grid(), "best")
    assert "--output out --config.max_length=64 --vary tuning.top_layers=-1,2,0 " in command


def test_variants_are_named_after_their_values() -> None:
    variant = Variant.of({"tuning.top_layers": -1, "dropout": 0.1})
    assert str(variant) == "dropout=0.1, tuning.top_layers=-1"
    assert variant.name == "dropout=0.1,tuning.top_layers=-1"
    run = Hyperparameters(16, 1e-3, 2, 0, variant=variant)
    assert run.name == "dropout=0.1,tuning.top_layers=-1_batch16-rate0.001-epochs2-seed0"
    assert str(run).startswith("dropout=0.1, tuning.top_layers=-1, batch 16, learning rate 0.001")
    assert run.combination.variant == variant
    names = {
        Variant.of({"init_from": value}).name
        for value in ("a/b", "a b", "a-b", "x" * 300, "x" * 301, "", None, "''", ("a", "b"), "a,b")
    }
    assert len(names) == 10
    assert all(len(name) < 140 and "/" not in name and " " not in name for name in names)
    assert Variant.of({"init_from": "é" * 300}).name.isascii()
    assert Variant.of({"init_from": "a-b"}).name == "init_from=a-b"
    assert str(Variant.of({"labels": ["a", "b"], "best_metric": ""})) == (
        "best_metric='', labels=('a', 'b')"
    )


def test_the_runs_in_a_grid_have_distinct_names() -> None:
    texts = ["a", "a,b=a", "a,b=a,b=a", "None", None, True, "True", "A,", ",", "a" * 300, "é", "è"]
    names = {Variant.of({"a": a, "b": b}).name for a in texts for b in texts}
    assert len(names) == len(texts) ** 2
    variants = tuple(Variant.of({"a": text, "b": text}) for text in texts)
    runs = Grid((8, 16), (1e-3, 1.2345678901234e-05), (2,), num_seeds=2, variants=variants).runs
    assert len({run.name for run in runs}) == len(runs)
    assert all(len(run.name.encode()) <= 255 for run in runs)
    # Only names that are ambiguous or cannot be file names have a checksum.
    assert Variant.of({"a": "x,y", "b": "1,a=2"}).name == "a=x,y,b=1,a=2"
    assert Variant.of({"a": None, "b": "none"}).name == "a=None,b=none"


def test_variants_are_ordered_by_value() -> None:
    values = [None, "b", 10, True, -1, 2.5, "a", ("a",)]
    ordered = sorted(Variant.of({"x": value}) for value in values)
    assert [each.values["x"] for each in ordered] == [-1, True, 2.5, 10, ("a",), None, "a", "b"]
    assert not Variant() and Variant() == Variant.of({})


def results_of(grid: Grid, **changes: object) -> SweepResults:
    """Return random results for a grid; later variants are worse on average."""
    rng, runs = np.random.default_rng(0), []
    for number, each in enumerate(grid.runs):
        accuracy = 0.8 - 0.1 * grid.variants.index(each.variant) + 0.05 * rng.random()
        runs.append(RunResult(each, {"accuracy": float(accuracy)}, 10, 30.0 + number, False))
    facts = tuple(
        VariantFacts(variant, 11_000, 1_000 * (3 - place), 90 + 10 * place, 0.5 + place / 10)
        for place, variant in enumerate(grid.variants)
    )
    origin = Provenance("bert-jax sweep", "2026-11-26 11:00", "1 x cpu", {"jax": "0"})
    results = SweepResults(
        "RTE", "accuracy", False, "accuracy", 0.5, 90, len(runs), tuple(runs), origin, facts
    )
    return dataclasses.replace(results, **changes)


GRID = Grid((8, 16), (1e-3, 1e-4), (2,), num_seeds=3, variants=LAYERS)


def test_runs_are_ordered_by_seed_and_then_by_variant() -> None:
    runs = GRID.runs
    assert len(runs) == len({run.name for run in runs}) == 3 * 4 * 3
    assert [run.variant for run in runs[:12]] == [each for each in LAYERS for _ in range(4)]
    assert {run.seed for run in runs[:12]} == {0}
    for variant in LAYERS:
        assert GRID.runs_by_variant[variant] == [run for run in runs if run.variant == variant]
    with pytest.raises(ValueError, match="the grid has 12,000 runs"):
        dataclasses.replace(GRID, num_seeds=1000)


def test_each_variant_is_shown_with_its_best_combination() -> None:
    results = results_of(GRID)
    head, *rows = comparison(results)
    assert head == [
        *(KEY, "batch", "learning rate", "epochs", "accuracy", "best accuracy", "train time"),
        *("trainable", "examples", "runs", "degenerate", "diverged"),
    ]
    assert [row[0] for row in rows] == ["-1", "2", "0"]
    for row, variant, trained in zip(rows, LAYERS, ("3,000", "2,000", "1,000"), strict=True):
        scores: dict[tuple[int, float], list[float]] = {}
        for run in results.runs:
            each = run.hyperparameters
            if each.variant == variant:
                pair = each.batch_size, each.learning_rate
                scores.setdefault(pair, []).append(run.scores["accuracy"])
        pair = max(scores, key=lambda pair: np.mean(scores[pair]))
        assert (int(row[1]), float(row[2])) == pair
        assert row[4] == f"{np.mean(scores[pair]):.1%} ± {np.std(scores[pair], ddof=1):.1%}"
        assert row[7] == trained
        alike = [
            run.seconds
            for run in results.runs
            if (run.hyperparameters.variant, run.hyperparameters.batch_size) == (variant, pair[0])
        ]
        assert row[6] == f"{min(alike):.0f}s"
    titles = ["each variant with its best hyperparameters", "all combinations"]
    shown = tables(results)
    assert list(shown) == titles
    assert len(shown[titles[1]]) == 1 + 12 and shown[titles[1]][0][:2] == [KEY, "batch"]
    assert summary(results)[0] == f"{titles[0]}:"
    lines = verdict(results)
    assert lines[0].startswith("best combination by mean: tuning.top_layers=-1, batch ")
    assert "no better than accuracy 50.0% to 70.0%, which" in lines[2]
    one = results_of(Grid((8,), (1e-3,), (2,), num_seeds=3, variants=LAYERS))
    assert list(tables(one)) == titles[:1]


def test_the_train_time_is_that_of_the_runs_that_trained_longest() -> None:
    results = results_of(Grid((8,), (1e-3, 1e-4), (2,), num_seeds=3, variants=LAYERS[:2]))

    def train_times(**changed: object) -> dict[str, str]:
        """Return the reported train times after changing fields of the first variant's runs."""
        runs = [
            dataclasses.replace(run, **{name: values[each] for name, values in changed.items()})
            for each, run in enumerate(
                run for run in results.runs if run.hyperparameters.variant == LAYERS[0]
            )
        ]
        others = [run for run in results.runs if run.hyperparameters.variant != LAYERS[0]]
        head, *rows = comparison(dataclasses.replace(results, runs=(*runs, *others)))
        return {row[0]: row[head.index("train time")] for row in rows}

    seconds = (9.0, 40.0, 30.0, 5.0, 50.0, 20.0)
    assert train_times(seconds=seconds) == {"-1": "5s", "2": "32s"}
    diverged = ("", "", "", "so training has diverged", "", "")
    assert train_times(seconds=seconds, diverged=diverged)["-1"] == "9s"
    assert train_times(seconds=seconds, trained_steps=(4, 20, 20, 4, 20, 12))["-1"] == "30s"
    assert train_times(scores=[{}] * 6, diverged=["diverged"] * 6)["-1"] == "-"


def test_results_with_variants_survive_writing_and_reading(tmp_path: Path) -> None:
    variants = tuple(
        Variant.of({"labels": labels, "dropout": 0.1, "init_from": None})
        for labels in (("a", "b"), ())
    )
    results = results_of(Grid((8,), (1e-3,), (2,), num_seeds=1, variants=variants))
    write_results(results, tmp_path)
    assert read_results(tmp_path) == results
    run = json.loads((tmp_path / "results.json").read_text())["runs"][0]
    assert run["dials"]["variant"] == {"dropout": 0.1, "init_from": None, "labels": ["a", "b"]}


@pytest.mark.parametrize("count", [1, 3, 9])
def test_the_plot_has_a_line_for_each_variant_and_batch_size(count: int) -> None:
    variants = tuple(Variant.of({KEY: layers}) for layers in range(count))
    results = results_of(dataclasses.replace(GRID, variants=variants))
    figure = sweep_figure(results)
    (panel,) = figure.axes
    (legend,) = figure.legends
    means = {
        (each.combination.variant, each.combination.batch_size, each.combination.learning_rate): (
            each.spreads["accuracy"].mean
        )
        for each in results.summaries
    }
    pairs = [(variant, size) for variant in variants for size in GRID.batch_sizes]
    labels = [f"{variant}, batch {size}" for variant, size in pairs]
    assert [text.get_text() for text in legend.get_texts()] == [*labels, "chance"]
    lines = {str(line.get_label()): line for line in panel.get_lines()}
    styles, shifts = set(), set()
    for label, pair in zip(labels, pairs, strict=True):
        line = lines[label]
        assert list(line.get_ydata()) == [means[*pair, rate] for rate in (1e-4, 1e-3)]
        x = np.asarray(line.get_xdata())
        # Every point is close to the position of its learning rate.
        assert np.abs(x - [0, 1]).max() < 0.4
        shifts.add(round(float(x[0]), 6))
        styles.add((to_hex(line.get_color()), line.get_linestyle()))
    assert len(styles) == len(shifts) == len(pairs)
    scattered = [tuple(each.get_offsets()[:, 1]) for each in panel.collections]
    # There is a point for each of two learning rates and three seeds.
    assert sorted(map(len, scattered)) == [6] * len(pairs)
    scores = sorted(run.scores["accuracy"] for run in results.runs)
    assert sorted(y for points in scattered for y in points) == scores
    levels = {float(np.asarray(line.get_ydata())[0]) for line in panel.get_lines()}
    assert {each.chance for each in results.variants} <= levels


def test_the_plot_shows_texts_with_dollar_signs_unchanged() -> None:
    variants = tuple(Variant.of({"init_from": text}) for text in (r"a$\foo$", "b$", "c"))
    grid = Grid((8,), (1e-3,), (2,), num_seeds=1, variants=variants)
    with Image.open(io.BytesIO(draw_sweep(results_of(grid, task=r"x$\foo$")))) as opened:
        opened.verify()


def test_the_time_left_is_estimated_for_each_variant() -> None:
    durations = Durations()
    slow, fast, _ = (
        [Hyperparameters(8, 1.0, 2, n, variant=each) for n in (0, 1)] for each in LAYERS
    )
    assert durations.seconds_left(slow) is None
    durations.add(slow[0], 100.0)  # The first run includes compilation.
    assert durations.seconds_left([slow[1], fast[0]]) == 200.0
    durations.add(slow[1], 20.0)
    assert durations.seconds_per_epoch(LAYERS[0]) == 10.0
    assert durations.seconds_left([fast[0]]) == 20.0
    durations.add(fast[0], 8.0)
    assert durations.seconds_left([*slow, *fast]) == 2 * 20.0 + 2 * 8.0
    other = Hyperparameters(8, 1.0, 3, 0, variant=LAYERS[2])
    assert durations.seconds_left([other]) == 3 * 7.0  # An epoch takes (20 + 8) / 4 = 7 seconds.
    # The run has completed half an epoch.
    durations.add(fast[1], 4.0, fraction=0.25)
    assert durations.seconds_per_epoch(LAYERS[1]) == 8.0


def test_a_damaged_identity_names_the_file(tmp_path: Path) -> None:
    current = {"varied": [KEY], "variants": {"a": {"config": {"optimizer": {}}}}}
    claim(tmp_path, current, "best")
    assert kept_before(tmp_path) == "best"
    (tmp_path / "sweep.json").write_text(json.dumps({"varied": [KEY], "keep": "best"}))
    with pytest.raises(ValueError, match=r"sweep\.json: damaged: missing key 'variants'"):
        claim(tmp_path, current, "best")


@pytest.mark.parametrize(
    ("varied", "changes", "difference"),
    [
        ("tuning.top_layers", {"tuning.embeddings": False}, "config.tuning.embeddings: True -> Fa"),
        ("tuning.top_layers", {"patience": 1}, "config.patience: 0 -> 1"),
        ("tuning.top_layers", {"dtype": "bfloat16"}, "dtype: 'float32' -> 'bfloat16'"),
        ("tuning.top_layers", {"examples": {"train": "c"}}, "examples.train: 'a' -> 'c'"),
        ("tuning.top_layers", {"tokenizer": "b"}, "tokenizer: 'a' -> 'b'"),
        ("dropout", {"parameters of init_from": "b"}, "parameters of init_from: 'a' -> 'b'"),
        ("compute.dtype", {"dtype": "bfloat16"}, None),
        ("compute.dtype", {"dtype": "bfloat16", "compute.ops": "x"}, "config.compute.ops: "),
        ("max_length", {"examples": {"train": "c"}}, None),
        ("max_length", {"dtype": "bfloat16"}, "dtype: "),
        ("sentences.metrics", {"examples": {"train": "c"}}, None),
        ("sentences.metrics", {"sentences.files.form.header": 0}, "config.sentences.files.form"),
        ("sentences.files.train", {"sentences.files.first": "x", "examples": {}}, None),
        (
            "sentences.files.train",
            {"sentences.files.form.header": 0},
            "config.sentences.files.form",
        ),
        ("init_from", {"tokenizer": "b", "parameters of init_from": "b", "examples": {}}, None),
        ("init_from", {"from_scratch": True}, "config.from_scratch: False -> True"),
    ],
)
def test_only_what_the_varied_keys_affect_may_differ_in_new_variants(
    tmp_path: Path, varied: str, changes: dict[str, object], difference: str | None
) -> None:
    config = to_plain(load_config("table", {"work_dir": "x", "init_from": "y"}, kind="finetune"))

    def identity(value: object, changes: Mapping[str, object]) -> dict[str, object]:
        values = {
            "config": copy.deepcopy(shared_config(config)),
            "parameters of init_from": "a",
            "dtype": "float32",
            "tokenizer": "a",
            "examples": {"train": "a"},
        }
        for key, x in {varied: value, **changes}.items():
            if key in values:
                values[key] = x
                continue
            *sections, name = key.split(".")
            section = functools.reduce(dict.__getitem__, sections, values["config"])
            assert name in section
            section[name] = x
        return values

    claim(tmp_path, {"varied": [varied], "variants": {"a": identity(1, {})}}, "best")
    added = {"varied": [varied], "variants": {"b": identity(2, changes)}}
    if difference is None:
        claim(tmp_path, added, "best")
        stored = json.loads((tmp_path / "sweep.json").read_text())
        assert list(stored["variants"]) == ["a", "b"]
        return
    with pytest.raises(ValueError, match="contains a different sweep") as error:
        claim(tmp_path, added, "best")
    listed = [line for line in str(error.value).splitlines() if line.startswith("  ")]
    assert len(listed) == 1 and listed[0].startswith(f"  {difference}")
