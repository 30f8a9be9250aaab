import numpy as np
import pytest

from bert_jax.corpus.packing import (
    SPECIAL_TOKENS_PER_PIECE,
    TokenizedDocument,
    cut_document,
    pack_documents,
)


def random_documents(seed, count, mean_length):
    """Documents of geometric lengths with sentences of 1 to 30 tokens."""
    rng = np.random.default_rng(seed)
    documents = []
    for document_id in range(count):
        length = int(rng.geometric(1 / mean_length))
        ends = np.cumsum(rng.integers(1, 31, length))
        starts = np.concatenate([[0], ends[ends < length]])
        documents.append(TokenizedDocument(document_id, rng.integers(0, 30_000, length), starts))
    return documents


@pytest.mark.parametrize("mean_length", [3, 40, 300, 4000])
@pytest.mark.parametrize(("max_length", "max_pieces"), [(8, 1), (32, 1), (128, 4), (512, 16)])
def test_every_token_is_there_once_and_budgets_hold(max_length, max_pieces, mean_length):
    documents = random_documents(max_length + mean_length, 200, mean_length)
    records = pack_documents(documents, max_length, max_pieces)
    pieces: dict[int, list] = {document.document_id: [] for document in documents}
    for record in records:
        assert 1 <= len(record) <= max_pieces
        cost = sum(len(piece.token_ids) + SPECIAL_TOKENS_PER_PIECE for piece in record)
        assert cost <= max_length
        assert len({piece.document_id for piece in record}) == len(record)
        for piece in record:
            assert len(piece.token_ids)
            pieces[piece.document_id].append(piece)
    for document in documents:
        # full pieces come out in order and the tail, packed, after them
        parts = pieces[document.document_id]
        np.testing.assert_array_equal(
            np.concatenate([piece.token_ids for piece in parts]), document.token_ids
        )
        begins = np.cumsum([0] + [len(piece.token_ids) for piece in parts])[:-1]
        starts = [piece.sentence_starts + begin for piece, begin in zip(parts, begins, strict=True)]
        np.testing.assert_array_equal(np.concatenate(starts), document.sentence_starts)


def test_cut_falls_at_exactly_the_capacity_and_a_continuation_is_no_sentence():
    document = TokenizedDocument(7, np.arange(10), np.array([0, 4, 6]))
    pieces = list(cut_document(document, 4))
    assert [piece.token_ids.tolist() for piece in pieces] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert [piece.sentence_starts.tolist() for piece in pieces] == [[0], [0, 2], []]
    assert [len(piece.token_ids) for piece in cut_document(document, 5)] == [5, 5]
    assert [len(piece.token_ids) for piece in cut_document(document, 10)] == [10]


def test_tails_go_where_they_leave_least_room():
    lengths = {0: 14, 1: 18, 2: 1, 3: 4, 4: 8}
    documents = [
        TokenizedDocument(key, np.zeros(length, int), np.array([0]))
        for key, length in lengths.items()
    ]
    # costs 17, 21, 4, 7, 11 of 25, so by length 21, 17, 11, 7 (room 8 before 14), 4 (room 4)
    records = pack_documents(documents, 25, 4)
    assert [[piece.document_id for piece in record] for record in records] == [[1, 2], [0, 3], [4]]


def test_one_piece_a_record_packs_nothing():
    documents = random_documents(0, 50, 10)
    records = pack_documents(documents, 128, 1)
    assert all(len(record) == 1 for record in records)


@pytest.mark.parametrize("mean_length", [20, 60, 120, 200, 400])
def test_fill_is_near_the_least_possible_number_of_records(mean_length):
    documents = random_documents(1, 2000, mean_length)
    records = pack_documents(documents, 512, 16)
    pieces = sum(map(len, records))
    taken = sum(len(piece.token_ids) + 3 for record in records for piece in record)
    assert len(records) <= 1.01 * max(taken / 512, pieces / 16)


def test_no_documents():
    assert pack_documents([], 128, 4) == []
