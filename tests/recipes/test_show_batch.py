"""Test that `show-batch` displays the same batches that the run trains on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bert_jax import load_config, show_batch
from bert_jax.pipeline.loader import BatchSource
from bert_jax.pretraining.phases import PhaseBatches, open_corpora
from bert_jax.runs.ownership import ResolvedConfig


@pytest.fixture
def config(tiny_config: Path, tmp_path: Path):
    return load_config(tiny_config, {"work_dir": str(tmp_path / "run")}, kind="pretrain")


def batch_of_the_run(config, step: int, monkeypatch) -> dict[str, np.ndarray]:
    """Return the batch that the trainer of a run would get at a given step, without training."""
    from bert_jax.training.sharding import MeshConfig, make_mesh

    sources: list[BatchSource] = []
    monkeypatch.setattr(
        "bert_jax.pretraining.phases.Loader", lambda source, **_: sources.append(source)
    )
    corpora = open_corpora(config.ordered_phases(), config.evaluation_batch_size)
    batches = PhaseBatches(
        config.examples,
        config.loader,
        config.evaluation,
        config.total_steps,
        make_mesh(MeshConfig()),
    )
    corpus = corpora[-1]
    stages = batches.phases(corpus, None, None, 1600, lambda: None)
    sizes = [stage.batch_size for stage in stages]
    # The cost of a step, from which the time left is estimated, is proportional to its batch size.
    assert [stage.flops({}) for stage in stages] == [1600 * size // sizes[-1] for size in sizes]
    stage = next(stage for stage in stages if step < stage.end)
    stage.batches(0)
    return sources[0][step - stage.first_step]


WARMUP = {"phases.phase2.warmup_batch_sizes": (8,), "phases.phase2.warmup_batch_steps": 3}
WARMUP |= {"phases.phase2.batch_size": 16, "masking.later_rates": (0.3, 0.05)}


@pytest.mark.parametrize(
    ("step", "size", "changes"), [(25, 8, {}), (21, 8, WARMUP), (25, 16, WARMUP)]
)
def test_the_rows_are_those_that_the_run_trains_on(
    tiny_config, monkeypatch, tmp_path, step, size, changes
):
    changes = {"work_dir": str(tmp_path / "run"), **changes}
    config = load_config(tiny_config, changes, kind="pretrain")
    batch = batch_of_the_run(config, step, monkeypatch)  # This step is in the second phase.
    view = show_batch(tiny_config, changes, step=step, num_rows=3)
    assert (view.phase, view.num_rows, len(view.rows)) == ("phase2", size, 3)
    from bert_jax.tokenizers.tokenizer import Tokenizer

    tokenizer = Tokenizer.load(tiny_config.parent / "64" / "tokenizer")
    for row, documents in enumerate(view.rows):
        tokens = [token for document in documents for token in document.tokens]
        inside = batch["document_ids"][row] > 0
        ids = batch["token_ids"][row][inside].tolist()
        assert [token.text for token in tokens] == [tokenizer.readable(i) for i in ids]
        predicted = np.flatnonzero([token.state != "context" for token in tokens])
        weights = batch["masked_weights"][row] > 0
        np.testing.assert_array_equal(predicted, batch["masked_positions"][row][weights])
        labels = [tokens[i].label for i in predicted]
        expected = batch["masked_labels"][row][weights].tolist()
        assert labels == [tokenizer.readable(i) for i in expected]
        paired = batch["pair_weights"][row] > 0
        names = [document.pair for document in documents if document.pair]
        expected = [["next", "random"][i] for i in batch["pair_labels"][row][paired].tolist()]
        assert names == expected
    padding = np.count_nonzero(batch["document_ids"][:3] == 0)
    assert view.num_padding == padding


def test_states_have_the_shares_of_the_masking_config(config, tiny_config):
    view = show_batch(tiny_config, {"work_dir": "x"}, num_rows=16)
    tokens = [token for row in view.rows for document in row for token in document.tokens]
    predicted = [token for token in tokens if token.state != "context"]
    assert 0.1 < len(predicted) / len(tokens) < 0.2
    assert 0.6 < sum(token.state == "masked" for token in predicted) / len(predicted) < 0.95
    for token in predicted:
        assert (token.state == "masked") == (token.text == "[MASK]" != token.label)
        assert (token.state == "kept") == (token.text == token.label)


def test_a_work_directory_shows_its_own_batches(config, tiny_config, bert_jax_here):
    ResolvedConfig.of(config).write(config.work_dir)
    view = show_batch(config.work_dir, step=3)
    assert str(view) == str(show_batch(tiny_config, {"work_dir": "x"}, step=3))
    shown = bert_jax_here("show-batch", config.work_dir, "--step", "3")
    assert shown.code == 0 and shown.output == f"{view}\n"
    changes = ["--config.seed=1", "--config.work_dir=x", "--rows", "1"]
    again = bert_jax_here("show-batch", "--config", tiny_config, *changes)
    assert again.code == 0 and "1 of 16 rows" in again.output


def test_jupyter_shows_words_in_color(tiny_config):
    shown = show_batch(tiny_config, {"work_dir": "x"}, num_rows=1)._repr_html_()
    assert "of them predicted" in shown
    assert '<span style="background: hsl(220 80% 50% / 0.3)">[MASK](' in shown
    colored = "\n".join(show_batch(tiny_config, {"work_dir": "x"}, num_rows=1).lines(color=True))
    assert "\x1b[34m[MASK](" in colored


def test_requests_that_make_no_sense_are_rejected(tiny_config, bert_jax_here):
    with pytest.raises(
        ValueError, match=r"^step=32: the run has no such step\. Choose one from 0 to 31\.$"
    ):
        show_batch(tiny_config, {"work_dir": "x"}, step=32)
    with pytest.raises(ValueError, match="^num_rows=0: expected at least 1"):
        show_batch(tiny_config, {"work_dir": "x"}, num_rows=0)
    with pytest.raises(ValueError, match="contains no config.json. Specify the work directory of"):
        show_batch(tiny_config.parent)
    with pytest.raises(
        ValueError, match="own config determines its batches, so no key can be chan"
    ):
        show_batch(tiny_config.parent, {"seed": 1})
    refused = bert_jax_here("show-batch")
    assert refused.code == 2
    assert "expected either a work directory or --config RECIPE" in refused.errors
