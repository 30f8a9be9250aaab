"""Compare traced texts with the outputs of Hugging Face's models."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from numpy.testing import assert_allclose

from bert_jax import Attention
from bert_jax.inference.predictor import UnusableText
from bert_jax.interpretability.traced_text import TracedText
from bert_jax.tokenizers.tokenizer import Tokenizer

HEAD = "classification"
FAMILIES = ["Bert", "Roberta", "Albert", "DistilBert", "Electra", "ModernBert"]
TEXTS = [("I love my pet Python, python", None), ("wet roads", "it rains, it pours!"), ("", None)]


def run_hugging_face(directory: Path, trace: TracedText):
    """Return Hugging Face's outputs for the traced tokens, with attention and hidden states."""
    model = transformers.AutoModel.from_pretrained(directory, attn_implementation="eager")
    inputs = {"input_ids": torch.tensor(trace.token_ids[None].astype(np.int64))}
    if getattr(model.config, "type_vocab_size", 0) > 1:
        inputs["token_type_ids"] = torch.tensor(trace.segment_ids[None].astype(np.int64))
    with torch.no_grad():
        return model(**inputs, output_attentions=True, output_hidden_states=True)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_trace_equals_hugging_face(import_pair, family):
    source, work_dir = import_pair(family, HEAD)
    attention = Attention(work_dir)
    for text, second in TEXTS:
        trace = attention(text, second)
        expected = run_hugging_face(source, trace)
        assert_allclose(trace.attention, torch.stack(expected.attentions)[:, 0], atol=1e-5)
        assert_allclose(trace.hidden_states, torch.stack(expected.hidden_states)[:, 0], atol=2e-5)
        assert_allclose(trace.attention.sum(axis=-1), 1, atol=1e-6)


def test_queries_keys_values_and_head_outputs_equal_hugging_face(import_pair):
    source, work_dir = import_pair("Bert", HEAD)
    trace = Attention(work_dir)("I love python")
    tokenizer = transformers.AutoTokenizer.from_pretrained(source)
    model = transformers.AutoModel.from_pretrained(source, attn_implementation="eager")
    recorded: dict[str, list[torch.Tensor]] = {"queries": [], "keys": [], "values": []}
    heads = []
    for layer in model.encoder.layer:
        part = layer.attention.self
        for name, module in zip(recorded, (part.query, part.key, part.value), strict=True):
            module.register_forward_hook(lambda _, __, out, name=name: recorded[name].append(out))
        part.register_forward_hook(lambda _, __, out: heads.append(out[0]))
    with torch.no_grad():
        model(**tokenizer("I love python", return_tensors="pt"))
    for name, outputs in {**recorded, "head_outputs": heads}.items():
        expected = torch.stack(outputs)[:, 0].reshape(2, -1, 4, 8).transpose(1, 2)
        assert_allclose(getattr(trace, name), expected, atol=2e-5)


def test_the_parts_of_the_embedding_are_rows_of_the_tables(import_pair):
    source, work_dir = import_pair("Bert", HEAD)
    trace = Attention(work_dir)("wet roads", "it rains")
    embeddings = transformers.AutoModel.from_pretrained(source).embeddings
    tables = embeddings.word_embeddings, embeddings.token_type_embeddings
    token, segment = (table.weight.detach().numpy() for table in tables)
    position = embeddings.position_embeddings.weight.detach().numpy()
    np.testing.assert_array_equal(trace.embedding.token, token[trace.token_ids])
    np.testing.assert_array_equal(trace.embedding.segment, segment[trace.segment_ids])
    np.testing.assert_array_equal(trace.embedding.position, position[: len(trace.tokens)])
    distil = Attention(import_pair("DistilBert", HEAD)[1])("wet roads")
    assert distil.embedding.segment is None
    modern = Attention(import_pair("ModernBert", HEAD)[1])("wet roads")
    assert modern.embedding.position is None


def test_words_contain_all_tokens_in_order(import_pair):
    trace = Attention(import_pair("Bert", HEAD)[1])("wet [MASK], rain", "it")
    assert [word.text for word in trace.words] == [
        *("[CLS]", "wet", "[MASK]", ",", "rain", "[SEP]", "it", "[SEP]")
    ]
    assert [word.segment for word in trace.words] == [0] * 6 + [1] * 2
    stops = [word.stop for word in trace.words]
    assert [word.start for word in trace.words] == [0, *stops[:-1]]
    assert stops[-1] == len(trace.tokens)


@pytest.mark.parametrize("family", FAMILIES)
def test_given_words_are_kept_together(import_pair, family):
    words = ("wet", "roads,", "rain")
    trace = Attention(import_pair(family, HEAD)[1])(words)
    assert trace.text == "wet roads, rain"
    assert [word.text for word in trace.words[1:-1]] == list(words)
    ids = Tokenizer.load(import_pair(family, HEAD)[1] / "tokenizer").encode_words(words)
    starts = [trace.token_ids[word.start : word.stop].tolist() for word in trace.words[1:-1]]
    assert starts == ids


def test_attention_between_words_sums_targets_and_averages_sources(import_pair):
    trace = Attention(import_pair("Bert", HEAD)[1])("wet rain")
    between = trace.attention_between_words
    assert between.shape == (2, 4, 4, 4)
    assert_allclose(between.sum(axis=-1), 1, atol=1e-6)
    wet, rain = trace.words[1:3]
    block = trace.attention[1, 2, wet.start : wet.stop, rain.start : rain.stop]
    assert_allclose(between[1, 2, 1, 2], block.sum(axis=1).mean(), rtol=1e-5)
    expected = trace.hidden_states[:, rain.start : rain.stop].mean(axis=1)
    assert_allclose(trace.word_vectors[:, 2], expected, rtol=1e-5)


def test_long_texts_are_truncated_like_in_hugging_face(import_pair):
    source, work_dir = import_pair("Bert", HEAD)
    attention = Attention(work_dir, max_length=12)
    tokenizer = transformers.AutoTokenizer.from_pretrained(source)
    for text, second in (("rain " * 9, None), ("rain " * 9, "wet roads")):
        trace = attention(text, second)
        ids = tokenizer(text, second, truncation=True, max_length=12)["input_ids"]
        assert trace.truncated and trace.token_ids.tolist() == ids
        assert trace.words[-1].stop == 12 and trace.words[0].stop == 1


def test_values_that_are_not_texts_are_rejected(import_pair):
    attention = Attention(import_pair("Bert", HEAD)[1])
    with pytest.raises(UnusableText, match="expected a string, got a value of type int"):
        attention(3)
    with pytest.raises(UnusableText, match="a lone surrogate at character 0"):
        attention("wet", ("\ud800",))
