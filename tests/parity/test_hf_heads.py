"""Compare the loss and gradients of every fine-tuning head with Hugging Face's BERT."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import numpy as np
import pytest
import torch
import transformers
from numpy.testing import assert_allclose

from bert_jax.finetuning.registry import kind_of_head
from bert_jax.interop.huggingface.bert import BERT
from bert_jax.interop.huggingface.families import origins
from bert_jax.models.compute_config import ComputeConfig
from bert_jax.models.config import EncoderConfig
from bert_jax.models.model import ModelConfig, Problem
from bert_jax.tasks.finetuning import ClassifierTask
from bert_jax.tasks.task import total_loss

ROWS, LENGTH, CHOICES = 4, 12, 3
ENCODER = EncoderConfig(
    vocab_size=61,
    hidden_dim=32,
    num_layers=2,
    num_heads=4,
    ffn_dim=48,
    max_positions=20,
    hidden_dropout=0.0,
    attention_dropout=0.0,
)

Batch = dict[str, np.ndarray]
Parameters = dict[str, np.ndarray]


@dataclass(frozen=True)
class Case:
    """A head, the meaning of its scores, and whether rows end in padding."""

    head: str
    labels: tuple[str, ...] = ()
    problem: Problem = "single_label"
    padded: bool = True

    @property
    def config(self) -> ModelConfig:
        return ModelConfig(ENCODER, self.head, labels=self.labels, problem=self.problem)


CASES = {
    "single-label": Case("classification", ("no", "maybe", "yes")),
    "multi-label": Case("classification", ("a", "b", "c"), "multi_label"),
    "single-logit": Case("classification", ("yes",), "multi_label"),
    "regression": Case("classification", ("score",), "regression"),
    "regression-of-three": Case("classification", ("a", "b", "c"), "regression"),
    "multiple-choice": Case("multiple_choice"),
    "tagging": Case("tagging", ("O", "B-PER", "I-PER", "B-LOC")),
    "span": Case("span", padded=False),
}
THEIR_PROBLEMS = {
    "single_label": "single_label_classification",
    "multi_label": "multi_label_classification",
    "regression": "regression",
}


def hugging_face(case: Case) -> transformers.PreTrainedModel:
    """Return a Hugging Face model with random parameters and no dropout."""
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=ENCODER.vocab_size,
        hidden_size=ENCODER.hidden_dim,
        num_hidden_layers=ENCODER.num_layers,
        num_attention_heads=ENCODER.num_heads,
        intermediate_size=ENCODER.ffn_dim,
        max_position_embeddings=ENCODER.max_positions,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        classifier_dropout=0.0,
        initializer_range=0.1,
        num_labels=len(case.labels) or 2,
        problem_type=THEIR_PROBLEMS[case.problem],
        attn_implementation="eager",
    )
    model = getattr(transformers, BERT.architectures[case.head])(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return model.train()


def from_torch(tensors: dict[str, torch.Tensor], config: ModelConfig) -> Parameters:
    """Convert all of the Hugging Face model's tensors to arrays, under our names."""
    places = origins(config)
    assert {place.name for place in places.values()} == tensors.keys()
    arrays = {ours: tensors[place.name].detach().numpy() for ours, place in places.items()}
    return {ours: places[ours].parameter_values(array).copy() for ours, array in arrays.items()}


def targets_of(case: Case, rng: np.random.Generator, mask: np.ndarray) -> Batch:
    """Draw random targets. Positions outside the row stand for truncated answers."""
    labels = len(case.labels)
    match case.head, case.problem:
        case "multiple_choice", _:
            return {"labels": rng.integers(0, CHOICES, ROWS, dtype=np.int32)}
        case "tagging", _:
            counts = rng.random((ROWS, LENGTH)) < 0.6
            drawn = rng.integers(0, labels, (ROWS, LENGTH), dtype=np.int32)
            return {"labels": drawn, "label_weights": (counts & (mask == 1)).astype(np.int32)}
        case "span", _:
            starts, ends = np.array([[0, 3, 1, LENGTH], [0, 4, LENGTH, LENGTH]], np.int32)
            return {"start_positions": starts, "end_positions": ends}
        case _, "single_label":
            return {"labels": rng.integers(0, labels, ROWS, dtype=np.int32)}
        case _, "multi_label":
            return {"labels": (rng.random((ROWS, labels)) < 0.5).astype(np.float32)}
    shape = ROWS if labels == 1 else (ROWS, labels)
    return {"labels": rng.standard_normal(shape, np.float32)}


