"""Test that documents packed into one row do not affect each other, and that padding has no effect.

A packed row contains multiple documents.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from bert_jax.models.compute_config import ComputeConfig
from bert_jax.models.config import EncoderConfig
from bert_jax.objectives import SentencePairs
from bert_jax.tasks.distillation import Distillation, DistillationConfig, PretrainingTeacher
from bert_jax.tasks.matched_layers import compared_windows
from bert_jax.tasks.pretraining import Pretraining
from bert_jax.tasks.task import Metrics, Task, total_loss

CONFIG = EncoderConfig(
    vocab_size=50,
    hidden_dim=32,
    num_layers=2,
    num_heads=4,
    ffn_dim=64,
    max_positions=24,
    initializer_range=0.2,
)
COMPUTE = ComputeConfig(dtype="float32", attention="xla")
LENGTH = 24
# The lengths of the documents in each row; the rows end with different amounts of padding.
ROWS = [[7, 5, 9], [12, 12], [20]]

Batch = dict[str, np.ndarray]
Results = Callable[[Batch], tuple[np.ndarray, Any, Metrics, dict[str, np.ndarray]]]


def parameters_of(task: Task, seed: int = 0) -> dict[str, Any]:
    """Return random parameters, including random biases and LayerNorm parameters."""
    params = jax.jit(task.definition.init)(jax.random.key(seed))
    noise = np.random.default_rng(seed + 1)
    return {n: p + 0.1 * noise.standard_normal(p.shape, np.float32) for n, p in params.items()}


def loss_of(task: Task, params: Any, batch: Any) -> tuple[jax.Array, Metrics]:
    metrics = task.metrics(task.definition.module(params), batch, None)
    return total_loss(task, metrics, task.loss_weights(batch)), metrics


@pytest.fixture(scope="module")
def results() -> Results:
    """Return a function that maps a batch to (hidden states, model output, metrics, gradients)."""
    task = Pretraining(CONFIG, COMPUTE)
    params, loss = parameters_of(task), partial(loss_of, task)

    @jax.jit
    def compute(batch: Any) -> Any:
        model = task.definition.module(params)
        packed = batch["cls_positions"].shape[1] > 1
        inputs = [batch[f"{name}_ids"] for name in ("token", "segment", "position", "document")]
        hidden = model.encoder(*inputs, packed=packed).hidden
        at = batch["masked_positions"], batch["cls_positions"]
        output = model(*inputs, *at, packed=packed)
        gradients, metrics = jax.grad(loss, has_aux=True)(params, batch)
        return hidden, output, metrics, gradients

    return lambda batch: jax.device_get(compute(batch))


@pytest.fixture(scope="module")
def documents(draw_document: Callable) -> list[list[Any]]:
    rng = np.random.default_rng(2)
    return [[draw_document(rng, size, CONFIG.vocab_size) for size in sizes] for sizes in ROWS]


@pytest.fixture(scope="module")
def packed(documents: list[list[Any]], lay_out: Callable) -> Batch:
    return lay_out(documents, length=LENGTH, predictions=8, documents_per_row=4)


@pytest.fixture(scope="module")
def packed_results(results: Results, packed: Batch) -> Any:
    return results(packed)


def test_packed_documents_have_the_same_results_as_separate_rows(
    results: Results, documents: list[list[Any]], lay_out: Callable, packed_results: Any
) -> None:
    separate = [[document] for row in documents for document in row]
    hidden, output, metrics, gradients = results(
        lay_out(separate, length=LENGTH, predictions=2, documents_per_row=1)
    )
    packed_hidden, packed_output, packed_metrics, packed_gradients = packed_results
    index = 0
    for row, sizes in enumerate(ROWS):
        for fragment, size in enumerate(sizes):
            start = sum(sizes[:fragment])
            packed_states = packed_hidden[row, start : start + size]
            assert_allclose(packed_states, hidden[index, :size], rtol=0, atol=1e-5)
            tokens = packed_output.token_logits[row, 2 * fragment : 2 * fragment + 2]
            assert_allclose(tokens, output.token_logits[index], rtol=0, atol=1e-5)
            pair = packed_output.next_sentence_logits[row, fragment]
            assert_allclose(pair, output.next_sentence_logits[index, 0], rtol=0, atol=1e-5)
            index += 1
    assert index == len(separate) == 6
    for name in metrics:
        # `tokens` is a count per batch; all other metrics are means over the documents' positions.
        assert_allclose(packed_metrics[name], metrics[name], rtol=1e-5, err_msg=name)
    assert metrics["mlm_loss"].weight == 12 and metrics["nsp_loss"].weight == 6
    assert metrics["tokens"].sum == sum(map(sum, ROWS))
    for name, gradient in gradients.items():
        assert_allclose(packed_gradients[name], gradient, rtol=0, atol=1e-5, err_msg=name)


ALBERT = dataclasses.replace(CONFIG, embedding_dim=16, sharing="all")
ROBERTA = dataclasses.replace(CONFIG, num_segments=1, position_offset=2, max_positions=26)
MODERN = dataclasses.replace(
    CONFIG,
    num_segments=0,
    positions="rotary",
    local_rotary_theta=100.0,
    attention_window=5,
    global_every=2,
    norm="pre",
    first_norm=False,
    norm_bias=False,
    dense_bias=False,
    gated_ffn=True,
)
STUDENT = dataclasses.replace(CONFIG, num_layers=1, num_segments=0)
TEACHER = DistillationConfig("teacher", hidden_weight=1, attention_weight=1)


@pytest.mark.parametrize(
    ("encoder", "pairs", "distillation"),
    [
        (ALBERT, "sentence_order", None),
        (ROBERTA, "none", None),
        (MODERN, "none", None),
        (STUDENT, "sentence_order", TEACHER),
        (STUDENT, "none", dataclasses.replace(TEACHER, soft_targets="all")),
    ],
    ids=["albert", "roberta", "modern", "distilled-with-pairs", "distilled-at-every-token"],
)
def test_packing_does_not_change_any_objective(
    encoder: EncoderConfig,
    pairs: SentencePairs,
    distillation: DistillationConfig | None,
    documents: list[list[Any]],
    packed: Batch,
    lay_out: Callable,
) -> None:
    task: Any = Pretraining(encoder, COMPUTE, sentence_pairs=pairs)
    teacher = None
    if distillation is not None:
        windows = compared_windows(encoder, CONFIG)
        task, teacher_task = Distillation(task, distillation, windows), Pretraining(CONFIG, COMPUTE)
        teacher = PretrainingTeacher(teacher_task.definition, distillation, [2])
        teacher_model = teacher_task.definition.module(parameters_of(teacher_task, 5))
    params = parameters_of(task)

    @jax.jit
    def compute(batch: Any) -> Any:
        if teacher is not None:
            batch = teacher.annotate(teacher_model, batch)
        differentiated = jax.value_and_grad(partial(loss_of, task), has_aux=True)
        return differentiated(params, batch)

    separate = [[document] for row in documents for document in row]
    (loss, metrics), gradients = compute(
        lay_out(separate, length=LENGTH, predictions=2, documents_per_row=1)
    )
    (packed_loss, packed_metrics), packed_gradients = compute(packed)
    assert_allclose(packed_loss, loss, rtol=1e-5)
    for name in task.loss_terms:
        assert_allclose(packed_metrics[name], metrics[name], rtol=1e-5, err_msg=name)
    for name, gradient in gradients.items():
        # Scale the tolerance by the largest gradient, since squared attention scores are about 100
        # times as large as a loss.
        atol = 1e-5 * max(1.0, float(abs(gradient).max()))
        assert_allclose(packed_gradients[name], gradient, rtol=0, atol=atol, err_msg=name)


def test_padding_has_no_effect(results: Results, packed: Batch, packed_results: Any) -> None:
    garbage = {name: array.copy() for name, array in packed.items()}
    padding = packed["document_ids"] == 0
    rng = np.random.default_rng(3)
    assert padding.any(axis=1).tolist() == [True, False, True]
    garbage["token_ids"][padding] = rng.integers(0, CONFIG.vocab_size, padding.sum())
    garbage["segment_ids"][padding] = rng.integers(0, 2, padding.sum())
    garbage["position_ids"][padding] = rng.integers(0, LENGTH, padding.sum())
    unused = packed["masked_weights"] == 0
    garbage["masked_positions"][unused] = rng.integers(0, LENGTH, unused.sum())
    garbage["masked_labels"][unused] = rng.integers(0, CONFIG.vocab_size, unused.sum())
    empty = packed["pair_weights"] == 0
    garbage["cls_positions"][empty] = rng.integers(0, LENGTH, empty.sum())
    garbage["pair_labels"][empty] = 1
    hidden, output, metrics, gradients = results(garbage)
    expected_hidden, expected_output, expected_metrics, expected_gradients = packed_results
    assert_array_equal(hidden[~padding], expected_hidden[~padding])
    assert (hidden[padding] != expected_hidden[padding]).any()
    assert_array_equal(output.token_logits[~unused], expected_output.token_logits[~unused])
    for name in metrics:
        assert_array_equal(metrics[name], expected_metrics[name], err_msg=name)
    for name, gradient in gradients.items():
        assert_allclose(gradient, expected_gradients[name], rtol=0, atol=1e-7, err_msg=name)


def test_a_row_with_only_padding_has_no_effect(
    results: Results, documents: list[list[Any]], lay_out: Callable, packed_results: Any
) -> None:
    padded = lay_out([*documents[:2], []], length=LENGTH, predictions=8, documents_per_row=4)
    hidden, _, metrics, gradients = results(padded)
    assert np.isfinite(hidden).all()
    assert all(np.isfinite(gradient).all() for gradient in gradients.values())
    assert_allclose(hidden[:2], packed_results[0][:2], rtol=0, atol=1e-6)
    assert metrics["mlm_loss"].weight == 10 and metrics["nsp_loss"].weight == 5

    empty = lay_out([[], [], []], length=LENGTH, predictions=8, documents_per_row=4)
    _, _, metrics, gradients = results(empty)
    for name in ("mlm_loss", "mlm_accuracy", "nsp_loss", "nsp_accuracy", "tokens"):
        assert metrics[name].sum == 0, name
    assert not any(gradient.any() for gradient in gradients.values())


def test_document_ids_need_not_be_consecutive(
    results: Results, packed: Batch, packed_results: Any
) -> None:
    renumbered = dict(packed)
    renumbered["document_ids"] = np.array([0, 7, 2, 5, 0], np.int32)[packed["document_ids"]]
    hidden, _, metrics, _ = results(renumbered)
    assert_array_equal(hidden, packed_results[0])
    assert_array_equal(metrics["mlm_loss"].sum, packed_results[2]["mlm_loss"].sum)


def test_rows_with_one_document_need_no_positions(
    documents: list[list[Any]], lay_out: Callable
) -> None:
    # packed=False only guarantees that positions are 0, 1, 2, ... and that padding comes last.
    config = dataclasses.replace(CONFIG, num_layers=1)
    task = Pretraining(config, ComputeConfig(dtype="float32", attention="xla"))
    batch = lay_out(
        [[row[0]] for row in documents], length=LENGTH, predictions=2, documents_per_row=1
    )
    params = jax.jit(task.definition.init)(jax.random.key(0))
    tokens, segments = batch["token_ids"], batch["segment_ids"]

    @jax.jit
    def both() -> tuple[jax.Array, jax.Array]:
        encoder = task.definition.module(params).encoder
        positions, ids = batch["position_ids"], batch["document_ids"]
        as_packed = encoder(tokens, segments, positions, ids, packed=True).hidden
        return as_packed, encoder(tokens, segments, None, ids, packed=False).hidden

    real = batch["document_ids"] != 0
    as_packed, plain = jax.device_get(both())
    assert_allclose(as_packed[real], plain[real], rtol=0, atol=1e-6)
