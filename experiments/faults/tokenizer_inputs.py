"""Generate tokenizer files of all kinds: invalid ones, and unusual but valid ones."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from assets import Assets, prepare_words
from cases import Case, Ended, Expectation, command_case
from damage import changed, not_a_file_of_its_kind, not_json, same_json, truncations, without

BERT_SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
ROBERTA_SPECIALS = ("<pad>", "<unk>", "<s>", "</s>", "<mask>")
ALBERT_SPECIALS = ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")
Files = dict[str, bytes]


def tokenizer_cases(assets: Assets, seed: int) -> Iterator[Case]:
    """Yield cases that prepare corpora with generated tokenizers."""
    for number, (name, files, expectation) in enumerate(_all(assets, random.Random(f"{seed}/tok"))):
        yield command_case(
            "tokenizers",
            f"{number:03d} {name}",
            lambda here: prepare_words(assets / "text.txt", here / "given", here / "corpus"),
            expectation=expectation,
            write=partial(_write, files),
            mentions="given",
            check=partial(_same_corpus, assets, files),
            must_not_exist="corpus",
        )


def _write(files: Files, here: Path) -> None:
    (here / "given").mkdir()
    for name, content in files.items():
        (here / "given" / name).write_bytes(content)


def _same_corpus(assets: Assets, files: Files, here: Path, _: Ended) -> str:
    """Compare the corpus with that of the undamaged WordPiece tokenizer; skip other kinds."""
    if not {"vocab.txt", "tokenizer.json"} & set(files):
        return ""
    given, expected = (
        json.loads((corpus / "manifest.json").read_text())
        for corpus in (here / "corpus", assets / "corpus")
    )
    differ = [key for key in ("fingerprint", "vocab_size") if given[key] != expected[key]]
    return f"the corpus differs in {', '.join(differ)}" if differ else ""


def _all(assets: Assets, rng: random.Random) -> Iterator[tuple[str, Files, Expectation]]:
    vocabulary = (assets / "wordpiece/vocab.txt").read_bytes()
    for name, content, expectation in _vocab_txt(vocabulary, rng):
        yield f"vocab.txt {name}", {"vocab.txt": content}, expectation
    for name, content, expectation in _settings(assets, rng):
        files = {"vocab.txt": vocabulary, "tokenizer_config.json": content}
        yield f"tokenizer_config.json {name}", files, expectation
    yield from _byte_bpe(assets, rng)
    tokenizer = (assets / "wordpiece/tokenizer.json").read_bytes()
    for name, content, expectation in _tokenizer_json(tokenizer, rng):
        yield f"tokenizer.json {name}", {"tokenizer.json": content}, expectation
    for name, content, expectation in _spiece(assets, rng):
        yield f"spiece.model {name}", {"spiece.model": content}, expectation


def _vocab_txt(data: bytes, rng: random.Random) -> Iterator[tuple[str, bytes, Expectation]]:
    lines = data.decode().splitlines()
    yield "as it is", data, "accepted"
    yield "with a byte-order mark", b"\xef\xbb\xbf" + data, "accepted"
    yield "with CRLF", data.replace(b"\n", b"\r\n"), "accepted"
    yield "without a last line end", data.rstrip(b"\n"), "accepted"
    yield "with blank lines at its end", data + b"\n\n\n", "accepted"
    for special in BERT_SPECIALS:
        yield f"without {special}", data.replace(f"{special}\n".encode(), b""), "refused"
    for name, content in not_a_file_of_its_kind(rng):
        yield name, content, "refused"
    for _ in range(6):
        first, second = rng.sample(range(len(lines)), 2)
        repeated = [*lines[:second], lines[first], *lines[second:]]
        yield f"line {first} repeated", "\n".join(repeated).encode(), "refused"
    for _ in range(4):
        place = rng.randrange(1, len(lines) - 1)
        blank = [*lines[:place], "", *lines[place:]]
        yield f"line {place} blank", "\n".join(blank).encode(), "refused"
    for _ in range(4):
        place = rng.randrange(10, len(data) - 10)
        broken = data[:place] + bytes([rng.randrange(0x80, 0xC0)]) + data[place:]
        yield f"byte {place} not UTF-8", broken, "refused"
    yield "UTF-16", data.decode().encode("utf-16"), "refused"
    yield "classic Mac line ends", data.replace(b"\n", b"\r"), "refused"
    by_piece = {line: number for number, line in enumerate(lines)}
    yield "a JSON object", json.dumps(by_piece).encode(), "refused"
    yield "entries and ids", "\n".join(f"{x}\t{i}" for i, x in enumerate(lines)).encode(), "refused"


def _settings(assets: Assets, rng: random.Random) -> Iterator[tuple[str, bytes, Expectation]]:
    settings = json.loads((assets / "wordpiece/tokenizer_config.json").read_text())
    for name, content in same_json(settings):
        yield name, content, "accepted"
    extra = settings | {"model_max_length": 10**30, "name_or_path": "x"}
    yield "other keys", json.dumps(extra).encode(), "accepted"
    for name, content in not_json(json.dumps(settings).encode(), rng):
        yield name, content, "refused"
    for key in ("do_lower_case", "strip_accents", "tokenize_chinese_chars"):
        for value in ("yes", "false", 3, [], {"a": 1}, 0.5):
            yield f"{key} {value!r}", json.dumps(settings | {key: value}).encode(), "refused"
    for name in ("T5Tokenizer", "GPT2Tokenizer", "LlamaTokenizerFast", "BertJapaneseTokenizer"):
        yield f"tokenizer_class {name}", json.dumps({"tokenizer_class": name}).encode(), "refused"


def _byte_bpe(assets: Assets, rng: random.Random) -> Iterator[tuple[str, Files, Expectation]]:
    vocabulary = (assets / "byte-bpe/vocab.json").read_bytes()
    merges = (assets / "byte-bpe/merges.txt").read_bytes()
    entries: dict[str, Any] = json.loads(vocabulary)

    def files(vocab: bytes | dict[str, Any] = vocabulary, merge: bytes = merges) -> Files:
        content = vocab if isinstance(vocab, bytes) else json.dumps(vocab).encode()
        return {"vocab.json": content, "merges.txt": merge}

    yield "vocab.json as it is", files(), "accepted"
    for name, content in same_json(entries):
        yield f"vocab.json {name}", files(content), "accepted"
    yield "vocab.json without merges.txt", {"vocab.json": vocabulary}, "refused"
    for name, content in not_json(vocabulary, rng):
        yield f"vocab.json {name}", files(content), "refused"
    for special in ROBERTA_SPECIALS:
        yield f"vocab.json without {special}", files(without(entries, (special,))), "refused"
    for value in (-1, 1.5, "7", None, True, [], 10**30, 2**40):
        piece = rng.choice(sorted(entries))
        yield f"vocab.json id {value!r}", files(changed(entries, (piece,), value)), "refused"
    for _ in range(4):
        one, other = rng.sample(sorted(entries), 2)
        yield "vocab.json same id twice", files(changed(entries, (one,), entries[other])), "refused"
    lines = merges.decode().splitlines()
    yield (
        "merges.txt without its first line",
        files(merge="\n".join(lines[1:]).encode()),
        "accepted",
    )
    yield "merges.txt CRLF", files(merge=merges.replace(b"\n", b"\r\n")), "accepted"
    for name, content in not_a_file_of_its_kind(rng):
        # An empty file is valid, since a vocabulary of single bytes has no merges.
        if name != "empty":
            yield f"merges.txt {name}", files(merge=content), "refused"
    for broken in ("x", "a b c", " a", "zzq qqz", "\ta"):
        place = rng.randrange(2, len(lines))
        content = "\n".join([*lines[:place], broken, *lines[place:]]).encode()
        yield f"merges.txt line {broken!r}", files(merge=content), "refused"


def _tokenizer_json(data: bytes, rng: random.Random) -> Iterator[tuple[str, bytes, Expectation]]:
    state = json.loads(data)
    yield "as it is", data, "accepted"
    for name, content in same_json(state):
        yield name, content, "accepted"
    cut = changed(
        state,
        ("truncation",),
        {"max_length": 8, "stride": 0, "strategy": "LongestFirst", "direction": "Right"},
    )
    yield "with truncation", json.dumps(cut).encode(), "accepted"
    for name, content in not_json(data, rng):
        yield name, content, "refused"
    for key in ("model", "pre_tokenizer"):
        yield f"without {key}", json.dumps(without(state, (key,))).encode(), "refused"
        for value in ([], "abc", 3, {"type": "Nonsense"}):
            content = json.dumps(changed(state, (key,), value)).encode()
            yield f"{key} {value!r}", content, "refused"
    for key in ("normalizer", "post_processor", "decoder"):
        for value in ("abc", 3, {"type": "Nonsense"}):
            content = json.dumps(changed(state, (key,), value)).encode()
            yield f"{key} {value!r}", content, "refused"
    for kind in ("WordLevel", "BPE", "Unigram", "Nonsense", None):
        content = json.dumps(changed(state, ("model", "type"), kind)).encode()
        yield f"model type {kind}", content, "refused"
    for special in BERT_SPECIALS:
        lacking = without(state, ("model", "vocab", special))
        lacking["added_tokens"] = [x for x in state["added_tokens"] if x["content"] != special]
        yield f"without {special}", json.dumps(lacking).encode(), "refused"
    pieces = [x for x in state["model"]["vocab"] if x not in BERT_SPECIALS]
    for value in (-1, 1.5, "7", None, 10**30, 2**31):
        content = json.dumps(changed(state, ("model", "vocab", rng.choice(pieces)), value)).encode()
        yield f"id {value!r}", content, "refused"
    for _ in range(3):
        one, other = rng.sample(pieces, 2)
        twice = changed(state, ("model", "vocab", one), state["model"]["vocab"][other])
        yield "same id twice", json.dumps(twice).encode(), "refused"


def _spiece(assets: Assets, rng: random.Random) -> Iterator[tuple[str, bytes, Expectation]]:
    from sentencepiece import sentencepiece_model_pb2

    data = (assets / "sentencepiece/spiece.model").read_bytes()
    yield "as it is", data, "accepted"
    for name, content in not_a_file_of_its_kind(rng):
        yield name, content, "refused"
    for name, content in truncations(data, rng, 12):
        yield name, content, "refused"

    def model() -> Any:
        proto = vars(sentencepiece_model_pb2)["ModelProto"]()
        proto.ParseFromString(data)
        return proto

    for special in ALBERT_SPECIALS:
        proto = model()
        for piece in proto.pieces:
            if piece.piece == special:
                piece.piece = "qqq"
        yield f"without {special}", proto.SerializeToString(), "refused"
    for kind in (3, 4):
        proto = model()
        proto.trainer_spec.model_type = kind
        yield f"model type {kind}", proto.SerializeToString(), "refused"
    for _ in range(4):
        proto = model()
        one, other = rng.sample(range(6, len(proto.pieces)), 2)
        proto.pieces[one].piece = proto.pieces[other].piece
        yield "piece twice", proto.SerializeToString(), "refused"
    for score in (float("nan"), float("inf"), float("-inf")):
        proto = model()
        proto.pieces[rng.randrange(6, len(proto.pieces))].score = score
        yield f"score {score}", proto.SerializeToString(), "refused"
