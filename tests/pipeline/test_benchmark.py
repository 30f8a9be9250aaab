"""Test that measuring speed from Python prints nothing."""

from __future__ import annotations

import pytest

from bert_jax.corpus.benchmark import measure_preparation
from bert_jax.corpus.corpus import Corpus
from bert_jax.corpus.synthetic import random_documents, synthetic_vocabulary, write_corpus
from bert_jax.corpus.train_tokenizer import train_tokenizer
from bert_jax.pipeline.benchmark import measure_inline, measure_loader
from bert_jax.pipeline.examples import ExampleConfig, ExampleSource
from bert_jax.text.documents import SourceOptions


@pytest.fixture(scope="module")
def examples(tmp_path_factory) -> ExampleSource:
    directory = tmp_path_factory.mktemp("corpus")
    documents = random_documents(5_000, 300, seed=0)
    write_corpus(directory, documents, documents[:3], max_length=64, vocab_size=300)
    return ExampleSource(Corpus(directory, "train"), synthetic_vocabulary(300), ExampleConfig(0))


def test_one_core_and_the_loader_are_measured(examples, capfd) -> None:
    inline = measure_inline(examples, 16, 0.05)
    assert inline.tokens_per_second * inline.seconds_per_batch == pytest.approx(16 * 64)
    assert 0.5 < inline.filled <= 1 and inline.processor_seconds > 0
    assert {"order", "read", "decode", "pair"} <= inline.stages.keys()
    assert sum(inline.stages.values()) > 0
    loader = measure_loader(examples, 16, 0.05, 0)
    assert loader.tokens_per_second * loader.seconds_per_batch == pytest.approx(16 * 64)
    assert capfd.readouterr() == ("", "")


def test_preparation_and_the_plain_loop_are_measured(capfd, monkeypatch, tmp_path) -> None:
    for name in ("TOKENIZERS_PARALLELISM", "RAYON_NUM_THREADS"):
        monkeypatch.setenv(name, "1")  # The variable is restored after the test.
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join(f"Readers read books about number {i}." for i in range(60)))
    tokenizer = train_tokenizer(text, vocab_size=300, num_unused=0)
    capfd.readouterr()
    speed = measure_preparation(
        [str(text)], tokenizer, sources=SourceOptions(), workers=1, repeat=1
    )
    assert (speed.counts.documents, speed.counts.files) == (60, 1)
    assert 0 < speed.plain_seconds and 0 < speed.prepare_seconds
    assert speed.peak_worker_memory > 1 << 20
    assert capfd.readouterr() == ("", "")
