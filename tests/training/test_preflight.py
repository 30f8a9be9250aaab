"""Test that an impossible run is rejected before step 0, with a list of all its mistakes."""

import dataclasses
from typing import Any

import pytest
from jax.sharding import Mesh

from bert_jax.models.config import EncoderConfig
from bert_jax.training.preflight import PhaseFacts, check
from bert_jax.training.sharding import MeshConfig, make_mesh

MODEL = EncoderConfig(vocab_size=1000, max_positions=128)
PHASE = PhaseFacts(
    name="phase1",
    corpus="data/a",
    sequence_length=128,
    batch_size=32,
    warmup_batch_sizes=(),
    evaluation_batch_size=16,
    corpus_length=128,
    corpus_vocab_size=1000,
    corpus_documents=50,
    held_out_documents=5,
    corpus_sentences=500,
    held_out_sentences=50,
    corpus_kind="wordpiece",
    num_records=32,
    held_out_records=1,
    corpus_tokenizer_fingerprint="0123456789abcdef",
    tokenizer_fingerprint="0123456789abcdef",
)


@pytest.fixture(scope="module")
def mesh() -> Mesh:
    return make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))


def problems(
    mesh: Mesh,
    *phases: PhaseFacts,
    model: EncoderConfig = MODEL,
    accumulation_steps: int = 1,
    sentence_pairs: Any = "next_sentence",
    vocabulary: str = "any",
) -> list[str]:
    """Return the lines of the error message without its heading."""
    with pytest.raises(ValueError, match="^this run cannot start:\n") as error:
        check(
            model,
            phases,
            mesh,
            accumulation_steps=accumulation_steps,
            sentence_pairs=sentence_pairs,
            vocabulary=vocabulary,
        )
    return [line.strip() for line in str(error.value).splitlines()[1:]]


def test_a_run_that_just_fits_is_accepted(mesh: Mesh) -> None:
    # One phase's batches are as large as the corpus; the other's are as small as the mesh allows.
    second = dataclasses.replace(PHASE, name="phase2", corpus="data/b", batch_size=8)
    assert (
        check(MODEL, [PHASE, second], mesh, accumulation_steps=2, sentence_pairs="next_sentence")
        is None
    )
    single = dataclasses.replace(PHASE, corpus_documents=1, held_out_documents=1)
    model = dataclasses.replace(MODEL, num_segments=0)
    assert check(model, [single], mesh, accumulation_steps=1, sentence_pairs="none") is None
    blind = dataclasses.replace(
        PHASE,
        held_out_records=0,
        held_out_documents=2,
        held_out_sentences=2,
        evaluation_batch_size=3,
    )
    options: Any = dict(accumulation_steps=1, sentence_pairs="next_sentence", evaluates=False)
    assert check(MODEL, [blind], mesh, **options) is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"tokenizer_fingerprint": "fedcba9876543210"},
            "the tokenizer in data/a (fedcba987654) is not the one that the corpus was prepared "
            "with (0123456789ab): restore the original tokenizer, or prepare the corpus again",
        ),
        (
            {"corpus_vocab_size": 1001},
            "data/a contains token ids up to 1000, but model.vocab_size is 1000: set it to at "
            "least 1001",
        ),
        (
            {"sequence_length": 129, "corpus_length": 129},
            "sequence_length=129 is greater than model.max_positions=128: shorten the sequences "
            "or raise model.max_positions",
        ),
        (
            {"corpus_length": 64},
            "sequence_length=128, but data/a was prepared with --max-length 64: prepare the corpus "
            "again or change sequence_length",
        ),
        (
            {"batch_size": 30},
            "batch_size=30 is not divisible by 4 (4 parts of the mesh x accumulation_steps=1). "
            "Set it to a multiple of 4",
        ),
        (
            {"evaluation_batch_size": 18},
            "evaluation batches of 18 sequences are not divisible by the 4 parts of the mesh: "
            "change evaluation.batch_size",
        ),
        (
            {"num_records": 31},
            "data/a has 31 training records, fewer than one batch of 32: use more text or a "
            "smaller batch_size",
        ),
        (
            {"held_out_records": 0},
            "data/a has no held-out records to evaluate on: prepare it with a larger --held-out, "
            "or with --held-out-input; or set evaluation.every_steps=0 and checkpoint.keep_best=0",
        ),
        (
            {"corpus_documents": 1},
            "next_sentence takes second segments from other documents, but the training split of "
            "data/a has only one document: separate documents by blank lines, hold out a larger "
            "fraction, or set sentence_pairs to 'none' or 'sentence_order'",
        ),
        (
            {"held_out_documents": 1},
            "next_sentence takes second segments from other documents, but the held-out split of "
            "data/a has only one document: separate documents by blank lines, hold out a larger "
            "fraction, or set sentence_pairs to 'none' or 'sentence_order'",
        ),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_the_message_names_each_mistake(mesh: Mesh, changes: dict[str, Any], message: str) -> None:
    phase = dataclasses.replace(PHASE, **changes)
    assert problems(mesh, phase) == [f"phase phase1: {message}"]


