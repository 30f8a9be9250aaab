"""Compare passage windows with Hugging Face's tokenizer and with a simple reference."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from transformers import BertTokenizerFast

from bert_jax.labeled_data.span_windows import SpanWindows, span_windows
from bert_jax.labeled_data.squad import SpanExample, read_squad
from bert_jax.tokenizers.tokenizer import Tokenizer
from bert_jax.tokenizers.wordpiece_training import train_wordpiece

TORTURE = Path(__file__).parent.parent / "tokenizers/unicode_torture.txt"
CASES = pytest.mark.parametrize("lowercase", [True, False], ids=["uncased", "cased"])
SIZES = dict(max_length=40, doc_stride=7, max_query_length=16)


def torture_examples() -> list[SpanExample]:
    """Return questions and passages in many scripts.

    Each question is the beginning of a line. Its passage consists of 0 to 3 consecutive lines.
    """
    lines = [line for line in TORTURE.read_text(encoding="utf-8").split("\n") if line.strip()]
    return [
        SpanExample(str(number), line[:16], " ".join(lines[number : number + number % 4]), "")
        for number, line in enumerate(lines)
    ]


@pytest.fixture(scope="module")
def tokenizers() -> dict[bool, Tokenizer]:
    """Return a dict that maps each value of `lowercase` to a tokenizer."""
    lines = [example.context + example.question for example in torture_examples()]
    return {
        lowercase: train_wordpiece(lines, vocab_size=2500, lowercase=lowercase, min_frequency=1)
        for lowercase in (True, False)
    }


def assert_matches_hugging_face(
    windows: SpanWindows,
    examples: list[SpanExample],
    hf_tokenizer: BertTokenizerFast,
    max_length: int,
    doc_stride: int,
) -> None:
    """Compare token IDs, segment IDs and offsets with those of Hugging Face's tokenizer.

    Hugging Face's `stride`, the number of tokens that two windows share, depends on the question's
    length.
    """
    numbers_by_length = defaultdict(list)
    questions = [example.question for example in examples]
    ids = hf_tokenizer(questions, add_special_tokens=False, split_special_tokens=True)["input_ids"]
    for number, question in enumerate(ids):
        numbers_by_length[len(question)].append(number)
    sequences = windows.features.sequences
    compared = 0
    for length, numbers in numbers_by_length.items():
        encoded = hf_tokenizer(
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
            tokens = slice(sequences.starts[row], sequences.starts[row + 1])
            assert sequences.token_ids[tokens].tolist() == expected.ids
            segments = np.arange(len(expected.ids)) >= sequences.second_starts[row]
            assert segments.astype(int).tolist() == expected.type_ids
            in_passage = np.array(expected.sequence_ids, float) == 1
            offsets = np.where(in_passage[:, None], expected.offsets, 0)
            np.testing.assert_array_equal(windows.character_offsets[tokens], offsets)
            compared += 1
        questions_of_rows = windows.examples[rows].tolist()
        assert questions_of_rows == [numbers[i] for i in encoded["overflow_to_sample_mapping"]]
    assert compared == len(windows)


@CASES
def test_windows_match_hugging_face_in_all_scripts(tokenizers, tmp_path, lowercase) -> None:
    tokenizers[lowercase].save(tmp_path)
    hf_tokenizer = BertTokenizerFast(vocab=str(tmp_path / "vocab.txt"), do_lower_case=lowercase)
    examples = torture_examples()
    windows = span_windows(examples, tokenizers[lowercase], **SIZES, labeled=False)
    assert len(windows) > 2 * len(examples)
    sizes = SIZES["max_length"], SIZES["doc_stride"]
    assert_matches_hugging_face(windows, examples, hf_tokenizer, *sizes)


@pytest.mark.slow
def test_windows_match_hugging_face_on_the_official_dev_set(shared_data: Path) -> None:
    vocab_file = shared_data / "vocab/bert-base-uncased/vocab.txt"
    examples = read_squad(shared_data / "squad/dev-v1.1.json.xz", labeled=True)
    windows = span_windows(examples, Tokenizer.load(vocab_file), labeled=True)
    hf_tokenizer = BertTokenizerFast(vocab=str(vocab_file), do_lower_case=True)
    assert_matches_hugging_face(windows, examples, hf_tokenizer, 384, 128)
    # For every question, some window contains the entire answer.
    starts = windows.features.targets["start_positions"]
    assert len(np.unique(windows.examples[starts > 0])) == len(examples)


def numbered(count: int, answer: tuple[int, int] | None = None) -> SpanExample:
    """Return a question about a passage whose words are w0, w1, and so on.

    answer: the numbers of the answer's first and last words.
    """
    words = [f"w{number}" for number in range(count)]
    context = " ".join(words)
    if answer is None:
        return SpanExample("n", "w0", context, "")
    text = " ".join(words[answer[0] : answer[1] + 1])
    start = len(" ".join(words[: answer[0]])) + (answer[0] > 0)
    return SpanExample("n", "w0", context, "", (text,), (start,))


@pytest.fixture(scope="module")
def word_tokenizer() -> Tokenizer:
    """Return a tokenizer in which each of w0, w1, ... w199 is a single token."""
    words = " ".join(f"w{number}" for number in range(200))
    return train_wordpiece([words], vocab_size=1000, lowercase=True, min_frequency=1)


def windows_of(example: SpanExample, tokenizer: Tokenizer, **changes: int) -> SpanWindows:
    sizes = dict(max_length=20, doc_stride=6, max_query_length=1) | changes
    return span_windows([example], tokenizer, **sizes, labeled=bool(example.answer_texts))


def test_a_short_passage_is_one_window(word_tokenizer: Tokenizer) -> None:
    for words in (0, 1, 15, 16):
        windows = windows_of(numbered(words), word_tokenizer)
        assert windows.features.sequences.lengths.tolist() == [words + 4]
        assert windows.has_maximum_context.tolist() == [False] * 3 + [True] * words + [False]
    assert len(windows_of(numbered(17), word_tokenizer)) == 2
    assert "start_positions" not in windows.features.targets


def test_a_long_question_is_truncated(word_tokenizer: Tokenizer) -> None:
    example = SpanExample("q", numbered(50).context, numbered(30).context, "")
    windows = windows_of(example, word_tokenizer, max_query_length=5)
    ids = word_tokenizer.encode_batch([example.question])[0]
    sequences = windows.features.sequences
    for start in sequences.starts[:-1]:
        assert sequences.token_ids[start + 1 : start + 7].tolist() == [
            *ids[:5],
            word_tokenizer.sep_id,
        ]
    assert set(sequences.second_starts.tolist()) == {7} and sequences.lengths.max() == 20


@pytest.mark.parametrize("answer", [(0, 0), (0, 15), (4, 8), (14, 17), (20, 33), (39, 39), (3, 25)])
def test_targets_are_set_in_windows_with_the_entire_answer(word_tokenizer, answer) -> None:
    example = numbered(40, answer)
    windows = windows_of(example, word_tokenizer)
    targets, sequences = windows.features.targets, windows.features.sequences
    assert targets["start_positions"].dtype == np.int32
    for row in range(len(windows)):
        offsets = windows.character_offsets[sequences.starts[row] : sequences.starts[row + 1]]
        # A window contains up to 16 words, starting at every sixth word.
        words = range(6 * row, min(6 * row + 16, 40))
        first, last = (int(targets[f"{side}_positions"][row]) for side in ("start", "end"))
        if answer[0] in words and answer[1] in words:
            assert example.context[offsets[first, 0] : offsets[last, 1]] == example.answer_texts[0]
        else:
            assert first == last == 0


def test_targets_of_a_batch_are_positions_in_its_rows(word_tokenizer: Tokenizer) -> None:
    examples = [numbered(40, (20, 21)), numbered(3, (1, 1))]
    sizes = dict(max_length=20, doc_stride=6, max_query_length=1)
    features = span_windows(examples, word_tokenizer, **sizes, labeled=True).features
    batch = features.batch(np.arange(len(features)), 24)
    for row in np.flatnonzero(batch["start_positions"]):
        answer = slice(batch["start_positions"][row], batch["end_positions"][row] + 1)
        tokens = batch["token_ids"][row, answer]
        example = examples[int(row == len(features) - 1)]
        assert tokens.tolist() == word_tokenizer.encode_batch([example.answer_texts[0]])[0]


def reference_maximum_context(windows: list[tuple[int, int]]) -> list[list[bool]]:
    """Apply Devlin et al.'s rule to one token and one (begin, size) window at a time."""
    flags = [[False] * size for _, size in windows]
    for token in range(max(begin + size for begin, size in windows)):
        best_score, best_window = None, None
        for number, (begin, size) in enumerate(windows):
            last = begin + size - 1
            if not begin <= token <= last:
                continue
            score = min(token - begin, last - token) + 0.01 * size
            if best_score is None or score > best_score:
                best_score, best_window = score, number
        flags[best_window][token - windows[best_window][0]] = True
    return flags


