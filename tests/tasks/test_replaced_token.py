"""Compare replaced-token detection with transformers and scikit-learn, and test every mesh."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sklearn.metrics
import torch
import transformers
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import chisquare

from bert_jax.interop.huggingface.families import origins
from bert_jax.models.compute_config import ComputeConfig
from bert_jax.models.config import EncoderConfig
from bert_jax.models.model import ModelConfig
from bert_jax.models.replaced_token import generator_of, pair_names
from bert_jax.models.variants import variant
from bert_jax.tasks import replaced_token
from bert_jax.tasks.replaced_token import (
    REPLACED_TOKEN_METRICS,
    ReplacedToken,
    ReplacedTokenConfig,
    noise_key,
    replace_tokens,
    sample,
)
from bert_jax.tasks.task import Metrics, total_loss
from bert_jax.training.learning_rates import LearningRates
from bert_jax.training.optimizer import OptimizerConfig, make_optimizer
from bert_jax.training.sharding import MeshConfig, local_rows, make_mesh, to_global
from bert_jax.training.state import init_state
from bert_jax.training.step import StepInputs, make_train_step
from bert_jax.training.transformations import is_hidden_matrix

VOCABULARY, LENGTH, STEPS = 48, 12, 3
CONFIG = EncoderConfig(
    vocab_size=VOCABULARY,
    hidden_dim=16,
    num_layers=2,
    num_heads=2,
    ffn_dim=32,
    max_positions=LENGTH,
    embedding_dim=12,
    initializer_range=0.2,
    pooler_activation="gelu",
)
NO_DROPOUT = dataclasses.replace(CONFIG, hidden_dropout=0.0, attention_dropout=0.0)
COMPUTE = ComputeConfig(dtype="float32", attention="xla", scan_layers=True)
SETTINGS = ReplacedTokenConfig(generator_size=0.5)
OPTIMIZER = OptimizerConfig(peak_learning_rate=1e-3, warmup_steps=0, clip_norm=0.5, epsilon=1e-5)

Batch = dict[str, np.ndarray]
Result = tuple[dict[str, np.ndarray], list[Metrics]]


@pytest.fixture(scope="module")
def batches(draw_document: Callable, lay_out: Callable) -> list[Batch]:
    """Return batches whose rows contain two documents, one document or only padding."""
    rng = np.random.default_rng(0)
    result = []
    for _ in range(STEPS):
        sizes = [[12], [], [5, 7], [6], [8], [3, 9], [4, 3], [10]]
        rows = [[draw_document(rng, size, VOCABULARY) for size in row] for row in sizes]
        result.append(lay_out(rows, length=LENGTH, predictions=4, documents_per_row=2))
    return result


@pytest.fixture(scope="module")
def plain(draw_document: Callable, lay_out: Callable) -> Batch:
    """Return a batch with one document per row, as the `transformers` library expects."""
    rng = np.random.default_rng(5)
    rows = [[draw_document(rng, size, VOCABULARY, masked=3)] for size in (12, 7, 9, 11)]
    return lay_out(rows, length=LENGTH, predictions=4, documents_per_row=1)


@pytest.mark.parametrize(
    ("name", "size"), [("small", 0.25), ("base", 1 / 3), ("large", 0.25)], ids=str
)
def test_generators_have_the_published_sizes(name: str, size: float) -> None:
    # These sizes are from Clark et al. 2020, table 6, and from the released generators of the base
    # and large models.
    generator = generator_of(variant(f"electra-{name}"), size)
    if name == "small":
        sizes = (generator.hidden_dim, generator.ffn_dim, generator.num_heads)
        assert (*sizes, generator.embedding_dim, generator.num_layers) == (64, 256, 1, 128, 12)
    else:
        assert generator == variant(f"electra-{name}-generator")


def test_a_generator_of_the_same_size_needs_no_projection() -> None:
    assert generator_of(CONFIG, 1.0) == CONFIG
    wide = dataclasses.replace(CONFIG, embedding_dim=None)
    assert generator_of(wide, 1.0) == wide
    assert generator_of(wide, 0.5).embedding_dim == 16
    assert generator_of(dataclasses.replace(CONFIG, embedding_dim=8), 0.5).embedding_dim is None


def test_muon_updates_the_matrices_in_the_layers_of_both_models() -> None:
    task = ReplacedToken(CONFIG, COMPUTE, SETTINGS)
    chosen = {name for name in task.definition.shapes if is_hidden_matrix(name)}
    kernels = {name for name in task.definition.shapes if name.endswith(".kernel")}
    assert chosen == {name for name in kernels if ".layers." in name}
    assert any(name.startswith("generator.") for name in chosen)


def theirs_of(params: dict[str, Any], encoder: EncoderConfig, head: str) -> Any:
    """Return Hugging Face's model with some of our parameters."""
    config = transformers.ElectraConfig(
        vocab_size=VOCABULARY,
        embedding_size=encoder.table_dim,
        hidden_size=encoder.hidden_dim,
        num_hidden_layers=encoder.num_layers,
        num_attention_heads=encoder.num_heads,
        intermediate_size=encoder.ffn_dim,
        max_position_embeddings=LENGTH,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        attn_implementation="eager",
        pad_token_id=None,
    )
    classes = {"masked_lm": "ElectraForMaskedLM", "replaced_token": "ElectraForPreTraining"}
    model = getattr(transformers, classes[head])(config)
    tensors = dict(model.named_parameters())
    with torch.no_grad():
        for name, origin in origins(ModelConfig(encoder, head)).items():
            values = np.asarray(params[name])
            values = values.T if origin.transposed else values
            tensors.pop(origin.name).copy_(torch.from_numpy(values.copy()))
    assert not tensors
    return model


