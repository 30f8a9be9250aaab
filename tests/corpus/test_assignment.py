"""Test that scans of the inputs lead to the same units as the documents themselves.

A unit consists of the documents of one shard. A scan lists the digests and sizes of documents.
"""

import random

import numpy as np
import pytest

from bert_jax.corpus import unique_documents
from bert_jax.corpus.assignment import AssignOptions, assign, assign_input
from bert_jax.corpus.document_stream import SeenDocuments, StreamCounts, kept_documents
from bert_jax.corpus.inputs import PrepareInputs, PrepareOptions
from bert_jax.corpus.scans import read_scan, scan_input, scan_tasks
from bert_jax.corpus.units import build_units
from bert_jax.text.documents import SourceCounts


def write_inputs(directory, write_json_lines, heldout):
    """Write five inputs with 900 short texts, many of them repeated, some in upper case."""
    rng = random.Random(0)
    texts = [f"{rng.choice('ab')} number {rng.randrange(700)} " * 20 for _ in range(900)]
    texts = [text.upper() if rng.random() < 0.1 else text for text in texts]
    paths = [
        write_json_lines(directory / f"{number}.jsonl", texts[number * 180 : (number + 1) * 180])
        for number in range(5)
    ]
    return PrepareInputs(paths[heldout:], paths[:heldout])


@pytest.mark.parametrize("digests_per_pass", [40, 1 << 24])
@pytest.mark.parametrize(("heldout", "fraction"), [(0, 0.1), (0, 0.0), (1, 0.0), (2, 0.0)])
def test_the_assignment_equals_that_of_the_stream(
    tmp_path, write_json_lines, monkeypatch, heldout, fraction, digests_per_pass
):
    monkeypatch.setattr(unique_documents, "_DIGESTS_PER_PASS", digests_per_pass)
    inputs = write_inputs(tmp_path, write_json_lines, heldout)
    options = PrepareOptions(heldout_fraction=fraction, unit_bytes=8192)
    counts = StreamCounts()
    with SeenDocuments(tmp_path / "seen") as seen:
        documents = inputs.documents(options.sources, SourceCounts())
        units = list(
            build_units(kept_documents(*documents, fraction, seen, counts), options.unit_bytes)
        )
    tasks = scan_tasks(inputs, {"sources": inputs.describe(options.sources)}, options)
    for task in tasks:
        scan_input(task, tmp_path)
    scans = [read_scan(task, tmp_path) for task in tasks]
    settings = AssignOptions(heldout, fraction, options.unit_bytes)
    assigned = assign(scans, settings)
    assert assigned.counts == counts
    assert min(counts.duplicates, counts.heldout_repeats or 1) > 0
    expected = {unit.name: unit for unit in units}
    assert len(expected) > 40
    assert {span.name: span.digest for span in assigned.units} == {
        name: unit.digest for name, unit in expected.items()
    }
    for span in assigned.units:
        assert span.num_documents == len(expected[span.name].texts)
        assert span.num_text_bytes == expected[span.name].num_bytes
    ids = {name: [] for name in expected}
    for number, scan in enumerate(scans):
        part = assign_input(scan, assigned.kept[number], number, assigned.starts[number], settings)
        for split, unit, document_id in zip(
            part.splits, part.units, part.document_ids, strict=True
        ):
            ids[f"{('train', 'heldout')[split]}-{unit:05d}"].append(int(document_id))
    assert ids == {name: unit.document_ids for name, unit in expected.items()}


def test_a_scan_of_a_changed_input_is_not_used(tmp_path, write_json_lines):
    inputs = write_inputs(tmp_path, write_json_lines, 0)
    options = PrepareOptions()
    (task, *_) = scan_tasks(inputs, {"sources": inputs.describe(options.sources)}, options)
    assert read_scan(task, tmp_path) is None
    scan_input(task, tmp_path)
    before = [path.read_bytes() for path in sorted((tmp_path / "scans").iterdir())]
    scan_input(task, tmp_path)  # A second scan must write the same bytes.
    assert before == [path.read_bytes() for path in sorted((tmp_path / "scans").iterdir())]
    assert np.array_equal(np.sort(read_scan(task, tmp_path).rows["position"]), np.arange(180))
    write_json_lines(tmp_path / "0.jsonl", ["another text"])
    (changed, *_) = scan_tasks(inputs, {"sources": inputs.describe(options.sources)}, options)
    assert read_scan(changed, tmp_path) is None
