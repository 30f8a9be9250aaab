"""Compare our BERT with Hugging Face's and our AdamW with PyTorch's, given the same parameters."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers
from numpy.testing import assert_allclose

from bert_jax.interop.huggingface.families import origins
from bert_jax.models.compute_config import ComputeConfig
from bert_jax.models.config import EncoderConfig
from bert_jax.models.encoder import EncoderOutput
from bert_jax.models.model import ModelConfig
from bert_jax.models.pretraining_models import PretrainingModel, PretrainingOutput
from bert_jax.tasks.pretraining import Pretraining
from bert_jax.tasks.task import total_loss
from bert_jax.training.optimizer import OptimizerConfig, make_optimizer
from bert_jax.training.sharding import MeshConfig, make_mesh
from bert_jax.training.state import TrainState
from bert_jax.training.step import StepInputs, make_train_step
from bert_jax.training.transformations import decays

SMALL = EncoderConfig(
    vocab_size=61,
    hidden_dim=32,
    num_layers=2,
    num_heads=4,
    ffn_dim=48,
    max_positions=20,
    hidden_dropout=0.0,
    attention_dropout=0.0,
)
# For each case: the config, Hugging Face's name for the activation, and the row length.
GRID = {
    "erf-gelu": (SMALL, "gelu", 16),
    "tanh-gelu-large-epsilon": (
        replace(SMALL, activation="gelu_tanh", layer_norm_epsilon=1e-3),
        "gelu_pytorch_tanh",
        16,
    ),
    "google-tanh-gelu-three-layers-three-segments": (
        replace(
            SMALL,
            activation="gelu_tanh",
            num_layers=3,
            num_heads=1,
            vocab_size=128,
            max_positions=14,
            num_segments=3,
        ),
        "gelu_new",
        14,
    ),
    "wide-one-layer": (
        replace(
            SMALL,
            num_layers=1,
            hidden_dim=96,
            num_heads=12,
            ffn_dim=64,
            vocab_size=203,
            max_positions=31,
            layer_norm_epsilon=1e-5,
        ),
        "gelu_python",
        31,
    ),
    "narrow-six-layers": (
        replace(SMALL, activation="gelu_tanh", num_layers=6, hidden_dim=8, num_heads=2, ffn_dim=80),
        "gelu_fast",
        13,
    ),
}

Parameters = dict[str, np.ndarray]
Batch = dict[str, np.ndarray]


def from_torch(tensors: dict[str, torch.Tensor], config: EncoderConfig) -> Parameters:
    """Convert all of the Hugging Face model's tensors to arrays, under our names."""
    places = origins(ModelConfig(config))
    assert {place.name for place in places.values()} == tensors.keys()
    arrays = {ours: tensors[place.name].detach().numpy() for ours, place in places.items()}
    return {ours: places[ours].parameter_values(array).copy() for ours, array in arrays.items()}


def hugging_face(config: EncoderConfig, activation: str) -> transformers.BertForPreTraining:
    """Return a Hugging Face model whose parameters are all random, even biases and LayerNorms."""
    torch.manual_seed(0)
    model = transformers.BertForPreTraining(
        transformers.BertConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_dim,
            num_hidden_layers=config.num_layers,
            num_attention_heads=config.num_heads,
            intermediate_size=config.ffn_dim,
            max_position_embeddings=config.max_positions,
            type_vocab_size=config.num_segments,
            hidden_act=activation,
            layer_norm_eps=config.layer_norm_epsilon,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            initializer_range=0.1,
            attn_implementation="eager",
        )
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return model.eval()


def theirs_of(model: transformers.BertForPreTraining, batch: Batch):  # noqa: ANN201
    """Run the Hugging Face model on a batch that has one document per row."""
    return model(
        torch.from_numpy(batch["token_ids"]).long(),
        attention_mask=torch.from_numpy(batch["document_ids"]).long(),
        token_type_ids=torch.from_numpy(batch["segment_ids"]).long(),
        output_hidden_states=True,
        output_attentions=True,
    )


