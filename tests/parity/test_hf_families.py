"""Compare our RoBERTa, ALBERT, DistilBERT, ELECTRA and ModernBERT models with Hugging Face's.

The tests compare hidden states, logits and gradients.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers
from numpy.testing import assert_allclose

from bert_jax.interop.huggingface.config import read_encoder
from bert_jax.interop.huggingface.families import family_of, origins
from bert_jax.models.compute_config import ComputeConfig
from bert_jax.models.model import ModelConfig, define_model, infer
from bert_jax.models.parameters import Parameters

ROWS, LENGTH, VOCABULARY = 4, 14, 61
SIZES = dict(
    vocab_size=VOCABULARY,
    hidden_size=32,
    num_hidden_layers=4,
    num_attention_heads=4,
    intermediate_size=48,
    initializer_range=0.1,
)
NO_DROPOUT = dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
Model = tuple[type[transformers.PreTrainedModel], transformers.PreTrainedConfig, str]
MODELS: dict[str, Model] = {
    "roberta": (
        transformers.RobertaForMaskedLM,
        transformers.RobertaConfig(
            **SIZES, **NO_DROPOUT, max_position_embeddings=22, type_vocab_size=1, pad_token_id=1
        ),
        "masked_lm",
    ),
    "roberta-classifier": (
        transformers.RobertaForSequenceClassification,
        transformers.RobertaConfig(
            **SIZES, **NO_DROPOUT, max_position_embeddings=22, type_vocab_size=1, pad_token_id=1
        ),
        "classification",
    ),
    "albert": (
        transformers.AlbertForPreTraining,
        transformers.AlbertConfig(**SIZES, embedding_size=12),
        "pretraining",
    ),
    "albert-erf-groups": (
        transformers.AlbertForMaskedLM,
        transformers.AlbertConfig(
            **SIZES, embedding_size=12, num_hidden_groups=2, hidden_act="gelu"
        ),
        "masked_lm",
    ),
    "distilbert": (
        transformers.DistilBertForMaskedLM,
        transformers.DistilBertConfig(
            vocab_size=VOCABULARY, dim=32, n_layers=4, n_heads=4, hidden_dim=48,
            max_position_embeddings=20, dropout=0.0, attention_dropout=0.0, initializer_range=0.1,
        ),
        "masked_lm",
    ),
    "distilbert-classifier": (
        transformers.DistilBertForSequenceClassification,
        transformers.DistilBertConfig(
            vocab_size=VOCABULARY, dim=32, n_layers=4, n_heads=4, hidden_dim=48, dropout=0.0,
            max_position_embeddings=20, attention_dropout=0.0, seq_classif_dropout=0.0,
        ),
        "classification",
    ),
    "electra-generator": (
        transformers.ElectraForMaskedLM,
        transformers.ElectraConfig(**SIZES, **NO_DROPOUT, embedding_size=12),
        "masked_lm",
    ),
    "electra-discriminator": (
        transformers.ElectraForPreTraining,
        transformers.ElectraConfig(**SIZES, **NO_DROPOUT, embedding_size=32),
        "replaced_token",
    ),
    "electra-classifier": (
        transformers.ElectraForSequenceClassification,
        transformers.ElectraConfig(**SIZES, **NO_DROPOUT, embedding_size=12),
        "classification",
    ),
    "electra-choices": (
        transformers.ElectraForMultipleChoice,
        transformers.ElectraConfig(
            **SIZES, **NO_DROPOUT, embedding_size=12, summary_last_dropout=0.0
        ),
        "multiple_choice",
    ),
    "electra-encoder": (
        transformers.ElectraModel,
        transformers.ElectraConfig(**SIZES, **NO_DROPOUT, embedding_size=12, hidden_act="tanh"),
        "encoder",
    ),
    "electra-tagger": (
        transformers.ElectraForTokenClassification,
        transformers.ElectraConfig(**SIZES, **NO_DROPOUT, embedding_size=12, hidden_act="relu"),
        "tagging",
    ),
    "electra-questions": (
        transformers.ElectraForQuestionAnswering,
        transformers.ElectraConfig(
            **SIZES, **NO_DROPOUT, embedding_size=12, hidden_act="quick_gelu"
        ),
        "span",
    ),
    "modernbert": (
        transformers.ModernBertForMaskedLM,
        transformers.ModernBertConfig(
            **SIZES, max_position_embeddings=20, pad_token_id=0, local_attention=4,
            global_attn_every_n_layers=2, norm_bias=True,
        ),
        "masked_lm",
    ),
    "modernbert-classifier": (
        transformers.ModernBertForSequenceClassification,
        transformers.ModernBertConfig(
            **SIZES, max_position_embeddings=20, pad_token_id=0, local_attention=8,
            classifier_pooling="mean", hidden_activation="silu", classifier_activation="silu",
            attention_bias=True, mlp_bias=True, classifier_bias=True,
        ),
        "classification",
    ),
    "modernbert-encoder": (
        transformers.ModernBertModel,
        transformers.ModernBertConfig(
            **SIZES, max_position_embeddings=20, pad_token_id=0, local_attention=4,
            hidden_activation="relu", classifier_activation="relu",
        ),
        "encoder",
    ),
    "modernbert-tagger": (
        transformers.ModernBertForTokenClassification,
        transformers.ModernBertConfig(
            **SIZES, max_position_embeddings=20, pad_token_id=0, local_attention=4,
            hidden_activation="tanh", classifier_activation="tanh",
        ),
        "tagging",
    ),
    "modernbert-questions": (
        transformers.ModernBertForQuestionAnswering,
        transformers.ModernBertConfig(
            **SIZES, max_position_embeddings=20, pad_token_id=0, local_attention=6,
            hidden_activation="quick_gelu", classifier_activation="quick_gelu",
        ),
        "span",
    ),
    "modernbert-choices": (
        transformers.ModernBertForMultipleChoice,
        transformers.ModernBertConfig(
            **SIZES, max_position_embeddings=20, pad_token_id=0, local_attention=6,
            hidden_activation="gelu_pytorch_tanh", classifier_activation="gelu_pytorch_tanh",
        ),
        "multiple_choice",
    ),
}  # fmt: skip


class Case:
    """Two models that share their parameters, and their outputs for a padded batch."""

    def __init__(self, name: str):
        kind, config, head = MODELS[name]
        torch.manual_seed(0)
        config._attn_implementation = "eager"
        self.theirs = kind(config).eval()
        with torch.no_grad():
            for parameter in self.theirs.parameters():
                parameter += 0.1 * torch.randn_like(parameter)
        encoder = read_encoder(config.to_dict(), name)
        labels = ("a", "b") if head in ("classification", "tagging") else ()
        self.config = ModelConfig(encoder, head, labels, pooler=head != "encoder")
        rng = np.random.default_rng(1)
        self.pad = config.pad_token_id
        lengths = np.array([LENGTH, 3, 9, 11])[:, None]
        self.mask = (np.arange(LENGTH) < lengths).astype(np.int32)
        # Hugging Face's RoBERTa numbers positions by counting the tokens that are not the padding
        # token.
        self.ids = np.where(self.mask == 1, rng.integers(2, VOCABULARY, (ROWS, LENGTH)), self.pad)
        self.segments = self.mask * (np.arange(LENGTH) > 5) * (encoder.num_segments > 1)
        # The test compares the gradient of a randomly weighted sum of all scores.
        self.weights = rng.standard_normal((ROWS, LENGTH, VOCABULARY)).astype(np.float32)
        self.pair_weights = rng.standard_normal((ROWS, 2)).astype(np.float32)

    def from_torch(self, tensors: dict[str, torch.Tensor]) -> Parameters:
        places = origins(self.config)
        if self.config.head == "encoder":  # Only models with a head add a prefix to the names.
            prefix = self.theirs.base_model_prefix
            tensors = {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}
        assert {place.name for place in places.values()} == tensors.keys()
        return {
            ours: place.parameter_values(tensors[place.name].detach().numpy()).copy()
            for ours, place in places.items()
        }

    def their_outputs(self) -> tuple[torch.Tensor, list[torch.Tensor]]:
        inputs = dict(
            input_ids=torch.from_numpy(self.ids).long(),
            attention_mask=torch.from_numpy(self.mask).long(),
        )
        if self.config.encoder.num_segments:
            inputs["token_type_ids"] = torch.from_numpy(self.segments).long()
        if self.config.head == "multiple_choice":
            inputs = {name: tensor[:, None] for name, tensor in inputs.items()}
        given = self.theirs(**inputs, output_hidden_states=True)
        weights = self.score_weights()
        if weights is not None:
            if self.config.head == "encoder":
                scores = given.last_hidden_state
            elif self.config.head == "span":
                scores = torch.stack([given.start_logits, given.end_logits], dim=-1)
            else:
                scores = given.logits
            return (scores * torch.from_numpy(weights)).sum(), [*given.hidden_states, scores]
        logits = given["prediction_logits" if self.config.head == "pretraining" else "logits"]
        weights = torch.from_numpy(self.weights * self.mask[..., None])
        loss = (torch.log_softmax(logits, -1) * weights).sum()
        outputs = [*given.hidden_states, logits]
        if self.config.head == "pretraining":
            loss = loss + (given["sop_logits"] * torch.from_numpy(self.pair_weights)).sum()
            outputs.append(given["sop_logits"])
        return loss, outputs

    def score_weights(self) -> np.ndarray | None:
        """Return random weights for the outputs of a model without a masked-LM head."""
        weights = {
            "classification": self.pair_weights,
            "multiple_choice": self.pair_weights[:, :1],
            "replaced_token": self.weights[..., 0] * self.mask,
            "encoder": self.weights[..., : SIZES["hidden_size"]] * self.mask[..., None],
            "tagging": self.weights[..., :2] * self.mask[..., None],
            "span": self.weights[..., :2] * self.mask[..., None],
        }
        return weights.get(self.config.head)

    def our_outputs(self, params: Parameters) -> tuple[jax.Array, list[jax.Array]]:
        definition = define_model(self.config, ComputeConfig(dtype="float32", attention="xla"))
        inputs = [self.ids, self.segments, self.mask]
        if self.config.head == "multiple_choice":
            inputs = [ids[:, None] for ids in inputs]
        found = infer(definition.module(params), *inputs, hidden_states=True)
        states = [found[f"hidden_{number}"] for number in range(5)]
        weights = self.score_weights()
        if weights is not None:
            names = {"replaced_token": "replaced_token_logits", "encoder": "hidden_4"}
            logits = found[names.get(self.config.head, "logits")]
            return jnp.sum(logits * weights), [*states, logits]
        logits = found["token_logits"]
        loss = jnp.sum(jax.nn.log_softmax(logits) * self.weights * self.mask[..., None])
        outputs = [*states, logits]
        if self.config.head == "pretraining":
            loss += jnp.sum(found["next_sentence_logits"] * self.pair_weights)
            outputs.append(found["next_sentence_logits"])
        return loss, outputs


@pytest.mark.parametrize("name", MODELS)
def test_states_logits_and_gradients_agree(name: str) -> None:
    case = Case(name)
    params = case.from_torch(dict(case.theirs.named_parameters()))
    loss, theirs = case.their_outputs()
    loss.backward()
    (value, ours), gradients = jax.jit(jax.value_and_grad(case.our_outputs, has_aux=True))(params)
    assert len(ours) == len(theirs)
    real = case.mask == 1
    for found, expected in zip(ours, theirs, strict=True):
        wanted = expected.detach().numpy()
        assert found.shape == wanted.shape
        rows = real if found.shape[:2] == real.shape else slice(None)
        assert_allclose(np.asarray(found)[rows], wanted[rows], rtol=0, atol=1e-5)
    assert_allclose(value, loss.item(), rtol=1e-5)
    expected_gradients = case.from_torch(
        {name: parameter.grad for name, parameter in case.theirs.named_parameters()}
    )
    family = family_of(case.config.encoder)
    for name, gradient in gradients.items():
        wanted = expected_gradients[name]
        # A key bias does not affect the softmax, so its gradient is nothing but rounding error.
        scale = np.abs(expected_gradients[name.replace(".key.bias", ".query.bias")]).max()
        assert scale > 0, name
        # PyTorch's embedding lookup passes no gradient to the padding token's row, but ours does.
        rows = np.arange(len(wanted)) != case.pad if name.endswith(".token") else slice(None)
        if family.model_type == "roberta" and name.endswith(".position"):
            # Skip the positions that RoBERTa reserves for padding, which our model does not have.
            rows = slice(2, None)
        assert_allclose(
            np.asarray(gradient)[rows], wanted[rows], rtol=0, atol=1e-4 * scale, err_msg=name
        )
