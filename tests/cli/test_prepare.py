import json
import re

import pytest

from bert_jax.cli.main import main
from bert_jax.corpus.manifest import read_manifest


@pytest.fixture
def files(tmp_path):
    """Return (vocabulary, corpus); the corpus has forty documents plus one duplicate."""
    words = [f"w{number}" for number in range(40)]
    vocab = tmp_path / "vocab.txt"
    vocab.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", *words]))
    corpus = tmp_path / "in.jsonl"
    lines = [json.dumps({"body": f"{word}. {word} {words[0]}."}) for word in words]
    corpus.write_text("\n".join([*lines, lines[0], "not json"]))
    return vocab, corpus


def test_options_reach_the_corpus_and_the_table_shows_it(files, tmp_path, capsys):
    vocab, corpus = files
    output = tmp_path / "out"
    words = ["prepare", "--input", str(corpus), "--tokenizer", str(vocab), "--output", str(output)]
    words += ["--max-length", "16", "--max-documents-per-record", "2", "--held-out", "0.25"]
    words += ["--workers", "1", "--text-field", "body", "--on-bad-line", "skip", "--cased"]
    assert main([*words, "--language", "de", "--unit-bytes", "4096"]) == 0
    manifest = read_manifest(output)
    assert (manifest.max_length, manifest.max_fragments, manifest.lowercase) == (16, 2, False)
    assert manifest.options["language"] == "de"
    assert manifest.options["unit_bytes"] == 4096
    assert manifest.options["heldout_fraction"] == 0.25
    assert (manifest.duplicates_removed, manifest.bad_lines_skipped) == (1, 1)
    output = capsys.readouterr().out
    train, heldout = manifest.train, manifest.heldout
    assert train.num_documents + heldout.num_documents == 40
    assert re.search(rf"^documents +{train.num_documents} +{heldout.num_documents}$", output, re.M)
    assert re.search(rf"^tokens +{train.num_tokens} +{heldout.num_tokens}$", output, re.M)
    assert re.search(rf"^fill rate +{train.fill_rate:.4f} +{heldout.fill_rate:.4f}$", output, re.M)
    assert "exact duplicates removed: 1" in output
    assert "unusable lines skipped: 1" in output
    assert "tokens/s with 1 worker;" in output


def test_a_finished_corpus_is_compared_with_its_checksums(files, tmp_path, capsys):
    vocab, corpus = files
    output = tmp_path / "out"
    words = ["prepare", "--input", str(corpus), "--tokenizer", str(vocab), "--output", str(output)]
    words += ["--text-field", "body", "--on-bad-line", "skip", "--workers", "1"]
    words += ["--held-out", "0.25"]
    assert main(words) == 0
    capsys.readouterr()
    assert main(words) == 0
    assert f"{output} is already finished and matches its checksums" in capsys.readouterr().out
    shard = next(output.glob("train-*.arrayrecord"))
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    assert main(words) == 2
    assert f"{shard} is corrupt" in capsys.readouterr().err


def test_held_out_inputs_replace_the_held_out_share(files, tmp_path, capsys):
    vocab, corpus = files
    lines = corpus.read_text().splitlines()
    (tmp_path / "held_out.jsonl").write_text("\n".join(lines[3:8]))
    words = ["prepare", "--input", str(corpus), "--tokenizer", str(vocab), "--text-field", "body"]
    words += ["--held-out-input", str(tmp_path / "held_out.jsonl"), "--on-bad-line", "skip"]
    words += ["--workers", "1", "--output", str(tmp_path / "out")]
    assert main(words) == 0
    manifest = read_manifest(tmp_path / "out")
    assert manifest.options["heldout_fraction"] == 0
    assert (manifest.train.num_documents, manifest.heldout.num_documents) == (35, 5)
    output = capsys.readouterr().out
    assert "exact duplicates removed: 1" in output
    assert "training documents removed because they are held out: 5" in output
    assert main([*words, "--held-out", "0.5"]) == 2
    assert "--held-out=0.5: cannot be combined with held-out inputs" in capsys.readouterr().err


def test_the_share_of_unknown_tokens_is_printed_and_refused(files, tmp_path, capsys, caplog):
    vocab, corpus = files
    corpus.write_text(corpus.read_text().replace("w0", "W0 x").replace("\nnot json", ""))
    words = ["prepare", "--input", str(corpus), "--tokenizer", str(vocab), "--text-field", "body"]
    words += ["--workers", "1", "--held-out", "0", "--cased", "--output", str(tmp_path / "out")]
    assert main(words) == 2
    error = capsys.readouterr().err
    assert "34.7% of 242 tokens are unknown to the tokenizer ([UNK]), such as 'W0', 'x'" in error
    assert "omit --cased" in error and "--allow-unknown" in error
    assert main([*words, "--allow-unknown"]) == 0
    assert re.search(r"^unknown +34.71% +0.00%$", capsys.readouterr().out, re.M)
    assert "such as 'W0', 'x'" in caplog.text


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (["--language", "xx"], "language='xx': there are no sentence rules"),
        (
            ["--workers", "0"],
            "--workers: expected a whole number of at least 1, not '0'.",
        ),
        (["--held-out", "2"], "error: --held-out=2.0: expected a fraction"),
        (["--max-length", "1"], "error: --max-length=1: expected 8"),
        (["--max-length", "9", "--max-documents-per-record", "5"], "per-record=5: .* of 9 pos"),
        (["--unit-bytes", "1"], "error: --unit-bytes=1: expected at least 1024"),
        (["--input", "nowhere.txt"], "error: --input nowhere.txt: no such file or directory."),
        (["--text-field", "title"], "in.jsonl:1: .*title"),
    ],
)
def test_mistakes_are_reported_without_a_traceback(files, tmp_path, capsys, extra, message):
    vocab, corpus = files
    words = ["prepare", "--input", str(corpus), "--tokenizer", str(vocab)]
    assert main([*words, "--output", str(tmp_path / "out"), *extra]) == 2
    output = capsys.readouterr().err
    assert re.search(message, output)
    assert "Traceback" not in output


def test_bench_prepare_compares_with_a_plain_loop(files, capsys, monkeypatch):
    vocab, corpus = files
    for name in ("TOKENIZERS_PARALLELISM", "RAYON_NUM_THREADS"):
        monkeypatch.setenv(name, "")  # The variable is restored after the test.
    words = ["bench", "prepare", "--input", str(corpus), "--tokenizer", str(vocab), "--repeat", "1"]
    options = ["--workers", "1", "--text-field", "body", "--on-bad-line", "skip"]
    assert main([*words, *options]) == 0
    output = capsys.readouterr().out
    assert "41 documents, 1 workers" in output
    assert re.search(r"ratio \d+\.\d\d; at most \d+ MiB of memory per worker", output)
