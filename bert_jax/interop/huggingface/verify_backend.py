"""A Hugging Face directory, computed by Hugging Face's own code, as a side of a comparison."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from bert_jax.finetuning.registry import kind_of_head, score_outputs
from bert_jax.interop.comparison import Outputs, ProbeInput, Sizes
from bert_jax.interop.huggingface.config import read_encoder
from bert_jax.interop.huggingface.families import classes_of, family_of, heads_of
from bert_jax.interop.huggingface.family import Family
from bert_jax.interop.huggingface.weights import NewestNames, open_weights
from bert_jax.json_files import read_json_object
from bert_jax.models.model import PretrainingHead, scores_choices

# The names of an architecture's scores in its output and in ours.
LOGITS: dict[PretrainingHead, dict[str, str]] = {
    "pretraining": {
        "prediction_logits": "token_logits",
        "seq_relationship_logits": "next_sentence_logits",
        "sop_logits": "next_sentence_logits",  # ALBERT's
    },
    "masked_lm": {"logits": "token_logits"},
    "next_sentence": {"logits": "next_sentence_logits"},
}


class TheirRow(NamedTuple):
    """Token ids, and the segment of each where the tokenizer gives them."""

    token_ids: list[int]
    segment_ids: list[int] | None


class HuggingFaceModel:
    """The model of a directory, in float32 on the CPU, without dropout."""

    title: str
    sizes: Sizes | None
    labels: tuple[str, ...]

    def __init__(self, directory: Path):
        """Loads it.

        Raises:
          ValueError: PyTorch or transformers is not installed, or its weights do not fill it.
        """
        try:
            import torch
            import transformers
        except ImportError as error:
            raise ValueError(
                f"{directory}: a Hugging Face directory takes PyTorch and transformers to run: "
                "pip install -e '.[torch]'"
            ) from error
        transformers.logging.disable_progress_bar()
        file = directory / "config.json"
        content = read_json_object(file)
        encoder = read_encoder(content, str(file))
        self._family = family = family_of(encoder)
        classes = content.get("architectures") or [family.architectures["encoder"]]
        named = classes if isinstance(classes, str) else classes[0]
        heads, ours = heads_of(family), (classes_of(content) or [named])[0]
        if ours not in heads:
            raise ValueError(
                f"{file}: architectures is {named}; expected one of {', '.join(heads)}. Import the "
                "model with --head and compare the work directory"
            )
        self._head = heads[ours]
        self._torch, self.directory = torch, directory
        # A bare model has a pooler unless it is told to have none, where there is one at all.
        bare = self._head == "encoder" and family.pooler and not _has_pooler(directory, family)
        options = {"add_pooling_layer": False} if bare else {}
        try:
            self._model, loading = getattr(transformers, named).from_pretrained(
                directory,
                output_loading_info=True,
                local_files_only=True,
                dtype=torch.float32,
                attn_implementation="eager",
                # Chunking saves memory without changing values, but refuses lengths that are not
                # multiples of the chunk.
                chunk_size_feed_forward=0,
                **options,
            )
        except Exception as error:  # a config or a pickle can make transformers raise anything
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
            raise ValueError(f"{directory}: {named} cannot be loaded from it: {reason}") from error
        absent = sorted(loading["missing_keys"])
        if absent:
            raise ValueError(
                f"{directory}: {named} finds no usable weights for {', '.join(absent)}. Import the "
                "model with --head encoder and compare the work directory"
            )
        self._model.eval()
        self.title = f"{directory} (Hugging Face, {named})"
        kind = kind_of_head(self._head)
        own_labels = kind is not None and kind.head.labels is None
        names = self._model.config.id2label if own_labels else {}
        self.labels = tuple(names.values())
        self.sizes = Sizes(encoder.vocab_size, encoder.num_segments, encoder.max_positions)

    @property
    def tokenizer_is_told(self) -> bool:
        """Whether the files say how to read texts.

        Of others (spiece.model, vocab.json) transformers 5 makes tokenizers by rules of its own,
        which do not always read as the models learned.
        """
        plain = self._family.model_type in ("bert", "distilbert")
        names = ("tokenizer.json", *(["vocab.txt"] if plain else []))
        return any((self.directory / name).is_file() for name in names)

    def read(self, pairs: Sequence[tuple[str, str]]) -> list[TheirRow]:
        """Each pair of texts as the directory's own tokenizer has it; one of "" is a single text.

        Raises:
          ValueError: transformers finds no tokenizer in the directory.
        """
        import transformers

        try:
            tokenizer = transformers.AutoTokenizer.from_pretrained(
                self.directory, local_files_only=True
            )
        except (OSError, ValueError, KeyError, ImportError) as error:
            reason = str(error).strip().partition("\n")[0]
            raise ValueError(f"{self.directory}: no tokenizer of transformers: {reason}") from error
        rows = [tokenizer(*(text for text in pair if text)) for pair in pairs]
        return [TheirRow(row["input_ids"], row.get("token_type_ids")) for row in rows]

    def outputs(self, probe: ProbeInput) -> Outputs:
        """See `ComparableModel.outputs`."""
        tensors = [
            self._torch.from_numpy(ids).long()
            for ids in (probe.token_ids, probe.attention_mask, probe.segment_ids)
        ]
        if scores_choices(self._head):
            tensors = [tensor[:, None] for tensor in tensors]
        given_names = ("input_ids", "attention_mask", "token_type_ids")
        inputs = dict(zip(given_names, tensors, strict=True))
        if self.sizes is not None and not self.sizes.num_segments:
            del inputs["token_type_ids"]
        with self._torch.no_grad():
            given = self._model(**inputs, output_hidden_states=True)
            found = self._named(given)
        return {name: tensor.numpy().astype(np.float32) for name, tensor in found.items()}

    def _pooled(self, hidden: Any) -> Any:
        """What the dense layer on the first token gives, wherever the family has it."""
        model, first = self._model, hidden[:, 0]
        if hasattr(model, "pre_classifier"):
            return self._torch.relu(model.pre_classifier(first))
        if hasattr(getattr(model, "classifier", None), "out_proj"):
            return self._torch.tanh(model.classifier.dense(first))
        prefix = self._family.prefix.removesuffix(".")
        bare = model if self._head == "encoder" else getattr(model, prefix)
        pooler = getattr(bare, "pooler", None)
        if pooler is None or isinstance(pooler, self._torch.nn.Linear):
            return None if pooler is None else self._torch.tanh(pooler(first))
        return pooler(hidden)

    def _named(self, given: Any) -> dict[str, Any]:
        """Their outputs under our names."""
        found = {f"hidden_{n}": states for n, states in enumerate(given.hidden_states)}
        found["hidden"] = given.hidden_states[-1]
        pooled = self._pooled(given.hidden_states[-1])
        if pooled is not None:
            found["pooled"] = pooled
        for theirs, ours in LOGITS.get(cast(PretrainingHead, self._head), {}).items():
            if theirs in given:
                found[ours] = given[theirs]
        scores = [given[name] for name in score_outputs(self._head)]
        if scores:
            found["logits"] = scores[0] if len(scores) == 1 else self._torch.stack(scores, dim=-1)
        return found


def _has_pooler(directory: Path, family: Family) -> bool:
    """Whether the weights of a directory hold a pooler; ValueError if they cannot be read."""
    names = NewestNames(open_weights(directory), family).shapes
    return any(name.startswith(family.pooler) for name in names)
