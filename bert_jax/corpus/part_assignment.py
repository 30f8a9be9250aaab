"""Screen documents on multiple machines if filters are set, and assign documents to shards."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bert_jax.corpus.assignment import Assignment, AssignOptions, assign
from bert_jax.corpus.part_screening import BlockReader, combine_parts, screen_part
from bert_jax.corpus.preparation import Preparation
from bert_jax.corpus.progress import ProgressMeter
from bert_jax.corpus.requests import CorpusRequest
from bert_jax.corpus.scans import Scan, ScanTask
from bert_jax.corpus.shared_files import SharedFiles
from bert_jax.corpus.unique_documents import find_unique


def assign_documents(
    request: CorpusRequest,
    preparation: Preparation,
    tasks: Sequence[ScanTask],
    scans: Sequence[Scan],
    files: SharedFiles,
    part: tuple[int, int] | None = None,
) -> Assignment:
    """Screen documents if filters are set, and assign the kept documents to units.

    Args:
      request: the corpus to prepare.
      preparation: the state of the preparation, in which the result of screening is stored.
      tasks: the inputs.
      scans: the scans of the inputs.
      files: the files that machines exchange.
      part: the part to screen, as its index and the number of parts; None if all documents must
        already have been screened.
    """
    options = assign_options(request)
    if request.screener is None:
        return assign(scans, options)
    unique = find_unique(scans, options.num_heldout)
    reader = BlockReader(tasks, scans, unique, options.num_heldout)
    if part is None:
        preparation.screening = combine_parts(request.screener, reader, files, request.plan)
    else:
        meter = ProgressMeter()

        def report(fraction: float) -> None:
            if request.progress is not None:
                screened = int(fraction * sum(scan.counts.text_bytes for scan in scans))
                request.progress(meter.read(fraction, screened_bytes=screened))

        preparation.screening = screen_part(
            request.screener,
            reader,
            files,
            request.plan,
            part,
            request.num_workers,
            report,
        )
    # Read the verdicts instead of mapping the file into memory, since another part may replace it
    # with an equal one.
    verdicts = np.fromfile(preparation.screening.verdicts_path, np.uint8)
    return assign(scans, options, unique, verdicts != 0)


def assign_options(request: CorpusRequest) -> AssignOptions:
    """Return the options that, together with the scans, determine the units of a corpus."""
    options = request.options
    return AssignOptions(len(request.inputs.heldout), options.heldout_fraction, options.unit_bytes)
