"""Compare distillation losses with PyTorch, and test gradient accumulation on meshes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from bert_jax.models.compute_config import ComputeConfig
from bert_jax.models.config import EncoderConfig
from bert_jax.models.heads import TRAINING_ONLY
from bert_jax.models.parameters import Parameters
from bert_jax.tasks.distillation import Distillation, DistillationConfig, PretrainingTeacher
from bert_jax.tasks.distillation_losses import cosine
from bert_jax.tasks.matched_layers import chosen_layers, compared_windows, matched_layers
from bert_jax.tasks.pretraining import Pretraining
from bert_jax.tasks.task import soft_cross_entropy, total_loss
from bert_jax.training.optimizer import OptimizerConfig, make_optimizer
from bert_jax.training.sharding import (
    MeshConfig,
    local_rows,
    make_mesh,
    parameter_shardings,
    to_global,
)
from bert_jax.training.state import init_state
from bert_jax.training.step import StepInputs, make_train_step

TEACHER = EncoderConfig(
    vocab_size=48, hidden_dim=16, num_layers=4, num_heads=2, ffn_dim=32, max_positions=12,
    initializer_range=0.3,
)  # fmt: skip
STUDENT = dataclasses.replace(
    TEACHER, num_layers=2, num_segments=0, hidden_dropout=0.0, attention_dropout=0.0
)
LAYERS = matched_layers(STUDENT.num_layers, TEACHER.num_layers)
COMPUTE = ComputeConfig(dtype="float32", attention="xla")
CONFIG = DistillationConfig(teacher="runs/teacher")
NARROW = dataclasses.replace(STUDENT, hidden_dim=8)
INSIDE = DistillationConfig(
    teacher="runs/teacher", soft_weight=0, mlm_weight=0, cosine_weight=0, hidden_weight=1,
    attention_weight=0.5,
)  # fmt: skip
OPTIMIZER = OptimizerConfig(peak_learning_rate=1e-2, warmup_steps=0, clip_norm=0)
Batch = dict[str, np.ndarray]


@pytest.fixture(scope="module")
def batch(draw_document: Callable, lay_out: Callable) -> Batch:
    """Return a batch whose rows contain one, two or no documents."""
    rng = np.random.default_rng(0)
    sizes = [[12], [], [5, 7], [], [8], [], [4, 3], []]
    rows = [[draw_document(rng, size, 48) for size in row] for row in sizes]
    return lay_out(rows, length=12, predictions=4, documents_per_row=2)


def make(
    config: DistillationConfig = CONFIG,
    student: EncoderConfig = STUDENT,
    teacher: EncoderConfig = TEACHER,
) -> tuple[Distillation, PretrainingTeacher]:
    dim = teacher.hidden_dim if student.hidden_dim != teacher.hidden_dim else None
    pretraining = Pretraining(student, COMPUTE, sentence_pairs="none", teacher_dim=dim)
    task = Distillation(pretraining, config, compared_windows(student, teacher))
    return task, PretrainingTeacher(Pretraining(teacher, COMPUTE).definition, config, LAYERS)


def losses(config: DistillationConfig, batch: Batch) -> tuple[Distillation, dict[str, Any], Batch]:
    """Return (task, metrics, annotated batch)."""
    task, teacher = make(config)
    shown = teacher.annotate(
        teacher.definition.module(teacher.definition.init(jax.random.key(1))), batch
    )
    model = task.definition.module(task.definition.init(jax.random.key(2)))
    return task, task.metrics(model, shown, None), shown


def test_soft_targets_match_torch() -> None:
    rng = np.random.default_rng(0)
    student, teacher = rng.standard_normal((2, 5, 7), np.float32) * 3
    logits = torch.tensor(student, requires_grad=True)
    divergence = torch.nn.functional.kl_div(
        torch.log_softmax(logits / 2.5, -1), torch.softmax(torch.tensor(teacher) / 2.5, -1),
        reduction="batchmean",
    )  # fmt: skip
    expected = divergence * 2.5**2
    expected.backward()

    def mean(student: jax.Array) -> jax.Array:
        return soft_cross_entropy(student, jnp.asarray(teacher), 2.5).mean()

    value, gradient = jax.value_and_grad(mean)(jnp.asarray(student))
    assert_allclose(value, expected.item(), rtol=1e-5)
    assert_allclose(gradient, logits.grad, rtol=1e-4, atol=1e-6)


def test_the_cosine_loss_matches_torch() -> None:
    rng = np.random.default_rng(0)
    left, right = rng.standard_normal((2, 5, 7), np.float32)
    expected = torch.nn.CosineEmbeddingLoss()(
        torch.tensor(left), torch.tensor(right), torch.ones(5)
    )
    assert_allclose((1 - cosine(left, right)).mean(), expected.item(), rtol=1e-5)


@pytest.mark.parametrize("soft_targets", ["masked", "all"])
def test_the_loss_is_the_weighted_sum_over_real_tokens(soft_targets: str, batch: Batch) -> None:
    config = dataclasses.replace(CONFIG, soft_targets=soft_targets, mlm_weight=3.0, temperature=4.0)
    task, metrics, shown = losses(config, batch)
    means = {name: float(metric.mean()) for name, metric in metrics.items()}
    loss = total_loss(task, metrics, task.loss_weights(shown))
    expected = 3 * means["mlm_loss"] + 5 * means["soft_loss"] + means["cosine_loss"]
    assert_allclose(loss, expected, rtol=1e-5)
    tokens = int((batch["document_ids"] != 0).sum())
    assert metrics["cosine_loss"].weight == tokens
    masks = float(batch["masked_weights"].sum())
    assert metrics["soft_loss"].weight == (masks if soft_targets == "masked" else tokens)
    # The masked-LM loss must not depend on the positions at which soft targets are compared.
    plain, _, _ = losses(CONFIG, batch)
    model = plain.definition.module(plain.definition.init(jax.random.key(2)))
    separate = plain.student.metrics(model, batch, None)
    assert_allclose(means["mlm_loss"], separate["mlm_loss"].mean(), rtol=1e-5)


@pytest.mark.parametrize("weight", [0.0, 3.0])
def test_sentence_pairs_have_the_configured_weight(weight: float, batch: Batch) -> None:
    """Test that a model still reads sentence pairs as two segments if their loss has weight 0."""
    config = dataclasses.replace(CONFIG, pairs_weight=weight)
    student = dataclasses.replace(STUDENT, num_segments=2)
    task = Distillation(Pretraining(student, COMPUTE, sentence_pairs="next_sentence"), config)
    teacher = PretrainingTeacher(Pretraining(TEACHER, COMPUTE).definition, config, LAYERS)
    shown = teacher.annotate(
        teacher.definition.module(teacher.definition.init(jax.random.key(1))), batch
    )
    shown["segment_ids"] = np.asarray(batch["token_ids"]) % 2
    params = task.definition.init(jax.random.key(2))

    def loss(params: Parameters) -> tuple[jax.Array, dict[str, Any]]:
        metrics = task.metrics(task.definition.module(params), shown, None)
        return total_loss(task, metrics, task.loss_weights(shown)), metrics

    (value, metrics), gradient = jax.value_and_grad(loss, has_aux=True)(params)
    means = {name: float(metric.mean()) for name, metric in metrics.items()}
    expected = 2 * means["mlm_loss"] + 5 * means["soft_loss"] + means["cosine_loss"]
    assert_allclose(value, expected + weight * means["nsp_loss"], rtol=1e-5)
    (table,) = (x for name, x in gradient.items() if "segment" in name)
    assert (np.abs(table).max(axis=1) > 0).all()
    (classifier,) = (x for name, x in gradient.items() if name.startswith("next_sentence.kernel"))
    assert bool(np.abs(classifier).max() > 0) == bool(weight)


def test_losses_are_zero_for_a_student_equal_to_its_teacher(batch: Batch) -> None:
    twin = dataclasses.replace(TEACHER, hidden_dropout=0.0, attention_dropout=0.0)
    task = Distillation(Pretraining(twin, COMPUTE), CONFIG)
    teacher = PretrainingTeacher(task.definition, CONFIG, ())
    model = task.definition.module(task.definition.init(jax.random.key(1)))
    metrics = task.metrics(model, teacher.annotate(model, batch), None)
    assert_allclose(metrics["soft_loss"].mean(), 0, atol=1e-5)
    assert_allclose(metrics["cosine_loss"].mean(), 0, atol=1e-5)
    assert task.loss_terms == {
        "mlm_loss": 2.0, "nsp_loss": 1.0, "soft_loss": 5.0, "cosine_loss": 1.0
    }  # fmt: skip


def test_layer_losses_are_zero_for_a_student_equal_to_its_teacher(batch: Batch) -> None:
    twin = dataclasses.replace(TEACHER, hidden_dropout=0.0, attention_dropout=0.0)
    task = Distillation(Pretraining(twin, COMPUTE), INSIDE, compared_windows(twin, twin))
    teacher = PretrainingTeacher(task.definition, INSIDE, matched_layers(4, 4))
    model = task.definition.module(task.definition.init(jax.random.key(1)))
    metrics = task.metrics(model, teacher.annotate(model, batch), None)
    assert task.loss_terms == {"nsp_loss": 1.0, "hidden_loss": 1.0, "attention_loss": 0.5}
    assert metrics["hidden_loss"].mean() == metrics["attention_loss"].mean() == 0


def test_states_of_another_size_are_projected(batch: Batch) -> None:
    """Compare the losses with PyTorch's, computed over real tokens and visible pairs."""
    task, teacher = make(INSIDE, NARROW)
    maps = {name for name in task.definition.shapes if name.startswith(TRAINING_ONLY)}
    assert maps == {
        f"to_teacher.{part}.{what}"
        for part in ("embeddings", "layers")
        for what in ("kernel", "bias")
    }
    unprojected = Pretraining(NARROW, COMPUTE, sentence_pairs="none").definition
    params, model_params = (d.init(jax.random.key(2)) for d in (task.definition, unprojected))
    for name, value in model_params.items():
        np.testing.assert_array_equal(params[name], value, err_msg=name)
    teacher_model = teacher.definition.module(teacher.definition.init(jax.random.key(1)))
    student = task.definition.module(params)
    metrics = task.metrics(student, teacher.annotate(teacher_model, batch), None)
    inputs = [batch[f"{name}_ids"] for name in ("token", "segment", "position", "document")]
    asked = dict(return_hidden_states=True, return_attention_scores=True)
    outputs, targets = (model.encoder(*inputs, **asked) for model in (student, teacher_model))
    real = batch["document_ids"] != 0
    total = 0.0
    for state, layer, part in zip(outputs.hidden_states, (0, 2, 4), ("e", "l", "l"), strict=True):
        name = "to_teacher.embeddings" if part == "e" else "to_teacher.layers"
        mapped = np.asarray(state)[real] @ params[f"{name}.kernel"] + params[f"{name}.bias"]
        expected = np.asarray(targets.hidden_states[layer])[real]
        total += torch.nn.MSELoss()(torch.tensor(mapped), torch.tensor(expected)).item()
    assert_allclose(metrics["hidden_loss"].mean(), total, rtol=1e-5)
    ids = batch["document_ids"]
    pairs = (ids[:, :, None] == ids[:, None, :]) & real[:, :, None]
    assert metrics["attention_loss"].weight == pairs.sum()
    total = 0.0
    for scores, layer in zip(outputs.attention_scores, (2, 4), strict=True):
        pair_scores = [
            np.moveaxis(np.asarray(x), 1, -1)[pairs]
            for x in (scores, targets.attention_scores[layer - 1])
        ]
        total += torch.nn.MSELoss()(*map(torch.tensor, pair_scores)).item()
    assert_allclose(metrics["attention_loss"].mean(), total, rtol=1e-5)


