"""Test that damaged tokenizer files are rejected before memory is allocated for them."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sentencepiece import sentencepiece_model_pb2

from bert_jax.tokenizers import vocabulary_files
from bert_jax.tokenizers.tokenizer import Tokenizer
from bert_jax.tokenizers.wordpiece_files import wordpiece_backend

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
ROBERTA = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
State = dict[str, Any]


def wordpiece() -> State:
    entries = [*SPECIALS, "a", "b"]
    vocabulary = {entry: number for number, entry in enumerate(entries)}
    return json.loads(wordpiece_backend(vocabulary, lowercase=True).to_str())


def added(content: str, token_id: Any, *, special: bool = False) -> State:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": token_id, "content": content, "special": special, **flags}


def with_pieces(**pieces: Any) -> State:
    state = wordpiece()
    state["model"]["vocab"] |= pieces
    return state


def with_added(*tokens: State) -> State:
    return wordpiece() | {"added_tokens": list(tokens)}


def with_model(**settings: Any) -> State:
    state = wordpiece()
    state["model"] |= settings
    return state


def byte_bpe(**settings: Any) -> State:
    pieces = [*ROBERTA, "a", "b", "ab"]
    model = {
        "type": "BPE",
        "vocab": {piece: number for number, piece in enumerate(pieces)},
        "merges": [["a", "b"]],
    }
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    state = wordpiece() | {"model": model | settings, "normalizer": None, "post_processor": None}
    return state | {"pre_tokenizer": level}


def unigram(**settings: Any) -> State:
    pieces = ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]", "▁", "a"]
    model = {"type": "Unigram", "unk_id": 1, "vocab": [[piece, -1.0] for piece in pieces]}
    spaces = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    state = wordpiece() | {"model": model | settings, "normalizer": None, "post_processor": None}
    return state | {"pre_tokenizer": spaces}


def with_bounds(**ids: int) -> State:
    state = wordpiece()
    for name, token_id in ids.items():
        state["post_processor"]["special_tokens"][f"[{name.upper()}]"]["ids"] = [token_id]
    return state


def written(directory: Path, state: State) -> Path:
    path = directory / "tokenizer.json"
    path.write_text(json.dumps(state), encoding="utf-8")
    return path


@pytest.mark.parametrize("make", [wordpiece, byte_bpe, unigram])
def test_undamaged_files_load(make: Callable[[], State], tmp_path: Path):
    tokenizer = Tokenizer.load(written(tmp_path, make()))
    assert tokenizer.vocab_size == len(make()["model"]["vocab"])


DAMAGED = {
    "two pieces with one id": (with_pieces(c=6), "'b' and 'c' have the same id, 6"),
    "a huge id": (
        with_pieces(c=10**9),
        "the largest id is 1,000,000,000 .'c'., but there are only 8 tokens",
    ),
    "a gap of thousands": (with_pieces(c=5000), "4,993 ids are unused"),
    "a negative id": (with_pieces(c=-1), "the id of 'c' is -1"),
    "an id that is a boolean": (with_pieces(c=True), "the id of 'c' is True"),
    "an id that is a float": (with_pieces(c=7.0), "the id of 'c' is 7.0"),
    "an added token with a huge id": (
        with_added(added("c", 10**9)),
        "the largest id is 1,000,000,000",
    ),
    "an added token with a piece's id": (
        with_added(added("c", 5)),
        "'a' and 'c' have the same id, 5",
    ),
    "an added piece with a different id": (with_added(added("a", 7)), "'a' has two ids, 5 and 7"),
    "a special token with a different id": (
        with_added(added("[MASK]", 3, special=True)),
        r"'\[MASK\]' has two ids, 4 and 3",
    ),
    "a gap before an added token": (
        with_added(added("c", 9)),
        "'c' has id 9, but the tokenizers library gives it 7",
    ),
    "added tokens in a different order": (
        with_added(added("c", 8), added("d", 7)),
        "'c' has id 8, but the tokenizers library gives it 7",
    ),
    "an unknown token outside the vocabulary": (
        with_model(unk_token="<unk>"),
        "model.unk_token='<unk>': not in model.vocab",
    ),
    "a vocabulary that is a list": (with_model(vocab=["a"]), "not a tokenizer.json"),
    "no model": (wordpiece() | {"model": None}, "not a tokenizer.json"),
    "[CLS] with a different id": (
        with_bounds(cls=99),
        r"post_processor: \[CLS\] has id 99, but its id in the .* 2",
    ),
    "[SEP] with a huge id": (with_bounds(sep=10**9), r"post_processor: \[SEP\] has id 1000000000"),
    "a merge of a missing piece": (byte_bpe(merges=[["a", "c"]]), "'a' and 'c' needs 'c', which"),
    "a merge into a missing piece": (byte_bpe(merges=["b a"]), "'b' and 'a' needs 'ba', which"),
    "a merge of three pieces": (byte_bpe(merges=["a b a"]), "cannot load|merges|expected"),
    "a merge of numbers": (byte_bpe(merges=[[1, 2]]), "not a tokenizer.json"),
    "dropout": (byte_bpe(dropout=0.1), "model.dropout=0.1: the same text would get different"),
    "an unknown token outside the BPE vocabulary": (
        byte_bpe(unk_token="?"),
        "model.unk_token='.': not in model.vocab",
    ),
    "a piece twice": (
        unigram(vocab=[["<pad>", 0.0], ["<unk>", 0.0], ["a", 0.0], ["a", -1.0]]),
        "model.vocab contains 'a' twice",
    ),
    "no id of the unknown token": (unigram(unk_id=None), "model.unk_id is missing"),
    "an unknown id out of range": (unigram(unk_id=99), "cannot load it"),
    "bytes in the normalizer": (
        wordpiece() | {"normalizer": {"type": "ByteLevel"}},
        "normalizer: ByteLevel belongs in pre_tokenizer",
    ),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_tokenizer_json_is_refused(name: str, tmp_path: Path):
    state, message = DAMAGED[name]
    with pytest.raises(ValueError, match=f"tokenizer.json: .*({message})"):
        Tokenizer.load(written(tmp_path, state))


def test_a_huge_id_allocates_no_memory(tmp_path: Path):
    path = written(tmp_path, with_pieces(c=10**9))
    tracemalloc.start()
    with pytest.raises(ValueError, match="largest id"):
        Tokenizer.load(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 20


def test_small_gaps_are_kept(tmp_path: Path):
    """Accept gaps between ids, which some releases have for unused rows of the embedding table."""
    tokenizer = Tokenizer.load(written(tmp_path, with_pieces(c=900)))
    assert tokenizer.vocab_size == 901
    assert tokenizer.encode_batch(["a c"]) == [[5, 900]]


def test_added_tokens_keep_their_ids(tmp_path: Path):
    state = with_added(added("c", 7), added("d", 8))
    assert Tokenizer.load(written(tmp_path, state)).encode_batch(["d c a"]) == [[8, 7, 5]]


def test_a_repeated_name_is_refused(tmp_path: Path):
    path = written(tmp_path, wordpiece())
    path.write_text(path.read_text().replace('"b": 6', '"a": 6'))
    with pytest.raises(ValueError, match="tokenizer.json: an object contains the key 'a' twice"):
        Tokenizer.load(path)


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ({"a": 6}, "vocab.json: 'b' and 'a' have the same id, 6"),
        ({"a": 10**9}, "vocab.json: the largest id is 1,000,000,000"),
        ({"a": -5}, "vocab.json: the id of 'a' is -5"),
        ({"a": True}, "vocab.json: the id of 'a' is True"),
        ({"a": "5"}, "vocab.json: the id of 'a' is '5'"),
    ],
)
def test_a_damaged_vocab_json_is_refused(ids: dict[str, Any], message: str, tmp_path: Path):
    pieces = {piece: number for number, piece in enumerate([*ROBERTA, "a", "b", "ab"])}
    pieces = {"b": pieces.pop("b"), **pieces}
    (tmp_path / "vocab.json").write_text(json.dumps(pieces | ids))
    (tmp_path / "merges.txt").write_text("a b\n")
    with pytest.raises(ValueError, match=message):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize("name", ["vocab.txt", "tokenizer.json", "vocab.json", "spiece.model"])
def test_a_file_far_too_large_for_a_vocabulary_is_not_read(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(vocabulary_files, "MAX_FILE_BYTES", 1000)
    (tmp_path / name).write_bytes(b"\n" * 1001)
    (tmp_path / "merges.txt").write_text("")
    with pytest.raises(ValueError, match=f"{name}: the file has 1,001 bytes; expected at most"):
        Tokenizer.load(tmp_path / name)


def test_a_byte_order_mark_is_skipped(tmp_path: Path):
    text = json.dumps(wordpiece())
    (tmp_path / "tokenizer.json").write_text(text, encoding="utf-8-sig")
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": false}', "utf-8-sig")
    assert Tokenizer.load(tmp_path).encode_batch(["A a"]) == [[1, 5]]


@pytest.mark.parametrize("score", [float("nan"), float("inf"), float("-inf")])
def test_a_sentencepiece_score_that_is_not_finite_is_refused(tmp_path, score):
    proto = vars(sentencepiece_model_pb2)["ModelProto"]()
    for piece in ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]", "a"):
        proto.pieces.add(piece=piece, score=score if piece == "a" else -1.0)
    (tmp_path / "spiece.model").write_bytes(proto.SerializeToString())
    with pytest.raises(ValueError, match="spiece.model: damaged: the piece 'a' has the score"):
        Tokenizer.load(tmp_path)