def their_loss(model: transformers.BertForPreTraining, batch: Batch) -> torch.Tensor:
    """Return the mean MLM cross-entropy plus the mean cross-entropy over sentence pairs."""
    output = theirs_of(model, batch)
    rows, columns = np.nonzero(batch["masked_weights"])
    logits = output.prediction_logits[rows, batch["masked_positions"][rows, columns]]
    labels = torch.from_numpy(batch["masked_labels"][rows, columns]).long()
    pairs = torch.from_numpy(batch["pair_labels"][:, 0]).long()
    cross_entropy = torch.nn.functional.cross_entropy
    return cross_entropy(logits, labels) + cross_entropy(output.seq_relationship_logits, pairs)


@dataclass
class Case:
    """A test case: two models that share their parameters, and batches to run them on."""

    config: EncoderConfig
    theirs: transformers.BertForPreTraining
    task: Pretraining
    batches: list[Batch]

    @property
    def params(self) -> Parameters:
        return from_torch(dict(self.theirs.named_parameters()), self.config)


def make_case(name: str, draw_document: Callable, lay_out: Callable) -> Case:
    config, activation, length = GRID[name]
    rng = np.random.default_rng(7)
    batches = []
    for _ in range(10):
        documents = [draw_document(rng, size, config.vocab_size) for size in (length, 9, 5, 12)]
        batches.append(
            lay_out([[d] for d in documents], length=length, predictions=3, documents_per_row=1)
        )
    task = Pretraining(config, ComputeConfig(dtype="float32", attention="xla"))
    return Case(config, hugging_face(config, activation), task, batches)


@pytest.fixture(scope="module", params=GRID)
def case(request: pytest.FixtureRequest, draw_document: Callable, lay_out: Callable) -> Case:
    return make_case(request.param, draw_document, lay_out)


@pytest.fixture
def small(draw_document: Callable, lay_out: Callable) -> Case:
    return make_case("erf-gelu", draw_document, lay_out)


def inputs_of(batch: Batch) -> list[np.ndarray]:
    return [batch[f"{name}_ids"] for name in ("token", "segment", "position", "document")]


def test_both_models_have_the_same_parameters(case: Case) -> None:
    shapes = {name: shape.shape for name, shape in case.task.definition.shapes.items()}
    assert {name: array.shape for name, array in case.params.items()} == shapes


def test_hidden_states_and_logits_agree(case: Case) -> None:
    batch = case.batches[0]

    @jax.jit
    def outputs(params: Parameters) -> tuple[EncoderOutput, PretrainingOutput, jax.Array]:
        model: PretrainingModel = case.task.definition.module(params)
        asked = dict(return_hidden_states=True, return_attention_scores=True)
        states = model.encoder(*inputs_of(batch), packed=False, **asked)
        at = batch["masked_positions"], batch["cls_positions"]
        pooled = model.pooler(states.hidden, batch["cls_positions"])
        return states, model(*inputs_of(batch), *at, packed=False), pooled

    states, output, pooled = jax.device_get(outputs(case.params))
    with torch.no_grad():
        theirs = theirs_of(case.theirs, batch)
        their_pooled = case.theirs.bert.pooler(theirs.hidden_states[-1])
    close = partial(assert_allclose, rtol=0, atol=1e-5)
    real = batch["document_ids"] != 0
    assert not real.all() and batch["segment_ids"].any()
    assert states.hidden_states is not None
    assert (
        len(states.hidden_states)
        == len(theirs.hidden_states)
        == 1 + len(case.theirs.bert.encoder.layer)
    )
    for ours, expected in zip(states.hidden_states, theirs.hidden_states, strict=True):
        close(ours[real], expected.numpy()[real])
    np.testing.assert_array_equal(states.hidden, states.hidden_states[-1])
    assert states.attention_scores is not None
    for ours, expected in zip(states.attention_scores, theirs.attentions, strict=True):
        seen = np.where(real[:, None, None], ours, -np.inf)
        probabilities = np.asarray(jax.nn.softmax(seen, axis=-1)).transpose(0, 2, 1, 3)
        close(probabilities[real], expected.numpy().transpose(0, 2, 1, 3)[real])
    close(pooled[:, 0], their_pooled.numpy())
    close(output.next_sentence_logits[:, 0], theirs.seq_relationship_logits.numpy())
    rows = np.arange(len(real))[:, None]
    expected = theirs.prediction_logits.numpy()[rows, batch["masked_positions"]]
    masked = batch["masked_weights"] != 0
    close(output.token_logits[masked], expected[masked])


