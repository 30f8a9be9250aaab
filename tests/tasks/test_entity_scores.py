"""Compare entities and their scores with seqeval's, for valid and invalid tag sequences."""

from __future__ import annotations

import itertools
import random
import warnings
from pathlib import Path

import pytest
from seqeval import metrics as seqeval
from seqeval.metrics.sequence_labeling import get_entities
from seqeval.scheme import BILOU, IOBES

from bert_jax.tasks.span_scores import (
    PREFIXES,
    Scheme,
    entities_of,
    entity_counts,
    entity_scores,
    scheme_of,
    tag_accuracy,
)

SCHEMES: tuple[Scheme, ...] = ("IOB1", "IOB2", "BIOES")
OF_BIOES = {"BILOU": str.maketrans("LU", "ES"), "BMES": str.maketrans("M", "I")}


def tags_of(scheme: Scheme, types: tuple[str, ...]) -> list[str]:
    return ["O", *(f"{prefix}-{kind}" for prefix in PREFIXES[scheme] for kind in types)]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_entities_of_all_short_sequences_match_seqeval(scheme: Scheme) -> None:
    alphabet = [*tags_of(scheme, ("A", "B-C")), "I"]
    for length in (1, 2, 3, 4):
        for tags in itertools.product(alphabet, repeat=length):
            assert entities_of(tags, scheme) == get_entities(list(tags)), tags


@pytest.mark.parametrize("scheme", SCHEMES)
def test_scores_of_random_sequences_match_seqeval(scheme: Scheme) -> None:
    rng = random.Random(scheme)
    alphabet = tags_of(scheme, ("PER", "LOC", "X-Y"))
    for _ in range(1000):
        gold, predicted = [], []
        for _ in range(rng.randint(1, 5)):
            tags = rng.choices(alphabet, [8, *[1] * (len(alphabet) - 1)], k=rng.randint(1, 9))
            wrong = rng.choice([0.0, 0.2, 1.0])
            gold.append(tags)
            predicted.append([rng.choice(alphabet) if rng.random() < wrong else t for t in tags])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # seqeval warns about sequences without entities.
            expected = {
                name: getattr(seqeval, f"{name}_score")(gold, predicted)
                for name in ("precision", "recall", "f1")
            }
            rows = seqeval.classification_report(gold, predicted, output_dict=True)
        assert entity_scores(predicted, gold, scheme) == pytest.approx(expected)
        assert tag_accuracy(predicted, gold) == seqeval.accuracy_score(gold, predicted)
        counts_by_type = entity_counts(predicted, gold, scheme)
        assert list(counts_by_type) == sorted(name for name in rows if not name.endswith(" avg"))
        for kind, counts in counts_by_type.items():
            expected = {name.replace("-score", ""): value for name, value in rows[kind].items()}
            assert counts.scores() | {"support": counts.gold} == pytest.approx(expected)


@pytest.mark.parametrize("scheme", ["BILOU", "BMES"])
def test_bilou_and_bmes_are_bioes_with_other_letters(scheme: Scheme) -> None:
    letters = {value: key for key, value in OF_BIOES[scheme].items()}

    def in_scheme(tag: str) -> str:
        return tag[:1].translate(letters) + tag[1:]

    alphabet = [*tags_of("BIOES", ("A", "B-C")), "I", "S"]
    for length in (1, 2, 3):
        for tags in itertools.product(alphabet, repeat=length):
            assert entities_of(list(map(in_scheme, tags)), scheme) == get_entities(list(tags)), tags


