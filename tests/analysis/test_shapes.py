"""Test that the formulas in a table of shapes evaluate to the sizes next to them."""

from __future__ import annotations

import re

import pytest

from bert_jax.analysis.counts import parameter_counts
from bert_jax.analysis.shapes import shape_table
from bert_jax.models.compute_config import ComputeConfig
from bert_jax.models.model import ModelConfig, define_model
from bert_jax.models.variants import VARIANTS, variant

COMPUTE = ComputeConfig(dtype="float32", attention="xla")
LINE = re.compile(r"^  (\S.*?)\s+([\d,]+)(?: = (.+))?$")


def table_of(model: ModelConfig) -> list[str]:
    return shape_table(define_model(model, COMPUTE).shapes)


@pytest.mark.parametrize("name", VARIANTS)
def test_every_formula_evaluates_to_its_size(name):
    model = ModelConfig(variant(name))
    total = 0
    for line in table_of(model):
        found = LINE.match(line)
        if found is None or found[1].startswith("  "):
            continue
        size = int(found[2].replace(",", ""))
        if found[1] == "total":
            assert total == size == parameter_counts(model).total
            return
        assert eval(found[3].replace("×", "*")) == size
        times = re.search(r"each of (\d+) layers", found[1])
        total += size * (int(times[1]) if times else 1)
    raise AssertionError("the table has no total")


def test_the_lines_of_bert_base_are_the_published_ones():
    lines = table_of(ModelConfig(variant("base")))
    sizes = {found[1]: (found[2], found[3]) for line in lines if (found := LINE.match(line))}
    attention = sizes["self-attention, each of 12 layers"]
    assert attention == ("2,362,368", "4 × (768 × 768 + 768)")
    assert sizes["token embedding"] == ("23,440,896", "30522 × 768")
    assert sizes["total"][0] == "110,106,428"
    assert any(re.match(r"    attention\.query\.kernel\s+768 × 768$", line) for line in lines)
