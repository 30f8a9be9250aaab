"""Test that unknown tokens are counted, and that a corpus with too many of them fails early."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from tokenizers import Tokenizer as PlainTokenizer

from bert_jax.corpus.inputs import PrepareOptions
from bert_jax.corpus.manifest import Manifest, read_manifest
from bert_jax.corpus.parts import Part, make_part, merge_parts
from bert_jax.corpus.prepare import make_corpus
from bert_jax.corpus.progress import Progress
from bert_jax.corpus.requests import CorpusRequest, check_request
from bert_jax.tokenizers.tokenizer import Tokenizer
from bert_jax.tokenizers.words import (
    TooManyUnknownError,
    UnknownCounts,
    describe_unknown,
    unknown_words,
)

OPTIONS = PrepareOptions(
    max_length=64, max_documents_per_record=4, heldout_fraction=0, unit_bytes=64 << 10
)
KNOWN = "new cat saw old dog " * 50
UNKNOWN = "мир 是 new cat saw " * 50  # Two of the five words are unknown.


def write_texts(path: Path, texts: Sequence[str]) -> str:
    """Write documents, each of which is made unique by its last ten words."""
    lines = []
    for number, text in enumerate(texts):
        last = f"{number:010b}".replace("0", "cat ").replace("1", "dog ")
        lines.append(json.dumps({"text": f"{text} {last}"}) + "\n")
    path.write_text("".join(lines), encoding="utf-8")
    return str(path)


@pytest.fixture
def mostly_unknown(tmp_path: Path) -> str:
    return write_texts(tmp_path / "unknown.jsonl", [UNKNOWN] * 120)


def test_the_unknown_share_in_the_manifest_matches_the_tokenizers_library(corpus, finished):
    plain = PlainTokenizer.from_file(str(finished / "tokenizer" / "tokenizer.json"))
    plain.encode_special_tokens = True
    ids = [i for text in corpus.texts for i in plain.encode(text, add_special_tokens=False).ids]
    manifest = read_manifest(finished)
    unknown = [split.num_unknown or 0 for split in (manifest.train, manifest.heldout)]
    assert sum(unknown) == ids.count(plain.token_to_id("[UNK]")) > 0
    assert manifest.train.unknown_share == unknown[0] / manifest.train.num_tokens


def test_a_corpus_is_refused_early(mostly_unknown, tokenizer, tmp_path):
    """Report the same counts for any number of workers, and leave no files behind."""
    messages = []
    for workers in (1, 2):
        reported: list[Progress] = []
        output = tmp_path / str(workers)
        with pytest.raises(ValueError, match="--allow-unknown") as error:
            make_corpus([mostly_unknown], tokenizer, output, OPTIONS, workers, reported.append)
        messages.append(str(error.value))
        # With several workers, any number of other units may finish in the meantime.
        if workers == 1:
            assert reported[-1].text_bytes < Path(mostly_unknown).stat().st_size / 2
        assert not list(output.iterdir())
    assert messages[0] == messages[1]
    assert "unknown to the tokenizer ([UNK]), such as 'мир', '是'." in messages[0]
    assert "for the text's language and script" in messages[0]


def test_unknown_tokens_of_an_allowed_corpus_are_counted(
    mostly_unknown, tokenizer, tmp_path, caplog
):
    make_corpus([mostly_unknown], tokenizer, tmp_path / "out", OPTIONS, 1, allow_unknown=True)
    share = read_manifest(tmp_path / "out").train.unknown_share
    assert share == 2 * 50 / (5 * 50 + 10)
    assert f"{share:.1%} of " in caplog.text


def test_shards_finished_before_a_refusal_are_kept(tokenizer, tmp_path):
    texts = [KNOWN] * 60 + [UNKNOWN] * 120
    inputs, output = [write_texts(tmp_path / "mixed.jsonl", texts)], tmp_path / "out"
    with pytest.raises(ValueError, match="21.2% of 34,840 tokens are unknown"):
        make_corpus(inputs, tokenizer, output, OPTIONS, 1)
    assert list(output.glob(".work/*.arrayrecord"))
    reported: list[Progress] = []
    manifest = make_corpus(
        inputs, tokenizer, output, OPTIONS, 1, reported.append, allow_unknown=True
    )
    assert reported[-1].new_shards < reported[-1].shards == len(manifest.train.shards)


class Stopped(Exception):
    """An exception that a progress callback raises to stop a preparation."""


def test_allowed_shards_are_kept_if_the_permission_is_forgotten(
    mostly_unknown, tokenizer, tmp_path
):
    output = tmp_path / "out"

    def stop(progress: Progress) -> None:
        if progress.new_shards == 3:
            raise Stopped

    with pytest.raises(Stopped):
        make_corpus([mostly_unknown], tokenizer, output, OPTIONS, 1, stop, allow_unknown=True)
    before = set(output.glob(".work/*.arrayrecord"))
    with pytest.raises(ValueError, match="--allow-unknown"):
        make_corpus([mostly_unknown], tokenizer, output, OPTIONS, 1)
    assert before and before <= set(output.glob(".work/*.arrayrecord"))


def test_allowed_parts_are_kept_if_the_permission_is_forgotten(mostly_unknown, tokenizer, tmp_path):
    def request(*, allow_unknown: bool) -> CorpusRequest:
        return check_request(
            *([mostly_unknown], tokenizer, tmp_path / "out", OPTIONS, 1, None, ()),
            allow_unknown=allow_unknown,
        )

    make_part(request(allow_unknown=True), Part(0, 1))
    with pytest.raises(ValueError, match="--allow-unknown"):
        merge_parts(request(allow_unknown=False))
    assert merge_parts(request(allow_unknown=True)).train.num_documents == 120


def test_work_of_an_earlier_version_counts_as_a_check():
    counts = UnknownCounts(allowed=False)
    counts.add(1_000_000, None)  # Records from old versions have no count of unknown tokens.
    with pytest.raises(TooManyUnknownError) as error:
        counts.add(20_000, 20_000)
    assert not error.value.first
    with pytest.raises(TooManyUnknownError) as error:
        UnknownCounts(allowed=False).add(20_000, 20_000)
    assert error.value.first


def test_a_small_corpus_is_checked_at_its_end(tokenizer, tmp_path, caplog):
    path = write_texts(tmp_path / "small.jsonl", ["мир " * 90])
    with pytest.raises(ValueError, match="90.0% of 100 tokens are unknown"):
        make_corpus([path], tokenizer, tmp_path / "out", OPTIONS, 1)
    assert not list((tmp_path / "out").iterdir())
    path = write_texts(tmp_path / "few.jsonl", ["мир " * 89])
    make_corpus([path], tokenizer, tmp_path / "few", OPTIONS, 1)
    assert "89.9% of 99 tokens are unknown" in caplog.text


def test_a_few_unknown_tokens_cause_a_warning(tokenizer, tmp_path, caplog):
    def share_of(text: str, name: str) -> Manifest:
        path = write_texts(tmp_path / f"{name}.jsonl", [text])
        return make_corpus([path], tokenizer, tmp_path / name, OPTIONS, 1)

    assert share_of("new cat saw old dog " * 40 + "мир", "few").train.num_unknown == 1
    assert not caplog.text
    assert share_of("new cat saw old dog " * 10 + "мир", "more").train.num_unknown == 1
    assert "1.6% of 61 tokens are unknown to the tokenizer ([UNK]), such as 'мир'" in caplog.text


def load(path: Path, entries: Sequence[str], lowercase: bool | None = None) -> Tokenizer:
    path.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *entries]))
    return Tokenizer.load(path, lowercase=lowercase)


def test_messages_name_the_likely_cause(tmp_path):
    cased = load(tmp_path / "vocab.txt", ["the", "cat"], lowercase=False)
    assert unknown_words(cased, ["The the Cat cat The", "Dog"]) == ["The", "Cat", "Dog"]
    assert "no capital letters, but the tokenizer does not lowercase" in describe_unknown(
        cased, 1, 2
    )
    capitals = load(tmp_path / "vocab.txt", ["The", "cat"])
    assert "language and script" in describe_unknown(capitals, 1, 2)
    backend = json.loads(PlainTokenizer.to_str(capitals._backend))
    spaced = {f"w{number} ": 7 + number for number in range(9)}
    backend["model"]["vocab"] |= spaced
    (tmp_path / "tokenizer.json").write_text(json.dumps(backend))
    damaged = Tokenizer.load(tmp_path / "tokenizer.json")
    assert "9 of 16 tokens in the vocabulary begin or end with white space" in describe_unknown(
        damaged, 1, 2
    )
