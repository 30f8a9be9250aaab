"""Show a batch of a pretraining run, given its work directory or a recipe."""

from __future__ import annotations

from pathlib import Path

from bert_jax.json_files import read_json_object
from bert_jax.local_paths import naming_urls
from bert_jax.pretraining.batch_view import BatchView, view_batch
from bert_jax.recipes.load import Overrides, Source, load_config
from bert_jax.runs.ownership import RESOLVED_NAME
from bert_jax.runs.views import local_run


@naming_urls()
def show_batch(
    source: Source, overrides: Overrides = (), *, step: int = 0, num_rows: int = 4
) -> BatchView:
    """Return the first few rows of the batch that a pretraining run trains on at a given step.

    Args:
      source: the work directory of a pretraining run, or a config; see `load_config`.
      overrides: the keys to change; see `load_config`.
      step: the step, counted over the whole run from 0.
      num_rows: the number of rows to show.

    Returns:
      A `BatchView`, which is printed as text and displayed in color in Jupyter.

    Raises:
      ValueError: `load_config` fails, the run has no such step, or a corpus is missing, unfinished,
        damaged or incompatible with the config.
    """
    if isinstance(source, str | Path) and local_run(source).is_dir():
        if overrides:
            raise ValueError(
                f"{source}: the run's own config determines its batches, so no key can be changed. "
                "Omit the changes, or specify a recipe instead of the run."
            )
        source = _config_of_run(local_run(source))
    config = load_config(source, overrides, kind="pretrain")
    return view_batch(config.ordered_phases(), config.examples, step=step, num_rows=num_rows)


def _config_of_run(work_dir: Path) -> dict[str, object]:
    file = work_dir / RESOLVED_NAME
    if not file.is_file():
        raise ValueError(
            f"{work_dir}: contains no {RESOLVED_NAME}. Specify the work directory of a pretraining "
            "run, or a recipe."
        )
    return read_json_object(file)
