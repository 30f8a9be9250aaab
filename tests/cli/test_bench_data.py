"""Test that `bert-jax bench data` measures loading speed with a given or a temporary corpus."""

from __future__ import annotations

import re

import pytest

from bert_jax.cli.main import main
from bert_jax.corpus.manifest import TOKENIZER
from bert_jax.corpus.synthetic import random_documents, write_corpus
from bert_jax.tokenizers.tokenizer import Tokenizer

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"word{n}" for n in range(295))]
SHORT = ["--batch-size", "16", "--seconds", "0.1", "--workers", "0"]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    directory = tmp_path_factory.mktemp("corpus")
    documents = random_documents(5_000, len(WORDS), seed=0)
    write_corpus(directory, documents, documents[:3], max_length=64, vocab_size=len(WORDS))
    vocabulary = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
    vocabulary.write_text("\n".join(WORDS) + "\n")
    Tokenizer.load(vocabulary).save(directory / TOKENIZER)
    return directory


def assert_measured(output: str) -> None:
    speeds = re.findall(r"^(one core, inline|loader, 0 workers) +([\d.]+) M tokens/s", output, re.M)
    assert [name for name, _ in speeds] == ["one core, inline", "loader, 0 workers"]
    assert all(float(speed) > 0 for _, speed in speeds)


def test_a_prepared_corpus_is_measured(prepared, capsys):
    assert main(["bench", "data", "--corpus", str(prepared), *SHORT]) == 0
    output = capsys.readouterr().out
    assert_measured(output)
    assert "sentence pairs: next_sentence" in output and "no --corpus given" not in output
    stages = re.search(r"order (\d+)%, read (\d+)%, decode (\d+)%, pair (\d+)%", output)
    assert stages is not None


def test_without_a_corpus_a_temporary_one_is_measured(capsys):
    words = ["--max-length", "64", "--million-tokens", "0.02", "--sentence-pairs", "none"]
    assert main(["bench", "data", *SHORT, *words]) == 0
    output = capsys.readouterr().out
    assert_measured(output)
    assert "no --corpus given: measuring on a temporary corpus of random documents" in output
    assert "sentence pairs: none" in output


def test_a_corpus_smaller_than_a_batch_is_refused(prepared, capsys):
    assert main(["bench", "data", "--corpus", str(prepared), "--batch-size", "1000"]) == 2
    assert "too few for a batch of 1000" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--max-length", "--million-tokens"])
def test_options_of_the_temporary_corpus_are_refused_with_a_given_one(prepared, capsys, option):
    assert main(["bench", "data", "--corpus", str(prepared), *SHORT, option, "64"]) == 2
    assert f"{option} applies only to the temporary corpus" in capsys.readouterr().err
