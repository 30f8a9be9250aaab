import gzip
import json
import os
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from bert_jax.cli.main import main
from bert_jax.tokenizers.tokenizer import Tokenizer


@pytest.fixture
def corpus(tmp_path):
    directory = tmp_path / "corpus"
    directory.mkdir()
    sentence = "The Café serves naïve readers reading books about training tokenizers."
    (directory / "a.txt").write_text("\n\n".join([sentence] * 30), encoding="utf-8")
    lines = [json.dumps({"body": f"{sentence} Number {i}."}) for i in range(30)]
    with gzip.open(directory / "b.jsonl.gz", "wt", encoding="utf-8") as file:
        file.write("\n".join(lines))
    return directory


def test_a_tokenizer_is_trained_on_several_inputs(corpus, tmp_path, capsys):
    output = tmp_path / "tokenizer"
    command = ["train-tokenizer", "--input", str(corpus), "--output", str(output)]
    command += ["--vocab-size", "300", "--text-field", "body"]
    assert main(command) == 0
    printed = capsys.readouterr().out
    tokenizer = Tokenizer.load(output)
    assert f"vocabulary of {tokenizer.vocab_size:,} tokens, uncased" in printed
    assert "from 60 documents in 2 inputs" in printed
    assert tokenizer.mask_id == 103
    assert "cafe" in tokenizer.vocabulary
    assert AutoTokenizer.from_pretrained(output).get_vocab() == tokenizer.vocabulary

    assert main(command) == 2
    assert "already contains a tokenizer" in capsys.readouterr().err


def test_repeated_inputs_are_added(corpus, tmp_path, capsys):
    words = ["--input", str(corpus / "a.txt"), "--input", str(corpus / "b.jsonl.gz")]
    words += ["--output", str(tmp_path / "tokenizer"), "--text-field", "body"]
    assert main(["train-tokenizer", *words, "--vocab-size", "300"]) == 0
    assert "from 60 documents in 2 inputs" in capsys.readouterr().out


def test_files_are_renamed_only_within_an_existing_directory(corpus, tmp_path, monkeypatch):
    """Check the paths that are renamed, since files cannot be renamed across mount points."""
    output = tmp_path / "mounted"
    output.mkdir()
    (output / "notes.txt").write_text("the user's own notes")
    monkeypatch.chdir(output)
    replace, moved = os.replace, []

    def record(source, target):
        moved.append(Path(source).resolve())
        replace(source, target)

    monkeypatch.setattr(os, "replace", record)
    command = ["train-tokenizer", "--input", str(corpus / "a.txt"), "--output", "."]
    assert main([*command, "--vocab-size", "300"]) == 0
    assert moved and all(path.is_relative_to(output) for path in moved)
    assert "cafe" in Tokenizer.load(output).vocabulary
    names = {"vocab.txt", "tokenizer.json", "tokenizer_config.json"}
    assert {path.name for path in output.iterdir()} >= names | {"SHA256SUMS", "notes.txt"}
    assert not list(output.glob("*.tmp"))


def test_options_reach_the_training(corpus, tmp_path, capsys):
    output = tmp_path / "tokenizer"
    command = ["train-tokenizer", "--input", str(corpus / "a.txt"), "--output", str(output)]
    command += ["--vocab-size", "250", "--cased", "--num-unused", "2", "--min-frequency", "5"]
    assert main([*command, "--max-bytes", "500"]) == 0
    assert "words counted in" in capsys.readouterr().out
    tokenizer = Tokenizer.load(output)
    assert not tokenizer.lowercase
    assert tokenizer.special_ids == (0, 3, 4, 5, 6)
    assert "Café" in tokenizer.vocabulary


def test_bad_lines_are_refused_or_counted(corpus, tmp_path, capsys):
    (corpus / "c.txt").write_bytes(b"good words good words\nbad \xff\n")
    command = ["train-tokenizer", "--input", str(corpus), "--text-field", "body"]
    command += ["--vocab-size", "300", "--output", str(tmp_path / "tokenizer")]
    assert main(command) == 2
    error = capsys.readouterr().err
    assert "c.txt:2: cannot decode byte 0xff" in error and "Traceback" not in error
    assert not (tmp_path / "tokenizer").exists()
    assert main([*command, "--on-bad-line", "skip"]) == 0
    assert "skipped: 1 bad lines" in capsys.readouterr().out


