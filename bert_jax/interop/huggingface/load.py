"""Load a Hugging Face model, and account for each of its tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from bert_jax.files import check_checksums
from bert_jax.interop.huggingface.config import read_encoder, read_pairs
from bert_jax.interop.huggingface.families import family_of, origins
from bert_jax.interop.huggingface.import_config import (
    ImportOptions,
    classifier_fits,
    classifier_shape,
    holds_pooler,
    model_config,
    with_table_sizes,
)
from bert_jax.interop.huggingface.sentence_transformers import read_sentence_model, within
from bert_jax.interop.huggingface.weights import NewestNames, open_weights
from bert_jax.interop.tensors import Account, ForeignTensors, Origin, match_tensors, read
from bert_jax.json_files import read_json_object
from bert_jax.local_paths import check_local
from bert_jax.models.compute_config import ComputeConfig
from bert_jax.models.config import EncoderConfig
from bert_jax.models.model import ModelConfig, define_model
from bert_jax.models.parameters import ModelDefinition
from bert_jax.models.sentence_embedding import SentenceEmbedding
from bert_jax.objectives import SentencePairs
from bert_jax.tokenizers.tokenizer import Tokenizer
from bert_jax.validation import check_seed

MASKED_LM_HEADS = ("pretraining", "masked_lm")
BUFFERS = (".position_ids", ".token_type_ids")


@dataclass(frozen=True)
class ForeignModel:
    """A model from another framework whose tensors have been matched but not yet read.

    Attributes:
      source: the model's path, for use in messages.
      config: the model's config.
      tokenizer: the model's tokenizer.
      account: the result of matching the model's tensors with our parameters.
      tensors: the model's tensors.
      pairs: the task of the sentence-pair head, for models that have one.
      notes: remarks about the model, one line each.
      sentence_embedding: the model's sentence-embedding settings, or None if it has none.
    """

    source: Path
    config: ModelConfig
    tokenizer: Tokenizer
    account: Account
    tensors: ForeignTensors
    pairs: SentencePairs
    notes: list[str] = field(default_factory=list)
    sentence_embedding: SentenceEmbedding | None = None

    @property
    def _encoder_fits(self) -> bool:
        """Whether the source contains all of the encoder's weights, with the right shapes."""
        encoder = self.config.encoder
        pooler = holds_pooler(family_of(encoder), self.tensors.shapes)
        account = match_model(
            ModelConfig(encoder, "encoder", pooler=pooler),
            self.tensors,
            asked=True,
            positions=encoder.max_positions,
            new_classifier=False,
        )
        return account.explained

    def parameters(self, seed: int) -> dict[str, NDArray[np.float32]]:
        """Read the parameters, and use `seed` to initialize parameters that the source lacks.

        Raises:
          ValueError: weights are missing, unexpected or have the wrong shape, a tensor contains
            unusable values, or the seed is negative or too large.
        """
        check_seed(seed)
        if not self.account.explained:
            raise ValueError(
                f"{self.source}: the weights do not match the model (- missing, + unexpected, != "
                "wrong shape):\n"
                + "\n".join(self.account.lines())
                + (
                    "\nThe encoder is complete. Import only the encoder with --head encoder"
                    if self._encoder_fits
                    else ""
                )
            )
        try:
            parameters = dict(read(self.account, self.tensors))
        except ValueError as error:
            raise ValueError(f"{self.source}: {error}") from error
        if self.account.fresh:
            definition = _definition(self.config)

            def initialize(key: jax.Array) -> dict[str, jax.Array]:
                initial = definition.init(key)
                return {name: initial[name] for name in self.account.fresh}

            parameters |= jax.device_get(jax.jit(initialize)(jax.random.key(seed)))
        return parameters


