"""Provide a short run and a log comparison for tests with multiple devices or processes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from bert_jax.training.metrics_log import read_metrics

# These metrics describe the model, not the machine. Losses differ by rounding errors, since every
# mesh adds numbers in a different order. The masked tokens are the same, so accuracies are equal
# unless rounding swaps two logits.
COMPARED = ("loss", "mlm_loss", "nsp_loss", "mlm_accuracy", "nsp_accuracy", "gradient_norm")


STEPS = 12

# The learning rate schedule does not depend on the length of the run, and the size of the held-out
# split is not a multiple of the batch size.
SHORT_CONFIG = """
from ml_collections import ConfigDict


def get_config():
    return ConfigDict(
        dict(
            work_dir="",
            model=dict(
                vocab_size=300, hidden_dim=16, num_layers=1, num_heads=2, ffn_dim=32,
                max_positions=32,
            ),
            phases=dict(
                only=dict(corpus="{0}/32", sequence_length=32, batch_size=16, num_steps=12)
            ),
            optimizer=dict(peak_learning_rate=1e-3, warmup_steps=4, schedule="constant"),
            evaluation=dict(every_steps=6),
            checkpoint=dict(every_steps=4, keep_last=9),
            reporting=dict(every_steps=1, tensorboard=False),
        )
    )
"""


@pytest.fixture(scope="session")
def short_run(tiny_config) -> Callable[..., list[str]]:
    """Return a function that builds the command for a short run in a work directory."""
    config = tiny_config.with_name("short.py")
    config.write_text(SHORT_CONFIG.format(tiny_config.parent), encoding="utf-8")

    def words(work_dir: Path, *overrides: str) -> list[str]:
        settings = [f"--config.work_dir={work_dir}", *(f"--config.{s}" for s in overrides)]
        return ["pretrain", "--config", str(config), *settings]

    return words


@pytest.fixture(scope="session")
def one_device(bert_jax, short_run, tmp_path_factory) -> Path:
    """Return the work directory of the short run, trained by one process on one device."""
    work_dir = tmp_path_factory.mktemp("runs") / "one"
    bert_jax(*short_run(work_dir))
    return work_dir


@pytest.fixture(scope="session")
def assert_same_history() -> Callable[[Path, Path], None]:
    """Return a function that checks that two runs logged the same metrics at every step."""

    def compare(work_dir: Path, expected: Path) -> None:
        actual, reference = (
            {
                (entry["kind"], entry["step"]): entry
                for entry in read_metrics(directory / "metrics.jsonl")
                if entry["step"] <= STEPS
            }
            for directory in (work_dir, expected)
        )
        assert actual.keys() == reference.keys()
        assert len(actual) == STEPS + 2
        for key, entry in reference.items():
            metrics = {name: entry[name] for name in COMPARED if name in entry}
            assert {name: actual[key][name] for name in metrics} == pytest.approx(
                metrics, rel=1e-5
            ), key

    return compare
