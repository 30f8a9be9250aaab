"""Vectors of texts and words, as Hugging Face's model gives them."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
import transformers

from bert_jax import Embed, cosine_similarity
from bert_jax.inference.embed import Embedding
from bert_jax.inference.predictor import UnusableText
from bert_jax.tokenizers.tokenizer import Tokenizer

TEXTS = [
    "I love my pet Python",
    "I love coding in python, Python!",
    "",
    "\u4e1c\u4eac \x07",
    "a " * 50,
]
HEADS = ["encoder", "pretraining", "masked_lm", "tagging", "span", "multiple_choice"]


@pytest.fixture(scope="module")
def model(both):
    return both("encoder")


@pytest.fixture(scope="module")
def embed(model) -> Embed:
    return Embed(model.ours)


def hidden_states(directory, texts):
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    theirs = transformers.BertModel.from_pretrained(directory)
    for text in texts:
        inputs = tokenizer(text, truncation=True, max_length=40, return_tensors="pt")
        with torch.no_grad():
            states = theirs(**inputs, output_hidden_states=True).hidden_states
        yield tokenizer.convert_ids_to_tokens(inputs["input_ids"][0]), torch.cat(states).numpy()


def test_every_layer_is_hugging_faces(model, embed):
    expected = hidden_states(model.theirs, TEXTS)
    for found, (tokens, states) in zip(embed(TEXTS), expected, strict=True):
        assert list(found.tokens) == tokens and found.hidden_states.shape == states.shape
        np.testing.assert_allclose(found.hidden_states, states, atol=2e-5)
        np.testing.assert_allclose(found.mean, states[-1].mean(axis=0), atol=1e-5)
        np.testing.assert_array_equal(found.cls, found.hidden_states[-1, 0])
        assert found.truncated == (found.text == TEXTS[-1])


def test_the_last_layer_is_the_pipelines(model, embed):
    pipeline = transformers.pipeline(
        "feature-extraction",
        model=transformers.BertModel.from_pretrained(model.theirs),
        tokenizer=transformers.AutoTokenizer.from_pretrained(model.theirs),
    )
    for text in TEXTS[:3]:
        np.testing.assert_allclose(
            embed(text).hidden_states[-1], np.array(pipeline(text)[0]), atol=1e-5
        )


@pytest.mark.parametrize("head", HEADS)
def test_any_head_has_an_encoder(both, head):
    found = Embed(both(head).ours)("a b c")
    assert found.hidden_states.shape == (3, 5, 32)


def test_sentences_alone_are_the_same(model, embed):
    texts = [text for text in TEXTS for _ in range(3)]
    for batch_size in (2, 32):
        found = Embed(model.ours, batch_size=batch_size).sentences(texts)
        for vectors, whole in zip(found, embed(texts), strict=True):
            np.testing.assert_allclose(vectors.cls, whole.cls, atol=1e-6)
            np.testing.assert_allclose(vectors.mean, whole.mean, atol=1e-6)
            np.testing.assert_allclose(vectors.vector, whole.mean, atol=1e-6)
            np.testing.assert_allclose(whole.vector, whole.mean, atol=1e-6)
            assert vectors.truncated == whole.truncated


def test_python_in_two_contexts(embed):
    pet, coding = embed(TEXTS[:2])
    first, second = pet.word("python"), coding.word("python")
    pieces = [place for place, token in enumerate(pet.tokens) if token in "p##y##t##h##o##n"]
    np.testing.assert_allclose(first, pet.hidden_states[:, pieces[-6:]].mean(axis=1), rtol=1e-6)
    alike = cosine_similarity(first, second)
    expected = torch.cosine_similarity(torch.tensor(first), torch.tensor(second), dim=-1)
    np.testing.assert_allclose(alike, expected, atol=1e-6)
    assert alike.shape == (3,) and (alike < 1).all()
    again = coding.word("Python", occurrence=1)
    assert not np.allclose(again, second)
    np.testing.assert_allclose(cosine_similarity(again, again), 1, atol=1e-6)


def test_words_in_capitals(embed, model):
    cased = Tokenizer.load(model.theirs / "vocab.txt", lowercase=False)
    pet = dataclasses.replace(embed(TEXTS[0]), tokenizer=cased)
    with pytest.raises(ValueError, match="the model tells capitals from small letters$"):
        pet.word("python")
    with pytest.raises(ValueError, match="is not among them$"):
        pet.word("pyth")


def test_words_that_are_not_there(embed):
    pet = embed(TEXTS[0])
    with pytest.raises(
        ValueError, match=r"'python' stands 1 times in 'I love my pet Python'; occu"
    ):
        pet.word("python", occurrence=1)
    with pytest.raises(ValueError, match="'snake' stands 0 times .*is not among them$"):
        pet.word("snake")
    long = embed("a " * 50 + "end")
    with pytest.raises(ValueError, match="'end' stands at character 100, behind the model's last"):
        long.word("end")
    np.testing.assert_array_equal(long.word("a", 37), long.hidden_states[:, 38])
    with pytest.raises(ValueError, match="was cut at character 75"):
        long.word("a", 38)


def embedding(tokenizer: Tokenizer, text: str) -> Embedding:
    """With states [2 layers, tokens, 1] that count the tokens, in place of a model's."""
    (located,) = tokenizer.encode_with_offsets([text])
    tokens = tuple(str(tokenizer.id_to_token(token_id)) for token_id in located.ids)
    states = np.tile(np.arange(len(tokens), dtype=np.float32), (2, 1))[..., None]
    return Embedding(text, states[-1, 0], tokens, located.offsets, states, False, tokenizer)


def test_a_word_of_sentencepiece_is_every_piece_it_has_a_part_in(shared_data):
    albert = Tokenizer.load(shared_data / "vocab/albert-30k/spiece.model")
    # One piece for all that the vocabulary lacks, with the mark behind the word.
    found = embedding(albert, "dog \u65e5\u672c\u3002")
    assert found.tokens == ("\u2581dog", "\u2581", "<unk>")
    assert found.offsets[2].tolist() == [4, 7]
    np.testing.assert_array_equal(found.word("\u65e5\u672c"), [[1.5]] * 2)
    np.testing.assert_array_equal(found.word("\u3002"), [[2]] * 2)


def test_a_special_token_is_one_word(embed):
    found = embed("I love my [MASK]")
    np.testing.assert_array_equal(found.word("[mask]"), found.hidden_states[:, -2])
    with pytest.raises(ValueError, match=r"'mask' at character 11 is a part of '\[MASK\]'"):
        found.word("mask")


def test_pieces_know_their_characters(embed):
    text = "caf\u00e9, Cafe\u0301 x"
    found = embed(text)
    assert found.offsets[0].tolist() == found.offsets[-1].tolist() == [0, 0]
    letters = [text[start:end] for start, end in found.offsets[1:-1].tolist()]
    assert letters == ["c", "a", "f", "\u00e9", ",", "C", "a", "f", "e", "x"]
    assert found.word("cafe", 1).shape == (3, 32)


def test_what_cannot_be_embedded(embed):
    assert embed([]) == [] == embed.sentences([])
    with pytest.raises(ValueError, match="expected a string or a list of strings, got a value of "):
        embed(None)
    with pytest.raises(ValueError, match="expected a list of strings, got a value of type str"):
        embed.sentences("abc")
    with pytest.raises(UnusableText, match="^text 0 of 2: a lone surrogate"):
        embed(["\udc00", "a"])