@pytest.mark.parametrize("words", [1, 16, 17, 40, 100, 131])
@pytest.mark.parametrize("doc_stride", [1, 5, 6, 16])
def test_maximum_context_matches_the_reference(word_tokenizer, words: int, doc_stride: int) -> None:
    windows = windows_of(numbered(words), word_tokenizer, doc_stride=doc_stride)
    sequences = windows.features.sequences
    sizes = sequences.lengths - 4
    cuts = [(doc_stride * number, int(size)) for number, size in enumerate(sizes)]
    for row, expected in enumerate(reference_maximum_context(cuts)):
        flags = windows.has_maximum_context[sequences.starts[row] : sequences.starts[row + 1]]
        assert flags.tolist() == [False] * 3 + expected + [False]
    assert windows.has_maximum_context.sum() == words


def test_windows_do_not_depend_on_other_questions(tokenizers) -> None:
    examples = torture_examples()
    together = span_windows(examples, tokenizers[True], **SIZES, labeled=False)
    assert (np.diff(together.examples) >= 0).all()
    for number in range(0, len(examples), 5):
        single = span_windows([examples[number]], tokenizers[True], **SIZES, labeled=False)
        rows = np.flatnonzero(together.examples == number)
        tokens = slice(*together.features.sequences.starts[[rows[0], rows[-1] + 1]])
        for array in ("character_offsets", "has_maximum_context"):
            expected = getattr(single, array)
            np.testing.assert_array_equal(getattr(together, array)[tokens], expected)


def test_no_questions_have_no_windows(word_tokenizer: Tokenizer) -> None:
    for labeled in (True, False):
        assert len(span_windows([], word_tokenizer, labeled=labeled)) == 0


@pytest.mark.parametrize(
    "changes, message",
    [
        (dict(doc_stride=17), "leaves 16 tokens .* Expected max_length >= max_query_length"),
        (dict(max_query_length=30), "leaves -13 tokens"),
        (dict(doc_stride=0), "doc_stride=0: must be at least 1"),
        (dict(max_query_length=0), "max_query_length=0: must be at least 1"),
    ],
)
def test_sizes_that_would_skip_tokens_are_rejected(word_tokenizer, changes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        windows_of(numbered(40), word_tokenizer, **changes)


def test_targets_require_answers(word_tokenizer: Tokenizer) -> None:
    with pytest.raises(ValueError, match="question n has no answer"):
        span_windows([numbered(4)], word_tokenizer, labeled=True)
