"""Test that the layout of texts and pairs is read from every kind of tokenizer file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors

from bert_jax.inference.predictor import truncate_texts
from bert_jax.tokenizers.tokenizer import Tokenizer
from bert_jax.tokenizers.words import find_words, split_words

XLM_R = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
ALBERT = ("[CLS]", "<pad>", "[SEP]", "<unk>", "[MASK]")
BERT = ("[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]")
TEXT = "Matt lives  in Canada"


def template(backend, single: str, pair: str | None) -> None:
    tokens = {token for token in f"{single} {pair}".replace(":1", "").split() if token[0] in "[<"}
    backend.post_processor = processors.TemplateProcessing(
        single=single,
        **({"pair": pair} if pair else {}),
        special_tokens=[(token, backend.token_to_id(token)) for token in tokens],
    )


def unigram(specials: tuple[str, ...], *, split: bool):
    pieces = [(token, 0.0) for token in specials]
    pieces += [(f"▁{word}", -1.0) for word in ("Matt", "lives", "in", "Canada")]
    pieces += [(letter, -5.0) for letter in "▁MatlivesnCdWhro?"]
    backend = tokenizers.Tokenizer(models.Unigram(pieces, unk_id=3, byte_fallback=False))
    words = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")
    split_first = [pre_tokenizers.WhitespaceSplit(), words]
    backend.pre_tokenizer = pre_tokenizers.Sequence(split_first) if split else words
    backend.decoder = decoders.Metaspace()
    return backend


def byte_bpe(specials: tuple[str, ...]):
    names = [*specials, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    vocabulary = {name: number for number, name in enumerate(names)}
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, [], unk_token=specials[3]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return backend


def loaded(backend, directory: Path) -> Tokenizer:
    backend.save(str(directory / "tokenizer.json"))
    return Tokenizer.load(directory)


ONE, TWO = "[CLS] $A [SEP] $B:1 [SEP]:1", "<s> $A </s> </s> $B </s>"
SINGLE = {"[CLS]": "[CLS] $A [SEP]", "<s>": "<s> $A </s>"}


@pytest.mark.parametrize(
    ("make", "specials", "pair", "separators"),
    [
        (lambda names: unigram(names, split=True), XLM_R, TWO, 2),
        (lambda names: unigram(names, split=False), ALBERT, ONE, 1),
        (byte_bpe, BERT, ONE, 1),
        (byte_bpe, XLM_R, TWO, 2),
    ],
    ids=["xlm-r", "albert", "byte-bpe-of-bert", "byte-bpe-of-roberta"],
)
def test_pairs_follow_the_layout_in_the_file(make, specials, pair, separators, tmp_path) -> None:
    backend = make(specials)
    template(backend, SINGLE[specials[0]], pair)
    expected = backend.encode("Matt lives", "in Canada")
    tokenizer = loaded(backend, tmp_path)
    assert tokenizer.separators_between == separators
    assert tokenizer.specials_of_pair == separators + 2
    rows = truncate_texts(tokenizer, [("Matt lives", "in Canada")], 40).features.sequences
    assert rows.token_ids.tolist() == expected.ids
    # Saved files keep the layout, and mark the second text with segment id 1 if requested.
    tokenizer.save(tmp_path / "plain")
    saved = tokenizers.Tokenizer.from_file(str(tmp_path / "plain/tokenizer.json"))
    assert saved.encode("Matt lives", "in Canada").type_ids == expected.type_ids
    tokenizer.save(tmp_path / "segments", segments=True)
    saved = tokenizers.Tokenizer.from_file(str(tmp_path / "segments/tokenizer.json"))
    encoding = saved.encode("Matt lives", "in Canada")
    start = int(rows.second_starts[0])
    assert encoding.ids == expected.ids
    assert encoding.type_ids == [0] * start + [1] * (len(expected.ids) - start)
    assert Tokenizer.load(tmp_path / "segments").fingerprint == tokenizer.fingerprint


def test_saving_adds_a_missing_layout(tmp_path) -> None:
    tokenizer = loaded(byte_bpe(BERT), tmp_path)
    assert tokenizer.separators_between == 2  # Byte-level BPE has two separators by default.
    tokenizer.save(tmp_path / "out")
    saved = tokenizers.Tokenizer.from_file(str(tmp_path / "out/tokenizer.json"))
    rows = truncate_texts(tokenizer, [("ab", "c")], 40).features.sequences
    assert saved.encode("ab", "c").ids == rows.token_ids.tolist()
    assert saved.encode("a").tokens == ["[CLS]", "a", "[SEP]"]


def test_the_fingerprint_depends_on_the_layout(tmp_path) -> None:
    fingerprints = []
    for pair in (ONE, "[CLS] $A [SEP] [SEP] $B:1 [SEP]:1"):
        backend = unigram(ALBERT, split=True)
        template(backend, SINGLE["[CLS]"], pair)
        fingerprints.append(loaded(backend, tmp_path).fingerprint)
    assert len(set(fingerprints)) == 2


@pytest.mark.parametrize(
    ("single", "pair"),
    [
        ("$A [SEP]", ONE),
        (SINGLE["[CLS]"], "[CLS] $A $B:1 [SEP]:1"),
        (SINGLE["[CLS]"], "$A [SEP] $B [SEP] [CLS]"),
    ],
)
def test_layouts_of_other_families_are_refused(single, pair, tmp_path) -> None:
    backend = unigram(ALBERT, split=True)
    template(backend, single, pair)
    with pytest.raises(ValueError, match=r"tokenizer.json: post_processor: it turns .*Expected \["):
        loaded(backend, tmp_path)


@pytest.mark.parametrize(
    "backend",
    [unigram(ALBERT, split=True), unigram(ALBERT, split=False), byte_bpe(BERT)],
    ids=["split", "metaspace", "byte-bpe"],
)
def test_words_do_not_include_the_space_before_them(backend, tmp_path) -> None:
    template(backend, SINGLE["[CLS]"], ONE)
    tokenizer = loaded(backend, tmp_path)
    assert [word.text for word in split_words(tokenizer, [TEXT])[0]] == TEXT.split()
    assert find_words(tokenizer, TEXT, "in") == [(12, 14)]
    for start, end in tokenizer.encode_with_offsets([TEXT])[0].offsets.tolist():
        assert TEXT[start:end] == TEXT[start:end].strip()


def test_do_lower_case_applies_only_to_berts_normalizer(tmp_path) -> None:
    """Ignore do_lower_case if the tokenizer has a different normalizer, as transformers does."""
    backend = unigram(ALBERT, split=True)
    template(backend, SINGLE["[CLS]"], ONE)
    config = {"do_lower_case": True, "tokenizer_class": "PreTrainedTokenizerFast"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = loaded(backend, tmp_path)
    assert not tokenizer.lowercase
    with pytest.raises(ValueError, match="lowercase=True: its normalizer .* keeps the case, and"):
        Tokenizer.load(tmp_path, lowercase=True)
