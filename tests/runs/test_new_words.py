"""Test that words added to a vocabulary become single tokens, as they do in transformers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import tokenizers
import torch
import transformers
from tokenizers import models, pre_tokenizers

from bert_jax.runs.new_words import add_words
from bert_jax.runs.work_dir import read_model
from bert_jax.tokenizers.new_words import read_words, with_words
from bert_jax.tokenizers.tokenizer import Tokenizer

from ..commands import Finished

SPECIALS = ["[PAD]", "[unused0]", "[unused1]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LETTERS = "abcdefghijklmnopqrstuvwxyz"
VOCABULARY = [*SPECIALS, *LETTERS, *(f"##{x}" for x in LETTERS), "the", "##ase", "hydro", "."]
# "Zürich" is normalized to "zurich"; "the" is already a token; 蛋 is unknown.
WORDS = ["Hydrolase", "kinase", "Zürich", "the", "蛋", "kinase"]
TEXTS = [
    "The hydrolase and the KINASE.",
    "Kinases in Zürich, 蛋 and a hydrolases-like hydro.",
    "[MASK] thekinase unused0 [unused1]",
]


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a Hugging Face directory with a randomly initialized BERT and a vocabulary."""
    directory = tmp_path_factory.mktemp("theirs")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(VOCABULARY), hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=24, max_position_embeddings=32, initializer_range=0.2,
    )  # fmt: skip
    model = transformers.BertForMaskedLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    model.save_pretrained(directory)
    write_vocabulary(directory, VOCABULARY)
    return directory


def write_vocabulary(directory: Path, vocabulary: list[str]) -> transformers.BertTokenizerFast:
    directory.mkdir(exist_ok=True)
    (directory / "vocab.txt").write_text("".join(f"{word}\n" for word in vocabulary), "utf-8")
    return transformers.BertTokenizer.from_pretrained(directory)


def expected_vocabulary() -> list[str]:
    """Return the vocabulary as someone would edit it by hand."""
    edited = [*VOCABULARY, "zurich", "蛋"]
    edited[1:3] = ["hydrolase", "kinase"]
    return edited


def test_the_tokenizer_matches_the_edited_vocabulary(theirs: Path, tmp_path: Path) -> None:
    before = Tokenizer.load(theirs / "vocab.txt")
    tokenizer, added = with_words(before, WORDS)
    reference = write_vocabulary(tmp_path / "reference", expected_vocabulary())
    for texts in (TEXTS, [word for word in WORDS if word != "the"]):
        ids = [reference.encode(text, add_special_tokens=False) for text in texts]
        assert tokenizer.encode_batch(texts) == ids
    assert all(len(ids) == 1 for ids in tokenizer.encode_batch(WORDS))
    places = [(word.word, word.token_id, word.replaced) for word in added]
    size = len(VOCABULARY)
    assert places == [
        ("hydrolase", 1, "[unused0]"),
        ("kinase", 2, "[unused1]"),
        ("zurich", size, ""),
        ("蛋", size + 1, ""),
    ]
    assert [list(word.pieces) for word in added[::3]] == before.encode_batch(["hydrolase", "蛋"])
    assert tokenizer.vocab_size == size + 2 and set(added[0].pieces).isdisjoint({before.unk_id})
    assert tokenizer.fingerprint != before.fingerprint
    # The saved files give the same tokenizer here and in transformers.
    tokenizer.save(tmp_path / "saved")
    assert Tokenizer.load(tmp_path / "saved").fingerprint == tokenizer.fingerprint
    saved = transformers.AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert [saved.encode(text) for text in TEXTS] == [reference.encode(text) for text in TEXTS]


