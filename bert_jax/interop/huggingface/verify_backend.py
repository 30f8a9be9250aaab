"""Run the model in a Hugging Face directory with transformers, to compare it with another model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from bert_jax.finetuning.registry import kind_of_head, score_outputs
from bert_jax.interop.comparison import Outputs, ProbeInput, Sizes
from bert_jax.interop.huggingface.config import read_encoder
from bert_jax.interop.huggingface.families import classes_of, family_of, heads_of
from bert_jax.interop.huggingface.weights import NewestNames, open_weights
from bert_jax.json_files import read_json_object
from bert_jax.local_paths import shown
from bert_jax.models.config import EncoderConfig
from bert_jax.models.model import PretrainingHead, scores_choices

# For each head, a dict from the names of its scores in transformers to the names in `infer`.
LOGITS: dict[PretrainingHead, dict[str, str]] = {
    "pretraining": {
        "prediction_logits": "token_logits",
        "seq_relationship_logits": "next_sentence_logits",
        "sop_logits": "next_sentence_logits",  # ALBERT's
    },
    "masked_lm": {"logits": "token_logits"},
    "next_sentence": {"logits": "next_sentence_logits"},
    "replaced_token": {"logits": "replaced_token_logits"},
}


class TokenizedPair(NamedTuple):
    """The token ids for a pair of texts, and the segment ids if the tokenizer returns them."""

    token_ids: list[int]
    segment_ids: list[int] | None


class HuggingFaceModel:
    """A model that transformers runs in float32 on the CPU, without dropout."""

    title: str
    sizes: Sizes | None
    labels: tuple[str, ...]

    def __init__(self, directory: Path):
        """Load the model.

        Raises:
          ValueError: PyTorch or transformers is not installed, or weights are missing.
        """
        try:
            import torch
            import transformers
        except ImportError as error:
            raise ValueError(
                f"{directory}: running a Hugging Face model requires PyTorch and transformers. Run "
                "`pip install -e '.[torch]'`"
            ) from error
        transformers.logging.disable_progress_bar()
        file = directory / "config.json"
        content = read_json_object(file)
        encoder = read_encoder(content, str(file))
        self._family = family = family_of(encoder)
        classes = content.get("architectures") or [family.architectures["encoder"]]
        named = classes if isinstance(classes, str) else classes[0]
        heads, architecture = heads_of(family), (classes_of(content) or [named])[0]
        if architecture not in heads:
            raise ValueError(
                f"{file}: architectures is {named}; expected one of {', '.join(heads)}. Import the "
                "model with --head, and compare the work directory"
            )
        self._head = heads[architecture]
        self._torch, self.directory = torch, directory
        # By default, a bare model has a pooler if its family has poolers.
        bare = self._head == "encoder" and family.pooler and not _has_pooler(directory, encoder)
        options = {"add_pooling_layer": False} if bare else {}
        try:
            self._model, loading = getattr(transformers, named).from_pretrained(
                directory,
                output_loading_info=True,
                local_files_only=True,
                dtype=torch.float32,
                attn_implementation="eager",
                # Chunking saves memory without changing the outputs, but it does not work for
                # lengths that are not a multiple of the chunk size.
                chunk_size_feed_forward=0,
                **options,
            )
        except Exception as error:  # a config or a pickle can make transformers raise any exception
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
            raise ValueError(f"{directory}: {named} cannot be loaded: {reason}") from error
        absent = sorted(loading["missing_keys"])
        if absent:
            raise ValueError(
                f"{directory}: {named} finds no usable weights for {', '.join(absent)}. Import the "
                "model with --head encoder, and compare the work directory"
            )
        self._model.eval()
        self.title = f"{shown(directory)} (Hugging Face, {named})"
        kind = kind_of_head(self._head)
        own_labels = kind is not None and kind.head.labels is None
        names = self._model.config.id2label if own_labels else {}
        self.labels = tuple(names.values())
        self.sizes = Sizes(encoder.vocab_size, encoder.num_segments, encoder.max_positions)

    @property
    def specifies_tokenizer(self) -> bool:
        """Whether the directory's files fully specify the tokenizer.

        If the directory has only spiece.model or vocab.json, transformers 5 applies its own rules,
        which do not always match the rules used in training.
        """
        plain = self._family.model_type in ("bert", "distilbert", "electra")
        names = ("tokenizer.json", *(["vocab.txt"] if plain else []))
        return any((self.directory / name).is_file() for name in names)

    def tokenize(self, pairs: Sequence[tuple[str, str]]) -> list[TokenizedPair]:
        """Tokenize pairs of texts with transformers; an empty second text means a single text.

        Raises:
          ValueError: transformers cannot load a tokenizer from the directory.
        """
        import transformers

        try:
            tokenizer = transformers.AutoTokenizer.from_pretrained(
                self.directory, local_files_only=True
            )
        except (OSError, ValueError, KeyError, ImportError) as error:
            reason = str(error).strip().partition("\n")[0]
            raise ValueError(
                f"{self.directory}: transformers cannot load a tokenizer: {reason}"
            ) from error
        rows = [tokenizer(*(text for text in pair if text)) for pair in pairs]
        return [TokenizedPair(row["input_ids"], row.get("token_type_ids")) for row in rows]

    def outputs(self, probe: ProbeInput) -> Outputs:
        """See `ComparableModel.outputs`."""
        tensors = [
            self._torch.from_numpy(ids).long()
            for ids in (probe.token_ids, probe.attention_mask, probe.segment_ids)
        ]
        if scores_choices(self._head):
            tensors = [tensor[:, None] for tensor in tensors]
        names = ("input_ids", "attention_mask", "token_type_ids")
        inputs = dict(zip(names, tensors, strict=True))
        if self.sizes is not None and not self.sizes.num_segments:
            del inputs["token_type_ids"]
        with self._torch.no_grad():
            outputs = self._model(**inputs, output_hidden_states=True)
            mask = inputs["attention_mask"].reshape(len(probe.token_ids), -1)
            outputs = self._renamed(outputs, mask)
        return {name: tensor.numpy().astype(np.float32) for name, tensor in outputs.items()}

    def _pooled(self, hidden: Any, attention_mask: Any) -> Any:
        """Find the pooler, which is stored differently in each class, and return its output."""
        model, first = self._model, hidden[:, 0]
        pooling = getattr(model.config, "classifier_pooling", None)
        if pooling is not None:  # ModernBERT
            kind = kind_of_head(self._head)
            if kind is None or not kind.head.pools:
                return None
            weights = attention_mask[..., None]
            mean = (hidden * weights).sum(1) / weights.sum(1)
            return model.head(first if pooling == "cls" else mean)
        if hasattr(model, "pre_classifier"):
            return self._torch.relu(model.pre_classifier(first))
        if hasattr(model, "sequence_summary"):
            return model.sequence_summary(hidden)
        if hasattr(getattr(model, "classifier", None), "out_proj"):
            activation = getattr(model.classifier, "activation", self._torch.tanh)
            return activation(model.classifier.dense(first))
        prefix = self._family.prefix.removesuffix(".")
        bare = model if self._head == "encoder" else getattr(model, prefix)
        pooler = getattr(bare, "pooler", None)
        if pooler is None or isinstance(pooler, self._torch.nn.Linear):
            return None if pooler is None else self._torch.tanh(pooler(first))
        return pooler(hidden)

    def _renamed(self, outputs: Any, attention_mask: Any) -> dict[str, Any]:
        """Return the outputs from transformers, renamed to match `infer`."""
        result = {f"hidden_{n}": states for n, states in enumerate(outputs.hidden_states)}
        result["hidden"] = outputs.hidden_states[-1]
        pooled = self._pooled(outputs.hidden_states[-1], attention_mask)
        if pooled is not None:
            result["pooled"] = pooled
        for hf_name, name in LOGITS.get(cast(PretrainingHead, self._head), {}).items():
            if hf_name in outputs:
                result[name] = outputs[hf_name]
        scores = [outputs[name] for name in score_outputs(self._head)]
        if scores:
            result["logits"] = scores[0] if len(scores) == 1 else self._torch.stack(scores, dim=-1)
        return result


def _has_pooler(directory: Path, encoder: EncoderConfig) -> bool:
    """Return whether a directory's weights include a pooler.

    Raises:
      ValueError: the weights are missing or cannot be read.
    """
    names = NewestNames(open_weights(directory), encoder).shapes
    return any(name.startswith(family_of(encoder).pooler) for name in names)
