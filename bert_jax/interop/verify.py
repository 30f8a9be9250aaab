"""Compare two models, from any supported framework, on the same inputs."""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bert_jax.interop.comparison import (
    SENTENCES,
    ComparableModel,
    Difference,
    ProbeInput,
    Sizes,
    difference_table,
    differences,
    misshapen,
    random_probe,
    sentence_probe,
    title,
    unequal,
    unpaired_outputs,
)
from bert_jax.interop.huggingface.verify_backend import HuggingFaceModel
from bert_jax.interop.verify_backends import (
    open_model,
    open_tokenizer,
    sentence_embedding_differences,
)
from bert_jax.local_paths import naming_urls
from bert_jax.runs.model_location import local_model
from bert_jax.tokenizers.tokenizer import Tokenizer
from bert_jax.training.reports import Message, OnReport, discard
from bert_jax.validation import check_seed


@dataclass(frozen=True)
class Comparison:
    """The outcome of comparing two models, A and B.

    Attributes:
      passed: whether the models agree.
      verdict: one sentence on how closely the models agree. Further lines list any settings
        that differ.
      differences: the differences, keyed by input ("random" or "sentences") and then by output.
      unpaired: the outputs that only one of the models has.
      misshapen: one line for each output whose shapes differ.
    """

    passed: bool
    verdict: str
    differences: Mapping[str, Mapping[str, Difference]]
    unpaired: tuple[str, ...]
    misshapen: tuple[str, ...]

    def lines(self) -> list[str]:
        """Return a table of the differences, followed by the verdict, as lines of text."""
        lines = difference_table(self.differences)
        if self.unpaired:
            names = ", ".join(map(title, self.unpaired))
            lines.append(f"not compared, because only one of the models has them: {names}")
        lines += (f"not the same kind of output: {line}" for line in self.misshapen)
        return [*lines, f"{'PASS' if self.passed else 'FAIL'}: {self.verdict}"]


@naming_urls()
def verify(
    first: str | os.PathLike[str],
    second: str | os.PathLike[str],
    *,
    tolerance: float = 1e-4,
    seed: int = 0,
    on_report: OnReport | None = None,
) -> Comparison:
    """Compare two models on random tokens and on sentences, in float32.

    Args:
      first: a work directory, a Hugging Face directory, a TensorFlow checkpoint from Google's BERT
        release, an ONNX file or a StableHLO artifact.
      second: the model to compare it with; the same kinds of models are supported.
      tolerance: the largest relative difference that passes; 0 requires bitwise equal outputs.
      seed: the seed for the random tokens.
      on_report: called with a `Message` for each remark about the models and for each input.

    Returns:
      A `Comparison`, whose `passed` attribute is True if the models agree.

    Raises:
      ValueError: a model cannot be loaded, or the models have no output in common.
    """
    if not 0 <= tolerance < math.inf:
        raise ValueError(
            f"tolerance={tolerance}: expected 0 (bitwise equality) or a positive number"
        )
    check_seed(seed)
    pair = _Pair.open(local_model(first), local_model(second), on_report or discard)
    tokenizer_problem = pair.tokenizer_problem()
    outputs = pair.compare(seed)
    if tokenizer_problem:
        passed, verdict = False, tokenizer_problem
    elif pair.pooling:
        passed = False
        verdict = "A and B pool differently (A -> B):\n  " + "\n  ".join(pair.pooling)
    else:
        passed, verdict = verdict_on(outputs.differences, outputs.unequal, tolerance)
    return Comparison(passed, verdict, outputs.differences, outputs.unpaired, outputs.misshapen)


@dataclass(frozen=True)
class _Outputs:
    """The differences between two models' outputs.

    Attributes:
      differences: the differences, keyed by probe name and then by output name.
      unequal: the outputs that differ bitwise on at least one probe.
      unpaired: the outputs that only one of the models has.
      misshapen: one line for each output whose shapes differ.
    """

    differences: Mapping[str, Mapping[str, Difference]]
    unequal: frozenset[str]
    unpaired: tuple[str, ...]
    misshapen: tuple[str, ...]