def batch_of(case: Case) -> Batch:
    """Build rows that consist of two segments followed by padding."""
    rng = np.random.default_rng(3)
    shape = (ROWS, CHOICES, LENGTH) if case.head == "multiple_choice" else (ROWS, LENGTH)
    lengths = rng.integers(4, LENGTH, (*shape[:-1], 1)) if case.padded else LENGTH
    mask = (np.broadcast_to(np.arange(LENGTH), shape) < lengths).astype(np.int32)
    segments = mask * (np.arange(LENGTH) >= rng.integers(2, 4, (*shape[:-1], 1)))
    return {
        "token_ids": rng.integers(1, ENCODER.vocab_size, shape) * mask,
        "segment_ids": segments,
        "attention_mask": mask,
        "example_weights": np.ones(ROWS, np.float32),
        **targets_of(case, rng, mask),
    }


def their_loss(model: transformers.PreTrainedModel, case: Case, batch: Batch) -> torch.Tensor:
    names = {"token_ids": "input_ids", "segment_ids": "token_type_ids"}
    inputs = {
        names.get(name, name): torch.from_numpy(batch[name].astype(np.int64))
        for name in ("token_ids", "segment_ids", "attention_mask")
    }
    targets = {name: torch.from_numpy(batch[name]) for name in target_names(batch)}
    if case.head == "tagging":
        targets["labels"] = torch.where(targets.pop("label_weights") == 1, targets["labels"], -100)
    integers = {n: t.long() if t.dtype == torch.int32 else t for n, t in targets.items()}
    return model(**inputs, **integers).loss


def target_names(batch: Batch) -> list[str]:
    return [name for name in batch if name.startswith("label") or name.endswith("_positions")]


def our_loss_and_gradients(
    task: ClassifierTask, params: Parameters, batch: Batch
) -> tuple[float, Parameters]:
    @jax.jit
    @jax.value_and_grad
    def loss(params: Parameters) -> jax.Array:
        metrics = task.metrics(task.definition.module(params), batch, jax.random.key(0))
        return total_loss(task, metrics, task.loss_weights(batch))

    return jax.device_get(loss(params))


def scale_of(name: str, head: str, expected: Parameters) -> float:
    """Return the magnitude by which to scale the tolerance for a gradient.

    If a bias shifts all scores in a softmax equally, its gradient is nothing but rounding error,
    which must be small compared with a related gradient. Such biases are the key biases; the
    classifier bias, if the softmax is over choices or positions; and the last layer's bias, if the
    softmax is over positions.
    """
    like = name.replace(".key.bias", ".query.bias")
    if head in ("multiple_choice", "span"):
        like = like.replace("classifier.bias", "classifier.kernel")
    if head == "span":
        last = f"layers.{ENCODER.num_layers - 1}.ffn_norm"
        like = like.replace(f"{last}.bias", f"{last}.scale")
    return float(np.abs(expected[like]).max())


def assert_loss_and_gradients_agree(case: Case, first_token: int = 0) -> None:
    """Compare the loss and all gradients, but skip the token table's rows before `first_token`."""
    theirs, batch = hugging_face(case), batch_of(case)
    assert batch["segment_ids"].any() and bool((batch["attention_mask"] == 0).any()) == case.padded
    params = from_torch(dict(theirs.named_parameters()), case.config)
    kind = kind_of_head(case.config.head)
    assert kind is not None
    task = kind.loss(case.config, ComputeConfig(dtype="float32", attention="xla"))
    ours, grads = our_loss_and_gradients(task, params, batch)
    expected_loss = their_loss(theirs, case, batch)
    expected_loss.backward()
    assert_allclose(ours, expected_loss.item(), rtol=0, atol=1e-5)
    gradients = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    expected = from_torch(gradients, case.config)
    assert grads.keys() == expected.keys()
    for name, gradient in grads.items():
        scale = scale_of(name, case.head, expected)
        assert scale > 0, name
        rows = slice(first_token if name == "encoder.embeddings.token" else 0, None)
        found, wanted = gradient[rows], expected[name][rows]
        assert_allclose(found, wanted, rtol=0, atol=1e-4 * scale, err_msg=name)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_loss_and_gradients_agree(case: Case) -> None:
    assert_loss_and_gradients_agree(case)


def test_spans_in_padded_rows_agree() -> None:
    # PyTorch drops the gradient of the first row, [PAD], which is torch.nn.Embedding's
    # `padding_idx`.
    assert_loss_and_gradients_agree(Case("span"), first_token=1)
