"""What stands around texts is what a tokenizer's own file says, not what its kind usually has."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors

from bert_jax.inference.predictor import cut_texts
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
    whole = [pre_tokenizers.WhitespaceSplit(), words]
    backend.pre_tokenizer = pre_tokenizers.Sequence(whole) if split else words
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
def test_pairs_are_laid_out_as_the_file_says(make, specials, pair, separators, tmp_path) -> None:
    backend = make(specials)
    template(backend, SINGLE[specials[0]], pair)
    theirs = backend.encode("Matt lives", "in Canada")
    ours = loaded(backend, tmp_path)
    assert ours.separators_between == separators and ours.specials_of_pair == separators + 2
    rows = cut_texts(ours, [("Matt lives", "in Canada")], 40).features.sequences
    assert rows.token_ids.tolist() == theirs.ids
    # And so do the files that are written, whose second text is told apart where it must be.
    ours.save(tmp_path / "plain")
    again = tokenizers.Tokenizer.from_file(str(tmp_path / "plain/tokenizer.json"))
    assert again.encode("Matt lives", "in Canada").type_ids == theirs.type_ids
    ours.save(tmp_path / "told", segments=True)
    again = tokenizers.Tokenizer.from_file(str(tmp_path / "told/tokenizer.json"))
    found = again.encode("Matt lives", "in Canada")
    start = int(rows.second_starts[0])
    assert found.ids == theirs.ids
    assert found.type_ids == [0] * start + [1] * (len(theirs.ids) - start)
    assert Tokenizer.load(tmp_path / "told").fingerprint == ours.fingerprint


def test_a_file_that_says_nothing_is_completed(tmp_path) -> None:
    ours = loaded(byte_bpe(BERT), tmp_path)
    assert ours.separators_between == 2  # as its kind's release
    ours.save(tmp_path / "out")
    written = tokenizers.Tokenizer.from_file(str(tmp_path / "out/tokenizer.json"))
    rows = cut_texts(ours, [("ab", "c")], 40).features.sequences
    assert written.encode("ab", "c").ids == rows.token_ids.tolist()
    assert written.encode("a").tokens == ["[CLS]", "a", "[SEP]"]


def test_another_layout_is_another_tokenizer(tmp_path) -> None:
    found = []
    for pair in (ONE, "[CLS] $A [SEP] [SEP] $B:1 [SEP]:1"):
        backend = unigram(ALBERT, split=True)
        template(backend, SINGLE["[CLS]"], pair)
        found.append(loaded(backend, tmp_path).fingerprint)
    assert len(set(found)) == 2


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
    with pytest.raises(ValueError, match=r"tokenizer.json: its post_processor makes .*expected \["):
        loaded(backend, tmp_path)


@pytest.mark.parametrize(
    "backend",
    [unigram(ALBERT, split=True), unigram(ALBERT, split=False), byte_bpe(BERT)],
    ids=["split", "metaspace", "byte-bpe"],
)
def test_the_space_before_a_word_is_not_the_words(backend, tmp_path) -> None:
    template(backend, SINGLE["[CLS]"], ONE)
    tokenizer = loaded(backend, tmp_path)
    assert [word.text for word in split_words(tokenizer, [TEXT])[0]] == TEXT.split()
    assert find_words(tokenizer, TEXT, "in") == [(12, 14)]
    for start, end in tokenizer.encode_with_offsets([TEXT])[0].offsets.tolist():
        assert TEXT[start:end] == TEXT[start:end].strip()


def test_case_is_bert_normalizers_alone(tmp_path) -> None:
    """In other files transformers passes over the key."""
    backend = unigram(ALBERT, split=True)
    template(backend, SINGLE["[CLS]"], ONE)
    config = {"do_lower_case": True, "tokenizer_class": "PreTrainedTokenizerFast"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = loaded(backend, tmp_path)
    assert not tokenizer.lowercase
    with pytest.raises(ValueError, match="keeps the case, and the opposite was asked for"):
        Tokenizer.load(tmp_path, lowercase=True)
