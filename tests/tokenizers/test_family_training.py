"""Learning byte-level BPE and SentencePiece vocabularies."""

import subprocess
import sys

import pytest
import sentencepiece

from bert_jax.tokenizers.tokenizer import Tokenizer
from bert_jax.tokenizers.training import tokenizer_of, train_byte_bpe, train_sentencepiece

from .test_tokenizer import torture_lines

WORDS = "the cat sat on a mat while the other cats were sitting on their mats (and hats), naïvely"
TEXTS = [f"{WORDS}. Number {number}, {WORDS[number:]}!" for number in range(40)]


def test_byte_bpe_has_robertas_specials_and_every_byte():
    tokenizer = train_byte_bpe(TEXTS, vocab_size=400)
    assert tokenizer.kind == "byte_bpe" and tokenizer.vocab_size <= 400
    specials = [tokenizer.id_to_token(number) for number in range(5)]
    assert specials == ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    assert "Ġcats" in tokenizer.vocabulary and "Ġthe" in tokenizer.vocabulary
    for line in torture_lines():  # nothing is unknown, and nothing is lost
        ids = tokenizer.encode_batch([line], specials_as_text=True)[0]
        assert tokenizer.unk_id not in ids and tokenizer.decode(ids) == line


def test_white_space_is_one_space_to_byte_bpe():
    lines = [text.replace(" ", "\n  ") for text in TEXTS]
    one, other = (train_byte_bpe(texts, vocab_size=400) for texts in (TEXTS, lines))
    assert one.fingerprint == other.fingerprint


@pytest.mark.parametrize("model_type", ["unigram", "bpe"])
def test_sentencepiece_reads_as_its_own_library(model_type):
    tokenizer, model = train_sentencepiece(TEXTS, model_type=model_type, vocab_size=120)
    assert tokenizer.kind == "sentencepiece" and tokenizer.vocab_size <= 120
    assert tokenizer.special_ids == (0, 1, 2, 3, 4)
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    plain = [text.lower().replace("ï", "i").replace(",", "") for text in TEXTS]
    assert tokenizer.encode_batch(plain) == processor.encode(plain)
    # Capitals and accents are taken off before.
    assert tokenizer.encode_batch(["The NAÏVE cat"]) == processor.encode(["the naive cat"])


def test_a_cased_vocabulary_keeps_accents():
    tokenizer, model = train_sentencepiece(TEXTS, vocab_size=120, lowercase=False)
    assert not tokenizer.lowercase
    assert {"ï", "N"} <= {character for token in tokenizer.vocabulary for character in token}
    assert tokenizer_of(model, lowercase=False).fingerprint == tokenizer.fingerprint


SCRIPT = """
import sys
sys.path.insert(0, sys.argv[1])
from bert_jax.tokenizers.training import train_byte_bpe
from bert_jax.tokenizers.training import train_sentencepiece
texts = {texts!r}
print(train_byte_bpe(texts, vocab_size=400).fingerprint)
for kind in ("unigram", "bpe"):
    print(train_sentencepiece(texts, model_type=kind, vocab_size=120)[0].fingerprint)
"""


def test_another_process_learns_the_same(pytestconfig):
    found = set()
    for _ in range(2):
        words = [sys.executable, "-c", SCRIPT.format(texts=TEXTS), str(pytestconfig.rootpath)]
        done = subprocess.run(words, capture_output=True, text=True, check=True)
        found.add(done.stdout)
    assert len(found) == 1
    assert found.pop().split()[0] == train_byte_bpe(TEXTS, vocab_size=400).fingerprint


def test_a_part_of_the_text_is_spread_over_it():
    first, last = ["apple " * 50] * 20, ["zebra " * 50] * 20
    tokenizer = train_byte_bpe([*first, *last], vocab_size=300, max_bytes=3_000)
    assert {"Ġapple", "Ġzebra"} <= set(tokenizer.vocabulary)


@pytest.mark.parametrize(
    ("learn", "message"),
    [
        (lambda: train_byte_bpe(iter(TEXTS)), "documents is an iterator"),
        (lambda: train_byte_bpe(TEXTS, vocab_size=261), "vocab_size is 261, expected at least 262"),
        (lambda: train_byte_bpe(TEXTS, min_frequency=0), "min_frequency is 0"),
        (lambda: train_byte_bpe([" ", ""]), "there is no text"),
        (lambda: train_sentencepiece(iter(TEXTS)), "documents is an iterator"),
        (lambda: train_sentencepiece([" ", ""]), "there is no text"),
        (lambda: train_sentencepiece(TEXTS, vocab_size=12), "a vocabulary of 12 cannot be learned"),
        (lambda: train_sentencepiece(TEXTS, vocab_size=20), r"20 vs \d+\. Ask for a larger one\.$"),
        (lambda: train_sentencepiece(TEXTS, model_type="word"), "expected 'unigram' or 'bpe'"),
        (lambda: train_sentencepiece(TEXTS, max_bytes=0), "max_bytes is 0"),
    ],
)
def test_what_cannot_be_learned_is_refused(learn, message):
    with pytest.raises(ValueError, match=message):
        learn()


@pytest.mark.parametrize("model_type", ["unigram", "bpe"])
def test_a_text_with_too_few_pieces_is_told(model_type, caplog):
    tokenizer, _ = train_sentencepiece(TEXTS, model_type=model_type, vocab_size=5_000)
    assert tokenizer.vocab_size < 5_000
    assert f"pieces for a vocabulary of {tokenizer.vocab_size}, not 5000" in caplog.text


def test_saved_and_loaded(tmp_path):
    for number, tokenizer in enumerate(
        (train_byte_bpe(TEXTS, vocab_size=300), train_sentencepiece(TEXTS, vocab_size=120)[0])
    ):
        tokenizer.save(tmp_path / str(number))
        assert Tokenizer.load(tmp_path / str(number)).fingerprint == tokenizer.fingerprint
