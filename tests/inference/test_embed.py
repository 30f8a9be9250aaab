"""Compare vectors for texts and words with those from Hugging Face's model."""

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
def model(model_pair):
    return model_pair("encoder")


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


def test_every_layer_matches_hugging_face(model, embed):
    expected = hidden_states(model.theirs, TEXTS)
    for result, (tokens, states) in zip(embed(TEXTS), expected, strict=True):
        assert list(result.tokens) == tokens and result.hidden_states.shape == states.shape
        np.testing.assert_allclose(result.hidden_states, states, atol=2e-5)
        np.testing.assert_allclose(result.mean, states[-1].mean(axis=0), atol=1e-5)
        np.testing.assert_array_equal(result.cls, result.hidden_states[-1, 0])
        assert result.truncated == (result.text == TEXTS[-1])


def test_the_last_layer_matches_the_pipeline(model, embed):
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
def test_embed_works_with_any_head(model_pair, head):
    result = Embed(model_pair(head).ours)("a b c")
    assert result.hidden_states.shape == (3, 5, 32)


def test_sentences_returns_the_same_vectors(model, embed):
    texts = [text for text in TEXTS for _ in range(3)]
    for batch_size in (2, 32):
        result = Embed(model.ours, batch_size=batch_size).sentences(texts)
        for vectors, whole in zip(result, embed(texts), strict=True):
            np.testing.assert_allclose(vectors.cls, whole.cls, atol=1e-6)
            np.testing.assert_allclose(vectors.mean, whole.mean, atol=1e-6)
            np.testing.assert_allclose(vectors.vector, whole.mean, atol=1e-6)
            np.testing.assert_allclose(whole.vector, whole.mean, atol=1e-6)
            assert vectors.truncated == whole.truncated


def test_the_vector_of_a_word_depends_on_its_context(embed):
    pet, coding = embed(TEXTS[:2])
    first, second = pet.word("python"), coding.word("python")
    pieces = [place for place, token in enumerate(pet.tokens) if token in "p##y##t##h##o##n"]
    np.testing.assert_allclose(first, pet.hidden_states[:, pieces[-6:]].mean(axis=1), rtol=1e-6)
    similarity = cosine_similarity(first, second)
    expected = torch.cosine_similarity(torch.tensor(first), torch.tensor(second), dim=-1)
    np.testing.assert_allclose(similarity, expected, atol=1e-6)
    assert similarity.shape == (3,) and (similarity < 1).all()
    again = coding.word("Python", occurrence=1)
    assert not np.allclose(again, second)
    np.testing.assert_allclose(cosine_similarity(again, again), 1, atol=1e-6)


def test_a_cased_model_does_not_ignore_case(embed, model):
    cased = Tokenizer.load(model.theirs / "vocab.txt", lowercase=False)
    pet = dataclasses.replace(embed(TEXTS[0]), tokenizer=cased)
    with pytest.raises(ValueError, match="Match the case of the text, since the model is cased$"):
        pet.word("python")
    with pytest.raises(
        ValueError, match="'I love my pet Python' does not contain the word 'pyth'$"
    ):
        pet.word("pyth")


def test_missing_words_are_refused(embed):
    pet = embed(TEXTS[0])
    with pytest.raises(
        ValueError, match="^occurrence=1: 'I love my pet Python' contains 'python' only once. Occur"
    ):
        pet.word("python", occurrence=1)
    with pytest.raises(
        ValueError, match="'I love my pet Python' does not contain the word 'snake'$"
    ):
        pet.word("snake")
    long = embed("a " * 50 + "end")
    with pytest.raises(ValueError, match="'end' at character 100 is after the model's last"):
        long.word("end")
    np.testing.assert_array_equal(long.word("a", 37), long.hidden_states[:, 38])
    with pytest.raises(ValueError, match="was truncated at character 75"):
        long.word("a", 38)


def embedding(tokenizer: Tokenizer, text: str) -> Embedding:
    """Return an embedding whose hidden states [2 layers, tokens, 1] equal the tokens' indices."""
    (located,) = tokenizer.encode_with_offsets([text])
    tokens = tuple(str(tokenizer.id_to_token(token_id)) for token_id in located.ids)
    states = np.tile(np.arange(len(tokens), dtype=np.float32), (2, 1))[..., None]
    return Embedding(text, states[-1, 0], tokens, located.offsets, states, False, tokenizer)


def test_a_sentencepiece_word_includes_pieces_that_overlap_it(shared_data):
    albert = Tokenizer.load(shared_data / "vocab/albert-30k/spiece.model")
    # Consecutive characters outside the vocabulary, including punctuation, form a single piece.
    result = embedding(albert, "dog \u65e5\u672c\u3002")
    assert result.tokens == ("\u2581dog", "\u2581", "<unk>")
    assert result.offsets[2].tolist() == [4, 7]
    np.testing.assert_array_equal(result.word("\u65e5\u672c"), [[1.5]] * 2)
    np.testing.assert_array_equal(result.word("\u3002"), [[2]] * 2)


def test_a_special_token_is_one_word(embed):
    result = embed("I love my [MASK]")
    np.testing.assert_array_equal(result.word("[mask]"), result.hidden_states[:, -2])
    with pytest.raises(ValueError, match=r"'mask' at character 11 is part of '\[MASK\]'"):
        result.word("mask")


def test_offsets_locate_the_pieces(embed):
    text = "caf\u00e9, Cafe\u0301 x"
    result = embed(text)
    assert result.offsets[0].tolist() == result.offsets[-1].tolist() == [0, 0]
    letters = [text[start:end] for start, end in result.offsets[1:-1].tolist()]
    assert letters == ["c", "a", "f", "\u00e9", ",", "C", "a", "f", "e", "x"]
    assert result.word("cafe", 1).shape == (3, 32)


def test_wrong_arguments_are_refused(embed):
    assert embed([]) == [] == embed.sentences([])
    with pytest.raises(ValueError, match="expected a string or a list of strings, got a value of "):
        embed(None)
    with pytest.raises(ValueError, match="expected a list of strings, got a value of type str"):
        embed.sentences("abc")
    with pytest.raises(UnusableText, match="^text 0 of 2: a lone surrogate"):
        embed(["\udc00", "a"])