def test_losses_and_gradients_agree_with_transformers(plain: Batch) -> None:
    task = ReplacedToken(NO_DROPOUT, COMPUTE, SETTINGS)
    params = jax.jit(task.definition.init)(jax.random.key(3))
    noise = jax.random.split(jax.random.key(8), len(params))
    params = {
        name: x + 0.1 * jax.random.normal(key, x.shape)
        for key, (name, x) in zip(noise, params.items(), strict=True)
    }

    def loss_of(params: Any) -> Any:
        metrics = task.metrics(task.definition.module(params), plain, None)
        return total_loss(task, metrics, task.loss_weights(plain)), metrics

    (loss, metrics), gradients = jax.jit(jax.value_and_grad(loss_of, has_aux=True))(params)

    names = pair_names(origins(ModelConfig(task.generator, "masked_lm")))
    assert set(names.values()) | set(origins(ModelConfig(CONFIG, "replaced_token"))) == set(params)
    generator = theirs_of(
        {name: params[stored] for name, stored in names.items()}, task.generator, "masked_lm"
    )
    rows = np.arange(len(plain["token_ids"]))[:, None]
    at, weights = plain["masked_positions"], plain["masked_weights"] == 1
    labels = np.full_like(plain["token_ids"], -100)
    labels[np.broadcast_to(rows, at.shape)[weights], at[weights]] = plain["masked_labels"][weights]
    inputs = dict(
        attention_mask=torch.from_numpy(plain["document_ids"] != 0).long(),
        token_type_ids=torch.from_numpy(plain["segment_ids"]).long(),
    )
    ids = torch.from_numpy(plain["token_ids"]).long()
    found = generator(input_ids=ids, labels=torch.from_numpy(labels).long(), **inputs)
    at_masks = jnp.asarray(found.logits.detach().numpy()[rows, at])
    given, replaced = replace_tokens(
        {name: jnp.asarray(x) for name, x in plain.items()}, sample(at_masks, noise_key(plain))
    )
    assert replaced.sum() > 0
    discriminator = theirs_of(params, NO_DROPOUT, "replaced_token")
    scored = discriminator(
        input_ids=torch.from_numpy(np.array(given)).long(),
        labels=torch.from_numpy(np.array(replaced)),
        **inputs,
    )
    whole = found.loss + 50 * scored.loss
    whole.backward()
    assert_allclose(metrics["mlm_loss"].mean(), found.loss.item(), rtol=1e-5)
    assert_allclose(metrics["replaced_loss"].mean(), scored.loss.item(), rtol=1e-5)
    assert_allclose(loss, whole.item(), rtol=1e-5)

    # The shared embeddings receive the gradients of both models.
    expected: dict[str, np.ndarray] = {}
    for model, encoder, head, stored in (
        (generator, task.generator, "masked_lm", names),
        (discriminator, NO_DROPOUT, "replaced_token", None),
    ):
        grads = {name: p.grad.numpy() for name, p in model.named_parameters()}
        for name, origin in origins(ModelConfig(encoder, head)).items():
            ours = name if stored is None else stored[name]
            expected[ours] = origin.parameter_values(grads[origin.name]) + expected.get(ours, 0)
    assert expected.keys() == gradients.keys()
    for name, gradient in gradients.items():
        scale = np.abs(expected[name.replace(".key.bias", ".query.bias")]).max()
        assert_allclose(gradient, expected[name], rtol=0, atol=1e-4 * scale, err_msg=name)

    # Precision, recall and accuracy over all tokens except padding.
    real = plain["document_ids"] != 0
    truth, guess = np.array(replaced)[real], (scored.logits.detach().numpy() > 0)[real]
    for name, measure in (
        ("accuracy", sklearn.metrics.accuracy_score),
        ("precision", sklearn.metrics.precision_score),
        ("recall", sklearn.metrics.recall_score),
    ):
        assert_allclose(metrics[f"replaced_{name}"].mean(), measure(truth, guess), rtol=1e-6)
    assert metrics.keys() == {*REPLACED_TOKEN_METRICS, "tokens"}


