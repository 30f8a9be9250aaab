"""Test that ONNX and StableHLO exports compute the right outputs at any batch size and length."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import onnx
import onnxruntime
import pytest

from bert_jax.interop.comparison import differences, random_probe
from bert_jax.interop.onnx_builder import OPSET
from bert_jax.interop.verify_backends import open_model

from ..commands import REPOSITORY
from .conftest import ARCHITECTURES, WORDS, run_card

VOCABULARY = len(WORDS)
CLASSIFIERS = ("classification", "multiple_choice", "tagging", "span")


@pytest.fixture
def exported(make_bert, bert_jax_here, tmp_path):
    """Return a function that imports and exports a model, and returns (work directory, export)."""

    def run(form, head="pretraining", *words, change=None, **changes):
        ours, out = tmp_path / "ours", tmp_path / form
        if not ours.exists():
            source = make_bert(head, **changes)
            assert bert_jax_here("import", source, "--output", ours).code == 0
        finished = bert_jax_here("export", ours, "--format", form, "--output", out, *words)
        assert finished.code == 0, finished.errors
        return ours, out

    return run


def agree(model, other, *lengths: int) -> set[str]:
    """Check that two models agree within 1e-4 at all lengths, and return their common outputs."""
    for length in lengths:
        probe = random_probe(VOCABULARY, 2, length, seed=length)
        found = differences(model.outputs(probe), other.outputs(probe), probe)
        assert found
        for name, difference in found.items():
            assert difference.largest < 1e-4, (name, length)
    return set(found)


EXPECTED = {
    "encoder": {"pooled"},
    "pretraining": {"pooled", "token_logits", "next_sentence_logits"},
    "masked_lm": {"token_logits"},
    "next_sentence": {"pooled", "next_sentence_logits"},
    "classification": {"pooled", "logits"},
    "multiple_choice": {"pooled", "logits"},
    "tagging": {"logits"},
    "span": {"logits"},
}


@pytest.mark.parametrize("head", ARCHITECTURES)
@pytest.mark.parametrize("form", ["onnx", "stablehlo"])
def test_all_heads_at_several_lengths(form, head, exported):
    ours, out = exported(form, head, "--hidden-states")
    common = agree(open_model(out), open_model(ours), 40, 7, 1)
    assert common == EXPECTED[head] | {"hidden", "hidden_0", "hidden_1", "hidden_2"}


@pytest.mark.parametrize("form", ["onnx", "stablehlo"])
@pytest.mark.parametrize(
    "encoder",
    [
        dict(norm="pre"),
        dict(
            positions="rotary",
            attention_window=5,
            global_every=2,
            local_rotary_theta=100.0,
            norm="pre",
            norm_kind="rms",
            norm_bias=False,
            first_norm=False,
            embedding_norm=False,
            dense_bias=False,
            gated_ffn=True,
            activation="silu",
            head_transform=False,
            tied_output=False,
        ),
        dict(activation="quick_gelu", positions="rotary"),
        dict(positions="sinusoidal"),
        dict(num_segments=0),
        dict(activation="gelu_tanh", layer_norm_epsilon=1e-3, num_heads=1),
    ],
    ids=lambda changes: "-".join(changes)[:40],
)
def test_models_without_a_hugging_face_class(form, encoder, tmp_path, make_bert, bert_jax_here):
    import jax

    from bert_jax.models.compute_config import ComputeConfig
    from bert_jax.models.config import EncoderConfig
    from bert_jax.models.model import ModelConfig, define_model
    from bert_jax.runs.work_dir import TOKENIZER_NAME, write_model
    from bert_jax.tokenizers.tokenizer import Tokenizer
    from bert_jax.training.checkpoint_parameters import save_parameters

    sizes = dict(vocab_size=VOCABULARY, hidden_dim=32, num_layers=2, num_heads=4, ffn_dim=48)
    config = ModelConfig(EncoderConfig(**{**sizes, "max_positions": 40, **encoder}))
    definition = define_model(config, ComputeConfig(dtype="float32", attention="xla"))
    rng = np.random.default_rng(0)
    params = {
        name: np.asarray(array) + 0.1 * rng.standard_normal(array.shape).astype(np.float32)
        for name, array in definition.init(jax.random.key(0)).items()
    }
    ours, out = tmp_path / "ours", tmp_path / "out"
    save_parameters(ours / "checkpoints", params, {})
    tokenizer = Tokenizer.load(make_bert() / "vocab.txt")
    write_model(config, {}, ours, tokenizer=tokenizer)
    tokenizer.save(ours / TOKENIZER_NAME)
    words = ("export", ours, "--format", form, "--output", out, "--hidden-states")
    assert bert_jax_here(*words).code == 0
    assert "hidden_1" in agree(open_model(out), open_model(ours), 40, 9)
    # Even a model without segments takes segment ids as an input.
    if not config.encoder.num_segments:
        assert int(run_card(out, "print(len(outputs))")) > 3


def test_inputs_and_outputs_of_an_onnx_file(exported):
    _, out = exported("onnx")
    onnx.checker.check_model(out / "model.onnx", full_check=True)
    model = onnx.load(out / "model.onnx", load_external_data=False)
    assert [(o.domain, o.version) for o in model.opset_import] == [("", OPSET)] and OPSET >= 17
    session = onnxruntime.InferenceSession(out / "model.onnx")
    assert {i.name: i.shape for i in session.get_inputs()} == dict.fromkeys(
        ("input_ids", "attention_mask", "token_type_ids"), ["batch", "sequence"]
    )
    assert {o.name: o.shape for o in session.get_outputs()} == {
        "prediction_logits": ["batch", "sequence", VOCABULARY],
        "seq_relationship_logits": ["batch", 2],
    }
    kinds = [node.op_type for node in model.graph.node]
    assert kinds.count("LayerNormalization") == 6 and kinds.count("Gelu") == 3


@pytest.mark.parametrize("form", ["huggingface", "onnx", "stablehlo"])
def test_the_code_in_the_model_card_runs(form, exported):
    for head in ("pretraining", "multiple_choice"):
        ours, out = exported(form, head)
        *answer, count = run_card(out, "print(len(outputs))").split()
        assert int(count) >= 1
        assert len(answer) == (form == "huggingface" and head == "pretraining")
        for directory in (ours, out, ours.parent / "theirs"):
            directory.rename(directory.with_name(f"{directory.name}-{head}"))


def test_a_stablehlo_artifact_needs_only_jax(exported):
    _, out = exported("stablehlo", "masked_lm")
    code = f"""
