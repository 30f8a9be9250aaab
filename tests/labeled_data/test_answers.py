"""Compare answers with those of an exhaustive search, and test that correct answers are found."""

from __future__ import annotations

import json
import math
import unicodedata
from pathlib import Path

import numpy as np
import pytest
from scipy.special import softmax

from bert_jax.labeled_data.answers import (
    Answer,
    best_answers,
    write_squad_n_best,
    write_squad_predictions,
)
from bert_jax.labeled_data.span_windows import SpanWindows, span_windows
from bert_jax.labeled_data.squad import SpanExample, read_squad
from bert_jax.tokenizers.tokenizer import Tokenizer
from bert_jax.tokenizers.wordpiece_training import train_wordpiece

TORTURE = Path(__file__).parent.parent / "tokenizers/unicode_torture.txt"
SIZES = dict(max_length=30, doc_stride=8, max_query_length=10)


def examples_of(count: int) -> list[SpanExample]:
    lines = [line for line in TORTURE.read_text(encoding="utf-8").split("\n") if line.strip()]
    return [
        SpanExample(str(number), lines[number - 1][:12], lines[number], "")
        for number in range(count)
    ]


def tokenizer_of(examples: list[SpanExample], lowercase: bool = True) -> Tokenizer:
    lines = [example.context + " " + example.question for example in examples]
    return train_wordpiece(lines, vocab_size=2000, lowercase=lowercase, min_frequency=1)


