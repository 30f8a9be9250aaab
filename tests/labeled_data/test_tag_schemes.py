"""Test recognizing and converting entity tagging schemes, and rejecting mixed schemes."""

from __future__ import annotations

import random

import pytest

from bert_jax.labeled_data.tag_schemes import recognize_scheme, to_closed, to_iob1, to_iob2

# These are each scheme's letters for inside, last and single.
CLOSED = {"BIOES": "IES", "BILOU": "ILU", "BMES": "MES"}
# An entity consists of its first word, its last word and its type.
Entities = list[tuple[int, int, str]]


def random_sentence(rng: random.Random) -> tuple[int, Entities]:
    word, entities = 0, []
    for _ in range(rng.randint(0, 5)):
        word += rng.choice([0, 0, 1, 2])
        size = rng.randint(1, 3)
        entities.append((word, word + size - 1, rng.choice(["PER", "LOC", "I-X"])))
        word += size
    return word + rng.randint(0, 2) or 1, entities


def tags_in_scheme(size: int, entities: Entities, scheme: str) -> list[str]:
    """Return the tags for the given entities, following the definition of a scheme."""
    inside, end, single = CLOSED.get(scheme, "III")
    tags = ["O"] * size
    last_of = {last: kind for _, last, kind in entities}
    for first, last, kind in entities:
        for word in range(first, last + 1):
            tags[word] = f"{inside}-{kind}"
        if scheme in CLOSED:
            tags[last] = f"{end}-{kind}"
        if scheme != "IOB1" or last_of.get(first - 1) == kind:
            tags[first] = f"B-{kind}"
        if scheme in CLOSED and first == last:
            tags[first] = f"{single}-{kind}"
    return tags


@pytest.mark.parametrize("scheme", ["IOB1", "IOB2", *CLOSED])
def test_all_schemes_are_recognized_and_converted(scheme: str) -> None:
    rng = random.Random(0)
    for _ in range(300):
        sentences = [random_sentence(rng) for _ in range(4)] + [(5, [(0, 2, "PER"), (3, 3, "LOC")])]
        tags = [tags_in_scheme(*sentence, scheme) for sentence in sentences]
        assert recognize_scheme(tags) == scheme
        for sentence, line in zip(sentences, tags, strict=True):
            iob1, iob2 = (tags_in_scheme(*sentence, name) for name in ("IOB1", "IOB2"))
            assert to_iob2(line, scheme) == iob2  # type: ignore[arg-type]
            assert to_iob1(line, scheme) == iob1  # type: ignore[arg-type]
            if scheme in CLOSED:
                assert to_closed(iob2, scheme) == line  # type: ignore[arg-type]


def test_invalid_predictions_are_converted_as_read_by_conlleval() -> None:
    tags = ["I-PER", "I-PER", "I-LOC", "O", "B-LOC", "B-LOC", "I-LOC", "I-LOC"]
    expected = ["B-PER", "L-PER", "U-LOC", "O", "U-LOC", "B-LOC", "I-LOC", "L-LOC"]
    assert to_closed(tags, "BILOU") == expected
    assert to_closed(["NOUN", "O"], "BMES") == ["NOUN", "O"]


@pytest.mark.parametrize(
    "tags, scheme",
    [
        (["U-LOC", "O"], "BILOU"),
        (["B-LOC", "L-LOC"], "BILOU"),
        (["B-LOC", "M-LOC", "E-LOC"], "BMES"),
        (["B-LOC", "E-LOC", "S-PER"], "BIOES"),
        (["M-1", "N-2", "V-3"], "plain"),
        (["U-1", "PROPN"], "plain"),
    ],
)
def test_a_few_tags_are_enough_to_recognize_a_scheme(tags: list[str], scheme: str) -> None:
    assert recognize_scheme([tags]) == scheme


def test_tags_without_prefixes_are_plain() -> None:
    assert recognize_scheme([["NOUN", "-LRB-", "O"], ["PRP$"]]) == "plain"
    assert recognize_scheme([["O", "O"]]) == "plain"
    assert to_iob2(["NOUN", "O"], "plain") == ["NOUN", "O"]


@pytest.mark.parametrize(
    "tags, message",
    [
        (["B-LOC", "O", "I-PER"], "f:1: 'B-LOC' begins .* IOB2, but f:3: 'I-PER' begins .* IOB1"),
        (["I-LOC", "B-PER"], "f:2: 'B-PER' begins .* IOB2, but f:1: 'I-LOC' begins .* IOB1"),
        (["S-LOC", "B-PER", "O"], "S- implies BIOES, but in f:2, 'B-PER' is invalid: no tag of"),
        (["S-LOC", "B-PER", "E-PER", "B-PER", "O"], "E- and S- imply BIOES, but in f:4, 'B-PER'"),
        (["S-LOC", "I-PER"], "f:2, 'I-PER' is invalid: no entity of its type precedes it"),
        (["S-LOC", "B-PER", "E-LOC"], "f:2, 'B-PER' is invalid: no tag of its type follows it"),
        (["S-LOC", "B-PER"], "f:2, 'B-PER' is invalid: no tag of its type follows it"),
        (["B-LOC", "X-LOC"], "f:2: tag 'X-LOC' has no prefix of .*learn_as='as_written'"),
        (["U-LOC", "S-PER"], "U- implies BILOU, but in f:2, 'S-PER' .*: S- is not a prefix of"),
        (["U-LOC", "B-LOC", "M-LOC", "L-LOC"], "f:3, 'M-LOC' .*: M- is not a prefix of BILOU"),
        (["B-LOC", "M-LOC", "E-LOC", "I-LOC"], "M- implies BMES, but in f:4, 'I-LOC' .*: I- is"),
        (["U-LOC", "B-PER", "O"], "U- implies BILOU, but in f:2, 'B-PER' is invalid: no tag of"),
        (["B-PER", "L-PER", "I-PER"], "f:3, 'I-PER' is invalid: no entity of its type precedes it"),
        (["B-LOC", "M-LOC"], "M- implies BMES, but in f:2, 'M-LOC' is invalid: no tag of its type"),
        (["U-LOC", "B-LOC", "NOUN"], r"f:3: tag 'NOUN'"),
        (["B-LOC", "NOUN"], r"f:2: tag 'NOUN'"),
    ],
)  # fmt: skip
def test_errors_name_the_lines_of_mixed_schemes(tags: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        recognize_scheme([tags], [[f"f:{line}" for line in range(1, len(tags) + 1)]])
