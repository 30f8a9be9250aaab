"""Test that tokenizers and corpora can be made from Python, and that nothing is printed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bert_jax.corpus.corpus import Corpus
from bert_jax.corpus.manifest import read_manifest
from bert_jax.corpus.prepare import prepare
from bert_jax.corpus.train_tokenizer import KINDS, train_tokenizer
from bert_jax.text.documents import SourceOptions
from bert_jax.tokenizers.tokenizer import Tokenizer

SENTENCE = "The café serves readers reading books about training tokenizers. They liked number {}."


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("\n\n".join(SENTENCE.format(i) for i in range(40)), encoding="utf-8")
    return path


@pytest.mark.parametrize(("kind", "size"), list(zip(KINDS, (250, 300, 90, 90), strict=True)))
def test_tokenizers_of_all_kinds_are_trained_and_written(kind, size, text, capfd, tmp_path) -> None:
    trained = train_tokenizer(text, kind=kind, vocab_size=size, output=tmp_path / "tokenizer")
    loaded = Tokenizer.load(tmp_path / "tokenizer")
    assert loaded.fingerprint == trained.fingerprint and trained.vocab_size <= size
    assert trained.lowercase == (kind != "byte-bpe")
    assert capfd.readouterr() == ("", "")
    unwritten = train_tokenizer([str(text)], kind=kind, vocab_size=size)
    assert unwritten.fingerprint == trained.fingerprint
    with pytest.raises(ValueError, match="^output=.*: already contains a tokenizer"):
        train_tokenizer(text, kind=kind, vocab_size=size, output=tmp_path / "tokenizer")


def test_options_affect_the_tokenizer(text, tmp_path) -> None:
    options = dict(vocab_size=200, num_unused=3, min_frequency=5)
    cased = train_tokenizer(text, lowercase=False, **options)
    assert not cased.lowercase and cased.cls_id == 5
    accents = train_tokenizer(text, keep_accents=True, **options)
    assert accents.lowercase and not accents.strips_accents
    lines = tmp_path / "lines.jsonl"
    lines.write_text('{"body": "some words some words"}\n' * 9)
    from_lines = train_tokenizer(
        lines, vocab_size=120, num_unused=0, sources=SourceOptions(text_field="body")
    )
    assert "words" in from_lines.vocabulary


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"kind": "bpe"}, "kind='bpe': expected one of 'wordpiece', 'byte-bpe'"),
        (
            {"kind": "byte-bpe", "lowercase": True},
            "lowercase=True: kind='byte-bpe' is always cased",
        ),
        (
            {"kind": "sentencepiece", "min_frequency": 2},
            "min_frequency=2: not supported by kind='s",
        ),
        ({"lowercase": False, "keep_accents": True}, "keep_accents: lowercase=False already"),
    ],
)
def test_contradictory_options_are_refused(options, problem, text) -> None:
    with pytest.raises(ValueError, match=problem):
        train_tokenizer(text, **options)


def test_progress_covers_both_passes(text) -> None:
    seen = []

    def record(reading) -> None:
        seen.append((reading.phase, reading.counts.documents, reading.finished, reading.fraction))

    train_tokenizer(text, vocab_size=250, on_progress=record)
    assert [phase for phase, *_ in seen] == ["counting characters"] * 41 + ["counting words"] * 41
    assert [row[1:] for row in seen if row[2]] == [(40, True, 1.0)] * 2


def test_a_tokenizer_or_its_path_gives_the_same_corpus(text, capfd, tmp_path) -> None:
    tokenizer = train_tokenizer(text, vocab_size=250, output=tmp_path / "tokenizer")
    reports = []
    options = dict(max_length=32, held_out=0.2, workers=1)
    first = prepare(text, tokenizer, tmp_path / "first", on_progress=reports.append, **options)
    assert first.path == tmp_path / "first" and len(reports) == 2
    assert first.manifest == read_manifest(first.path)
    assert first.manifest.max_length == 32 and first.manifest.heldout.num_documents > 0
    assert len(first.open("train")) == first.manifest.train.num_records
    assert len(Corpus(first, "heldout")) == first.manifest.heldout.num_records
    second = prepare([text], tmp_path / "tokenizer", str(tmp_path / "second"), **options)
    assert second.manifest.fingerprint == first.manifest.fingerprint
    # Like a work directory, a corpus directory contains its tokenizer.
    third = prepare(text, first.path, tmp_path / "third", **options)
    assert third.manifest.fingerprint == first.manifest.fingerprint
    assert prepare(text, tokenizer, tmp_path / "first", **options).manifest == first.manifest
    assert capfd.readouterr() == ("", "")


def test_held_out_inputs_replace_the_held_out_fraction(text, tmp_path) -> None:
    (tmp_path / "other.txt").write_text("Other words entirely.\n")
    tokenizer = train_tokenizer(text, vocab_size=250)
    made = prepare(
        text,
        tokenizer,
        tmp_path / "corpus",
        max_length=32,
        held_out_inputs=tmp_path / "other.txt",
        workers=1,
    )
    assert (made.manifest.train.num_documents, made.manifest.heldout.num_documents) == (40, 1)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"held_out": 2}, "held_out=2: expected a fraction"),
        ({"max_documents_per_record": 999}, "max_documents_per_record=999: expected 1 to"),
        ({"workers": 0}, "workers=0: expected at least 1"),
        ({"lowercase": True}, "lowercase=True: the tokenizer is already loaded"),
    ],
)
def test_errors_name_the_parameters(options, problem, text, tmp_path) -> None:
    tokenizer = train_tokenizer(text, vocab_size=250)
    with pytest.raises(ValueError, match=problem):
        prepare(text, tokenizer, tmp_path / "corpus", **options)
    assert not (tmp_path / "corpus").exists()


def test_the_error_in_a_script_without_a_main_guard_names_the_cause(text, tmp_path) -> None:
    train_tokenizer(text, vocab_size=250, output=tmp_path / "tokenizer")
    script = tmp_path / "script.py"
    script.write_text("import bert_jax as bj\nbj.prepare('text.txt', 'tokenizer', 'corpus')\n")
    command = [sys.executable, str(script)]
    failed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert failed.returncode == 1
    assert 'put its calls below `if __name__ == "__main__":`' in failed.stderr.splitlines()[-1]


def test_results_have_short_representations(text, tmp_path) -> None:
    tokenizer = train_tokenizer(text, vocab_size=250)
    corpus = prepare(text, tokenizer, tmp_path / "corpus", held_out=0)
    assert repr(tokenizer) == f"Tokenizer(kind='wordpiece', vocab_size={tokenizer.vocab_size})"
    assert repr(corpus) == f"PreparedCorpus(path={corpus.path!r})"
    assert repr(corpus.open("train")).endswith("records)")
