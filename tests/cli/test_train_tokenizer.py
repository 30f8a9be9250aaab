import gzip
import json

import pytest
from transformers import AutoTokenizer

from bert_jax.cli.main import main
from bert_jax.data.tokenizer import Tokenizer


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


def test_learns_from_a_mix_of_inputs(corpus, tmp_path, capsys):
    output = tmp_path / "tokenizer"
    command = ["train-tokenizer", "--input", str(corpus), "--output", str(output)]
    command += ["--vocab-size", "300", "--text-field", "body"]
    assert main(command) == 0
    printed = capsys.readouterr().out
    tokenizer = Tokenizer.load(output)
    assert f"{tokenizer.vocab_size} entries, uncased" in printed
    assert "from 60 documents in 2 inputs" in printed
    assert tokenizer.mask_id == 103
    assert "cafe" in tokenizer.vocabulary
    assert AutoTokenizer.from_pretrained(output).get_vocab() == tokenizer.vocabulary

    assert main(command) == 2
    assert "already holds a tokenizer" in capsys.readouterr().err


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
    assert "left out: 1 bad lines" in capsys.readouterr().out


def test_an_output_that_is_a_file_is_refused_before_the_work(corpus, capsys):
    output = corpus / "a.txt"
    assert main(["train-tokenizer", "--input", str(corpus), "--output", str(output)]) == 2
    shown = capsys.readouterr()
    assert f"--output {output} is a file; a tokenizer is a directory" in shown.err