def test_samples_have_the_softmax_distribution() -> None:
    logits = jnp.array([1.0, -0.5, 0.0, 2.0, -30.0])
    drawn = sample(jnp.tile(logits, (20_000, 1)), jax.random.key(4))
    counts = np.bincount(np.array(drawn), minlength=5)
    expected = np.exp(np.array(logits[:4], np.float64))
    assert counts[4] == 0  # The probability of this token is below 1e-13.
    assert chisquare(counts[:4], 20_000 * expected / expected.sum()).pvalue > 0.01


def test_only_masked_tokens_are_replaced() -> None:
    batch = {
        "token_ids": jnp.array([[5, 1, 9, 1, 0]]),
        "masked_positions": jnp.array([[1, 3, 0]]),
        "masked_labels": jnp.array([[7, 8, 0]]),
        "masked_weights": jnp.array([[1.0, 1.0, 0.0]]),
    }
    given, replaced = replace_tokens(batch, jnp.array([[7, 4, 6]]))
    assert_array_equal(given, [[5, 7, 9, 4, 0]])
    # A sample that equals the original token counts as original.
    assert_array_equal(replaced, [[0, 0, 0, 1, 0]])


def test_packing_does_not_change_the_losses(
    draw_document: Callable, lay_out: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pack two documents into one row, and compare the metrics with those of two separate rows.

    Every masked token is replaced with token 3, regardless of the generator's output.
    """
    monkeypatch.setattr(
        replaced_token, "sample", lambda logits, key: jnp.full(logits.shape[:-1], 3)
    )
    rng = np.random.default_rng(2)
    documents = [draw_document(rng, size, VOCABULARY) for size in (5, 7)]
    task = ReplacedToken(NO_DROPOUT, COMPUTE, SETTINGS)
    params = jax.jit(task.definition.init)(jax.random.key(1))
    found = []
    for rows, count in (([documents], 2), ([[one] for one in documents], 1)):
        batch = lay_out(rows, length=LENGTH, predictions=2 * count, documents_per_row=count)
        measure = jax.jit(lambda batch: task.metrics(task.definition.module(params), batch, None))
        found.append(measure(batch))
    packed, separate = found
    for name in packed:
        assert_allclose(packed[name].sum, separate[name].sum, rtol=1e-5, err_msg=name)
        assert_allclose(packed[name].weight, separate[name].weight, err_msg=name)


def train(batches: list[Batch], mesh_config: MeshConfig, devices: int, parts: int = 1) -> Result:
    task = ReplacedToken(CONFIG, COMPUTE, SETTINGS)
    optimizer = make_optimizer(OPTIMIZER)
    mesh = make_mesh(mesh_config, jax.devices()[:devices])
    step = make_train_step(task, optimizer, mesh, accumulation_steps=parts)
    state = init_state(task.definition, optimizer, mesh, seed=3)
    rows, metrics = local_rows(mesh, 8), []
    for batch, rate in zip(batches, LearningRates(OPTIMIZER, STEPS), strict=True):
        whole = to_global(batch, mesh, rows, 8)
        state, of_step = step(state, whole, StepInputs(np.uint32(3), rate))
        metrics.append(jax.device_get(of_step))
    return jax.device_get(state.params), metrics


@pytest.fixture(scope="module")
def on_one_device(batches: list[Batch]) -> Result:
    return train(batches, MeshConfig(), devices=1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "mesh",
    [
        pytest.param(MeshConfig(data=8), marks=pytest.mark.slow),
        pytest.param(MeshConfig(data=1, fsdp=8), marks=pytest.mark.slow),
        MeshConfig(data=2, fsdp=2, tensor=2),
    ],
    ids=str,
)
def test_eight_devices_learn_the_same_as_one(
    mesh: MeshConfig, batches: list[Batch], on_one_device: Result
) -> None:
    params, metrics = train(batches, mesh, devices=8)
    for found, expected in zip(metrics, on_one_device[1], strict=True):
        assert found.keys() == expected.keys()
        for name, metric in expected.items():
            assert_allclose(found[name].sum, metric.sum, rtol=2e-5, err_msg=name)
            assert_allclose(found[name].weight, metric.weight, err_msg=name)
    for name, value in on_one_device[0].items():
        assert_allclose(params[name], value, rtol=0, atol=2e-5, err_msg=name)


def test_training_changes_every_parameter(on_one_device: Result) -> None:
    task = ReplacedToken(CONFIG, COMPUTE, SETTINGS)
    fresh = jax.device_get(jax.jit(task.definition.init)(jax.random.key(3)))
    for name, value in on_one_device[0].items():
        if not name.endswith(".key.bias"):  # Key biases do not affect the softmax.
            assert np.abs(value - fresh[name]).max() > 1e-4, name


@pytest.mark.slow
def test_parts_of_a_batch_have_the_weights_of_the_whole(
    batches: list[Batch], on_one_device: Result
) -> None:
    """Check that the loss of an accumulated step is the weighted sum of its metrics."""
    _, metrics = train(batches, MeshConfig(data=2), devices=2, parts=2)
    for found, whole in zip(metrics, on_one_device[1], strict=True):
        for name in ("mlm_loss", "replaced_loss", "replaced_accuracy"):
            assert found[name].weight == whole[name].weight
        total = found["mlm_loss"].mean() + 50 * found["replaced_loss"].mean()
        assert_allclose(found["loss"].sum, total, rtol=1e-5)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (dict(generator_size=0.0), "replaced_token.generator_size=0.0: must be above 0"),
        (dict(generator_size=1.5), "replaced_token.generator_size=1.5: must be above 0"),
        (dict(weight=0.0), "replaced_token.weight=0.0: must be positive"),
        (dict(weight=float("nan")), "replaced_token.weight=nan: must be positive"),
    ],
)
def test_invalid_settings_are_refused(values: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ReplacedTokenConfig(**values)
