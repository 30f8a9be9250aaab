"""Test that SavedModels give the right outputs in TensorFlow."""

from __future__ import annotations

import re

import numpy as np
import pytest

from bert_jax.interop.comparison import differences, random_probe
from bert_jax.interop.stablehlo import INPUTS
from bert_jax.interop.verify_backends import open_model

from .conftest import WORDS, run_card


@pytest.fixture
def exported(make_bert, bert_jax_here, tmp_path):
    """Return a function that exports a model, or skips the test if TensorFlow cannot run it."""

    def run(head, **changes):
        ours, out = tmp_path / "ours", tmp_path / "saved"
        assert bert_jax_here("import", make_bert(head, **changes), "--output", ours).code == 0
        words = ("export", ours, "--format", "savedmodel", "--output", out, "--hidden-states")
        finished = bert_jax_here(*words)
        import tensorflow

        message = "TensorFlow .* cannot run a program exported by jax .*"
        unsupported = re.search(message, finished.errors)
        # TensorFlow 2.21 was released before jax 0.11, and cannot run its programs.
        if unsupported and tensorflow.__version__ < "2.22":
            assert not out.exists()
            pytest.skip(unsupported.group())
        assert finished.code == 0, finished.errors
        return ours, out

    return run


@pytest.mark.parametrize(
    ("head", "activation"),
    [("pretraining", "gelu"), ("multiple_choice", "gelu"), ("tagging", "gelu_new")],
)
def test_several_batch_sizes_and_lengths(head, activation, exported):
    ours, out = exported(head, hidden_act=activation)
    import tensorflow

    serve = tensorflow.saved_model.load(str(out)).signatures["serving_default"]
    side = open_model(ours)
    for length in (40, 7):
        probe = random_probe(len(WORDS), 2, length, seed=length)
        arrays = (probe.token_ids, probe.segment_ids, probe.attention_mask)
        if head == "multiple_choice":
            arrays = tuple(array[:, None] for array in arrays)
        feed = {n: tensorflow.constant(a) for n, a in zip(INPUTS, arrays, strict=True)}
        outputs = {name: tensor.numpy() for name, tensor in serve(**feed).items()}
        expected = side.outputs(probe)
        assert outputs.keys() == expected.keys()
        for name, difference in differences(outputs, expected, probe).items():
            assert difference.largest < 1e-4, (name, length)
        assert all(np.abs(array).max() > 0 for array in outputs.values())


def test_the_code_in_the_model_card_runs(exported):
    _, out = exported("pretraining")
    assert "'token_logits'" in run_card(out, "print(sorted(outputs))")
