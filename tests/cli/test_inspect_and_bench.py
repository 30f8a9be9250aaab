"""Test `inspect` and `bench step`, which read a config without starting a run."""

import json
import re
from typing import Any

import pytest

from bert_jax.analysis.flops import pretraining_flops
from bert_jax.cli.main import main
from bert_jax.models.config import EncoderConfig
from bert_jax.runs.named_checkpoint import shortest_names

from ..interop.conftest import make, quiet, tensors_of  # noqa: F401

DEMO = ["--config", "configs/pretrain/demo.py"]


@pytest.fixture(autouse=True)
def in_repository(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    monkeypatch.chdir(request.config.rootpath)


def test_inspect_prints_parameters_and_flops_of_base(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "--config", "configs/pretrain/bert_base.py"]) == 0
    words = capsys.readouterr().out.split()
    for figure in ("110,106,428", "452,984,832", "201,326,592", "1,207,959,552", "1,862,270,976"):
        assert figure in words
    for step in (128, 512):
        flops = pretraining_flops(EncoderConfig(), step, -(-15 * step // 100), next_sentence=True)
        assert f"{256 * flops.training:,d}" in words


def test_inspect_describes_a_work_directory(tmp_path, bert_jax_here) -> None:
    make(tmp_path / "theirs", "classification")
    imported = bert_jax_here("import", tmp_path / "theirs", "--output", tmp_path / "ours")
    assert imported.code == 0, imported.errors
    inspected = bert_jax_here("inspect", tmp_path / "ours")
    assert inspected.code == 0, inspected.errors
    rows = dict(
        line.split(maxsplit=1) for line in inspected.output.splitlines() if len(line.split()) > 1
    )
    assert (rows["head"], rows["labels"]) == ("classification", "no, maybe, yes")
    assert (rows["hidden_dim"], rows["step"]) == ("32", "0")
    parameters = sum(array.size for array in tensors_of(tmp_path / "theirs").values())
    assert rows["total"] == f"{parameters:,}"
    for words in ((), (tmp_path / "ours", "--config", "configs/pretrain/demo.py")):
        refused = bert_jax_here("inspect", *words)
        assert (
            refused.code == 2 and "expected either a work directory or --config" in refused.errors
        )


def test_inspect_compares_models(tmp_path, bert_jax_here) -> None:
    make(tmp_path / "theirs", "classification")
    assert bert_jax_here("import", tmp_path / "theirs", "--output", tmp_path / "ours").code == 0
    names = ("base", "roberta-base", "albert-base-v2", "distilbert", tmp_path / "ours")
    compared = bert_jax_here("inspect", *names)
    assert compared.code == 0, compared.errors
    rows = {}
    for line in compared.output.splitlines():
        title, *cells = re.split(r" {2,}", line)
        rows[title] = cells
    parameters = sum(array.size for array in tensors_of(tmp_path / "theirs").values())
    # The parameter counts of the released models, loaded with transformers' pretraining classes.
    published = ["110,106,428", "124,697,433", "11,813,810", "66,985,530"]
    assert rows["parameters"] == [*published, f"{parameters:,}"]
    assert rows["layers with their own parameters"] == ["12", "12", "1", "6", "2"]
    assert rows["trained for"][2:] == ["masked LM, sentence order", "masked LM", "classification"]
    refused = bert_jax_here("inspect", "base", "bert-base")
    assert refused.code == 2
    assert "bert-base: neither a work directory nor the name of a model; nearest: base" in (
        refused.errors
    )
    refused = bert_jax_here("inspect", "mini-brt")
    assert refused.code == 2 and "nearest: mini-bert" in refused.errors
    refused = bert_jax_here("inspect", "base", "tiny", "--shapes")
    assert refused.code == 2 and "--shapes: supports only one model at a time" in refused.errors


def test_inspect_says_whether_a_name_is_an_encoder_or_a_recipe(bert_jax_here) -> None:
    encoder = bert_jax_here("inspect", "tiny").output.splitlines()
    assert encoder[:2] == [
        "published encoder tiny, with its pretraining heads",
        "(for the recipe, run `bert-jax inspect --config tiny`)",
    ]
    recipe = bert_jax_here("inspect", "--config", "tiny").output.splitlines()
    assert recipe[:2] == [
        "config tiny",
        "(for the published encoder, run `bert-jax inspect tiny`)",
    ]
    assert bert_jax_here("inspect", "--config", "bert_base").output.startswith(
        "config bert_base\n\n"
    )


def test_columns_are_named_by_as_much_of_the_path_as_needed() -> None:
    paths = ["runs/a/best", "runs/b/best", "base", "/x/base", "/x/base"]
    assert shortest_names(paths) == ["a/best", "b/best", "base", "x/base", "x/base"]


def test_inspect_lists_shapes(bert_jax_here) -> None:
    listed = bert_jax_here("inspect", "base", "--shapes")
    assert listed.code == 0, listed.errors
    assert re.search(r"self-attention.* 2,362,368 = 4 × \(768 × 768 \+ 768\)\n", listed.output)


@pytest.mark.parametrize("documents_per_row", ["1", "3"])
def test_bench_step_times_the_train_step(
    documents_per_row: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = {"num_layers": 1, "hidden_dim": 16, "num_heads": 2, "ffn_dim": 16, "vocab_size": 50}
    words = [f"--config.model.{name}={value}" for name, value in changes.items()]
    words += ["--config.phases.phase1.batch_size=8", "--config.phases.phase1.sequence_length=16"]
    assert (
        main(
            [
                "bench",
                "step",
                *DEMO,
                "--steps",
                "2",
                "--documents-per-row",
                documents_per_row,
                *words,
            ]
        )
        == 0
    )
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert (result["batch"], result["length"], result["dtype"]) == (8, 16, "float32")
    assert result["tok_s"] == pytest.approx(8 * 16 / result["ms"] * 1e3, rel=0.01)
    assert result["compile_s"] > 0 and result["memory_mib"] > 0 and result["utilisation"] is None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--phase", "phase7"],
            "--phase=phase7: the config has no such phase. Choose one of phase1",
        ),
        (["--steps", "0"], "--steps: expected a whole number of at least 1, not '0'."),
        (["--config.compute.attention=cudnn"], "runs only on NVIDIA GPUs, not on cpu"),
        (["--config.model.num_heads=3"], "hidden_dim=128: not divisible by num_heads=3"),
        (["--config.phases.phase1.batch_size=12"], "batch_size=12 is not divisible by the 8 parts"),
    ],
)
def test_bench_step_reports_mistakes(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "step", *DEMO, *words]) == 2
    assert message in capsys.readouterr().err