def open_directory(
    directory: Path,
    options: ImportOptions,
    *,
    tokenizer: Path | None = None,
) -> ForeignModel:
    """Open a Hugging Face directory, and read its config and the names of its tensors.

    Args:
      directory: a directory with config.json, weights and tokenizer files, or a
        sentence-transformers directory with modules.json.
      options: the options for the import.
      tokenizer: a tokenizer file or directory to use instead of the one in `directory`.

    Raises:
      ValueError: a file is missing or damaged, the architecture is not supported, or the vocabulary
        or the position table does not match the model.
    """
    check_local(directory)
    check_checksums(directory)
    sentences = read_sentence_model(directory, options)
    directory = sentences.encoder
    file = directory / "config.json"
    if not file.is_file():
        raise ValueError(
            f"{directory}: contains no config.json. Specify the path of a Hugging Face directory"
        )
    content = read_json_object(file)
    encoder = read_encoder(content, str(file))
    loaded = load_tokenizer(tokenizer, directory)
    model = resolve_directory(
        content,
        encoder,
        NewestNames(open_weights(directory), encoder),
        loaded.lowercased() if sentences.lowercase else loaded,
        directory,
        options,
    )
    settings = sentences.settings
    if settings is not None:
        positions, shortest = model.config.encoder.max_positions, loaded.specials_of_pair + 2
        settings = within(settings, positions, shortest)
    notes = [*model.notes, *sentences.notes]
    return replace(model, notes=notes, sentence_embedding=settings)


def load_tokenizer(given: Path | None, source: Path) -> Tokenizer:
    """Load the tokenizer at `given`, or the one in the model's directory if `given` is None.

    Raises:
      ValueError: the tokenizer cannot be read. For the directory's own tokenizer, the message
        suggests the option for using a different one.
    """
    if given is not None:
        return _load_tokenizer(given)
    try:
        return _load_tokenizer(source)
    except ValueError as error:
        raise ValueError(f"{error}. Specify another one with --tokenizer FILE_OR_DIR") from error


def _load_tokenizer(path: Path) -> Tokenizer:
    added = path / "added_tokens.json"
    if added.is_file() and not (path / "tokenizer.json").is_file():
        raise ValueError(
            f"{added}: tokens added to a vocab.txt are not supported. Save the tokenizer again "
            "with `transformers.AutoTokenizer`, which writes a tokenizer.json"
        )
    return Tokenizer.load(path)


def resolve_directory(
    content: Mapping[str, Any],
    encoder: EncoderConfig,
    tensors: ForeignTensors,
    tokenizer: Tokenizer,
    source: Path,
    options: ImportOptions,
) -> ForeignModel:
    """Combine a config, a tokenizer, and tensors with Hugging Face's names into a model.

    Args:
      content: the parsed config.json.
      encoder: the encoder that `content` describes.
      tensors: the model's tensors.
      tokenizer: the model's tokenizer.
      source: the model's path, for use in messages.
      options: the options for the import.

    Raises:
      ValueError: the tokenizer or an option does not fit the source, or the config has an invalid
        value.
    """
    notes: list[str] = []
    encoder = with_table_sizes(encoder, tensors.shapes, options.max_positions, notes)
    check_vocabulary(tokenizer, encoder)
    if tokenizer.vocab_size < encoder.vocab_size:
        notes.append(
            f"the tokenizer has {tokenizer.vocab_size:,} tokens, and the token table has "
            f"{encoder.vocab_size:,} rows"
        )
    config = model_config(content, encoder, tensors.shapes, options, source)
    fits = classifier_fits(content, tensors.shapes, config)
    if options.labels and fits and classifier_shape(tensors.shapes):
        notes.append(f"the scores of the source's classifier are now {', '.join(options.labels)}")
    if len(options.labels) == 1 and config.problem == "regression":
        notes.append(
            "the model has one label, so it is treated as a regression model: its score is the "
            "predicted number (see --problem)"
        )
    num_names = len(content.get("id2label") or {})
    if config.labels and not options.labels and num_names not in (0, len(config.labels)):
        notes.append(
            f"id2label names {num_names} labels, but the classifier has {len(config.labels)}"
        )
    account = match_model(
        config,
        tensors,
        asked=options.head is not None,
        positions=options.max_positions,
        new_classifier=not fits,
    )
    if config.head in MASKED_LM_HEADS:
        _check_tied(tensors, encoder, source)
    try:
        pairs = read_pairs(content, family_of(encoder))
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from error
    return ForeignModel(source, config, tokenizer, account, tensors, pairs, notes)


