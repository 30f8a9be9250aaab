"""Records survive the trip through bytes, and damaged bytes are refused by name."""

from __future__ import annotations

import numpy as np
import pytest

from bert_jax.corpus.records import CorruptRecordError, Piece, decode_records, encode_record


def random_pieces(rng: np.random.Generator, count: int, token_bytes: int) -> list[Piece]:
    pieces = []
    for _ in range(count):
        length = int(rng.integers(1, 600))
        num_starts = int(rng.integers(0, min(length, 40) + 1))
        pieces.append(
            Piece(
                document_id=int(rng.integers(0, 2**32)),
                token_ids=rng.integers(0, 2**16 if token_bytes == 2 else 2**31, length),
                sentence_starts=np.sort(rng.choice(length, num_starts, replace=False)),
            )
        )
    return pieces


def assert_same(piece: Piece, expected: Piece) -> None:
    assert piece.document_id == expected.document_id
    np.testing.assert_array_equal(piece.token_ids, expected.token_ids)
    np.testing.assert_array_equal(piece.sentence_starts, expected.sentence_starts)


@pytest.mark.parametrize("token_bytes", [2, 4])
def test_many_records_come_back_as_written(token_bytes):
    rng = np.random.default_rng(token_bytes)
    records = [random_pieces(rng, int(rng.integers(1, 17)), token_bytes) for _ in range(200)]
    decoded = decode_records([encode_record(r, token_bytes) for r in records], token_bytes)
    assert decoded.num_records == 200
    written = [(number, piece) for number, record in enumerate(records) for piece in record]
    assert decoded.piece_record.tolist() == [number for number, _ in written]
    for index, (_, piece) in enumerate(written):
        assert_same(decoded.piece(index), piece)
    assert decoded.tokens.dtype == np.int32


def test_extreme_values_survive():
    piece = Piece(2**32 - 1, np.array([0, 65535]), np.array([0, 1]))
    long = Piece(0, np.full(65535, 7), np.array([], np.int64))
    decoded = decode_records([encode_record([piece, long], 2)], 2)
    assert_same(decoded.piece(0), piece)
    assert_same(decoded.piece(1), long)
    largest = Piece(1, np.array([2**31 - 1]), np.array([0]))
    assert_same(decode_records([encode_record([largest], 4)], 4).piece(0), largest)


def test_no_records_decode_to_nothing():
    decoded = decode_records([], 2)
    assert decoded.num_records == 0
    assert len(decoded.tokens) == len(decoded.piece_record) == len(decoded.starts) == 0


def test_the_layout_on_disk_is_fixed():
    pieces = [
        Piece(0x10002, np.array([5, 6]), np.array([0])),
        Piece(3, np.array([9]), np.array([])),
    ]
    assert np.frombuffer(encode_record(pieces, 2), "<u2").tolist() == (
        [2] + [2, 1, 2, 1] + [3, 0, 1, 0] + [0] + [5, 6] + [9]
    )
    wide = np.frombuffer(encode_record([Piece(1, np.array([0x20001]), np.array([]))], 4), "<u2")
    assert wide.tolist() == [1] + [1, 0, 1, 0] + [1, 2]


@pytest.mark.parametrize(
    "piece",
    [
        Piece(-1, np.array([1]), np.array([0])),
        Piece(2**32, np.array([1]), np.array([0])),
        Piece(0, np.array([], np.int64), np.array([], np.int64)),
        Piece(0, np.ones(65536, np.int64), np.array([0])),
        Piece(0, np.array([65536]), np.array([0])),
        Piece(0, np.array([-1]), np.array([0])),
        Piece(0, np.array([1, 2]), np.array([2])),
        Piece(0, np.array([1, 2]), np.array([1, 1])),
        Piece(0, np.array([1, 2]), np.array([1, 0])),
        Piece(0, np.array([1, 2]), np.array([-1])),
    ],
)
def test_a_piece_that_cannot_be_stored_is_refused(piece):
    with pytest.raises(ValueError):
        encode_record([piece], 2)


def test_a_record_without_pieces_and_an_odd_token_size_are_refused():
    with pytest.raises(ValueError, match="1 to 65535 pieces"):
        encode_record([], 2)
    with pytest.raises(ValueError, match="token_bytes is 3"):
        encode_record([Piece(0, np.array([1]), np.array([0]))], 3)


def words(*values: int) -> bytes:
    return np.array(values, "<u2").tobytes()


@pytest.mark.parametrize(
    ("blob", "reason"),
    [
        (b"", "no whole number of words"),
        (b"\x01", "no whole number of words"),
        (words(0), "header is cut short"),
        (words(9, 0, 0, 1, 0, 5), "header is cut short"),
        (words(1, 0, 0, 2, 0, 5), "size differs"),
        (words(1, 0, 0, 1, 0, 5, 6), "size differs"),
        (words(1, 0, 0, 0, 0), "is empty"),
        (words(1, 0, 0, 2, 1, 2, 5, 6), "do not ascend"),
        (words(1, 0, 0, 2, 2, 1, 1, 5, 6), "do not ascend"),
    ],
)
def test_a_corrupt_record_is_named(blob, reason):
    good = encode_record([Piece(0, np.array([5, 6]), np.array([0, 1]))], 2)
    with pytest.raises(CorruptRecordError, match=reason) as caught:
        decode_records([good, good, blob, good], 2)
    assert caught.value.index == 2


def test_every_truncation_of_a_record_is_refused():
    rng = np.random.default_rng(0)
    blob = encode_record(random_pieces(rng, 3, 2), 2)
    for cut in range(len(blob)):
        with pytest.raises(CorruptRecordError):
            decode_records([blob[:cut]], 2)