def test_attention_is_compared_only_where_both_layers_attend(batch: Batch) -> None:
    """Compare the loss with a loop over pairs of tokens.

    The student's first layer has global attention and matches a teacher layer with a window of 3.
    Its second layer has a window of 5 and matches a teacher layer with global attention.
    """
    local = dataclasses.replace(STUDENT, attention_window=5, global_every=2)
    local_teacher = dataclasses.replace(TEACHER, attention_window=3, global_every=3)
    config = dataclasses.replace(INSIDE, hidden_weight=0)
    task, teacher = make(config, local, local_teacher)
    models = (task.definition.module(task.definition.init(jax.random.key(2))),
              teacher.definition.module(teacher.definition.init(jax.random.key(1))))  # fmt: skip
    shown = teacher.annotate(models[1], batch)
    loss = task.metrics(models[0], shown, None)["attention_loss"]

    inputs = [batch[f"{name}_ids"] for name in ("token", "segment", "position", "document")]
    own, other = (m.encoder(*inputs, return_attention_scores=True) for m in models)
    ids, total = batch["document_ids"], 0.0
    for layer, (teacher_layer, reach) in enumerate([(1, 1), (3, 2)]):
        scores = np.asarray(own.attention_scores[layer])
        errors = (scores - np.asarray(other.attention_scores[teacher_layer])) ** 2
        for row, token in np.argwhere(ids != 0):
            document = np.flatnonzero(ids[row] == ids[row, token])
            near = document[abs(document - token) <= reach]
            total += len(document) * errors[row, :, token, near].mean()
    size = np.array([(row == number).sum() for row in ids for number in set(row) - {0}])
    assert_allclose(loss.mean(), total / (size**2).sum(), rtol=1e-5)
    assert task.loss_weights(shown)["attention_loss"] == loss.weight == (size**2).sum()

    columns = np.arange(ids.shape[1])
    far = abs(columns[:, None] - columns) > np.array([1, 2])[:, None, None]
    shown["teacher_scores"] = jnp.where(far[:, None], 1e6, shown["teacher_scores"])
    assert task.metrics(models[0], shown, None)["attention_loss"].sum == loss.sum


