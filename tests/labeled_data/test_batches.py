"""Batches by length: every example once, in few shapes, the same for every run."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from bert_jax.labeled_data.features import (
    ByLength,
    FeatureBatches,
    Features,
    InOrder,
    Sequences,
    choose_lengths,
    rows_by_length,
)


def features_of(lengths: list[int], each: int = 1) -> Features:
    """Sequences 1000 i, 1000 i + 1, ... with a second segment from their middle on."""
    starts = np.concatenate([[0], np.cumsum(lengths)])
    ids = np.concatenate([1000 * i + np.arange(n) for i, n in enumerate(lengths)]).astype(np.int32)
    examples = len(lengths) // each
    return Features(
        Sequences(ids, starts, np.array(lengths) // 2),
        targets={"labels": np.arange(examples, dtype=np.int32), "scores": np.ones((examples, 2))},
        token_targets={"tags": ids + 1},
        sequences_per_example=each,
    )


def test_a_batch_is_what_its_examples_are() -> None:
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


def test_choices_stand_beside_each_other() -> None:
    features = features_of([3, 5, 2, 2], each=2)
    assert features.lengths.tolist() == [5, 2]
    batch = features.batch(np.array([1, -1]), 3)
    assert batch["token_ids"].tolist() == [[[2000, 2001, 0], [3000, 3001, 0]], [[0, 0, 0]] * 2]


def padded(lengths: np.ndarray, rows: tuple[int, ...]) -> int:
    return int(np.asarray(rows)[np.searchsorted(rows, lengths)].sum())


@pytest.mark.parametrize("num_shapes", [1, 2, 3, 6])
def test_no_other_row_lengths_pad_less(num_shapes: int) -> None:
    rng = np.random.default_rng(num_shapes)
    lengths = rng.integers(1, 65, 50)
    found = choose_lengths(lengths, num_shapes)
    assert len(found) <= num_shapes and found[-1] == -(-lengths.max() // 8) * 8
    others = [
        rows
        for count in range(num_shapes)
        for part in itertools.combinations(range(8, found[-1], 8), count)
        if (rows := (*part, found[-1]))
    ]
    assert padded(lengths, found) == min(padded(lengths, rows) for rows in others)


@pytest.mark.parametrize("batch_size", [1, 7, 64])
def test_an_epoch_sees_every_example_once(batch_size: int) -> None:
    lengths = np.random.default_rng(0).integers(1, 100, 45)
    rows = choose_lengths(lengths, 3)
    plan = ByLength(lengths, rows, batch_size, seed=5)
    for epoch in range(2):
        steps = range(epoch * plan.steps_per_epoch, (epoch + 1) * plan.steps_per_epoch)
        batches = [plan.place(step) for step in steps]
        seen = np.concatenate([batch.examples for batch in batches])
        assert sorted(seen[seen >= 0].tolist()) == list(range(45))
        assert sum((batch.examples < 0).any() for batch in batches) <= 1
        for batch in batches:
            assert batch.length in rows and len(batch.examples) == batch_size
            assert lengths[batch.examples[batch.examples >= 0]].max() <= batch.length


def test_a_ragged_batch_is_as_long_as_its_longest_example() -> None:
    lengths = np.array([3, 8, 5, 17, 20, 2, 7])
    # The last two row lengths are those of other sets: nothing here is so long.
    plan = ByLength(lengths, (8, 16, 24, 64, 128), 4, seed=0)
    for epoch in range(8):
        whole, ragged = sorted(map(plan.place, (2 * epoch, 2 * epoch + 1)), key=lambda x: x.length)
        assert (whole.length, ragged.length) == (8, 24)
        assert sorted(ragged.examples.tolist())[0] == -1
    short = ByLength(lengths[:3], (8, 16, 24), 4, seed=0)
    assert [short.place(step).length for step in range(3)] == [8, 8, 8]


def test_epochs_and_seeds_differ_and_nothing_else_does() -> None:
    lengths = np.random.default_rng(0).integers(1, 100, 45)

    def order(seed: int, epoch: int) -> list[int]:
        plan = ByLength(lengths, (104,), 7, seed)
        steps = range(epoch * plan.steps_per_epoch, (epoch + 1) * plan.steps_per_epoch)
        return np.concatenate([plan.place(step).examples for step in steps]).tolist()

    assert order(0, 0) == order(0, 0)
    assert len({tuple(order(seed, epoch)) for seed in (0, 1) for epoch in (0, 1)}) == 4


def test_batches_by_length_pad_less_than_batches_at_random() -> None:
    lengths = np.random.default_rng(0).geometric(0.05, 2000).clip(1, 128)
    rows = choose_lengths(lengths, 6)
    plan = ByLength(lengths, rows, 32, seed=0)
    sizes = [32 * plan.place(step).length for step in range(plan.steps_per_epoch)]
    # Batches as they come, each padded to its own longest example.
    at_random = [32 * lengths[first : first + 32].max() for first in range(0, 2000, 32)]
    assert sum(sizes) < 0.5 * sum(at_random)


def test_one_pass_begins_with_the_longest() -> None:
    features = features_of([3, 50, 2, 9, 30])
    batches = FeatureBatches(features, InOrder(features.lengths, (8, 32, 56), (2, 2, 2)))
    assert len(batches) == 3
    assert [batches[step]["token_ids"].shape for step in range(3)] == [(2, 56), (2, 16 * 2), (2, 8)]
    labels = [batches[step]["labels"].tolist() for step in range(3)]
    assert labels == [[1, 4], [3, 0], [2, 0]] and batches[2]["example_weights"].tolist() == [1, 0]
    with pytest.raises(IndexError):
        batches[3]


def test_batches_of_one_pass_hold_fewer_of_the_long_rows() -> None:
    features = features_of([3, 50, 2, 9, 30, 31, 7, 8, 5])
    sizes = rows_by_length((8, 32, 56), 4, 80)
    assert sizes == (4, 2, 1)
    batches = FeatureBatches(features, InOrder(features.lengths, (8, 32, 56), sizes))
    labels = [batches[step]["labels"].tolist() for step in range(len(batches))]
    shapes = [batches[step]["token_ids"].shape for step in range(len(batches))]
    assert labels == [[1], [5, 4], [3, 7], [6, 8, 0, 2]]
    assert shapes == [(1, 56), (2, 32), (2, 32), (4, 8)]


def test_rows_by_length_are_whole_multiples() -> None:
    assert rows_by_length((8, 32, 512), 16, None) == (16, 16, 16)
    assert rows_by_length((8, 100, 512), 16, 1024, multiple=4) == (16, 8, 4)


def test_a_process_makes_its_own_rows() -> None:
    features = features_of([3, 5, 2, 9, 30])
    plan = ByLength(features.lengths, (32,), 4, seed=0)
    whole = FeatureBatches(features, plan, num_epochs=2)

    def second_and_last(size: int) -> np.ndarray:
        assert size == 4
        return np.array([1, 3])

    part = FeatureBatches(features, plan, num_epochs=2, local_rows=second_and_last)
    assert len(whole) == len(part) == 4
    for step in range(4):
        for name, array in part[step].items():
            np.testing.assert_array_equal(array, whole[step][name][[1, 3]])