def test_loss_and_gradients_agree(case: Case) -> None:
    batch = case.batches[0]

    def loss(params: Parameters) -> jax.Array:
        metrics = case.task.metrics(case.task.definition.module(params), batch, None)
        return total_loss(case.task, metrics, case.task.loss_weights(batch))

    ours, grads = jax.device_get(jax.jit(jax.value_and_grad(loss))(case.params))
    case.theirs.zero_grad()
    expected_loss = their_loss(case.theirs, batch)
    expected_loss.backward()
    assert_allclose(ours, expected_loss.item(), rtol=1e-6)
    gradients = {name: p.grad for name, p in case.theirs.named_parameters()}
    expected = from_torch(gradients, case.config)
    assert grads.keys() == expected.keys()
    for name, gradient in grads.items():
        # A key bias shifts all of a query's scores equally, which does not affect the softmax. Its
        # gradient is nothing but rounding error, much smaller than the gradient of the query bias.
        like = name.replace(".key.bias", ".query.bias")
        scale = np.abs(expected[like]).max()
        assert scale > 0, name
        assert_allclose(gradient, expected[name], rtol=0, atol=1e-4 * scale, err_msg=name)


def test_ten_steps_of_adamw_agree(small: Case) -> None:
    config = OptimizerConfig(
        peak_learning_rate=1e-3, warmup_steps=0, schedule="constant", weight_decay=0.1
    )
    optimizer = make_optimizer(config)
    inputs = StepInputs(np.uint32(0), np.float32(config.peak_learning_rate))
    params = jax.tree.map(jnp.asarray, small.params)
    mesh = make_mesh(MeshConfig(), jax.devices()[:1])
    step = make_train_step(small.task, optimizer, mesh)
    state = TrainState(jnp.zeros((), jnp.int32), params, optimizer.init(params))

    groups: dict[bool, list[torch.nn.Parameter]] = {True: [], False: []}
    for name, parameter in small.theirs.named_parameters():
        # As in the code released by Devlin et al., parameters whose names contain "LayerNorm" or
        # "bias" are exempt from weight decay.
        groups["LayerNorm" not in name and "bias" not in name].append(parameter)
    their_optimizer = torch.optim.AdamW(
        [{"params": groups[True], "weight_decay": 0.1}, {"params": groups[False]}],
        lr=1e-3,
        betas=(0.9, 0.999),
        eps=1e-6,
        weight_decay=0.0,
    )
    assert len(groups[True]) == sum(decays(name) for name in params)
    for number, batch in enumerate(small.batches, start=1):
        state, metrics = step(state, batch, inputs)
        their_optimizer.zero_grad()
        loss = their_loss(small.theirs, batch)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(small.theirs.parameters(), 1.0)
        their_optimizer.step()
        assert norm > 1, "clipping is part of the comparison"
        assert_allclose(metrics["loss"].sum, loss.item(), rtol=1e-5)
        assert_allclose(metrics["gradient_norm"].sum, norm, rtol=1e-4)
        if number in (1, 10):
            for name, expected in small.params.items():
                ours = state.params[name]
                assert_allclose(ours, expected, rtol=0, atol=1e-5, err_msg=f"{name}, {number}")
    assert int(state.step) == 10
