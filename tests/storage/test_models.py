"""Test that models, their inputs and their outputs can be in a bucket."""

import json
import re
from pathlib import Path

import pytest

import bert_jax as bj
from bert_jax.cli.main import main
from bert_jax.storage.objects import find, list_objects, read_bytes, upload
from bert_jax.storage.urls import ObjectUrl

SENTENCES = ["The [MASK] sat down.", "It [MASK] in Rome."]


@pytest.fixture(scope="session")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a small Hugging Face directory with random parameters."""
    transformers = pytest.importorskip("transformers")
    directory = tmp_path_factory.mktemp("foreign") / "theirs"
    words = "the sat down it in rome cat rains a is wet .".split()
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    directory.mkdir()
    (directory / "vocab.txt").write_text("\n".join([*specials, *words]) + "\n")
    config = transformers.BertConfig(
        vocab_size=len(specials) + len(words),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=32,
    )
    transformers.BertForPreTraining(config).save_pretrained(directory)
    (directory / "tf_model.h5").write_bytes(b"weights that are not read")
    return directory


@pytest.fixture(scope="session")
def ours(foreign: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the work directory of the same model."""
    output = tmp_path_factory.mktemp("ours") / "ours"
    bj.import_model(foreign, output)
    return output


def upload_tree(directory: Path, url: ObjectUrl) -> None:
    for file in directory.rglob("*"):
        if file.is_file():
            upload(file, url / file.relative_to(directory).as_posix())


def content(url: ObjectUrl) -> dict[str, bytes]:
    return {url.relative(info.url): read_bytes(info.url) for info in list_objects(url)}


def content_on_disk(directory: Path) -> dict[str, bytes]:
    files = (file for file in directory.rglob("*") if file.is_file())
    return {file.relative_to(directory).as_posix(): file.read_bytes() for file in files}


@pytest.mark.slow
def test_a_model_goes_from_bucket_to_bucket(
    foreign: Path, ours: Path, bucket: ObjectUrl, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    upload_tree(foreign, bucket / "hub/theirs")
    imported, exported = bucket / "models/ours", bucket / "exports/ours"
    assert main(["import", str(bucket / "hub/theirs"), "--output", str(imported)]) == 0
    printed = capsys.readouterr()
    assert f"{imported}: BERT" in printed.out
    expected, found = content_on_disk(ours), content(imported)
    arrays = re.compile(r"/d/[0-9a-f]{32}$")  # These files have random names.
    assert {arrays.sub("", n) for n in found} == {arrays.sub("", n) for n in expected}
    origin = json.loads(found["model.json"])["origin"]
    assert origin["source"] == str(bucket / "hub/theirs")
    assert main(["fill-mask", "--work-dir", str(imported), *SENTENCES]) == 0
    from_bucket = capsys.readouterr().out
    assert main(["fill-mask", "--work-dir", str(ours), *SENTENCES]) == 0
    assert capsys.readouterr().out == from_bucket
    words = ["export", str(imported), "--format", "huggingface", "--output"]
    assert main([*words, str(exported)]) == 0
    bj.export(ours, tmp_path / "exported", format="huggingface")
    on_disk = content_on_disk(tmp_path / "exported")
    there = content(exported)
    assert there.keys() == on_disk.keys()
    assert there["model.safetensors"] == on_disk["model.safetensors"]
    assert str(exported) in capsys.readouterr().out
    assert main([*words, str(exported)]) == 2
    message = f"--output={exported}: the bucket already contains objects below this URL."
    assert message in capsys.readouterr().err
    assert main(["verify", str(exported), str(imported)]) == 0
    printed = capsys.readouterr()
    assert f"A  {exported} (Hugging Face" in printed.out
    assert f"B  {imported} (work directory" in printed.out and "PASS" in printed.out
    (tmp_path / "lines.txt").write_text("\n".join(SENTENCES) + "\n")
    upload(tmp_path / "lines.txt", bucket / "lines.txt")
    words = ["predict", str(imported), "--task", "fill-mask", "--input", str(bucket / "lines.txt")]
    assert main([*words, "--output", str(bucket / "predicted.jsonl")]) == 0
    assert main([*words, "--output", str(tmp_path / "predicted.jsonl")]) == 0
    expected_lines = (tmp_path / "predicted.jsonl").read_bytes()
    assert read_bytes(bucket / "predicted.jsonl") == expected_lines and expected_lines
    assert main([*words, "--output", str(bucket / "lines.txt")]) == 2
    assert "this is the input file" in capsys.readouterr().err
    assert main(["inspect", str(imported)]) == 0
    assert main(["predict", str(bucket / "nothing"), "--input", str(bucket / "lines.txt")]) == 2
    error = capsys.readouterr().err
    assert f"{bucket}/nothing: there is no such object or directory in the bucket." in error


@pytest.mark.slow
@pytest.mark.parametrize("form", ["onnx", "stablehlo", "savedmodel"])
def test_every_format_is_exported_to_a_bucket(
    ours: Path, bucket: ObjectUrl, form: str, tmp_path: Path
) -> None:
    pytest.importorskip({"onnx": "onnx", "stablehlo": "flatbuffers"}.get(form, "tensorflow"))
    bj.export(ours, tmp_path / "out", format=form)
    bj.export(ours, bucket / "out", format=form)
    assert content(bucket / "out").keys() == content_on_disk(tmp_path / "out").keys()
    mark = {"onnx": "model.onnx", "stablehlo": "model.stablehlo"}.get(form, "saved_model.pb")
    infos = sorted(list_objects(bucket / "out"), key=lambda info: info.modified)
    assert infos[-1].modified == find(bucket / "out" / mark).modified
    if form != "savedmodel":
        assert bj.verify(bucket / "out", ours).passed