def test_windows_are_compared_layer_by_layer() -> None:
    local = dataclasses.replace(STUDENT, num_layers=4, attention_window=5, global_every=2)
    narrow = dataclasses.replace(local, attention_window=3)
    assert compared_windows(local, narrow) == [None, 3, None, 3]
    assert compared_windows(narrow, local) == [None, 3, None, 3]
    assert compared_windows(TEACHER, local) == [None, 5, None, 5]
    assert compared_windows(STUDENT, TEACHER) == [None, None]


def train(
    batch: Batch,
    mesh_config: MeshConfig,
    devices: int,
    parts: int,
    config: DistillationConfig,
    student: EncoderConfig,
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    task, teacher = make(config, student)
    optimizer, mesh = make_optimizer(OPTIMIZER), make_mesh(mesh_config, jax.devices()[:devices])
    step = make_train_step(task, optimizer, mesh, accumulation_steps=parts, teacher=teacher)
    state = init_state(task.definition, optimizer, mesh, seed=3)
    definition = teacher.definition
    params = jax.jit(
        definition.init,
        out_shardings=parameter_shardings(definition.shapes, definition.logical_axes, mesh),
    )(jax.random.key(1))
    before = jax.device_get(params)
    for _ in range(2):
        inputs = StepInputs(np.uint32(3), np.float32(1e-2), params)
        state, metrics = step(state, to_global(batch, mesh, local_rows(mesh, 8), 8), inputs)
    for name, value in before.items():
        np.testing.assert_array_equal(params[name], value, err_msg=name)
    assert state.params.keys() == task.definition.shapes.keys()
    return jax.device_get(state.params), jax.device_get(metrics)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "student", "mesh", "devices", "parts"),
    [
        (CONFIG, STUDENT, MeshConfig(data=2, fsdp=2, tensor=2), 8, 1),
        (INSIDE, NARROW, MeshConfig(data=2), 2, 4),
    ],
    ids=["outputs", "inside"],
)
def test_mesh_and_accumulation_do_not_change_training(
    config: DistillationConfig,
    student: EncoderConfig,
    mesh: MeshConfig,
    devices: int,
    parts: int,
    batch: Batch,
) -> None:
    single = train(batch, MeshConfig(), 1, 1, config, student)
    params, metrics = train(batch, mesh, devices, parts, config, student)
    losses = {"loss", *make(config, student)[0].loss_terms}
    assert losses <= metrics.keys()
    for name in losses:
        assert_allclose(metrics[name].sum, single[1][name].sum, rtol=2e-5, err_msg=name)
    for name, value in single[0].items():
        if name.endswith(".key.bias"):
            # A key bias does not affect a softmax, so its gradient consists only of rounding
            # errors, which Adam amplifies.
            continue
        assert_allclose(params[name], value, rtol=0, atol=2e-5, err_msg=name)


