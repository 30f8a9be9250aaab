"""Define the variants: BERT's recipe, single changes to it, and combinations of changes."""

from __future__ import annotations

import bisect
import math
import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import Any, NamedTuple

from commands import overlaid
from ml_collections import ConfigDict

from bert_jax.models.model import define_model
from bert_jax.models.parameters import count
from bert_jax.pretraining.config import PretrainConfig
from bert_jax.recipes.load import load_config
from bert_jax.training.transformations import is_hidden_matrix


@dataclass(frozen=True)
class Variant:
    """A recipe in the comparison.

    name: the variant's name.
    title: the variant's title in tables and plots.
    changes: the config values in which the variant differs from BERT's recipe.
    budget: the budget of FLOPs, as a fraction of the FLOPs of BERT's recipe.
    """

    name: str
    title: str
    changes: dict[str, Any] = field(default_factory=dict)
    budget: float = 1.0

    @property
    def optimizer(self) -> str:
        """The name of the optimizer."""
        name: str = self.changes.get("optimizer", {}).get("name", "adamw")
        return name

    @property
    def base(self) -> str:
        """The name of the tuned recipe with AdamW that has the same kind of positions."""
        positions: str = self.changes.get("model", {}).get("positions", "learned")
        return "rotary" if positions == "rotary" else "bert"


_ROTARY = Variant("rotary", "+ rotary positions", {"model": {"positions": "rotary"}})
_MUON = Variant("muon", "+ Muon", {"optimizer": {"name": "muon"}})
_SINGLE = (
    _ROTARY,
    Variant(
        "pre_norm",
        "+ pre-norm, no biases",
        # As in ModernBERT, the norm of the embeddings takes the place of the first layer's norm.
        {"model": {"norm": "pre", "first_norm": False, "norm_bias": False, "dense_bias": False}},
    ),
    # A gated block has three matrices instead of two. It therefore has two thirds of 1,024
    # features, rounded up to a multiple of 16, so that the number of parameters stays about the
    # same.
    Variant("geglu", "+ GeGLU", {"model": {"gated_ffn": True, "ffn_dim": 688}}),
    _MUON,
    Variant(
        "wsd",
        "+ WSD",
        {"optimizer": {"schedule": "wsd", "decay_fraction": 0.2, "decay_shape": "1-sqrt"}},
    ),
    Variant("masking", "+ masking 30% → 15%", {"masking": {"rate": 0.3, "final_rate": 0.15}}),
)
_EVERYTHING = reduce(overlaid, [variant.changes for variant in _SINGLE], {})


def _with_shorter(variant: Variant) -> tuple[Variant, ...]:
    """Return a variant, and the same recipe with fewer steps and a complete schedule."""
    return variant, *(
        Variant(
            f"{variant.name}_{percent}",
            f"{variant.title}, {percent}% of the steps",
            variant.changes,
            percent / 100,
        )
        for percent in (50, 70)
    )


# The recipes for which the experiment measures how many steps Muon saves, and the same recipes with
# Muon. Rotary positions need no training when the rows become longer, unlike learned positions.
WITH_MUON: Mapping[str, tuple[Variant, ...]] = {
    "bert": _with_shorter(_MUON),
    "rotary": _with_shorter(
        Variant(
            "rotary_muon",
            "+ rotary positions and Muon",
            overlaid(_ROTARY.changes, _MUON.changes),
        )
    ),
}
VARIANTS: Mapping[str, Variant] = {
    variant.name: variant
    for variant in (
        Variant("bert", "BERT"),
        *_SINGLE,
        Variant("all", "all changes", _EVERYTHING),
        *WITH_MUON["rotary"],
        *WITH_MUON["bert"][1:],  # Muon with all steps is one of the single changes.
    )
}
REFERENCE = VARIANTS["bert"]
# The variants whose learning rates are tuned: both base recipes with each optimizer. AdamW comes
# first, since trials with Muon use the rate that is best for AdamW.
TUNED = ("bert", "rotary", *(variants[0].name for variants in WITH_MUON.values()))
# The steps of the second phase, which has longer rows, as a fraction of the steps of a run.
SECOND_PHASE = 0.5
# The longest sentence in BLiMP has more than 32 tokens.
MIN_POSITIONS = 64
# With --fast, the model has these sizes.
_FAST_SIZES = {"hidden_dim": 32, "num_layers": 1, "num_heads": 2, "ffn_dim": 64}


def tuned_with(variant: Variant) -> str:
    """Return the name of the variant on which a variant's learning rate is tuned."""
    return variant.base if variant.optimizer == "adamw" else WITH_MUON[variant.base][0].name


def tuned_variants(names: Iterable[str]) -> list[str]:
    """Return the names of the variants to tune for the given variants, in the order of `TUNED`."""
    variants = [VARIANTS[name] for name in names]
    needed = {variant.base for variant in variants} | set(map(tuned_with, variants))
    return [name for name in TUNED if name in needed]


@dataclass(frozen=True)
class Settings:
    """The settings that all runs share.

    tokens: the number of training tokens for BERT's recipe, including padding.
    lengths: the row length in each phase, in tokens.
    batch_tokens: the number of tokens in a batch.
    dtype: the floating-point type for the computation.
    fast: whether to use a tiny model.
    """

    tokens: int
    lengths: tuple[int, ...]
    batch_tokens: int
    dtype: str
    fast: bool

    @property
    def reference_steps(self) -> int:
        """The number of steps in BERT's recipe."""
        return max(2, round(self.tokens / self.batch_tokens))