import sys
sys.modules.update(dict.fromkeys(["bert_jax", "flax", "tokenizers", "safetensors"]))
import jax, numpy as np
program = jax.export.deserialize(bytearray(open("model.stablehlo", "rb").read()))
weights = dict(np.load("weights.npz"))
ids = np.ones((3, 5), np.int32)
outputs = program.call(weights, ids, ids * 0, ids)
assert outputs["token_logits"].shape == (3, 5, {VOCABULARY}), outputs
print(program.platforms)
"""
    finished = subprocess.run(
        [sys.executable, "-c", code], cwd=out, capture_output=True, text=True, check=False
    )
    assert finished.stdout == "('cpu', 'cuda', 'tpu')\n", finished.stderr


@pytest.mark.slow
@pytest.mark.parametrize("form", ["stablehlo", "savedmodel"])
def test_programs_do_not_contain_paths_of_this_machine(form, exported):
    _, out = exported(form, "masked_lm")
    programs = [
        file.read_bytes() for file in out.rglob("*") if file.suffix in (".stablehlo", ".pb")
    ]
    assert any(b"attention.py" in program for program in programs)
    for directory in (REPOSITORY, sys.prefix):
        assert not any(str(directory).encode() in program for program in programs)


def test_more_tokens_than_positions_are_refused(exported):
    probe = random_probe(VOCABULARY, 2, 41, seed=0)
    for form, words in (("onnx", "40 by 41"), ("stablehlo", "refining shapes")):
        _, out = exported(form)
        with pytest.raises(Exception, match=words):
            open_model(out).outputs(probe)


def test_verify_between_formats_and_with_damage(exported, bert_jax_here):
    _, out = exported("onnx", "pretraining", "--hidden-states")
    ours, other = exported("stablehlo", "pretraining", "--hidden-states")
    compared = bert_jax_here("verify", out / "model.onnx", other)
    assert compared.code == 0, compared.output + compared.errors
    assert "sentences: 8 x" in compared.output and "not compared" not in compared.output
    # Remove the checksums, which would reveal the following changes.
    for directory in (out, other):
        (directory / "SHA256SUMS").unlink()
    weights = dict(np.load(other / "weights.npz"))
    weights["masked_lm.norm.bias"] = weights["masked_lm.norm.bias"] + 0.01
    np.savez(other / "weights.npz", **weights)
    assert bert_jax_here("verify", out, other).code == 1
    data = bytearray((out / "model.onnx.data").read_bytes())
    data[len(data) // 2 + 3] ^= 0x40  # Flip a bit in the exponent of a number.
    (out / "model.onnx.data").write_bytes(data)
    assert bert_jax_here("verify", out, ours).code == 1
    (out / "model.onnx.data").write_bytes(data[:100])
    refused = bert_jax_here("verify", out, ours)
    assert refused.code == 2 and "ONNX Runtime cannot load it" in refused.errors
    for name in ("model.stablehlo", "weights.npz"):
        whole = (other / name).read_bytes()
        for damaged in (b"", whole[: len(whole) // 2]):
            (other / name).write_bytes(damaged)
            refused = bert_jax_here("verify", other, ours)
            assert refused.code == 2 and "damaged StableHLO artifact" in refused.errors
        (other / name).write_bytes(whole)


def test_a_format_without_hidden_states_says_so(exported, bert_jax_here, tmp_path):
    ours, _ = exported("onnx")
    words = ("export", ours, "--format", "huggingface", "--output", tmp_path / "x")
    refused = bert_jax_here(*words, "--hidden-states")
    assert refused.code == 2 and "--hidden-states does not apply" in refused.errors
    signature = json.loads((exported("stablehlo")[1] / "signature.json").read_text())
    assert signature["outputs"] == ["hidden", "next_sentence_logits", "pooled", "token_logits"]