def match_model(
    config: ModelConfig,
    tensors: ForeignTensors,
    *,
    asked: bool,
    positions: int | None,
    new_classifier: bool,
) -> Account:
    """Match a model's parameters with tensors that have Hugging Face's names.

    Args:
      config: the model's config.
      tensors: the source's tensors.
      asked: whether the user requested this head. If so, the source may lack it.
      positions: the number of positions to keep, counted from the first; None requires a position
        table with the size given in the config.
      new_classifier: whether to replace the source's classifier, because it does not fit the task
        or the labels.
    """
    places, family = origins(config), family_of(config.encoder)
    if new_classifier:
        places |= {f"classifier.{name}": Origin(f"(new).{name}") for name in ("kernel", "bias")}
    if "encoder.embeddings.position" in places:
        rows = None if positions is None else config.encoder.position_offset + positions
        places["encoder.embeddings.position"] = Origin(family.position_table, rows=rows)
    shapes = {name: shape.shape for name, shape in _definition(config).shapes.items()}

    tied, unused = family.tied_in(config.encoder), family.unused_in(config.encoder)
    kept = {family.part_of(place.name) for place in places.values()}

    def why_left_out(name: str) -> str | None:
        if name.endswith(BUFFERS):
            return "because it is a buffer, not a weight"
        if name in tied and config.head in MASKED_LM_HEADS:
            return f"because it is the same as {tied[name]}"
        if name in unused and config.head in MASKED_LM_HEADS:
            return f"because the model uses {unused[name]} instead"
        part = family.part_of(name)
        if new_classifier and part == "classifier.":
            return "because the classifier is replaced with a randomly initialized one"
        if part and part not in kept and (asked or part == family.pooler):
            return f"because it is not part of a model with the {config.head!r} head"
        return None

    # If a part has only some of its tensors, the file is damaged, so do not initialize the rest.
    existing = {family.part_of(name) for name in tensors.shapes}

    def may_be_fresh(name: str) -> bool:
        hf_name = places[name].name
        if new_classifier and name.startswith("classifier."):
            return True
        if new_classifier and hf_name.startswith("classifier.") and hf_name not in tensors.shapes:
            # This is RoBERTa's dense layer, which token classifiers do not have.
            return True
        part = family.part_of(hf_name)
        return asked and not name.startswith("encoder.") and part not in existing

    return match_tensors(
        shapes, places, tensors, may_be_fresh=may_be_fresh, why_left_out=why_left_out
    )


def check_vocabulary(tokenizer: Tokenizer, encoder: EncoderConfig) -> None:
    """Raise ValueError if the tokenizer has more ids than the token table has rows."""
    if tokenizer.vocab_size > encoder.vocab_size:
        raise ValueError(
            f"the tokenizer has {tokenizer.vocab_size:,} tokens, but the token table has only "
            f"{encoder.vocab_size:,} rows, so they belong to different models. Specify the model's "
            "own tokenizer with --tokenizer FILE_OR_DIR"
        )


def _check_tied(tensors: ForeignTensors, encoder: EncoderConfig, source: Path) -> None:
    for copy, original in family_of(encoder).tied_in(encoder).items():
        if copy in tensors.shapes and original in tensors.shapes:
            if not np.array_equal(tensors.read(copy), tensors.read(original)):
                raise ValueError(
                    f"{source}: {copy} differs from {original}, although they are the same layer "
                    "according to config.json. If the model was trained with a separate output "
                    'layer, set "tie_word_embeddings" to false there. Otherwise, import only the '
                    "encoder with --head encoder"
                )


def _definition(config: ModelConfig) -> ModelDefinition[Any]:
    # Parameter names and shapes do not depend on the compute config.
    return define_model(config, ComputeConfig(dtype="float32", attention="xla"))