@pytest.mark.parametrize("scheme", ["BILOU", "BMES"])
def test_scores_of_valid_sequences_match_the_strict_mode_of_seqeval(scheme: Scheme) -> None:
    """Test BILOU, which seqeval supports, and BMES, which is IOBES with M instead of I."""
    rng = random.Random(0)
    inside, last, single = {"BILOU": "ILU", "BMES": "MES"}[scheme]

    def written(parts: list[tuple[int, str]]) -> list[str]:
        tags = []
        for size, kind in parts:
            prefixes = single if size == 1 else ["B", *inside * (size - 2), last]
            tags += [f"{prefix}-{kind}" if kind != "O" else "O" for prefix in prefixes]
        return tags

    for _ in range(50):
        gold, predicted = [], []
        for _ in range(8):
            parts = [(rng.randint(1, 4), rng.choice(["PER", "LOC", "O"])) for _ in range(5)]
            gold.append(written(parts))
            wrong = [(n, rng.choice(["PER", "O", kind, kind])) for n, kind in parts]
            predicted.append(written(wrong))
        seqeval_tags = [
            [tag if scheme == "BILOU" else tag.replace("M-", "I-") for tag in tags]
            for tags in (*gold, *predicted)
        ]
        strict = {"mode": "strict", "scheme": BILOU if scheme == "BILOU" else IOBES}
        expected = {
            name: getattr(seqeval, f"{name}_score")(seqeval_tags[:8], seqeval_tags[8:], **strict)
            for name in ("precision", "recall", "f1")
        }
        assert 0 < expected["f1"] < 1
        assert entity_scores(predicted, gold, scheme) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("labels", "scheme"),
    [
        ("O B-A L-A U-A I-A", "BILOU"),
        ("O U-A", "BILOU"),
        ("O B-A M-A E-A S-A", "BMES"),
        ("B M E S", "BMES"),  # The tags for Chinese word segmentation have no type.
        ("O B-A E-A S-A", "BIOES"),  # This sequence is also valid in BMES, with the same meaning.
        ("O B-A I-A M-A", None),
        ("O B-A U-A S-A", None),
        ("M-1 N-2", None),
    ],
)
def test_the_scheme_of_labels(labels: str, scheme: Scheme | None) -> None:
    assert scheme_of(labels.split()) == scheme


def test_the_example_of_conlleval() -> None:
    """Test adjacent IOB1 entities: the second begins with B-, or I- if its type is different."""
    tags = ["I-PER", "I-PER", "B-PER", "I-LOC", "O", "I-LOC"]
    expected = [("PER", 0, 1), ("PER", 2, 2), ("LOC", 3, 3), ("LOC", 5, 5)]
    assert entities_of(tags, "IOB1") == expected


def test_real_tags(shared_data: Path) -> None:
    file = next((shared_data / "ner_wnut17").glob("*dev*"))
    sentences = [
        [line.split("\t")[-1] for line in block.splitlines() if line]
        for block in file.read_text(encoding="utf-8").split("\n\n")
    ]
    gold = [sentence for sentence in sentences if sentence]
    rng = random.Random(0)
    tags = sorted({tag for sentence in gold for tag in sentence})
    predicted = [[rng.choice(tags) if rng.random() < 0.1 else t for t in s] for s in gold]
    scores = entity_scores(predicted, gold, "IOB2")
    assert scores["f1"] == pytest.approx(seqeval.f1_score(gold, predicted))
    assert 0.2 < scores["f1"] < 0.9


def test_scores_without_entities_are_zero() -> None:
    assert entity_scores([["O"]], [["O"]], "IOB2") == {"precision": 0, "recall": 0, "f1": 0}
    assert entity_counts([["O"]], [["O"]], "IOB2") == {}


@pytest.mark.parametrize("tag", ["E-PER", "PER", "B-", "-PER", "", "o", "BI-PER"])
def test_a_tag_of_another_scheme_is_refused(tag: str) -> None:
    with pytest.raises(ValueError, match="is not valid in IOB2: expected O, B-TYPE, I-TYPE"):
        entities_of(["O", tag], "IOB2")


def test_sequences_of_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="1 predicted sequences for 2 gold sequences"):
        entity_scores([["O"]], [["O"], ["O"]], "IOB2")
    with pytest.raises(ValueError, match="sequence 1: 2 predicted tags for 1 gold tags"):
        tag_accuracy([["O"], ["O", "O"]], [["O"], ["O"]])
    with pytest.raises(ValueError, match="at least one token"):
        tag_accuracy([], [])
