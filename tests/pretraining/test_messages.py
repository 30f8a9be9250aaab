"""Test the messages that a pretraining run prints before it starts."""

from types import SimpleNamespace
from typing import Any

from bert_jax.pretraining.messages import (
    few_pairs,
    leaks,
    rate_of_another_muon,
    surplus_rows,
)
from bert_jax.training.optimizer import OptimizerConfig


def test_a_note_warns_of_a_table_much_larger_than_its_vocabulary() -> None:
    assert surplus_rows(30_522, 30_522) == surplus_rows(30_522, 30_592) == []
    assert surplus_rows(1_000, 2_023) == []
    assert len(surplus_rows(1_000, 2_024)) == 1
    (line,) = surplus_rows(1_000, 30_522)
    assert "model.vocab_size=30,522, but the tokenizer has only 1,000 tokens" in line
    assert line.endswith("Set --config.model.vocab_size=1000")


def test_a_note_warns_of_a_rate_for_muon_with_another_scaling() -> None:
    (line,) = rate_of_another_muon(OptimizerConfig(name="muon", peak_learning_rate=0.02))
    assert line.startswith("NOTE       optimizer.peak_learning_rate=0.02 is high: rates")
    assert rate_of_another_muon(OptimizerConfig(name="muon", peak_learning_rate=4e-3)) == []
    assert rate_of_another_muon(OptimizerConfig(name="lamb", peak_learning_rate=0.02)) == []


def test_a_note_warns_of_a_corpus_with_few_pairs() -> None:
    def corpus(
        name: str, documents: int, sentences: int, length: int = 128, *, spaced: bool = False
    ) -> Any:
        split = SimpleNamespace(
            num_documents=documents, num_sentences=sentences, num_tokens=30 * sentences
        )
        train = SimpleNamespace(manifest=SimpleNamespace(train=split))
        config = SimpleNamespace(corpus=f"corpora/{name}", sequence_length=length)
        tokenizer = SimpleNamespace(spaces_are_text=spaced)
        return SimpleNamespace(name=name, train=train, config=config, tokenizer=tokenizer)

    corpora = [corpus("phase1", 1_000, 1_004), corpus("phase2", 1_000, 5_000)]
    (line,) = few_pairs("sentence_order", corpora)
    assert "phase1: at most 0.4% of the documents in corpora/phase1 have two sentences" in line
    assert few_pairs("none", corpora) == []
    # Byte-level BPE tokens reveal which sentence begins a document. Therefore, this sentence is
    # not swapped.
    pairs = [corpus("phase1", 1_000, 1_900, spaced=True)]
    (line,) = few_pairs("sentence_order", pairs)
    assert "at most 45.0% of the documents in corpora/phase1 have three sentences" in line
    assert few_pairs("next_sentence", pairs) == []
    # In books and Wikipedia, only one in fifty rows of 32 tokens has two whole sentences to order,
    # compared with three quarters of the rows of 128 tokens.
    short = [corpus("phase1", 1_000, 5_000, length=32)]
    (line,) = few_pairs("sentence_order", short)
    assert "phase1: rows have 32 tokens, and sentences have 30 on average" in line
    assert few_pairs("next_sentence", short) == []


def test_a_note_warns_of_held_out_text_that_an_earlier_phase_trains_on() -> None:
    def corpus(name: str, share: float, *sources: dict[str, str]) -> Any:
        options = {"heldout_fraction": share}
        train = SimpleNamespace(manifest=SimpleNamespace(options=options, sources=sources))
        return SimpleNamespace(name=name, train=train, config=SimpleNamespace(corpus=f"c/{name}"))

    first, same, less, more = (
        corpus("phase1", 0.01), corpus("phase2", 0.01), corpus("phase3", 0.005),
        corpus("phase4", 0.05),
    )  # fmt: skip
    assert leaks([first]) == leaks([first, same]) == leaks([first, less]) == []
    (line,) = leaks([first, same, more])
    assert (
        "phase4: c/phase4 holds out 5.00% of its documents, but c/phase1 holds out only 1.00%. "
        in line
    )
    assert "phase1 trains on some documents that phase4 is evaluated on" in line
    assert len(leaks([first, less, same, more])) == 2
    books, mine = {"path": "/books.txt"}, {"path": "/mine.txt"}
    held_out = mine | {"split": "heldout"}
    whole = corpus("phase1", 0.0, held_out, books)
    assert leaks([whole, corpus("phase2", 0.0, held_out, books)]) == []
    assert leaks([whole, corpus("phase2", 0.0, held_out, books, {"path": "/more.txt"})]) == []
    (line,) = leaks([corpus("phase1", 0.01, books, mine), corpus("phase2", 0.0, held_out, books)])
    assert "phase2: /mine.txt is held out in c/phase2 but not in c/phase1. If both" in line
    (line,) = leaks([corpus("phase1", 0.0, books), corpus("phase2", 0.0, held_out, books)])
    assert (
        "phase1 trains on them. Prepare both with the same --held-out, or the same --held-" in line
    )
    (line,) = leaks([whole, corpus("phase2", 0.01, books, mine)])
    assert "phase1 trains on some documents that phase2 is evaluated on" in line
