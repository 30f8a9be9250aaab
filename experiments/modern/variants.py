"""Define the variants: BERT's recipe, single changes to it, and all of the changes together."""

from __future__ import annotations

from collections.abc import Mapping
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
    """

    name: str
    title: str
    changes: dict[str, Any] = field(default_factory=dict)

    @property
    def optimizer(self) -> str:
        """The name of the optimizer, whose learning rate is tuned."""
        name: str = self.changes.get("optimizer", {}).get("name", "adamw")
        return name


_SINGLE = (
    Variant("rotary", "+ rotary positions", {"model": {"positions": "rotary"}}),
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
    Variant("muon", "+ Muon", {"optimizer": {"name": "muon"}}),
    Variant(
        "wsd",
        "+ WSD",
        {"optimizer": {"schedule": "wsd", "decay_fraction": 0.2, "decay_shape": "1-sqrt"}},
    ),
    Variant("masking", "+ masking 30% → 15%", {"masking": {"rate": 0.3, "later_rates": (0.15,)}}),
)
_EVERYTHING = reduce(overlaid, [variant.changes for variant in _SINGLE], {})
VARIANTS: Mapping[str, Variant] = {
    variant.name: variant
    for variant in (Variant("bert", "BERT"), *_SINGLE, Variant("all", "all of them", _EVERYTHING))
}
REFERENCE = VARIANTS["bert"]
# The variant with which each optimizer's learning rate is tuned.
TUNED_WITH = {"adamw": REFERENCE, "muon": VARIANTS["muon"]}
# With --fast, the model has these sizes.
_FAST_SIZES = {"hidden_dim": 32, "num_layers": 1, "num_heads": 2, "ffn_dim": 64}


@dataclass(frozen=True)
class Settings:
    """The settings that all runs share.

    tokens: the number of tokens on which BERT's recipe trains, including padding.
    length: the number of tokens in a row.
    batch_size: the number of rows in a batch.
    dtype: the floating-point type for the computation.
    fast: whether to use a tiny model.
    """

    tokens: int
    length: int
    batch_size: int
    dtype: str
    fast: bool

    @property
    def tokens_per_step(self) -> int:
        return self.length * self.batch_size

    @property
    def reference_steps(self) -> int:
        """The number of steps in BERT's recipe."""
        return max(1, round(self.tokens / self.tokens_per_step))


@dataclass(frozen=True)
class Run:
    """A pretraining run.

    variant: the variant.
    seed: the random seed.
    learning_rate: the peak learning rate.
    num_steps: the number of steps.
    """

    variant: Variant
    seed: int
    learning_rate: float
    num_steps: int


class Places(NamedTuple):
    """The work directory of a run, its corpus, and the size of the corpus's vocabulary."""

    work_dir: Path
    corpus: Path
    vocab_size: int


def config_of(run: Run, settings: Settings, places: Places, num_workers: int = 0) -> dict[str, Any]:
    """Return the config of a run as nested dicts."""
    model = {
        "vocab_size": places.vocab_size,
        "hidden_dim": 256,
        "num_layers": 4,
        "num_heads": 4,
        "ffn_dim": 1024,
        "max_positions": settings.length,
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
            "phase1": {
                "corpus": str(places.corpus),
                "sequence_length": settings.length,
                "batch_size": settings.batch_size,
                "num_steps": run.num_steps,
            }
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
    if settings.fast:
        config["model"] |= _FAST_SIZES
    return config


class Cost(NamedTuple):
    """The cost of a training step, and the size of the model.

    model_flops: the model FLOPs of a step, on which the budget is based.
    muon_flops: the FLOPs of Muon's matrix products in a step; 0 with AdamW.
    parameters: the number of parameters, including the pretraining heads.
    """

    model_flops: int
    muon_flops: int
    parameters: int


class _Cpu(NamedTuple):
    """A stand-in for a real device, since a step has the same model FLOPs on every device."""

    platform: str = "cpu"


def cost_of(values: dict[str, Any], documents_per_row: int) -> Cost:
    """Return the cost of a training step with these config values."""
    config: PretrainConfig = load_config(ConfigDict(values), kind="pretrain")
    setup = config.step_setup(_Cpu())
    ((_, _, phase),) = config.ordered_phases()
    shapes = define_model(setup.model_config, setup.compute).shapes
    muon = 0
    if config.optimizer.name == "muon":
        muon = sum(
            _newton_schulz_flops(*shape.shape)
            for name, shape in shapes.items()
            if is_hidden_matrix(name)
        )
    return Cost(setup.step_flops(phase, documents_per_row), muon, count(shapes))


def _newton_schulz_flops(rows: int, columns: int) -> int:
    """Return the FLOPs of Muon's five iterations, each with three matrix products."""
    short, long = sorted((rows, columns))
    return 5 * 2 * short * short * (long + short + long)