def test_accumulation_splits_the_batch_further(mesh: Mesh) -> None:
    assert problems(mesh, PHASE, accumulation_steps=16) == [
        "phase phase1: batch_size=32 is not divisible by 64 (4 parts of the mesh x "
        "accumulation_steps=16). Set it to a multiple of 64"
    ]


def test_pairs_need_two_segments(mesh: Mesh) -> None:
    model = dataclasses.replace(MODEL, num_segments=1)
    assert problems(mesh, PHASE, model=model) == [
        "sentence_pairs='next_sentence' needs model.num_segments >= 2, not 1: segment ids "
        "distinguish the sentences of a pair"
    ]


def test_phases_share_a_tokenizer(mesh: Mesh) -> None:
    other = dataclasses.replace(
        PHASE,
        name="phase2",
        corpus="data/b",
        corpus_tokenizer_fingerprint="fedcba9876543210",
        tokenizer_fingerprint="fedcba9876543210",
    )
    assert problems(mesh, PHASE, other) == [
        "the phases' corpora were prepared with different tokenizers (data/a: 0123456789ab, "
        "data/b: fedcba987654): prepare all of them with the same tokenizer"
    ]


def test_all_mistakes_are_reported_at_once(mesh: Mesh) -> None:
    first = dataclasses.replace(PHASE, num_records=3)
    second = dataclasses.replace(PHASE, name="phase2", corpus_vocab_size=2000, batch_size=31)
    lines = problems(mesh, first, second)
    assert [line.split(": ")[0] for line in lines] == ["phase phase1"] + 2 * ["phase phase2"]


@pytest.mark.parametrize("pairs", ["next_sentence", "sentence_order"])
def test_pairs_need_documents_of_two_sentences(mesh: Mesh, pairs: Any) -> None:
    phase = dataclasses.replace(PHASE, corpus_sentences=50)
    assert problems(mesh, phase, sentence_pairs=pairs) == [
        f"phase phase1: {pairs} splits documents between sentences, but no document in the "
        "training split of data/a has a second sentence: prepare documents with more sentences, "
        "or set sentence_pairs='none'"
    ]
    check(MODEL, [phase], mesh, accumulation_steps=1, sentence_pairs="none")


def test_a_vocabulary_of_another_kind_is_refused(mesh: Mesh) -> None:
    for kind in ("any", "wordpiece"):
        options: Any = dict(accumulation_steps=1, sentence_pairs="none", vocabulary=kind)
        check(MODEL, [PHASE], mesh, **options)
    assert problems(mesh, PHASE, vocabulary="byte_bpe") == [
        "phase phase1: data/a has a 'wordpiece' vocabulary, but the config requires 'byte_bpe': "
        "prepare the corpus with a tokenizer of that kind, or set vocabulary='any'"
    ]
