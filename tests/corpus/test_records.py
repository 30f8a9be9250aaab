"""Test that records survive encoding and decoding, and that damaged bytes are rejected."""

from __future__ import annotations

import numpy as np
import pytest

from bert_jax.corpus.records import CorruptRecordError, Fragment, decode_records, encode_record


def random_fragments(rng: np.random.Generator, count: int, token_bytes: int) -> list[Fragment]:
    fragments = []
    for _ in range(count):
        length = int(rng.integers(1, 600))
        num_starts = int(rng.integers(0, min(length, 40) + 1))
        fragments.append(
            Fragment(
                document_id=int(rng.integers(0, 2**32)),
                token_ids=rng.integers(0, 2**16 if token_bytes == 2 else 2**31, length),
                sentence_starts=np.sort(rng.choice(length, num_starts, replace=False)),
            )
        )
    return fragments


def assert_same(fragment: Fragment, expected: Fragment) -> None:
    assert fragment.document_id == expected.document_id
    np.testing.assert_array_equal(fragment.token_ids, expected.token_ids)
    np.testing.assert_array_equal(fragment.sentence_starts, expected.sentence_starts)


@pytest.mark.parametrize("token_bytes", [2, 4])
def test_decoded_records_equal_the_encoded_ones(token_bytes):
    rng = np.random.default_rng(token_bytes)
    records = [random_fragments(rng, int(rng.integers(1, 17)), token_bytes) for _ in range(200)]
    decoded = decode_records([encode_record(r, token_bytes) for r in records], token_bytes)
    assert decoded.num_records == 200
    written = [(number, fragment) for number, record in enumerate(records) for fragment in record]
    assert decoded.fragment_record.tolist() == [number for number, _ in written]
    for index, (_, fragment) in enumerate(written):
        assert_same(decoded.fragment(index), fragment)
    assert decoded.tokens.dtype == np.int32


def test_extreme_values_are_preserved():
    fragment = Fragment(2**32 - 1, np.array([0, 65535]), np.array([0, 1]))
    long = Fragment(0, np.full(65535, 7), np.array([], np.int64))
    decoded = decode_records([encode_record([fragment, long], 2)], 2)
    assert_same(decoded.fragment(0), fragment)
    assert_same(decoded.fragment(1), long)
    largest = Fragment(1, np.array([2**31 - 1]), np.array([0]))
    assert_same(decode_records([encode_record([largest], 4)], 4).fragment(0), largest)


def test_no_records_decode_to_empty_arrays():
    decoded = decode_records([], 2)
    assert decoded.num_records == 0
    assert len(decoded.tokens) == len(decoded.fragment_record) == len(decoded.starts) == 0


def test_the_layout_on_disk_is_fixed():
    fragments = [
        Fragment(0x10002, np.array([5, 6]), np.array([0])),
        Fragment(3, np.array([9]), np.array([])),
    ]
    assert np.frombuffer(encode_record(fragments, 2), "<u2").tolist() == (
        [2] + [2, 1, 2, 1] + [3, 0, 1, 0] + [0] + [5, 6] + [9]
    )
    wide = np.frombuffer(encode_record([Fragment(1, np.array([0x20001]), np.array([]))], 4), "<u2")
    assert wide.tolist() == [1] + [1, 0, 1, 0] + [1, 2]


@pytest.mark.parametrize(
    "fragment",
    [
        Fragment(-1, np.array([1]), np.array([0])),
        Fragment(2**32, np.array([1]), np.array([0])),
        Fragment(0, np.array([], np.int64), np.array([], np.int64)),
        Fragment(0, np.ones(65536, np.int64), np.array([0])),
        Fragment(0, np.array([65536]), np.array([0])),
        Fragment(0, np.array([-1]), np.array([0])),
        Fragment(0, np.array([1, 2]), np.array([2])),
        Fragment(0, np.array([1, 2]), np.array([1, 1])),
        Fragment(0, np.array([1, 2]), np.array([1, 0])),
        Fragment(0, np.array([1, 2]), np.array([-1])),
    ],
)
def test_a_fragment_that_cannot_be_stored_is_refused(fragment):
    with pytest.raises(ValueError):
        encode_record([fragment], 2)


def test_a_record_without_fragments_and_an_odd_token_size_are_refused():
    with pytest.raises(ValueError, match="a record with 0 fragments: expected 1 to 65535"):
        encode_record([], 2)
    with pytest.raises(ValueError, match="token_bytes=3: expected 2 or 4"):
        encode_record([Fragment(0, np.array([1]), np.array([0]))], 3)


def words(*values: int) -> bytes:
    return np.array(values, "<u2").tobytes()


@pytest.mark.parametrize(
    ("blob", "reason"),
    [
        (b"", "not a whole number of words"),
        (b"\x01", "not a whole number of words"),
        (words(0), "header is truncated"),
        (words(9, 0, 0, 1, 0, 5), "header is truncated"),
        (words(1, 0, 0, 2, 0, 5), "size does not match"),
        (words(1, 0, 0, 1, 0, 5, 6), "size does not match"),
        (words(1, 0, 0, 0, 0), "is empty"),
        (words(1, 0, 0, 2, 1, 2, 5, 6), "are not ascending"),
        (words(1, 0, 0, 2, 2, 1, 1, 5, 6), "are not ascending"),
    ],
)
def test_an_error_has_the_index_of_a_corrupt_record(blob, reason):
    good = encode_record([Fragment(0, np.array([5, 6]), np.array([0, 1]))], 2)
    with pytest.raises(CorruptRecordError, match=reason) as caught:
        decode_records([good, good, blob, good], 2)
    assert caught.value.index == 2


def test_records_truncated_anywhere_are_refused():
    rng = np.random.default_rng(0)
    blob = encode_record(random_fragments(rng, 3, 2), 2)
    for cut in range(len(blob)):
        with pytest.raises(CorruptRecordError):
            decode_records([blob[:cut]], 2)