def test_layers_are_evenly_spaced() -> None:
    assert chosen_layers(6, 12) == [0, 2, 4, 6, 8, 10]
    assert chosen_layers(3, 4) == [0, 1, 2]
    assert chosen_layers(4, 4) == [0, 1, 2, 3]
    # This is the example from Jiao et al. 2020, section 4.2.
    assert matched_layers(4, 12) == [3, 6, 9, 12]
    assert matched_layers(3, 4) == [1, 2, 4]
    with pytest.raises(ValueError, match="num_layers=5: the teacher has only 4 layers to match"):
        matched_layers(5, 4)
    with pytest.raises(ValueError, match="num_layers=5: the teacher has only 4 layers to start"):
        chosen_layers(5, 4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(teacher=""), "distillation.teacher is empty"),
        (dict(temperature=0.0), "temperature=0.0: must be positive"),
        (dict(mlm_weight=-1.0), "mlm_weight=-1.0: must be 0 or more"),
        (dict(pairs_weight=-1.0), "pairs_weight=-1.0: must be 0 or more"),
        (dict(attention_weight=-1.0), "attention_weight=-1.0: must be 0 or more"),
        (dict(soft_weight=0.0, cosine_weight=0.0), "the teacher has no effect"),
        (dict(soft_targets="some"), "expected 'masked' or 'all'"),
        (dict(dtype="float16"), "expected one of 'auto', 'float32', 'bfloat16'"),
    ],
)
def test_invalid_configs_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(CONFIG, **changes)
