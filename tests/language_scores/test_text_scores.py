"""Compare scores on text with the same scores computed with transformers."""

from __future__ import annotations

import gzip
import json
import math

import numpy as np
import pytest
import torch
import transformers

from bert_jax import MaskingConfig, score_text
from bert_jax.language_scores import text_scores
from bert_jax.language_scores.batch_limits import BatchLimits, BatchTokens
from bert_jax.language_scores.text_rows import masked_batches, read_text_rows
from bert_jax.text.sources import SourceOptions
from bert_jax.tokenizers.tokenizer import Tokenizer

from .conftest import their_scores

DOCUMENTS = [
    "the cat sat on a mat. did it not? " + "it went on and on and on. " * 4,
    "a short one.",
    " ".join("abcdefgh") * 9 + ".",
]


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("\n\n".join(DOCUMENTS), encoding="utf-8")
    return path


def test_scores_match_transformers(masked_lm, text):
    model = masked_lm("Bert")
    scores = score_text(model.ours, text)
    tokenizer = Tokenizer.load(model.theirs)
    rows = read_text_rows(
        text,
        tokenizer,
        40,
        max_sentences=None,
        seed=0,
        language="en",
        sources=SourceOptions(),
    )
    assert rows.documents == scores.documents == 3
    # There are 40 positions, and each letter is a token.
    assert [len(part) for part in rows.fragments] == [38, 38, 25, 10, 38, 35]
    theirs = transformers.AutoModelForMaskedLM.from_pretrained(model.theirs).eval()
    losses, correct = [], []
    masking = MaskingConfig()
    for batch in masked_batches(
        rows.fragments, tokenizer, seed=0, tokens=80, limits=BatchLimits(40, 2), masking=masking
    ):
        mask = np.arange(batch["token_ids"].shape[1]) < batch["lengths"][:, None]
        with torch.no_grad():
            logits = theirs(
                input_ids=torch.tensor(batch["token_ids"]).long(),
                attention_mask=torch.tensor(mask.astype(np.int64)),
            ).logits.double()
        for row, column in zip(*np.nonzero(batch["weights"]), strict=True):
            found = logits[row, batch["positions"][row, column]]
            label = batch["labels"][row, column]
            losses.append(-float(found.log_softmax(-1)[label]))
            correct.append(int(found.argmax()) == label)
    assert scores.predictions == len(losses)
    assert len(losses) == pytest.approx(0.15 * scores.tokens, abs=len(rows.fragments))
    assert scores.mlm_loss == pytest.approx(np.mean(losses), abs=1e-5)
    assert scores.mlm_accuracy == pytest.approx(np.mean(correct))

    sentences = [tokenizer.decode(sentence.token_ids) for sentence in rows.sentences]
    likelihood = sum(their_scores(model.theirs, sentences, whole_words=False))
    expected = math.exp(-likelihood / rows.sentence_tokens)
    assert scores.pseudo_perplexity == pytest.approx(expected, rel=1e-4)
    assert scores.num_split == rows.num_split == 1


def test_scores_do_not_depend_on_the_batches(masked_lm, text, monkeypatch):
    model = masked_lm("Bert").ours
    scores = score_text(model, text)
    assert score_text(model, text) == scores
    monkeypatch.setattr(text_scores, "TEXT_TOKENS", BatchTokens(64, 64))
    assert score_text(model, text).mlm_loss == pytest.approx(scores.mlm_loss, abs=1e-6)
    assert score_text(model, text, seed=1).mlm_loss != pytest.approx(scores.mlm_loss, abs=1e-6)


def test_every_format_of_prepare_is_read(masked_lm, text, tmp_path):
    lines = "".join(json.dumps({"body": document}) + "\n" for document in DOCUMENTS)
    file = tmp_path / "text.jsonl.gz"
    file.write_bytes(gzip.compress(lines.encode()))
    model = masked_lm("Bert").ours
    plain = score_text(model, text)
    scores = score_text(model, file, sources=SourceOptions(text_field="body"))
    assert scores.mlm_loss == plain.mlm_loss
    assert scores.pseudo_perplexity == plain.pseudo_perplexity
    twice = score_text(model, [file, text], sources=SourceOptions(text_field="body"))
    assert twice.documents == 6 and twice.tokens == 2 * plain.tokens


def test_the_command_prints_and_saves_the_scores(masked_lm, text, tmp_path, bert_jax_here):
    output = tmp_path / "scores.json"
    done = bert_jax_here(
        *("evaluate", masked_lm("Bert").ours, "--text", text, "--max-sentences", "2"),
        *("--max-length", "20", "--output", output),
    )
    assert done.code == 0
    values = json.loads(output.read_text(encoding="utf-8"))
    assert values["scored_sentences"] >= 2 and values["num_sentences"] == 8
    assert f"masked-LM loss     {values['mlm_loss']:.3f}" in done.output
    assert f"pseudo-perplexity  {values['pseudo_perplexity']:,.2f}" in done.output


def test_unusable_text_and_models_are_refused(masked_lm, model_without_head, text, tmp_path):
    model = masked_lm("Bert").ours
    with pytest.raises(ValueError, match="no such file"):
        score_text(model, tmp_path / "missing.txt")
    empty = tmp_path / "empty.txt"
    empty.write_text("\n\n", encoding="utf-8")
    with pytest.raises(ValueError, match="empty.txt: the file contains no usable document"):
        score_text(model, empty)
    with pytest.raises(
        ValueError, match="this model does not score text. It has no head: use `bj.Embed`"
    ):
        score_text(model_without_head, text)
    for options, message in (
        ({"max_sentences": 0}, "max_sentences=0: expected 1 or more"),
        ({"max_length": 41}, "max_length=41: expected 5 to 40"),
        ({"language": "xx"}, "language='xx': there are no sentence rules"),
    ):
        with pytest.raises(ValueError, match=message):
            score_text(model, text, **options)