def phase_steps(num_steps: int, num_phases: int) -> tuple[int, ...]:
    """Return the number of steps in each phase of a run with one or two phases."""
    if num_phases == 1:
        return (num_steps,)
    second = max(1, round(SECOND_PHASE * num_steps))
    return num_steps - second, second


@dataclass(frozen=True)
class Run:
    """A pretraining run.

    variant: the variant.
    seed: the random seed.
    learning_rate: the peak learning rate.
    adamw_rate: the peak learning rate of the parameters that AdamW updates. With Muon, it may
      differ from `learning_rate`.
    phase_steps: the number of steps in each phase.
    """

    variant: Variant
    seed: int
    learning_rate: float
    adamw_rate: float
    phase_steps: tuple[int, ...]

    @property
    def num_steps(self) -> int:
        return sum(self.phase_steps)


class Places(NamedTuple):
    """The work directory of a run, its corpora, and the size of their vocabulary.

    The corpus whose rows have n tokens is in the subfolder "n" of `corpora`.
    """

    work_dir: Path
    corpora: Path
    vocab_size: int


def config_of(run: Run, settings: Settings, places: Places, num_workers: int = 0) -> dict[str, Any]:
    """Return the config of a run as nested dicts."""
    model = {
        "vocab_size": places.vocab_size,
        "hidden_dim": 256,
        "num_layers": 4,
        "num_heads": 4,
        "ffn_dim": 1024,
        "max_positions": max(MIN_POSITIONS, *settings.lengths),
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
    }
    interval = max(1, run.num_steps // (2 if settings.fast else 16))
    config = {
        "work_dir": str(places.work_dir),
        "seed": run.seed,
        "model": model,
        "compute": {"dtype": settings.dtype},
        "phases": {
            f"phase{number}": {
                "corpus": str(places.corpora / str(length)),
                "sequence_length": length,
                "batch_size": settings.batch_tokens // length,
                "num_steps": num_steps,
            }
            for number, (length, num_steps) in enumerate(
                zip(settings.lengths, run.phase_steps, strict=True), start=1
            )
        },
        "optimizer": {
            "peak_learning_rate": run.learning_rate,
            "warmup_steps": 0,
            "warmup_fraction": 0.1,
            "beta2": 0.98,
        },
        "evaluation": {
            "every_steps": interval,
            "max_records": 16 if settings.fast else 2_048,
            "masking_rate": 0.15,
        },
        "checkpoint": {"every_steps": 4 * interval, "keep_last": 1, "keep_best": 0},
        "reporting": {"every_steps": interval, "tensorboard": False},
        "loader": {"num_workers": num_workers},
    }
    config = overlaid(config, run.variant.changes)
    if run.variant.optimizer == "muon":
        config["optimizer"]["adam_rate_factor"] = run.adamw_rate / run.learning_rate
    if settings.fast:
        config["model"] |= _FAST_SIZES
    return config


class Cost(NamedTuple):
    """The cost of a training step, and the size of the model.

    phase_flops: the model FLOPs of a step in each phase, on which the budget is based.
    muon_flops: the FLOPs of Muon's matrix products in a step, which are not part of the budget; 0
      with AdamW.
    parameters: the number of parameters, including the pretraining heads.
    """

    phase_flops: tuple[int, ...]
    muon_flops: int
    parameters: int

    def model_flops(self, phase_steps: Iterable[int]) -> int:
        """Return the model FLOPs of a run with these numbers of steps."""
        return sum(map(operator.mul, phase_steps, self.phase_flops))

    def steps_for(self, budget: float) -> int:
        """Return the number of steps, at least two, whose model FLOPs are closest to a budget."""

        def flops(num_steps: int) -> int:
            return self.model_flops(phase_steps(num_steps, len(self.phase_flops)))

        # The FLOPs increase with the number of steps, so bisection finds the smallest number that
        # reaches the budget.
        candidates = range(2, math.ceil(budget / min(self.phase_flops)) + 3)
        above = candidates[bisect.bisect_left(candidates, budget, key=flops)]
        return min((max(above - 1, 2), above), key=lambda num_steps: abs(flops(num_steps) - budget))


class _Cpu(NamedTuple):
    """A stand-in for a real device, since a step has the same model FLOPs on every device."""

    platform: str = "cpu"


def cost_of(values: dict[str, Any], documents_per_row: Mapping[int, int]) -> Cost:
    """Return the cost of a training step.

    Args:
      values: the config values of a run.
      documents_per_row: the maximum number of documents in a row, keyed by the length of the rows.
    """
    config: PretrainConfig = load_config(ConfigDict(values), kind="pretrain")
    setup = config.step_setup(_Cpu())
    phase_flops = tuple(
        setup.step_flops(phase, documents_per_row[phase.sequence_length])
        for _, _, phase in config.ordered_phases()
    )
    shapes = define_model(setup.model_config, setup.compute).shapes
    muon = 0
    if config.optimizer.name == "muon":
        muon = sum(
            _newton_schulz_flops(*shape.shape)
            for name, shape in shapes.items()
            if is_hidden_matrix(name)
        )
    return Cost(phase_flops, muon, count(shapes))


def _newton_schulz_flops(rows: int, columns: int) -> int:
    """Return the FLOPs of Muon's five iterations, each with three matrix products."""
    short, long = sorted((rows, columns))
    return 5 * 2 * short * short * (long + short + long)