@dataclass(frozen=True)
class _Pair:
    """Two models to compare, with their tokenizers and any differences in their pooling."""

    models: Sequence[ComparableModel]
    tokenizers: Sequence[Tokenizer | None]
    sizes: Sizes
    pooling: Sequence[str]
    report: OnReport

    @classmethod
    def open(cls, first: Path, second: Path, report: OnReport) -> _Pair:
        """Load both models and their tokenizers.

        Raises:
          ValueError: a model or a tokenizer cannot be loaded.
        """
        models = [open_model(path) for path in (first, second)]
        pooling = sentence_embedding_differences(first, second)
        sizes = smallest(models)
        for letter, model in zip("AB", models, strict=True):
            report(Message(f"{letter}  {model.title}"))
        _describe(models, sizes, report)
        tokenizers = [open_tokenizer(path) for path in (first, second)]
        return cls(models, tokenizers, sizes, pooling, report)

    def tokenizer_problem(self) -> str:
        """Return the reason why the models get different ids for a text, or "" if the ids agree."""
        tokenizers = [tokenizer for tokenizer in self.tokenizers if tokenizer is not None]
        alike = len(tokenizers) < 2 or same_ids(*tokenizers)
        read_alike = True
        for letter, model, tokenizer in zip("AB", self.models, self.tokenizers, strict=True):
            if not isinstance(model, HuggingFaceModel) or tokenizer is None:
                continue
            problem = tokenization_difference(model, tokenizer)
            if model.specifies_tokenizer and problem.startswith("ids"):
                read_alike = False
            if problem:
                self._note(f"transformers tokenizes texts for {letter} differently: {problem}")
        if not alike:
            return "A and B have different tokenizers, which turn the same text into different ids"
        if not read_alike:
            return (
                "transformers tokenizes text differently, so the models were compared on ids that "
                "it would not produce"
            )
        return ""

    def compare(self, seed: int) -> _Outputs:
        """Run both models on all inputs.

        Raises:
          ValueError: the models have no output in common.
        """
        by_probe, not_equal = {}, set()
        unpaired, wrong = [], []
        for probe in self._probes(seed):
            rows, length = probe.token_ids.shape
            self.report(
                Message(
                    f"{probe.name}: {rows} x {length} positions, {probe.tokens:,} of them tokens"
                )
            )
            first, second = (model.outputs(probe) for model in self.models)
            by_probe[probe.name] = differences(first, second, probe)
            not_equal.update(unequal(first, second, probe))
            if not by_probe[probe.name]:
                raise ValueError(
                    "A and B have no output in common. Compare models with the same head, or "
                    "export with --hidden-states"
                )
            unpaired, wrong = unpaired_outputs(first, second), misshapen(first, second)
        return _Outputs(by_probe, frozenset(not_equal), tuple(unpaired), tuple(wrong))

    def _probes(self, seed: int) -> list[ProbeInput]:
        sizes = self.sizes
        tokenizer = next((one for one in self.tokenizers if one is not None), None)
        limits = (sizes.vocab_size, sizes.num_segments, sizes.max_positions)
        pad_id = 0 if tokenizer is None else tokenizer.pad_id
        probes = [random_probe(*limits, seed, pad_id=pad_id)]
        if tokenizer is None:
            return probes
        if tokenizer.vocab_size > sizes.vocab_size:
            self._note(
                "sentences are not compared, because the tokenizer has more tokens than a model's "
                "token table has rows"
            )
            return probes
        return [*probes, sentence_probe(tokenizer, sizes.num_segments, sizes.max_positions)]

    def _note(self, text: str) -> None:
        self.report(Message(f"NOTE  {text}"))