def logits_of(windows: SpanWindows, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    shape = (len(windows), int(windows.features.lengths.max()) + 3)
    # Draw from only a few distinct values, so that ties are common.
    start, end = rng.integers(-4, 4, (2, *shape)).astype(np.float32)
    return start, end


def gold_logits(windows: SpanWindows) -> list[np.ndarray]:
    """Return start and end logits that are high at the targets and random at all other tokens."""
    rows, rng = np.arange(len(windows)), np.random.default_rng(0)
    shape = (len(windows), int(windows.features.lengths.max()))
    start_and_end = []
    for target in ("start_positions", "end_positions"):
        logits = rng.random(shape, np.float32)
        logits[rows, windows.features.targets[target]] = 10
        start_and_end.append(logits)
    return start_and_end


def all_spans(windows: SpanWindows, number: int, start, end, longest: int) -> list[tuple]:
    """Return (-score, begin, end, start logit, end logit) for each valid span for a question."""
    spans = []
    sequences = windows.features.sequences
    for row in np.flatnonzero(windows.examples == number):
        tokens = slice(sequences.starts[row], sequences.starts[row + 1])
        offsets = windows.character_offsets[tokens].tolist()
        maximum = windows.has_maximum_context[tokens]
        passage = range(sequences.second_starts[row], sequences.lengths[row] - 1)
        for first in passage:
            for last in range(first, min(first + longest, passage.stop)):
                if maximum[first]:
                    logits = float(start[row, first]), float(end[row, last])
                    spans.append((-sum(logits), offsets[first][0], offsets[last][1], *logits))
    return spans


@pytest.mark.parametrize("n_best, longest", [(1, 1), (5, 4), (20, 30), (1000, 6)])
def test_best_answers_match_an_exhaustive_search(n_best: int, longest: int) -> None:
    examples = examples_of(40)
    windows = span_windows(examples, tokenizer_of(examples), **SIZES, labeled=False)
    start, end = logits_of(windows, seed=n_best)
    answers = best_answers(windows, examples, start, end, n_best=n_best, max_answer_length=longest)
    assert [answer.id for answer in answers] == [example.id for example in examples]
    assert np.bincount(windows.examples).max() > 3
    for number, (example, answer) in enumerate(zip(examples, answers, strict=True)):
        spans = all_spans(windows, number, start, end, longest)
        # Sorting is stable, so earlier and shorter spans win ties.
        best = sorted(spans, key=lambda span: span[0])
        expected: dict[str, tuple] = {}
        for span in best:
            marks = example.context[span[2] :]
            while marks and unicodedata.category(marks[0]) == "Mn":
                marks = marks[1:]
            stop = len(example.context) - len(marks)
            if len(expected) < n_best:
                expected.setdefault(example.context[span[1] : stop], (span[1], stop, *span[3:]))
        actual = {c.text: (c.start, c.end, c.start_logit, c.end_logit) for c in answer.candidates}
        assert list(actual.items()) == list(expected.items()) and "" not in actual
        if not spans:  # There are no spans if the tokenizer drops the entire line.
            continue
        probabilities = softmax([span[2] + span[3] for span in expected.values()])
        np.testing.assert_allclose([c.probability for c in answer.candidates], probabilities, 1e-12)


def test_only_the_best_span_with_a_text_is_kept() -> None:
    example = SpanExample("q", "who", "the cat and the dog", "")
    tokenizer = tokenizer_of([example])
    windows = span_windows([example], tokenizer, labeled=False)
    start = np.zeros((1, 10), np.float32)
    start[0, 3 + 3] = 5  # This is the second "the".
    (answer,) = best_answers(windows, [example], start, start, max_answer_length=1)
    assert [candidate.text for candidate in answer.candidates] == ["the", "cat", "and", "dog"]
    assert (answer.candidates[0].start, answer.candidates[0].end) == (12, 15)
    assert math.fsum(candidate.probability for candidate in answer.candidates) == pytest.approx(1)


def test_repeated_texts_do_not_count_toward_n_best() -> None:
    """Check that n_best distinct texts are kept, as in the code released by Devlin et al."""
    example = SpanExample("q", "where?", "Paris. Paris. Paris. Paris. Paris. Paris. Lyon.", "")
    windows = span_windows([example], tokenizer_of([example]), labeled=False)
    start = np.zeros((1, int(windows.features.lengths.max())), np.float32)
    # These logits rank "Lyon" last of the 27 spans.
    start[0, windows.features.sequences.lengths[0] - 3 :] = -1
    possible = {"Paris", "Paris.", ".", ". Paris", ". Lyon", "Lyon", "Lyon."}
    for n_best, count in ((20, 7), (7, 7), (5, 5), (1, 1)):
        (answer,) = best_answers(
            windows, [example], start, start, n_best=n_best, max_answer_length=2
        )
        texts = [candidate.text for candidate in answer.candidates]
        assert len(texts) == count and possible.issuperset(texts) and len(set(texts)) == count
        assert math.fsum(c.probability for c in answer.candidates) == pytest.approx(1)


@pytest.mark.parametrize(
    "context, gold, expected",
    [
        ("Zoë ate crème brûlée in Kraków.", "crème brûlée", None),
        ("un cafe\u0301 et un the\u0301 noir", "cafe\u0301", None),
        # The answer includes the accent.
        ("un cafe\u0301 et un the\u0301 noir", "the", "the\u0301"),
        ("c a\u0301\u0323 b", "a\u0301\u0323", None),
        ("He met 👩‍🚀 and 🤖, then 👍🏽!", "🤖", None),
        ("He met 👩‍🚀 and 🤖, then 👍🏽!", "👩‍🚀", None),
        ("Stars ❤\ufe0f then stripes", "❤\ufe0f", None),
        ("東京は日本の首都です。", "日本", None),
        ("Die Straße ist groß.", "Straße", None),
        ("İstanbul ve İzmir, ilçe ISPARTA", "İzmir", None),
        ("İstanbul ve İzmir, ilçe ISPARTA", "İ", "İstanbul"),
        ("서울은 한국의 수도이다", "한국의", None),
        ("שָׁלוֹם עולם", "שָׁלוֹם", None),
        ("ﬁne ｆｕｌｌ\u3000ｗｉｄｔｈ text", "ｆｕｌｌ\u3000ｗｉｄｔｈ", None),
        ("zero\u200bwidth and soft\u00adhyphen", "soft\u00adhyphen", None),
        ("Ǆ ŉ ΐ ᾳ ẞ", "ΐ ᾳ", None),
        ("In Super Bowl 50 they won", "5", "50"),
        ("nine other contenders", "ten", "contenders"),
        ("tail\n\n spaces \t here", "spaces \t here", None),
        ("read [MASK] and [SEP] aloud", "[SEP]", None),
    ],
)
@pytest.mark.parametrize("lowercase", [True, False], ids=["uncased", "cased"])
def test_answers_are_exact_text_of_the_passage(
    context: str, gold: str, expected: str | None, lowercase: bool
) -> None:
    example = SpanExample("q", "what?", context, "", (gold,), (context.index(gold),))
    words = SpanExample("", "", "In Super Bowl 50 they won nine other contenders", "")
    windows = span_windows([example], tokenizer_of([example, words], lowercase), labeled=True)
    (answer,) = best_answers(windows, [example], *gold_logits(windows))
    assert answer.text == (expected or gold)


def test_answers_are_found_in_all_windows() -> None:
    words = [f"w{number}" for number in range(60)]
    context = " ".join(words)
    for number in range(0, 57, 4):
        gold = " ".join(words[number : number + 3])
        start = (context + " ").index(gold + " ")
        example = SpanExample("q", "w0", context, "", (gold,), (start,))
        windows = span_windows([example], tokenizer_of([example]), **SIZES, labeled=True)
        assert len(windows) > 3
        (answer,) = best_answers(windows, [example], *gold_logits(windows))
        assert answer.text == gold


def test_answers_are_empty_only_for_empty_passages() -> None:
    examples = [
        SpanExample("none", "who?", "", ""),
        SpanExample("spaces", "who?", " \u200b\n", ""),
        SpanExample("one", "who?", " x ", ""),
    ]
    windows = span_windows(examples, tokenizer_of(examples), labeled=False)
    shape = (3, windows.features.lengths.max())
    logits = np.full(shape, -1e30, np.float32)
    assert [answer.text for answer in best_answers(windows, examples, logits, logits)] == [
        "", "", "x",
    ]  # fmt: skip
    no_windows = span_windows([], tokenizer_of(examples), labeled=False)
    empty = np.zeros((0, 8), np.float32)
    assert best_answers(no_windows, [], empty, empty) == []


def test_non_finite_logits_of_the_passage_are_rejected() -> None:
    example = SpanExample("q7", "who?", "the cat", "")
    windows = span_windows([example], tokenizer_of([example]), labeled=False)
    start = np.zeros((1, 8), np.float32)
    start[0, [0, 7]] = -np.inf, np.nan  # Set the logits of [CLS] and of padding.
    assert best_answers(windows, [example], start, np.zeros_like(start))[0].text == "the"
    start[0, windows.features.sequences.second_starts[0]] = np.nan
    message = r"question q7: a passage token has the logits nan \(start\) and 0.0 \(end\)"
    with pytest.raises(ValueError, match=message):
        best_answers(windows, [example], start, np.zeros_like(start))
    for name in ("n_best", "max_answer_length"):
        with pytest.raises(ValueError, match=f"{name}=0: must be at least 1"):
            best_answers(windows, [example], start, start, **{name: 0})


def test_prediction_files_have_the_formats_of_squad(tmp_path: Path) -> None:
    example = SpanExample("q", "what?", "Zoë’s cat", "")
    windows = span_windows([example], tokenizer_of([example]), labeled=False)
    logits = np.zeros((1, 10), np.float32)
    answers = [*best_answers(windows, [example], logits, logits, n_best=2), Answer("none", ())]
    write_squad_predictions(answers, tmp_path / "predictions.json")
    assert json.loads((tmp_path / "predictions.json").read_text(encoding="utf-8")) == {
        "q": "Zoë", "none": "",
    }  # fmt: skip
    write_squad_n_best(answers, tmp_path / "n_best.json")
    n_best = json.loads((tmp_path / "n_best.json").read_text(encoding="utf-8"))
    first = {"text": "Zoë", "probability": 0.5, "start_logit": 0.0, "end_logit": 0.0}
    assert n_best["q"] == [first, first | {"text": "Zoë’"}] and n_best["none"] == []


@pytest.mark.slow
@pytest.mark.parametrize("model", ["bert-base-uncased", "bert-base-cased"])
def test_gold_answers_of_the_official_dev_set_are_recovered(shared_data: Path, model: str) -> None:
    tokenizer = Tokenizer.load(shared_data / "vocab" / model / "vocab.txt")
    examples = read_squad(shared_data / "squad/dev-v1.1.json.xz", labeled=True)
    windows = span_windows(examples, tokenizer, labeled=True)
    # The longest answer in the dev set has 59 uncased tokens.
    answers = best_answers(windows, examples, *gold_logits(windows), max_answer_length=80)
    missed = 0
    for example, answer in zip(examples, answers, strict=True):
        gold, start = example.answer_texts[0], example.answer_starts[0]
        if answer.text == gold:
            continue
        missed += 1
        begin, end = answer.candidates[0].start, answer.candidates[0].end
        assert begin <= start and start + len(gold) <= end
        # The predicted answer is longer only where a token extends beyond the gold answer.
        offsets = tokenizer.encode_with_offsets([example.context])[0].offsets
        for border in {start} - {begin} | {start + len(gold)} - {end}:
            assert ((offsets[:, 0] < border) & (border < offsets[:, 1])).any()
    assert missed < 0.005 * len(examples)
