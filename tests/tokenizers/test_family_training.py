"""Test the training of byte-level BPE and SentencePiece vocabularies."""

import subprocess
import sys

import pytest
import sentencepiece

from bert_jax.tokenizers.byte_bpe_training import train_byte_bpe
from bert_jax.tokenizers.sentencepiece_training import sentencepiece_tokenizer, train_sentencepiece
from bert_jax.tokenizers.tokenizer import Tokenizer

from .test_tokenizer import torture_lines

WORDS = "the cat sat on a mat while the other cats were sitting on their mats (and hats), naïvely"
TEXTS = [f"{WORDS}. Number {number}, {WORDS[number:]}!" for number in range(40)]


def test_byte_bpe_has_robertas_special_tokens_and_all_bytes():
    tokenizer = train_byte_bpe(TEXTS, vocab_size=400)
    assert tokenizer.kind == "byte_bpe" and tokenizer.vocab_size <= 400
    specials = [tokenizer.id_to_token(number) for number in range(5)]
    assert specials == ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    assert "Ġcats" in tokenizer.vocabulary and "Ġthe" in tokenizer.vocabulary
    for line in torture_lines():  # No token is unknown, and no character is lost.
        ids = tokenizer.encode_batch([line], specials_as_text=True)[0]
        assert tokenizer.unk_id not in ids and tokenizer.decode(ids) == line


def test_byte_bpe_counts_white_space_as_one_space():
    lines = [text.replace(" ", "\n  ") for text in TEXTS]
    spaces, white_space = (train_byte_bpe(texts, vocab_size=400) for texts in (TEXTS, lines))
    assert spaces.fingerprint == white_space.fingerprint


@pytest.mark.parametrize("model_type", ["unigram", "bpe"])
def test_sentencepiece_gives_the_ids_of_its_library(model_type):
    tokenizer, model = train_sentencepiece(TEXTS, model_type=model_type, vocab_size=120)
    assert tokenizer.kind == "sentencepiece" and tokenizer.vocab_size <= 120
    assert tokenizer.special_ids == (0, 1, 2, 3, 4)
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    plain = [text.lower().replace("ï", "i").replace(",", "") for text in TEXTS]
    assert tokenizer.encode_batch(plain) == processor.encode(plain)
    # Text is lowercased and stripped of accents first.
    assert tokenizer.encode_batch(["The NAÏVE cat"]) == processor.encode(["the naive cat"])


def test_a_cased_vocabulary_keeps_accents():
    tokenizer, model = train_sentencepiece(TEXTS, vocab_size=120, lowercase=False)
    assert not tokenizer.lowercase
    assert {"ï", "N"} <= {character for token in tokenizer.vocabulary for character in token}
    assert sentencepiece_tokenizer(model, lowercase=False).fingerprint == tokenizer.fingerprint


SCRIPT = """
import sys
sys.path.insert(0, sys.argv[1])
from bert_jax.tokenizers.byte_bpe_training import train_byte_bpe
from bert_jax.tokenizers.sentencepiece_training import train_sentencepiece
texts = {texts!r}
print(train_byte_bpe(texts, vocab_size=400).fingerprint)
for kind in ("unigram", "bpe"):
    print(train_sentencepiece(texts, model_type=kind, vocab_size=120)[0].fingerprint)
"""


def test_training_is_reproducible_across_processes(pytestconfig):
    outputs = set()
    for _ in range(2):
        words = [sys.executable, "-c", SCRIPT.format(texts=TEXTS), str(pytestconfig.rootpath)]
        done = subprocess.run(words, capture_output=True, text=True, check=True)
        outputs.add(done.stdout)
    assert len(outputs) == 1
    assert outputs.pop().split()[0] == train_byte_bpe(TEXTS, vocab_size=400).fingerprint


def test_a_sample_is_spread_over_the_text():
    first, last = ["apple " * 50] * 20, ["zebra " * 50] * 20
    tokenizer = train_byte_bpe([*first, *last], vocab_size=300, max_bytes=3_000)
    assert {"Ġapple", "Ġzebra"} <= set(tokenizer.vocabulary)


@pytest.mark.parametrize(
    ("train", "message"),
    [
        (lambda: train_byte_bpe(iter(TEXTS)), "documents: this is an iterator"),
        (lambda: train_byte_bpe(TEXTS, vocab_size=261), "vocab_size=261: expected at least 262"),
        (lambda: train_byte_bpe(TEXTS, min_frequency=0), "min_frequency=0: expected at least 1"),
        (lambda: train_byte_bpe([" ", ""]), "documents: no text to train"),
        (lambda: train_sentencepiece(iter(TEXTS)), "documents: this is an iterator"),
        (lambda: train_sentencepiece([" ", ""]), "documents: no text to train"),
        (lambda: train_sentencepiece(TEXTS, vocab_size=12), "vocab_size=12: cannot train this voc"),
        (lambda: train_sentencepiece(TEXTS, vocab_size=20), r"20 vs \d+\. Use a larger one\.$"),
        (
            lambda: train_sentencepiece(TEXTS, model_type="word"),
            "model_type='word': expected 'unigram' or 'bpe'",
        ),
        (lambda: train_sentencepiece(TEXTS, max_bytes=0), "max_bytes=0: expected at least 1"),
    ],
)
def test_impossible_trainings_are_refused(train, message):
    with pytest.raises(ValueError, match=message):
        train()


@pytest.mark.parametrize("model_type", ["unigram", "bpe"])
def test_too_little_text_for_the_vocabulary_is_logged(model_type, caplog):
    tokenizer, _ = train_sentencepiece(TEXTS, model_type=model_type, vocab_size=5_000)
    assert tokenizer.vocab_size < 5_000
    assert (
        f"only enough repeated pieces for a vocabulary of {tokenizer.vocab_size} tokens, not 5000"
        in caplog.text
    )


def test_a_saved_tokenizer_loads_with_the_same_fingerprint(tmp_path):
    for number, tokenizer in enumerate(
        (train_byte_bpe(TEXTS, vocab_size=300), train_sentencepiece(TEXTS, vocab_size=120)[0])
    ):
        tokenizer.save(tmp_path / str(number))
        assert Tokenizer.load(tmp_path / str(number)).fingerprint == tokenizer.fingerprint
