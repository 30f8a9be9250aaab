"""Test how the pretraining loss weights sentence pairs if only some fragments have a pair."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from numpy.testing import assert_allclose

from bert_jax.models.compute_config import ComputeConfig
from bert_jax.models.config import EncoderConfig
from bert_jax.tasks.pretraining import Pretraining
from bert_jax.tasks.task import total_loss

CONFIG = EncoderConfig(
    vocab_size=40, hidden_dim=16, num_layers=1, num_heads=2, ffn_dim=32, max_positions=32
)
LENGTHS = [9, 16, 12, 5, 14, 7]
WITH_PAIR = [True, False, False, True, False, False]


@pytest.fixture(scope="module")
def loss_and_gradients() -> Callable[[Any], Any]:
    task = Pretraining(CONFIG, ComputeConfig(dtype="float32", attention="xla"))
    params = jax.jit(task.definition.init)(jax.random.key(0))

    def loss_of(params: Any, batch: Any) -> Any:
        metrics = task.metrics(task.definition.module(params), batch, None)
        return total_loss(task, metrics, task.loss_weights(batch)), metrics

    compute = jax.jit(jax.value_and_grad(loss_of, has_aux=True))
    return lambda batch: jax.device_get(compute(params, batch))


def test_the_weight_of_a_pair_does_not_depend_on_fragments_without_pairs(
    loss_and_gradients: Callable[[Any], Any], draw_document: Callable, lay_out: Callable
) -> None:
    """Compare with the mean over single-row batches that have equal numbers of masked tokens."""
    rng = np.random.default_rng(1)
    documents = [draw_document(rng, length, CONFIG.vocab_size) for length in LENGTHS]

    def batch_of(*numbers: int, documents_per_row: int = 1) -> Any:
        rows = [
            numbers[start : start + documents_per_row]
            for start in range(0, len(numbers), documents_per_row)
        ]
        laid = [[documents[number] for number in row] for row in rows]
        length = 16 if documents_per_row == 1 else 32
        batch = lay_out(
            laid,
            length=length,
            predictions=2 * documents_per_row,
            documents_per_row=documents_per_row,
        )
        for place, number in enumerate(numbers):
            batch["pair_weights"][divmod(place, documents_per_row)] = WITH_PAIR[number]
        return batch

    numbers = range(len(documents))
    single = [loss_and_gradients(batch_of(number)) for number in numbers]
    for documents_per_row in (1, 2):
        (loss, metrics), gradients = loss_and_gradients(
            batch_of(*numbers, documents_per_row=documents_per_row)
        )
        assert metrics["nsp_loss"].weight == sum(WITH_PAIR)
        assert_allclose(loss, np.mean([result[0][0] for result in single]), rtol=1e-5)
        for name, gradient in gradients.items():
            mean = np.mean([result[1][name] for result in single], axis=0)
            assert_allclose(gradient, mean, rtol=0, atol=1e-6, err_msg=name)
    # The reported metric is a mean over pairs only.
    pair_losses = [single[number][0][1]["nsp_loss"].sum for number in numbers if WITH_PAIR[number]]
    assert_allclose(metrics["nsp_loss"].mean(), np.mean(pair_losses), rtol=1e-5)