def _describe(models: Sequence[ComparableModel], sizes: Sizes, report: OnReport) -> None:
    """Report differences in the models' sizes and labels, which do not make the comparison fail."""
    if len({model.sizes for model in models if model.sizes is not None}) > 1:
        report(
            Message(
                f"NOTE  inputs are limited to what both models support: {sizes.vocab_size:,} "
                f"tokens, {sizes.num_segments} segments, {sizes.max_positions:,} positions"
            )
        )
    if all(model.labels for model in models) and models[0].labels != models[1].labels:
        names = (", ".join(model.labels) for model in models)
        report(Message("NOTE  the scores have different names: {} in A, {} in B".format(*names)))


def verdict_on(
    differences_by_probe: Mapping[str, Mapping[str, Difference]],
    unequal_outputs: Collection[str],
    tolerance: float,
) -> tuple[bool, str]:
    """Return whether two models agree, and a sentence on how far apart they are.

    Args:
      differences_by_probe: the differences, keyed by probe name and then by output name.
      unequal_outputs: the outputs that differ bitwise on at least one probe.
      tolerance: the largest relative difference that passes; 0 requires bitwise equality.
    """
    differences = [row for rows in differences_by_probe.values() for row in rows.values()]
    relative = max(difference.relative for difference in differences)
    absolute = max(difference.largest for difference in differences)
    if tolerance:
        passed = relative <= tolerance
        comparison = "within" if passed else "NOT within"
        verdict = f"{relative:.2g} is {comparison} {tolerance:.2g}"
    elif passed := not unequal_outputs and relative == 0:
        return passed, "A and B are bitwise equal"
    else:
        where = ", ".join(map(title, sorted(unequal_outputs))) or "some values are not finite"
        verdict = f"NOT bitwise equal: {where}"
    return passed, f"{verdict}; the largest absolute difference is {absolute:.2g}"


def same_ids(first: Tokenizer, second: Tokenizer) -> bool:
    """Return whether two tokenizers give the same ids for all texts in `SENTENCES`."""
    texts = [text for pair in SENTENCES for text in pair]
    return first.encode_batch(texts) == second.encode_batch(texts)


def tokenization_difference(model: HuggingFaceModel, tokenizer: Tokenizer) -> str:
    """Describe how the tokenization in transformers differs from that of `tokenizer`, if at all.

    The result is "" if there is no difference. It begins with "ids" if the token ids differ,
    and with "segments" if only the segment ids differ.
    """
    assert model.sizes is not None
    num_segments = model.sizes.num_segments
    try:
        rows = model.tokenize(SENTENCES)
    except ValueError as error:
        return f"it cannot load the tokenizer ({error})"
    probe = sentence_probe(tokenizer, num_segments, max(len(row.token_ids) for row in rows) + 1)
    for number, (pair, row) in enumerate(zip(SENTENCES, rows, strict=True)):
        length = int(probe.attention_mask[number].sum())
        token_ids = probe.token_ids[number, :length].tolist()
        if token_ids != row.token_ids:
            return f"ids {row.token_ids} instead of {token_ids} for {pair}"
        segments = probe.segment_ids[number, :length].tolist()
        if row.segment_ids is not None and num_segments > 1 and segments != row.segment_ids:
            return f"segments {row.segment_ids} instead of {segments} for {pair}"
    return ""


def smallest(models: Sequence[ComparableModel]) -> Sizes:
    """Return the largest input sizes that all models accept.

    Raises:
      ValueError: none of the models records its sizes.
    """
    recorded = [model.sizes for model in models if model.sizes is not None]
    if not recorded:
        raise ValueError(
            "neither A nor B records its vocabulary size. Compare each of them with the work "
            "directory that it was exported from"
        )
    return Sizes(
        min(sizes.vocab_size for sizes in recorded),
        min(sizes.num_segments for sizes in recorded),
        min(sizes.max_positions for sizes in recorded),
    )
