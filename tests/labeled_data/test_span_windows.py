"""Windows of passages against Hugging Face's tokenizer and a plain restatement of the rules."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from transformers import BertTokenizerFast

from bert_jax.labeled_data.squad import SpanExample, SpanWindows, read_squad, span_windows
from bert_jax.tokenizers.tokenizer import Tokenizer
from bert_jax.tokenizers.wordpiece_training import train_wordpiece

TORTURE = Path(__file__).parent.parent / "tokenizers/unicode_torture.txt"
CASES = pytest.mark.parametrize("lowercase", [True, False], ids=["uncased", "cased"])
SIZES = dict(max_length=40, doc_stride=7, max_query_length=16)


def torture_examples() -> list[SpanExample]:
    """Lines of the world's scripts: short ones ask, and each is asked of a run of others."""
    lines = [line for line in TORTURE.read_text(encoding="utf-8").split("\n") if line.strip()]
    return [
        SpanExample(str(number), line[:16], " ".join(lines[number : number + number % 4]), "")
        for number, line in enumerate(lines)
    ]


@pytest.fixture(scope="module")
def learned() -> dict[bool, Tokenizer]:
    lines = [example.context + example.question for example in torture_examples()]
    return {
        lowercase: train_wordpiece(lines, vocab_size=2500, lowercase=lowercase, min_frequency=1)
        for lowercase in (True, False)
    }


def assert_as_hugging_face(
    windows: SpanWindows,
    examples: list[SpanExample],
    theirs: BertTokenizerFast,
    max_length: int,
    doc_stride: int,
) -> None:
    """Ids, segments and offsets; their `stride`, what windows share, is another for each length."""
    of_length = defaultdict(list)
    questions = [example.question for example in examples]
    ids = theirs(questions, add_special_tokens=False, split_special_tokens=True)["input_ids"]
    for number, question in enumerate(ids):
        of_length[len(question)].append(number)
    sequences = windows.features.sequences
    compared = 0
    for length, numbers in of_length.items():
        encoded = theirs(
            [questions[number] for number in numbers],
            [examples[number].context for number in numbers],
            truncation="only_second",
            max_length=max_length,
            stride=max_length - 3 - length - doc_stride,
            return_overflowing_tokens=True,
            split_special_tokens=True,
        )
        rows = np.flatnonzero(np.isin(windows.examples, numbers))
        assert len(rows) == len(encoded.encodings)
        for row, expected in zip(rows, encoded.encodings, strict=True):
            place = slice(sequences.starts[row], sequences.starts[row + 1])
            assert sequences.token_ids[place].tolist() == expected.ids
            segments = np.arange(len(expected.ids)) >= sequences.second_starts[row]
            assert segments.astype(int).tolist() == expected.type_ids
            of_passage = np.array(expected.sequence_ids, float) == 1
            offsets = np.where(of_passage[:, None], expected.offsets, 0)
            np.testing.assert_array_equal(windows.character_offsets[place], offsets)
            compared += 1
        found = windows.examples[rows].tolist()
        assert found == [numbers[index] for index in encoded["overflow_to_sample_mapping"]]
    assert compared == len(windows)


@CASES
def test_windows_equal_hugging_face_in_every_script(learned, tmp_path, lowercase) -> None:
    learned[lowercase].save(tmp_path)
    theirs = BertTokenizerFast(vocab=str(tmp_path / "vocab.txt"), do_lower_case=lowercase)
    examples = torture_examples()
    windows = span_windows(examples, learned[lowercase], **SIZES, labelled=False)
    assert len(windows) > 2 * len(examples)
    assert_as_hugging_face(windows, examples, theirs, SIZES["max_length"], SIZES["doc_stride"])


def test_windows_equal_hugging_face_on_the_official_dev_set(shared_data: Path) -> None:
    vocab_file = shared_data / "vocab/bert-base-uncased/vocab.txt"
    examples = read_squad(shared_data / "squad/dev-v1.1.json.xz", labelled=True)
    windows = span_windows(examples, Tokenizer.load(vocab_file), labelled=True)
    theirs = BertTokenizerFast(vocab=str(vocab_file), do_lower_case=True)
    assert_as_hugging_face(windows, examples, theirs, 384, 128)
    # Of every question there is a window that holds the whole answer.
    starts = windows.features.targets["start_positions"]
    assert len(np.unique(windows.examples[starts > 0])) == len(examples)


def numbered(count: int, answer: tuple[int, int] | None = None) -> SpanExample:
    """A passage of the words w0 w1 ..; the answer is given by its first and last word."""
    words = [f"w{number}" for number in range(count)]
    context = " ".join(words)
    if answer is None:
        return SpanExample("n", "w0", context, "")
    text = " ".join(words[answer[0] : answer[1] + 1])
    start = len(" ".join(words[: answer[0]])) + (answer[0] > 0)
    return SpanExample("n", "w0", context, "", (text,), (start,))


@pytest.fixture(scope="module")
def of_words() -> Tokenizer:
    """A tokenizer to which w0 .. w199 are a token each."""
    words = " ".join(f"w{number}" for number in range(200))
    return train_wordpiece([words], vocab_size=1000, lowercase=True, min_frequency=1)


def windows_of(example: SpanExample, tokenizer: Tokenizer, **changes: int) -> SpanWindows:
    sizes = dict(max_length=20, doc_stride=6, max_query_length=1) | changes
    return span_windows([example], tokenizer, **sizes, labelled=bool(example.answer_texts))