def test_words_that_cannot_be_one_token_are_refused(theirs: Path) -> None:
    tokenizer = Tokenizer.load(theirs / "vocab.txt")
    with pytest.raises(ValueError) as refused:
        with_words(tokenizer, ["kinase", "beta-blocker", "two words", "x" * 101, "  "])
    message = str(refused.value)
    assert "'beta-blocker' (split into beta - blocker)" in message
    assert "'two words' (split into two words)" in message
    assert f"{'x' * 20!r}... (longer than 100 characters)" in message
    assert "'  ' (split into nothing)" in message and "kinase" not in message


def test_other_kinds_of_tokenizers_are_refused(tmp_path: Path) -> None:
    names = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    ids = {piece: number for number, piece in enumerate([*names, *alphabet])}
    backend = tokenizers.Tokenizer(models.BPE(ids, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel()
    backend.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ValueError, match="byte-level BPE, which builds its tokens by merging"):
        with_words(Tokenizer.load(tmp_path / "tokenizer.json"), ["kinase"])
    pieces = [(piece, -1.0) for piece in ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]", "▁", "a")]
    backend = tokenizers.Tokenizer(models.Unigram(pieces, unk_id=1, byte_fallback=False))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ValueError, match="SentencePiece model, which chooses the most probable"):
        with_words(Tokenizer.load(tmp_path / "tokenizer.json"), ["kinase"])


def test_the_model_starts_from_the_means_of_the_former_tokens(
    theirs: Path, bert_jax_here: Callable[..., Finished], tmp_path: Path
) -> None:
    ours, larger, exported = (tmp_path / name for name in ("ours", "larger", "exported"))
    assert bert_jax_here("import", theirs, "--output", ours).code == 0
    terms = tmp_path / "terms.txt"
    terms.write_text("\n".join(["", *WORDS]) + "\n", encoding="utf-8")
    assert read_words(terms) == WORDS
    finished = bert_jax_here("add-words", ours, "--words", terms, "--output", larger)
    assert finished.code == 0, finished.errors
    assert "4 new words, which were split into" in finished.output
    assert "2 instead of [unused] tokens, 2 with new ids; 2 words were already" in finished.output
    words = ("export", larger, "--format", "huggingface", "--output", exported)
    assert bert_jax_here(*words).code == 0
    config, origin = read_model(larger)
    assert config.encoder.vocab_size == len(VOCABULARY) + 2
    assert origin["command"] == "bert-jax import" and origin["added words"].startswith("4,")

    # Do the same with transformers: resize the model, and set the rows of the new words.
    model = transformers.BertForMaskedLM.from_pretrained(theirs)
    former = transformers.BertTokenizer.from_pretrained(theirs)
    model.resize_token_embeddings(len(VOCABULARY) + 2, mean_resizing=False)
    table, bias = model.get_input_embeddings().weight.data, model.cls.predictions.bias.data
    edited = {word: number for number, word in enumerate(expected_vocabulary())}
    for word in ("hydrolase", "kinase", "zurich", "蛋"):
        pieces = former.encode(word, add_special_tokens=False)
        table[edited[word]] = table[pieces].mean(dim=0)
        bias[edited[word]] = bias[pieces].mean()
    actual = transformers.BertForMaskedLM.from_pretrained(exported)
    tokenizer = transformers.AutoTokenizer.from_pretrained(exported)
    batch = tokenizer(TEXTS, return_tensors="pt", padding=True)
    assert set(edited[word] for word in ("hydrolase", "kinase")) <= set(
        batch["input_ids"].flatten().tolist()
    )
    with torch.no_grad():
        expected, logits = model.eval()(**batch).logits, actual.eval()(**batch).logits
    torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-5)

    again = bert_jax_here("add-words", larger, "--words", terms, "--output", tmp_path / "again")
    assert again.code == 2 and "already has a token for each of the 6 words" in again.errors
    with pytest.raises(ValueError, match="this is a work directory"):
        add_words(ours, ["kinase"], larger)
    # A corpus prepared with the old tokenizer does not fit the new model.
    assert Tokenizer.load(ours).fingerprint != Tokenizer.load(larger).fingerprint
