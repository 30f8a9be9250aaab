"""Look inside a model: trace a text, show each layer's predictions, and explain predictions."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import assert_never, get_args

import numpy as np
from numpy.typing import NDArray

from bert_jax.inference.fill_mask import FillMask
from bert_jax.inference.predictor import Predictor, Program, Row, check_strings
from bert_jax.inference.uses import unsuitable, use_of
from bert_jax.interpretability.attributions import (
    Attribution,
    Baseline,
    attribute_label,
    attribute_token,
)
from bert_jax.interpretability.layer_guesses import TextGuesses, guess_at_layers, read_guesses
from bert_jax.interpretability.trace import head_outputs, trace, traced_arrays
from bert_jax.interpretability.traced_text import FloatArray, TracedText
from bert_jax.labeled_data.features import Features
from bert_jax.labeled_data.tokenized_text import Text, TokenizedText, tokenize
from bert_jax.local_paths import naming_urls
from bert_jax.models.model import ClassifierHead
from bert_jax.models.options import DTypeName
from bert_jax.runs.named_checkpoint import name_checkpoints
from bert_jax.runs.work_dir import PAIRS
from bert_jax.validation import check_choice


class Attention(Predictor):
    """Shows what happens inside a model when it reads a text.

    The model may have any head and may have been trained with any attention backend. A text can
    also be given as a tuple of words.

    >>> attention = Attention("runs/mine")                                    # doctest: +SKIP
    >>> trace = attention("I love my pet Python")                             # doctest: +SKIP
    >>> trace.attention.shape                                                 # doctest: +SKIP
    (12, 12, 7, 7)

    Attributes:
      checkpoint: the loaded checkpoint.
    """

    heads = None
    made_by = "`bj.pretrain`"

    @naming_urls()
    def __init__(
        self,
        work_dir: str | os.PathLike[str],
        *,
        max_length: int | None = None,
        dtype: DTypeName = "float32",
        step: int | None = None,
    ):
        """Load a checkpoint from a work directory.

        Args:
          work_dir: the work directory of a run or of `bert-jax import`.
          max_length: the maximum number of tokens in a sequence, including special tokens. For a
            fine-tuned model, the default is the maximum that was used in fine-tuning. For other
            models, it is the number of positions, but at most 384 for question answering.
          dtype: the dtype to compute in; see `ComputeConfig`.
          step: the step of the checkpoint. If None, the best checkpoint of a fine-tuning run is
            loaded, or the newest checkpoint of any other model.
        """
        (self.checkpoint,) = name_checkpoints([work_dir], [step])
        step = self.checkpoint.step
        super().__init__(work_dir, batch_size=1, max_length=max_length, dtype=dtype, step=step)

    def __call__(self, text: Text, second: Text | None = None) -> TracedText:
        """Return the intermediate results of the encoder for a text or a pair of texts.

        Args:
          text: the text.
          second: the second text of a pair.

        Raises:
          UnusableText: a text or a word is not a string or is not valid Unicode.
        """
        read = self._read(text, second)
        row = self._run_once(trace, read)
        return TracedText(**vars(read), **traced_arrays(row, len(read.tokens)))

    def guesses(self, text: Text, second: Text | None = None, *, top_k: int = 5) -> TextGuesses:
        """Return the most probable tokens for every mask in a text, as predicted at every layer.

        Args:
          text: the text.
          second: the second text of a pair.
          top_k: the number of tokens to return per layer.

        Returns:
          A list with one `MaskGuesses` per mask token, in order; empty if the text has no masks.
          Printing the list shows tables.

        Raises:
          ValueError: the model has no masked-LM head, or `top_k` is out of range.
          UnusableText: a text or a word is not a string or is not valid Unicode.
        """
        self._check_masked_lm()
        vocab_size = self.tokenizer.vocab_size
        if not 1 <= top_k <= vocab_size:
            raise ValueError(
                f"top_k={top_k}: out of range. Use a number from 1 to {vocab_size}, the size of "
                "the vocabulary."
            )
        read = self._read(text, second)
        positions = self._masks(read)
        if not positions:
            return TextGuesses()
        program = partial(guess_at_layers, vocab_size=vocab_size, top_k=top_k)
        row = self._run_once(program, read, masked_positions=positions)
        return read_guesses(row, positions, self.tokenizer)

    def attribute(
        self,
        text: Text,
        second: Text | None = None,
        *,
        target: str | None = None,
        steps: int = 64,
        baseline: Baseline = "mask",
    ) -> Attribution:
        """Compute each token's contribution to a prediction with integrated gradients.

        For a sequence classifier, the prediction is the score of a label; for a masked-LM head, it
        is the probability of a token at the first mask in the text.

        Args:
          text: the text.
          second: the second text of a pair.
          target: the label or the token to explain; None for the one with the highest score.
          steps: the number of gradients to average.
          baseline: the input to compare the text with: "mask" replaces its words with mask tokens,
            and "zero" with zero vectors.

        Raises:
          ValueError: the model has neither a sequence classifier nor a masked-LM head; the label or
            token does not exist; the text has no mask; or an argument is out of range.
          UnusableText: a text or a word is not a string or is not valid Unicode.
        """
        check_choice("baseline", baseline, get_args(Baseline))
        if steps < 1:
            raise ValueError(f"steps={steps}: out of range. Use 1 or more.")
        read = self._read(text, second)
        program, label, name = self._attribution_program(read, target, steps)
        kept_ids = set(self.tokenizer.special_ids) - {self.tokenizer.unk_id}
        match baseline:
            case "mask":
                baseline_id = self.tokenizer.mask_id
            case "zero":
                baseline_id = -1
            case _:
                assert_never(baseline)
        row = self._run_once(
            program,
            read,
            {"kept": np.isin(read.token_ids, [*kept_ids]).astype(np.int32)},
            label=label,
            baseline_ids=baseline_id,
            masked_position=next(iter(self._masks(read)), 0),
        )
        score, reference = float(row["score"]), float(row["baseline_score"])
        scores = row["scores"][: len(read.tokens)].copy()
        error = float(abs(scores.sum() - (score - reference)))
        return Attribution(name, score, reference, read.tokens, read.words, scores, error)

    def head_outputs(self, text: Text, second: Text | None = None) -> dict[str, FloatArray]:
        """Return the outputs of the model's head.

        Args:
          text: the text.
          second: the second text of a pair.

        Returns:
          A dict. For a classifier, it contains `logits`: [labels] for sequences, [tokens, labels]
          for a tagger, or [tokens, 2] for question answering. For a sentence-pair head, it contains
          `next_sentence_logits` [2]. The dict is empty for an encoder and for a head that only
          predicts masked words.

        Raises:
          UnusableText: a text or a word is not a string or is not valid Unicode.
        """
        read = self._read(text, second)
        row = self._run_once(head_outputs, read)
        match self.config.head_kind:
            case ClassifierHead(scored="tokens"):
                return {"logits": row["logits"][: len(read.tokens)].copy()}
            case _:
                return row

    @property
    def sentence_pair_names(self) -> tuple[str, str]:
        """The names of the two classes of a sentence-pair head, in the order of its logits."""
        if self.origin.get(PAIRS) == "sentence_order":
            return "in order", "swapped"
        return "the second text follows", "it does not follow"

    def _attribution_program(
        self, read: TokenizedText, target: str | None, steps: int
    ) -> tuple[Program, int, str]:
        """Return the attribution program, and the index and name of the label or token."""
        match self.config.head_kind:
            case ClassifierHead(scored="sequence"):
                return self._label_program(read, target, steps)
            case "pretraining" | "masked_lm":
                return self._token_program(read, target, steps)
            case _:
                raise ValueError(
                    f"{self.checkpoint}: this model {use_of(self.config, self.origin).does}; it "
                    "does not predict a single score that could be attributed to words. Use a "
                    "model that classifies texts or fills masks."
                )

    def _label_program(
        self, read: TokenizedText, target: str | None, steps: int
    ) -> tuple[Program, int, str]:
        """Return the program that attributes a label's score, and the label's index and name."""
        labels = self.config.labels
        if target is None:
            scores = self._run_once(head_outputs, read)["logits"]
            target = labels[int(scores.argmax())]
        check_choice("target", target, labels)
        program = partial(attribute_label, problem=self.config.problem, steps=steps)
        return program, labels.index(target), target

    def _token_program(
        self, read: TokenizedText, target: str | None, steps: int
    ) -> tuple[Program, int, str]:
        """Return the program that attributes a token's probability, and the token's id and name."""
        masks = self._masks(read)
        if not masks:
            raise ValueError(
                f"{read.text[:40]!r}: contains no {self.tokenizer.specials.mask}. Put one where "
                "the model should predict a word."
            )
        vocab_size = self.tokenizer.vocab_size
        token_id = None if target is None else self.tokenizer.token_to_id(target)
        if target is None:
            best = partial(guess_at_layers, vocab_size=vocab_size, top_k=1)
            row = self._run_once(best, read, masked_positions=masks[:1])
            token_id = int(row["token_ids"][0, -1, 0])
        if token_id is None:
            raise ValueError(
                f"target={target!r}: not in the vocabulary. Use a single token, such as one "
                "of the model's guesses."
            )
        program = partial(attribute_token, vocab_size=vocab_size, steps=steps)
        return program, token_id, self.tokenizer.readable(token_id)

    def _check_masked_lm(self) -> None:
        if self.config.head not in ("pretraining", "masked_lm"):
            raise ValueError(
                unsuitable(
                    self.checkpoint,
                    self.config,
                    self.origin,
                    FillMask.purpose,
                    FillMask.made_by,
                    generator=self._has_generator,
                )
            )

    def _masks(self, read: TokenizedText) -> list[int]:
        """Return the indices of the mask tokens."""
        positions: list[int] = np.flatnonzero(read.token_ids == self.tokenizer.mask_id).tolist()
        return positions

    def _run_once(
        self,
        program: Program,
        read: TokenizedText,
        token_inputs: Mapping[str, NDArray[np.int32]] | None = None,
        **inputs: int | Sequence[int],
    ) -> Row:
        """Run a program on one input and return its outputs.

        Args:
          program: a function of a model and a batch, which returns a dict of arrays.
          read: the tokenized text.
          token_inputs: additional inputs with one value per token.
          **inputs: all other inputs.
        """
        targets = {name: np.array([value], np.int32) for name, value in inputs.items()}
        (row,) = self._run(program, Features(read.sequences, targets, token_inputs or {}))
        return row

    def _read(self, text: Text, second: Text | None) -> TokenizedText:
        """Tokenize and truncate a text or a pair of texts.

        Raises:
          UnusableText: a text or a word is not a string or is not valid Unicode.
        """
        given = [text] if second is None else [text, second]
        check_strings([part if isinstance(part, tuple) else (part,) for part in given])
        return tokenize(self.tokenizer, text, second, self.max_length)