def test_a_short_passage_is_one_window(of_words: Tokenizer) -> None:
    for words in (0, 1, 15, 16):
        windows = windows_of(numbered(words), of_words)
        assert windows.features.sequences.lengths.tolist() == [words + 4]
        assert windows.has_maximum_context.tolist() == [False] * 3 + [True] * words + [False]
    assert len(windows_of(numbered(17), of_words)) == 2
    assert "start_positions" not in windows.features.targets


def test_a_long_question_is_cut(of_words: Tokenizer) -> None:
    example = SpanExample("q", numbered(50).context, numbered(30).context, "")
    windows = windows_of(example, of_words, max_query_length=5)
    ids = of_words.encode_batch([example.question])[0]
    sequences = windows.features.sequences
    for start in sequences.starts[:-1]:
        assert sequences.token_ids[start + 1 : start + 7].tolist() == [*ids[:5], of_words.sep_id]
    assert set(sequences.second_starts.tolist()) == {7} and sequences.lengths.max() == 20


@pytest.mark.parametrize("answer", [(0, 0), (0, 15), (4, 8), (14, 17), (20, 33), (39, 39), (3, 25)])
def test_the_answer_is_marked_in_the_windows_that_hold_it_whole(of_words, answer) -> None:
    example = numbered(40, answer)
    windows = windows_of(example, of_words)
    targets, sequences = windows.features.targets, windows.features.sequences
    assert targets["start_positions"].dtype == np.int32
    for row in range(len(windows)):
        offsets = windows.character_offsets[sequences.starts[row] : sequences.starts[row + 1]]
        shown = range(6 * row, min(6 * row + 16, 40))  # the words of this window
        first, last = (int(targets[f"{side}_positions"][row]) for side in ("start", "end"))
        if answer[0] in shown and answer[1] in shown:
            assert example.context[offsets[first, 0] : offsets[last, 1]] == example.answer_texts[0]
        else:
            assert first == last == 0


def test_a_batch_has_the_positions_within_its_rows(of_words: Tokenizer) -> None:
    examples = [numbered(40, (20, 21)), numbered(3, (1, 1))]
    sizes = dict(max_length=20, doc_stride=6, max_query_length=1)
    features = span_windows(examples, of_words, **sizes, labelled=True).features
    batch = features.batch(np.arange(len(features)), 24)
    for row in np.flatnonzero(batch["start_positions"]):
        chosen = batch["token_ids"][
            row, batch["start_positions"][row] : batch["end_positions"][row] + 1
        ]
        example = examples[int(row == len(features) - 1)]
        assert chosen.tolist() == of_words.encode_batch([example.answer_texts[0]])[0]


def maximum_context_restated(lengths: list[tuple[int, int]]) -> list[list[bool]]:
    """Devlin et al.'s rule for windows (begin, size) of a passage, a token and window at a time."""
    flags = [[False] * size for _, size in lengths]
    for token in range(max(begin + size for begin, size in lengths)):
        best_score, best_window = None, None
        for number, (begin, size) in enumerate(lengths):
            last = begin + size - 1
            if not begin <= token <= last:
                continue
            score = min(token - begin, last - token) + 0.01 * size
            if best_score is None or score > best_score:
                best_score, best_window = score, number
        flags[best_window][token - lengths[best_window][0]] = True
    return flags


@pytest.mark.parametrize("words", [1, 16, 17, 40, 100, 131])
@pytest.mark.parametrize("doc_stride", [1, 5, 6, 16])
def test_maximum_context_is_as_released(of_words, words: int, doc_stride: int) -> None:
    windows = windows_of(numbered(words), of_words, doc_stride=doc_stride)
    sequences = windows.features.sequences
    sizes = sequences.lengths - 4
    cuts = [(doc_stride * number, int(size)) for number, size in enumerate(sizes)]
    for row, expected in enumerate(maximum_context_restated(cuts)):
        flags = windows.has_maximum_context[sequences.starts[row] : sequences.starts[row + 1]]
        assert flags.tolist() == [False] * 3 + expected + [False]
    assert windows.has_maximum_context.sum() == words


def test_many_passages_do_not_disturb_each_other(learned) -> None:
    examples = torture_examples()
    together = span_windows(examples, learned[True], **SIZES, labelled=False)
    assert (np.diff(together.examples) >= 0).all()
    for number in range(0, len(examples), 5):
        alone = span_windows([examples[number]], learned[True], **SIZES, labelled=False)
        rows = np.flatnonzero(together.examples == number)
        place = slice(*together.features.sequences.starts[[rows[0], rows[-1] + 1]])
        for array in ("character_offsets", "has_maximum_context"):
            expected = getattr(alone, array)
            np.testing.assert_array_equal(getattr(together, array)[place], expected)


def test_no_questions_no_windows(of_words: Tokenizer) -> None:
    for labelled in (True, False):
        assert len(span_windows([], of_words, labelled=labelled)) == 0


@pytest.mark.parametrize(
    "changes, words",
    [
        (dict(doc_stride=17), "leaves 16 tokens .* Expected max_length >= max_query_length"),
        (dict(max_query_length=30), "leaves -13 tokens"),
        (dict(doc_stride=0), "doc_stride is 0"),
        (dict(max_query_length=0), "max_query_length 0"),
    ],
)
def test_sizes_that_pass_tokens_over_are_refused(of_words, changes, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        windows_of(numbered(40), of_words, **changes)


def test_a_label_is_needed_where_it_is_asked_for(of_words: Tokenizer) -> None:
    with pytest.raises(ValueError, match="question n has no answer"):
        span_windows([numbered(4)], of_words, labelled=True)