def test_an_output_that_is_a_file_is_refused_before_training(corpus, capsys):
    output = corpus / "a.txt"
    assert main(["train-tokenizer", "--input", str(corpus), "--output", str(output)]) == 2
    shown = capsys.readouterr()
    assert f"--output={output}: this is a file. Specify a directory" in shown.err


@pytest.mark.parametrize(
    ("kind", "size", "files"),
    [
        ("byte-bpe", "300", {"vocab.json", "merges.txt"}),
        ("sentencepiece", "90", {"spiece.model"}),
        ("sentencepiece-bpe", "90", {"spiece.model"}),
    ],
)
def test_other_kinds_match_hugging_face(kind, size, files, corpus, tmp_path, capsys):
    output = tmp_path / "tokenizer"
    command = ["train-tokenizer", "--kind", kind, "--input", str(corpus), "--output", str(output)]
    assert main([*command, "--vocab-size", size, "--text-field", "body"]) == 0
    tokenizer = Tokenizer.load(output)
    case = "cased" if kind == "byte-bpe" else "uncased"
    assert f"vocabulary of {tokenizer.vocab_size:,} tokens, {case}" in capsys.readouterr().out
    assert tokenizer.kind == ("byte_bpe" if kind == "byte-bpe" else "sentencepiece")
    assert files < {path.name for path in output.iterdir()}
    text = "The Café serves readers"
    ids = AutoTokenizer.from_pretrained(output)(text, add_special_tokens=False)["input_ids"]
    assert ids == tokenizer.encode_batch([text])[0]
    for name in files - {"merges.txt"}:
        assert Tokenizer.load(output / name).encode_batch([text])[0] == ids


def test_a_cased_spiece_model_is_cased_by_itself(corpus, tmp_path):
    output = tmp_path / "tokenizer"
    command = ["train-tokenizer", "--kind", "sentencepiece", "--cased", "--vocab-size", "90"]
    command += ["--input", str(corpus), "--output", str(output), "--text-field", "body"]
    assert main(command) == 0
    from_directory, from_model = Tokenizer.load(output), Tokenizer.load(output / "spiece.model")
    assert not from_directory.lowercase and not from_model.lowercase
    assert from_model.fingerprint == from_directory.fingerprint
    (ids,) = from_model.encode_batch(["The Café"])
    assert from_model.unk_id not in ids


@pytest.mark.parametrize("kind", ["byte-bpe", "sentencepiece"])
def test_a_document_larger_than_the_sample_is_an_error(kind, corpus, tmp_path, capsys):
    (corpus / "a.txt").write_text("many words in one document. " * 40, encoding="utf-8")
    command = ["train-tokenizer", "--kind", kind, "--vocab-size", "300", "--max-bytes", "1000"]
    command += ["--input", str(corpus / "a.txt"), "--output", str(tmp_path / "tokenizer")]
    assert main(command) == 2
    error = capsys.readouterr().err
    assert "--max-bytes=1000: the smallest document has 1,119 bytes" in error


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--kind", "byte-bpe", "--uncased"], "--kind byte-bpe is always cased"),
        (
            ["--kind", "byte-bpe", "--num-unused", "3"],
            "--num-unused=3: not supported by --kind byte-bpe, only by wordpiece",
        ),
        (
            ["--kind", "sentencepiece", "--min-frequency", "3"],
            "--min-frequency=3: not supported by --kind",
        ),
        (
            ["--vocab-size", "3"],
            "--vocab-size=3: too small for 104 special and unused tokens",
        ),
        (["--vocab-size", "150"], "at least 204, or reduce --num-unused"),
        (["--num-unused", "-1"], "--num-unused=-1: expected at least 0"),
        (["--kind", "byte-bpe", "--max-bytes", "0"], "--max-bytes=0: expected at least 1"),
    ],
)
def test_impossible_options_are_refused(words, message, corpus, tmp_path, capsys):
    command = ["train-tokenizer", "--input", str(corpus), "--output", str(tmp_path / "t"), *words]
    assert main(command) == 2
    assert message in capsys.readouterr().err
