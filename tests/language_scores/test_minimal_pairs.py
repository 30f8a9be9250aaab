"""Test scoring minimal pairs: the scores, the file format, and the output of the command."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from bert_jax import score_minimal_pairs
from bert_jax.language_scores.pair_file import read_minimal_pairs, sample_pairs

from .conftest import their_scores

PAIRS = [
    ("agreement", "number", "a cat sat", "a cats sat"),
    ("agreement", "number", "two dogs ran.", "two dog ran."),
    ("agreement", "number", "same", "same"),
    ("order", "word order", "the old man", "old the man"),
    ("order", "word order", "x y z", "z y x"),
    ("npi", "word order", "not any", "yes any"),
]


def write(path: Path, pairs: list[tuple[str, str, str, str]]) -> Path:
    names = ("UID", "linguistics_term", "sentence_good", "sentence_bad")
    lines = [json.dumps(dict(zip(names, pair, strict=True)) | {"field": "x"}) for pair in pairs]
    text = "\n".join(lines) + "\n"
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text, encoding="utf-8")
    return path


def test_accuracies_match_transformers(masked_lm, tmp_path):
    model = masked_lm("Bert")
    scores = score_minimal_pairs(model.ours, write(tmp_path / "pairs.jsonl.gz", PAIRS))
    good = their_scores(model.theirs, [pair[2] for pair in PAIRS], whole_words=False)
    bad = their_scores(model.theirs, [pair[3] for pair in PAIRS], whole_words=False)
    assert scores.log_likelihoods[:, 0] == pytest.approx(good, abs=1e-4)
    right = [a > b and pair[2] != pair[3] for a, b, pair in zip(good, bad, PAIRS, strict=True)]
    expected = {"agreement": sum(right[:3]) / 3, "order": sum(right[3:5]) / 2, "npi": right[5] / 1}
    assert {score.paradigm: score.accuracy for score in scores.paradigms} == expected
    phenomena = {
        "number": expected["agreement"],
        "word order": (expected["order"] + expected["npi"]) / 2,
    }
    assert scores.by_phenomenon == pytest.approx(phenomena)
    assert scores.accuracy == pytest.approx(sum(expected.values()) / 3)
    assert scores.num_ties == 1


def test_the_command_prints_a_table_and_writes_files(masked_lm, tmp_path, bert_jax_here):
    pairs = write(tmp_path / "pairs.jsonl", PAIRS)
    output, plot = tmp_path / "scores.json", tmp_path / "scores.png"
    done = bert_jax_here(
        *("evaluate", masked_lm("Bert").ours, "--minimal-pairs", pairs, "--max-pairs", "2"),
        *("--whole-words", "--output", output, "--plot", plot),
    )
    assert done.code == 0
    values = json.loads(output.read_text(encoding="utf-8"))
    assert values["pairs"] == 5 and values["whole_words"]
    assert [row["pairs"] for row in values["paradigms"].values()] == [2, 2, 1]
    rows = {line.split("  ")[0].strip(): line.split()[-2:] for line in done.output.splitlines()[3:]}
    assert rows["all paradigms"] == [f"{values['accuracy']:.1%}", "5"]
    assert rows["word order"] == [f"{values['phenomena']['word order']:.1%}", "3"]
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_a_sample_is_fixed_and_keeps_the_order(tmp_path):
    pairs = read_minimal_pairs(
        write(tmp_path / "a.jsonl", [("u", "p", f"good {n}", f"bad {n}") for n in range(50)])
    )
    sample = sample_pairs(pairs, 10)
    assert sample == sample_pairs(pairs, 10) and len(sample) == 10
    numbers = [int(pair.good.split()[1]) for pair in sample]
    assert numbers == sorted(set(numbers)) and numbers != list(range(10))
    assert sample_pairs(pairs, 100) == sample_pairs(pairs, None) == pairs


GOOD = {"UID": "u", "linguistics_term": "p", "sentence_good": "a b", "sentence_bad": "a c"}


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([GOOD | {"sentence_bad": None}], r":1: sentence_bad is null"),
        ([GOOD, {"UID": "u"}], r":2: no field 'sentence_good'; the fields are 'UID'"),
        ([GOOD | {"sentence_good": " "}], r":1: sentence_good is empty"),
        (
            [GOOD | {"sentence_good": "a c"}] * 2,
            r":1: the two sentences of every pair are identical",
        ),
        (
            [GOOD, GOOD | {"linguistics_term": "q"}],
            r":2: the paradigm 'u' belongs to the phenomenon 'q'",
        ),
        ([GOOD | {"sentence_bad": "\ud800"}], r":1: sentence_bad has a lone surrogate"),
        ([GOOD, GOOD | {"sentence_bad": "a " * 60}], r":2: the sentence has 62 tokens, .* most 40"),
        ([], "contains no minimal pairs"),
    ],
)
def test_unusable_pairs_are_refused(masked_lm, tmp_path, lines, message):
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        score_minimal_pairs(masked_lm("Bert").ours, path)


def test_other_files_and_models_are_refused(masked_lm, model_without_head, tmp_path):
    with pytest.raises(ValueError, match="no such file"):
        score_minimal_pairs(masked_lm("Bert").ours, tmp_path / "missing.jsonl")
    text = tmp_path / "pairs.txt"
    text.write_text("a\n", encoding="utf-8")
    with pytest.raises(ValueError, match="minimal pairs are read from JSON Lines"):
        score_minimal_pairs(masked_lm("Bert").ours, text)
    with pytest.raises(
        ValueError, match="this model does not score text. It has no head: use `bj.Embed`"
    ):
        score_minimal_pairs(model_without_head, write(tmp_path / "pairs.jsonl", PAIRS))
    with pytest.raises(ValueError, match="max_pairs=0: expected 1 or more"):
        score_minimal_pairs(masked_lm("Bert").ours, text, max_pairs=0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--whole-words"], "--whole-words: applies only to --minimal-pairs. Add --minimal-pairs"),
        (["--text", "a", "--plot", "x.png"], "--plot: applies only to --minimal-pairs. Omit"),
        (["--text", "a", "--minimal-pairs", "b"], "choose one of the two"),
        (["--minimal-pairs", "b", "--data", "c"], "--data: applies only to a fine-tuned model"),
    ],
)
def test_options_of_other_evaluations_are_refused(bert_jax_here, options, message):
    done = bert_jax_here("evaluate", "runs/mine", *options)
    assert done.code == 2 and message in done.errors
