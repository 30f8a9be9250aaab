"""Test that accents are either kept, as with strip_accents=False, or stripped with a warning."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
from transformers import AutoTokenizer, BertTokenizerFast

from bert_jax.cli.main import main
from bert_jax.corpus.inputs import PrepareOptions
from bert_jax.corpus.prepare import make_corpus
from bert_jax.interop.huggingface.save import save_tokenizer
from bert_jax.models.config import EncoderConfig
from bert_jax.tokenizers.tokenizer import Tokenizer
from bert_jax.tokenizers.words import MarkedWords, find_words, marks_warning, split_words

from .test_tokenizer import torture_lines

TEXT = "मेरे मर में म が か Möchte mochte ÉTÉ été İstanbul क्षि 한국 Cafe\u0301"
LINES = [TEXT, *TEXT.split()]


@pytest.fixture(scope="module")
def text_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("\n\n".join([TEXT] * 20 + torture_lines()), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def kept(text_file: Path) -> Path:
    """Return the directory of a WordPiece tokenizer trained with `--keep-accents`."""
    output = text_file.parent / "kept"
    words = ["--input", str(text_file), "--output", str(output), "--vocab-size", "2500"]
    assert main(["train-tokenizer", *words, "--keep-accents", "--min-frequency", "1"]) == 0
    return output


def test_wordpiece_that_keeps_accents_matches_hugging_face(kept: Path, tmp_path: Path):
    tokenizer = Tokenizer.load(kept)
    assert tokenizer.lowercase and not tokenizer.strips_accents
    assert {"मेरे", "möchte", "が"} <= set(tokenizer.vocabulary)
    vocabulary = str(kept / "vocab.txt")
    reference = BertTokenizerFast(vocab=vocabulary, do_lower_case=True, strip_accents=False)
    lines = [*LINES, *torture_lines()]
    expected = [reference(line, add_special_tokens=False)["input_ids"] for line in lines]
    stripped = Tokenizer.load(kept / "vocab.txt", lowercase=True)
    # tokenizer_config.json says to keep accents.
    assert stripped.fingerprint == tokenizer.fingerprint
    tokenizer.save(tmp_path / "saved")
    encoder = EncoderConfig(
        vocab_size=tokenizer.vocab_size, hidden_dim=16, num_layers=1, num_heads=2, ffn_dim=32
    )
    (tmp_path / "exported").mkdir()
    save_tokenizer(tokenizer, tmp_path / "exported", encoder)
    for directory in (kept, tmp_path / "saved", tmp_path / "exported"):
        config = json.loads((directory / "tokenizer_config.json").read_text())
        assert (config["do_lower_case"], config["strip_accents"]) == (True, False)
        assert Tokenizer.load(directory).encode_batch(lines) == expected
        reference = AutoTokenizer.from_pretrained(directory)
        assert reference(lines, add_special_tokens=False)["input_ids"] == expected


def test_words_keep_their_accents(kept: Path):
    tokenizer = Tokenizer.load(kept)
    (words,) = split_words(tokenizer, [TEXT])
    assert [word.text for word in words] == TEXT.split()
    assert find_words(tokenizer, TEXT, "möchte") == [
        (TEXT.index("Möchte"), TEXT.index("Möchte") + 6)
    ]
    assert find_words(tokenizer, TEXT, "मर") == [(TEXT.index(" मर ") + 1, TEXT.index(" मर ") + 3)]
    (located,) = tokenizer.encode_with_offsets([TEXT])
    covered = {place for start, end in located.offsets.tolist() for place in range(start, end)}
    assert covered == {place for place, character in enumerate(TEXT) if character != " "}


@pytest.mark.parametrize("kind", ["sentencepiece", "sentencepiece-bpe"])
def test_sentencepiece_that_keeps_accents_matches_hugging_face(
    kind: str, text_file: Path, tmp_path: Path
):
    words = ["train-tokenizer", "--kind", kind, "--input", str(text_file), "--vocab-size", "900"]
    assert main([*words, "--output", str(tmp_path / "kept"), "--keep-accents"]) == 0
    tokenizer = Tokenizer.load(tmp_path / "kept")
    assert tokenizer.lowercase and not tokenizer.strips_accents
    assert tokenizer.normalize("Möchte ÉTÉ मेरे が") == "möchte été मेरे が"
    from_model = Tokenizer.load(tmp_path / "kept/spiece.model")
    assert from_model.fingerprint == tokenizer.fingerprint
    reference = AutoTokenizer.from_pretrained(tmp_path / "kept")
    expected = reference(LINES, add_special_tokens=False)["input_ids"]
    assert tokenizer.encode_batch(LINES) == expected
    assert tokenizer.encode_batch(["möchte"]) != tokenizer.encode_batch(["mochte"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--cased"], "--keep-accents: --cased already keeps accents"),
        (["--kind", "byte-bpe"], "--keep-accents: --kind byte-bpe already keeps accents"),
    ],
)
def test_keep_accents_is_refused_if_redundant(options, message, text_file, tmp_path, capsys):
    words = ["train-tokenizer", "--input", str(text_file), "--output", str(tmp_path / "t")]
    assert main([*words, "--keep-accents", *options]) == 2
    assert message in capsys.readouterr().err


def test_a_warning_is_given_if_more_than_a_tenth_of_the_words_lose_marks():
    plain = [f"word{number}" for number in range(9)]
    assert marks_warning("wordpiece", [" ".join([*plain, "été"])]) is None
    warning = marks_warning("wordpiece", [" ".join([*plain[:8], "Été été"]), "मेरे"])
    assert warning is not None
    assert "2 of 10 distinct words (20.0%) lose accents" in warning
    assert "'été' becomes 'ete', 'मेरे' becomes 'मर'" in warning
    hindi = ["पत्नी"]  # BERT's normalizer keeps only the last mark of this word.
    assert "'पत्नी' becomes 'पतनी'" in str(marks_warning("wordpiece", hindi))
    assert "'पत्नी' becomes 'पतन'" in str(marks_warning("sentencepiece", hindi))
    assert marks_warning("wordpiece", ["한국 " * 9]) is None  # Hangul loses no marks.
    assert MarkedWords("wordpiece").warning() is None


def test_training_and_preparing_warn_of_stripped_marks(text_file, kept, tmp_path, caplog):
    caplog.set_level(logging.WARNING, "bert_jax.corpus.prepare")
    options = PrepareOptions(max_length=64, heldout_fraction=0)
    keeping = Tokenizer.load(kept)
    make_corpus([str(text_file)], keeping, tmp_path / "kept", options, 1, allow_unknown=True)
    assert "distinct words" not in caplog.text
    words = ["--input", str(text_file), "--output", str(tmp_path / "t"), "--vocab-size", "2500"]
    assert main(["train-tokenizer", *words]) == 0
    assert caplog.text.count("distinct words") == 1 and "--keep-accents" in caplog.text
    stripping = Tokenizer.load(tmp_path / "t")
    assert stripping.strips_accents
    make_corpus([str(text_file)], stripping, tmp_path / "out", options, 1, allow_unknown=True)
    assert caplog.text.count("distinct words") == 2
