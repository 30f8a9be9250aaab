"""Test that batches grouped by length contain each example once and have few shapes."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from bert_jax.labeled_data.feature_batches import (
    ByLength,
    FeatureBatches,
    InOrder,
    choose_lengths,
    rows_by_length,
)
from bert_jax.labeled_data.features import Features, Sequences


def features_of(lengths: list[int], sequences_per_example: int = 1) -> Features:
    """Return sequences of the given lengths, each with a second segment that starts halfway.

    Sequence i consists of the token ids 1000 i, 1000 i + 1, and so on.
    """
    starts = np.concatenate([[0], np.cumsum(lengths)])
    ids = np.concatenate([1000 * i + np.arange(n) for i, n in enumerate(lengths)]).astype(np.int32)
    examples = len(lengths) // sequences_per_example
    return Features(
        Sequences(ids, starts, np.array(lengths) // 2),
        targets={"labels": np.arange(examples, dtype=np.int32), "scores": np.ones((examples, 2))},
        token_targets={"tags": ids + 1},
        sequences_per_example=sequences_per_example,
    )


def test_batches_contain_their_examples() -> None:
    batch = features_of([3, 5, 2]).batch(np.array([2, -1, 1]), 6)
    assert batch["token_ids"].tolist() == [
        [2000, 2001, 0, 0, 0, 0],
        [0, 0, 0, 0, 0, 0],
        [1000, 1001, 1002, 1003, 1004, 0],
    ]
    assert batch["tags"].tolist()[0] == [2001, 2002, 0, 0, 0, 0]
    assert batch["attention_mask"].sum(axis=1).tolist() == [2, 0, 5]
    assert batch["segment_ids"].tolist()[2] == [0, 0, 1, 1, 1, 0]
    assert batch["example_weights"].tolist() == [1, 0, 1]
    assert batch["labels"].tolist() == [2, 0, 1]
    assert batch["scores"].tolist() == [[1, 1], [0, 0], [1, 1]]


def test_choices_of_an_example_are_in_one_row() -> None:
    features = features_of([3, 5, 2, 2], sequences_per_example=2)
    assert features.lengths.tolist() == [5, 2]
    batch = features.batch(np.array([1, -1]), 3)
    assert batch["token_ids"].tolist() == [[[2000, 2001, 0], [3000, 3001, 0]], [[0, 0, 0]] * 2]


def padded_size(lengths: np.ndarray, rows: tuple[int, ...]) -> int:
    return int(np.asarray(rows)[np.searchsorted(rows, lengths)].sum())


@pytest.mark.parametrize("num_shapes", [1, 2, 3, 6])
def test_chosen_row_lengths_minimize_padding(num_shapes: int) -> None:
    rng = np.random.default_rng(num_shapes)
    lengths = rng.integers(1, 65, 50)
    chosen = choose_lengths(lengths, num_shapes)
    assert len(chosen) <= num_shapes and chosen[-1] == -(-lengths.max() // 8) * 8
    alternatives = [
        (*part, chosen[-1])
        for count in range(num_shapes)
        for part in itertools.combinations(range(8, chosen[-1], 8), count)
    ]
    smallest = min(padded_size(lengths, rows) for rows in alternatives)
    assert padded_size(lengths, chosen) == smallest


@pytest.mark.parametrize("batch_size", [1, 7, 64])
def test_each_epoch_contains_every_example_once(batch_size: int) -> None:
    lengths = np.random.default_rng(0).integers(1, 100, 45)
    rows = choose_lengths(lengths, 3)
    plan = ByLength(lengths, rows, batch_size, seed=5)
    for epoch in range(2):
        steps = range(epoch * plan.steps_per_epoch, (epoch + 1) * plan.steps_per_epoch)
        batches = [plan.planned_batch(step) for step in steps]
        seen = np.concatenate([batch.examples for batch in batches])
        assert sorted(seen[seen >= 0].tolist()) == list(range(45))
        assert sum((batch.examples < 0).any() for batch in batches) <= 1
        for batch in batches:
            assert batch.length in rows and len(batch.examples) == batch_size
            assert lengths[batch.examples[batch.examples >= 0]].max() <= batch.length


def test_an_incomplete_batch_has_the_row_length_of_its_longest_example() -> None:
    lengths = np.array([3, 8, 5, 17, 20, 2, 7])
    # The last two row lengths are longer than any example needs.
    plan = ByLength(lengths, (8, 16, 24, 64, 128), 4, seed=0)
    for epoch in range(8):
        batches = map(plan.planned_batch, (2 * epoch, 2 * epoch + 1))
        complete, incomplete = sorted(batches, key=lambda batch: batch.length)
        assert (complete.length, incomplete.length) == (8, 24)
        assert sorted(incomplete.examples.tolist())[0] == -1
    short = ByLength(lengths[:3], (8, 16, 24), 4, seed=0)
    assert [short.planned_batch(step).length for step in range(3)] == [8, 8, 8]


def test_the_order_depends_only_on_seed_and_epoch() -> None:
    lengths = np.random.default_rng(0).integers(1, 100, 45)

    def order(seed: int, epoch: int) -> list[int]:
        plan = ByLength(lengths, (104,), 7, seed)
        steps = range(epoch * plan.steps_per_epoch, (epoch + 1) * plan.steps_per_epoch)
        return np.concatenate([plan.planned_batch(step).examples for step in steps]).tolist()

    assert order(0, 0) == order(0, 0)
    assert len({tuple(order(seed, epoch)) for seed in (0, 1) for epoch in (0, 1)}) == 4


def test_batches_by_length_have_less_padding_than_random_batches() -> None:
    lengths = np.random.default_rng(0).geometric(0.05, 2000).clip(1, 128)
    rows = choose_lengths(lengths, 6)
    plan = ByLength(lengths, rows, 32, seed=0)
    sizes = [32 * plan.planned_batch(step).length for step in range(plan.steps_per_epoch)]
    # For comparison, pad batches of consecutive examples to their longest example.
    unsorted_sizes = [32 * lengths[first : first + 32].max() for first in range(0, 2000, 32)]
    assert sum(sizes) < 0.5 * sum(unsorted_sizes)


def test_a_single_pass_starts_with_the_longest_examples() -> None:
    features = features_of([3, 50, 2, 9, 30])
    batches = FeatureBatches(features, InOrder(features.lengths, (8, 32, 56), (2, 2, 2)))
    assert len(batches) == 3
    assert [batches[step]["token_ids"].shape for step in range(3)] == [(2, 56), (2, 16 * 2), (2, 8)]
    labels = [batches[step]["labels"].tolist() for step in range(3)]
    assert labels == [[1, 4], [3, 0], [2, 0]] and batches[2]["example_weights"].tolist() == [1, 0]
    with pytest.raises(IndexError):
        batches[3]


def test_batches_of_a_single_pass_have_fewer_long_rows() -> None:
    features = features_of([3, 50, 2, 9, 30, 31, 7, 8, 5])
    sizes = rows_by_length((8, 32, 56), 4, 80)
    assert sizes == (4, 2, 1)
    batches = FeatureBatches(features, InOrder(features.lengths, (8, 32, 56), sizes))
    labels = [batches[step]["labels"].tolist() for step in range(len(batches))]
    shapes = [batches[step]["token_ids"].shape for step in range(len(batches))]
    assert labels == [[1], [5, 4], [3, 7], [6, 8, 0, 2]]
    assert shapes == [(1, 56), (2, 32), (2, 32), (4, 8)]


def test_numbers_of_rows_are_multiples() -> None:
    assert rows_by_length((8, 32, 512), 16, None) == (16, 16, 16)
    assert rows_by_length((8, 100, 512), 16, 1024, multiple=4) == (16, 8, 4)


def test_a_process_loads_only_its_rows() -> None:
    features = features_of([3, 5, 2, 9, 30])
    plan = ByLength(features.lengths, (32,), 4, seed=0)
    all_rows = FeatureBatches(features, plan, num_epochs=2)

    def second_and_last(size: int) -> np.ndarray:
        assert size == 4
        return np.array([1, 3])

    local = FeatureBatches(features, plan, num_epochs=2, local_rows=second_and_last)
    assert len(all_rows) == len(local) == 4
    for step in range(4):
        for name, array in local[step].items():
            np.testing.assert_array_equal(array, all_rows[step][name][[1, 3]])


@pytest.mark.parametrize(
    ("targets", "token_targets", "expected"),
    [
        ((), (), False),
        ((), ("label_weights",), False),
        ((), ("label_weights", "marks"), True),
        (("start_positions",), (), True),
    ],
)
def test_examples_have_targets_whatever_their_names(
    targets: tuple[str, ...], token_targets: tuple[str, ...], expected: bool
) -> None:
    zero = np.zeros(1, np.int32)
    sequences = Sequences(zero, np.array([0, 1]), np.array([1]))
    features = Features(sequences, dict.fromkeys(targets, zero), dict.fromkeys(token_targets, zero))
    assert features.has_targets == expected
