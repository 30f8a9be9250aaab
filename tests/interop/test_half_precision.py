"""Test that half-precision exports round each parameter to the nearest representable number."""

from __future__ import annotations

import json

import ml_dtypes
import numpy as np
import pytest
import torch
import transformers

from .conftest import change_tensors, run_card, tensors_of


@pytest.mark.parametrize(
    ("dtype", "numbers"), [("float16", np.float16), ("bfloat16", ml_dtypes.bfloat16)]
)
def test_a_model_is_stored_in_half_the_size(dtype, numbers, make_bert, bert_jax_here, tmp_path):
    theirs, ours, half = make_bert(), tmp_path / "ours", tmp_path / "half"
    assert bert_jax_here("import", theirs, "--output", ours).code == 0
    words = ("export", ours, "--format", "huggingface", "--dtype", dtype, "--output", half)
    exported = bert_jax_here(*words)
    assert exported.code == 0, exported.errors

    expected, found = tensors_of(theirs), tensors_of(half)
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert found[name].dtype == numbers
        np.testing.assert_array_equal(found[name], array.astype(numbers), err_msg=name)
    assert json.loads((half / "config.json").read_text())["dtype"] == dtype
    assert f" parameters in {dtype}, exported by " in (half / "README.md").read_text()
    model = transformers.AutoModelForPreTraining.from_pretrained(half)
    assert model.dtype == getattr(torch, dtype)
    assert run_card(half, "print(model.dtype)").splitlines()[-1] == f"torch.{dtype}"

    # The models differ only by rounding errors, but these exceed the default tolerance of `verify`.
    # Among thousands of outputs, the largest difference can be 32 times the rounding error of one
    # weight.
    tolerance = 16 * float(ml_dtypes.finfo(numbers).eps)
    assert bert_jax_here("verify", ours, half, "--tolerance", str(tolerance)).code == 0
    assert bert_jax_here("verify", ours, half).code == 1
    again = tmp_path / "again"
    assert bert_jax_here("import", half, "--output", again).code == 0
    assert bert_jax_here("verify", half, again).code == 0


def test_a_parameter_too_large_for_the_dtype_is_reported(make_bert, bert_jax_here, tmp_path):
    def enlarge(tensors):
        tensors["bert.encoder.layer.1.output.dense.bias"][3] = -70_000

    theirs, ours = make_bert(), tmp_path / "ours"
    change_tensors(theirs, enlarge)
    assert bert_jax_here("import", theirs, "--output", ours).code == 0
    words = ("export", ours, "--format", "huggingface", "--output", tmp_path / "half", "--dtype")
    refused = bert_jax_here(*words, "float16")
    assert refused.code == 2
    assert "ffn" in refused.errors and "70,000" in refused.errors and "65,504" in refused.errors
    assert not (tmp_path / "half").exists()
    assert bert_jax_here(*words, "bfloat16").code == 0


def test_other_formats_refuse_a_dtype(make_bert, bert_jax_here, tmp_path):
    ours = tmp_path / "ours"
    assert bert_jax_here("import", make_bert(), "--output", ours).code == 0
    refused = bert_jax_here(
        "export", ours, "--format", "stablehlo", "--dtype", "float16", "--output", tmp_path / "half"
    )
    assert refused.code == 2
    assert "--dtype applies only to --format huggingface" in refused.errors
    assert not (tmp_path / "half").exists()
