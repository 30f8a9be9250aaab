import numpy as np
import pytest

from bert_jax.corpus.packing import (
    SPECIAL_TOKENS_PER_FRAGMENT,
    TokenizedDocument,
    pack_documents,
    split_document,
)


def random_documents(seed, count, mean_length):
    """Return documents with geometrically distributed lengths and sentences of 1 to 30 tokens."""
    rng = np.random.default_rng(seed)
    documents = []
    for document_id in range(count):
        length = int(rng.geometric(1 / mean_length))
        ends = np.cumsum(rng.integers(1, 31, length))
        starts = np.concatenate([[0], ends[ends < length]])
        documents.append(TokenizedDocument(document_id, rng.integers(0, 30_000, length), starts))
    return documents


@pytest.mark.parametrize("mean_length", [3, 40, 300, 4000])
@pytest.mark.parametrize(("max_length", "max_fragments"), [(8, 1), (32, 1), (128, 4), (512, 16)])
def test_every_token_is_packed_once_and_within_the_limits(max_length, max_fragments, mean_length):
    documents = random_documents(max_length + mean_length, 200, mean_length)
    records = pack_documents(documents, max_length, max_fragments)
    fragments: dict[int, list] = {document.document_id: [] for document in documents}
    for record in records:
        assert 1 <= len(record) <= max_fragments
        cost = sum(len(fragment.token_ids) + SPECIAL_TOKENS_PER_FRAGMENT for fragment in record)
        assert cost <= max_length
        assert len({fragment.document_id for fragment in record}) == len(record)
        for fragment in record:
            assert len(fragment.token_ids)
            fragments[fragment.document_id].append(fragment)
    for document in documents:
        # A document's full fragments come first, in order, followed by its remainder, which is
        # packed.
        parts = fragments[document.document_id]
        np.testing.assert_array_equal(
            np.concatenate([fragment.token_ids for fragment in parts]), document.token_ids
        )
        begins = np.cumsum([0] + [len(fragment.token_ids) for fragment in parts])[:-1]
        starts = [
            fragment.sentence_starts + begin for fragment, begin in zip(parts, begins, strict=True)
        ]
        np.testing.assert_array_equal(np.concatenate(starts), document.sentence_starts)


def test_documents_are_split_at_exactly_the_capacity():
    document = TokenizedDocument(7, np.arange(10), np.array([0, 4, 6]))
    fragments = list(split_document(document, 4))
    assert [fragment.token_ids.tolist() for fragment in fragments] == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
        [8, 9],
    ]
    assert [fragment.sentence_starts.tolist() for fragment in fragments] == [[0], [0, 2], []]
    assert [len(fragment.token_ids) for fragment in split_document(document, 5)] == [5, 5]
    assert [len(fragment.token_ids) for fragment in split_document(document, 10)] == [10]


def test_fragments_go_where_they_leave_the_least_space():
    lengths = {0: 14, 1: 18, 2: 1, 3: 4, 4: 8}
    documents = [
        TokenizedDocument(key, np.zeros(length, int), np.array([0]))
        for key, length in lengths.items()
    ]
    # The documents take up 17, 21, 4, 7 and 11 of 25 positions. They are placed in the order 21,
    # 17, 11, 7 (which goes into a gap of 8, not of 14) and 4 (which fills a gap of 4).
    records = pack_documents(documents, 25, 4)
    assert [[fragment.document_id for fragment in record] for record in records] == [
        [1, 2],
        [0, 3],
        [4],
    ]


def test_nothing_is_packed_with_one_fragment_per_record():
    documents = random_documents(0, 50, 10)
    records = pack_documents(documents, 128, 1)
    assert all(len(record) == 1 for record in records)


@pytest.mark.parametrize("mean_length", [20, 60, 120, 200, 400])
def test_the_number_of_records_is_near_the_minimum(mean_length):
    documents = random_documents(1, 2000, mean_length)
    records = pack_documents(documents, 512, 16)
    fragments = sum(map(len, records))
    used = sum(len(fragment.token_ids) + 3 for record in records for fragment in record)
    assert len(records) <= 1.01 * max(used / 512, fragments / 16)


def test_no_documents_give_no_records():
    assert pack_documents([], 128, 4) == []
