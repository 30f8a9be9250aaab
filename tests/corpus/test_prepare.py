import dataclasses
import gzip
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from array_record.python.array_record_module import ArrayRecordReader
from tokenizers import Tokenizer as PlainTokenizer

from bert_jax.corpus.inputs import PrepareOptions
from bert_jax.corpus.manifest import read_manifest, verify_shards
from bert_jax.corpus.prepare import make_corpus
from bert_jax.corpus.records import decode_records
from bert_jax.text.documents import SourceOptions
from bert_jax.tokenizers.tokenizer import Tokenizer


def decode(directory, split):
    blobs = []
    for shard in split.shards:
        reader = ArrayRecordReader(str(Path(directory, shard.name)))
        blobs += reader.read_all()
        assert reader.num_records() == shard.num_records
        reader.close()
    return decode_records(blobs, 2)


def documents_of(batch):
    """Return each document's token ids and sentence starts, concatenated from its fragments."""
    tokens: dict[int, list] = {}
    starts: dict[int, list] = {}
    length: dict[int, int] = {}
    for index, document in enumerate(batch.fragment_document.tolist()):
        fragment = batch.fragment(index)
        begin = length.get(document, 0)
        length[document] = begin + len(fragment.token_ids)
        tokens.setdefault(document, []).append(fragment.token_ids)
        starts.setdefault(document, []).extend((fragment.sentence_starts + begin).tolist())
    return {
        document: (np.concatenate(parts), starts[document]) for document, parts in tokens.items()
    }


def test_no_token_is_lost_and_the_manifest_has_the_right_counts(corpus, finished, prepare_options):
    texts = corpus.texts
    manifest = read_manifest(finished)
    plain = PlainTokenizer.from_file(str(finished / "tokenizer" / "tokenizer.json"))
    plain.encode_special_tokens = True
    full_stop = plain.token_to_id(".")
    seen = {}
    for split in (manifest.train, manifest.heldout):
        batch = decode(finished, split)
        documents = documents_of(batch)
        assert split.num_records == batch.num_records
        assert split.num_fragments == len(batch.fragment_record)
        assert split.num_documents == len(documents)
        assert split.num_tokens == len(batch.tokens)
        assert split.num_sentences == len(batch.starts)
        used = np.bincount(batch.fragment_record, batch.fragment_length + 3)
        assert used.max() <= prepare_options.max_length
        assert split.fill_rate == pytest.approx(used.sum() / used.size / prepare_options.max_length)
        assert np.bincount(batch.fragment_record).max() <= prepare_options.max_fragments
        seen |= documents
    assert len(seen) == len(texts)
    for document, text in enumerate(texts):
        tokens, starts = seen[document]
        expected = plain.encode(text, add_special_tokens=False).ids
        assert tokens.tolist() == expected
        stops = [index + 1 for index, token in enumerate(expected) if token == full_stop]
        assert starts == [0, *stops[:-1]]
    assert manifest.duplicates_removed == corpus.num_repeated
    assert manifest.empty_documents == manifest.bad_lines_skipped == manifest.documents_split == 0
    # A hash selects about a tenth of the documents. The tolerance is three standard deviations of a
    # binomial distribution.
    assert abs(manifest.heldout.num_documents - 30) < 16


def test_a_finished_corpus_is_verified_and_contains_nothing_else(corpus, finished, tokenizer):
    manifest = read_manifest(finished)
    verify_shards(finished, manifest)
    assert manifest.tokenizer_fingerprint == tokenizer.fingerprint
    assert Tokenizer.load(finished / "tokenizer").fingerprint == tokenizer.fingerprint
    assert [source["path"] for source in manifest.sources] == corpus.inputs
    assert manifest.options["language"] == "en"
    shards = {shard.name for split in (manifest.train, manifest.heldout) for shard in split.shards}
    assert len(shards) > 10
    assert {path.name for path in finished.iterdir()} == {*shards, "tokenizer", "manifest.json"}


@pytest.mark.parametrize("num_workers", [2, 3])
def test_bytes_do_not_depend_on_the_number_of_workers(
    corpus, finished, tokenizer, tmp_path, num_workers, prepare_options, checksums
):
    make_corpus(corpus.inputs, tokenizer, tmp_path, prepare_options, num_workers)
    assert checksums(tmp_path) == checksums(finished)


def test_the_split_of_a_document_does_not_depend_on_other_documents(
    corpus, finished, tokenizer, tmp_path, prepare_options
):
    inputs, texts = corpus.inputs, corpus.texts
    make_corpus(inputs[1:], tokenizer, tmp_path, prepare_options, 1)
    second_file = decode(tmp_path, read_manifest(tmp_path).heldout)
    both_files = decode(finished, read_manifest(finished).heldout)
    rank = {text: index for index, text in enumerate(texts)}
    lines = Path(inputs[1]).read_text().splitlines()
    order = [rank[json.loads(line)["text"]] for line in lines]
    assert {order[document] for document in second_file.fragment_document} == set(
        both_files.fragment_document.tolist()
    ) & set(order)


def test_skipped_lines_are_counted_and_logged_once(
    corpus, tokenizer, tmp_path, prepare_options, write_json_lines, caplog
):
    """Check that skipped lines are logged once, although stripping accents requires two passes."""
    assert tokenizer.strips_accents
    path = tmp_path / "in.jsonl"
    write_json_lines(path, corpus.texts)
    with path.open("ab") as file:
        file.write(b'{"text": "\xff"}\n{"title": "none"}\n{"text": "Fine."}\n')
    options = dataclasses.replace(prepare_options, sources=SourceOptions(on_bad_line="skip"))
    empty = tmp_path / "empty.jsonl"
    empty.touch()
    manifest = make_corpus([str(empty), str(path)], tokenizer, tmp_path / "out", options, 1)
    assert (manifest.bad_lines_skipped, manifest.empty_files_skipped) == (2, 1)
    assert caplog.text.count("skipped ") == 3
    assert read_manifest(tmp_path / "out") == manifest
    assert manifest.train.num_documents + manifest.heldout.num_documents == len(corpus.texts) + 1


def test_a_truncated_input_is_named_and_leaves_no_finished_corpus(
    corpus, tokenizer, tmp_path, prepare_options
):
    path = tmp_path / "in.jsonl.gz"
    path.write_bytes(gzip.compress(Path(corpus.inputs[0]).read_bytes())[:-2000])
    with pytest.raises(ValueError, match=r"in\.jsonl\.gz"):
        make_corpus([str(path)], tokenizer, tmp_path / "out", prepare_options, 2)
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_an_empty_corpus_is_refused(tokenizer, tmp_path, prepare_options, write_json_lines):
    path = write_json_lines(tmp_path / "in.jsonl", ["\u200b\u200b", "\x01"])
    options = dataclasses.replace(prepare_options, heldout_fraction=0)
    with pytest.raises(
        ValueError, match="would be empty, since the 2 documents in 1 inputs contain no"
    ):
        make_corpus([path], tokenizer, tmp_path / "out", options, 1)


def test_errors_for_empty_splits_suggest_a_share_that_works(
    tokenizer, tmp_path, prepare_options, write_json_lines, words
):
    path = write_json_lines(tmp_path / "in.jsonl", [f"the cat saw {word}." for word in words])
    output = tmp_path / "out"
    options = dataclasses.replace(prepare_options, heldout_fraction=0.001)
    with pytest.raises(ValueError, match="=0.001: leaves none of 19 documents to eval") as error:
        make_corpus([path], tokenizer, output, options, 1)
    share = float(str(error.value).rpartition("Hold out ")[2].split(",")[0])
    options = dataclasses.replace(prepare_options, heldout_fraction=share)
    assert make_corpus([path], tokenizer, output, options, 1).heldout.num_documents == 1
    shutil.rmtree(output)
    options = dataclasses.replace(prepare_options, heldout_fraction=0.9999)
    with pytest.raises(ValueError, match="=0.9999: leaves none of 19 documents to train") as error:
        make_corpus([path], tokenizer, output, options, 1)
    share = float(str(error.value).rpartition("less than ")[2].removesuffix(".")) - 0.001
    options = dataclasses.replace(prepare_options, heldout_fraction=share)
    assert make_corpus([path], tokenizer, output, options, 1).train.num_documents >= 1


def test_held_out_inputs_are_held_out_completely(
    corpus, tokenizer, tmp_path, prepare_options, write_json_lines, checksums
):
    other = "  ".join(corpus.texts[7].swapcase().split(" ")) + "\n"
    own = [corpus.texts[150], "A house of its own. The sea is blue.", other]
    heldout_input = write_json_lines(tmp_path / "heldout.jsonl", [*own, own[1]])
    options = dataclasses.replace(prepare_options, heldout_fraction=0)
    outputs = [tmp_path / str(workers) for workers in (1, 2)]
    for workers, output in enumerate(outputs, start=1):
        make_corpus(
            corpus.inputs, tokenizer, output, options, workers, heldout_inputs=[heldout_input]
        )
    assert checksums(outputs[0]) == checksums(outputs[1])
    manifest = read_manifest(outputs[0])
    # Documents that also occur in the held-out input are removed from the training set.
    assert (manifest.heldout.num_documents, manifest.train.num_documents) == (3, 298)
    assert (manifest.duplicates_removed, manifest.heldout_repeats) == (1 + corpus.num_repeated, 2)
    paths = [Path(heldout_input), *map(Path, corpus.inputs)]
    assert [source["path"] for source in manifest.sources] == list(map(str, paths))
    assert [source.get("split") for source in manifest.sources] == ["heldout", None, None]
    documents = documents_of(decode(outputs[0], manifest.heldout))
    plain = PlainTokenizer.from_file(str(outputs[0] / "tokenizer" / "tokenizer.json"))
    for number, text in enumerate(own):
        expected = plain.encode(text, add_special_tokens=False).ids
        assert documents[number][0].tolist() == expected
    # If the call is repeated, the finished corpus is accepted; a different held-out input is
    # rejected.
    repeated = make_corpus(
        corpus.inputs, tokenizer, outputs[0], options, 1, heldout_inputs=[heldout_input]
    )
    assert repeated == manifest
    with pytest.raises(ValueError, match=r"heldout.jsonl was number 1, held out and is now absent"):
        make_corpus(corpus.inputs, tokenizer, outputs[0], options, 1)
    with pytest.raises(ValueError, match=r"heldout.jsonl was number 1, held out and is now number"):
        make_corpus([heldout_input, *corpus.inputs], tokenizer, outputs[0], options, 1)


def test_a_held_out_file_is_removed_from_its_directory(
    corpus, tokenizer, tmp_path, prepare_options
):
    options = dataclasses.replace(prepare_options, heldout_fraction=0)
    first, second = corpus.inputs
    everything, output = str(Path(first).parent), tmp_path / "out"
    manifest = make_corpus([everything], tokenizer, output, options, 1, heldout_inputs=[second])
    assert [source["path"] for source in manifest.sources] == [second, first]
    # Eight of the first file's 200 documents are also in the second file.
    assert (manifest.train.num_documents, manifest.heldout.num_documents) == (192, 108)
    assert (manifest.duplicates_removed, manifest.heldout_repeats) == (0, 8)


def test_unusable_held_out_inputs_are_refused(
    corpus, tokenizer, tmp_path, prepare_options, write_json_lines
):
    options = dataclasses.replace(prepare_options, heldout_fraction=0)
    output, one = tmp_path / "out", corpus.inputs[0]
    blank = write_json_lines(tmp_path / "blank.jsonl", ["\u200b"])
    same = write_json_lines(tmp_path / "same.jsonl", [corpus.texts[3]])

    def refused(message, inputs, heldout_inputs, options=options):
        with pytest.raises(ValueError, match=message):
            make_corpus(inputs, tokenizer, output, options, 1, heldout_inputs=heldout_inputs)
        assert not (output / "manifest.json").exists()

    refused(
        "heldout_fraction=0.1: cannot be combined with held-out", [one], [same], prepare_options
    )
    refused("a.jsonl: this is both an input and a held-out input", [one], [same, one])
    refused("All inputs are held out", [str(Path(one).parent)], corpus.inputs)
    refused("nothing to evaluate on, since the 1 documents in 1 inputs", [one], [blank])
    refused("nothing to train on in 1 inputs: 1 documents are held out", [same], [one])
    refused("nowhere.txt: no such file or directory", [one], ["nowhere.txt"])
    refused("output=.*: this is inside the input directory", [one], [str(tmp_path)])


def test_one_document_cannot_be_in_both_splits(
    tokenizer, tmp_path, prepare_options, write_json_lines
):
    path = write_json_lines(tmp_path / "in.jsonl", ["the cat."])
    for fraction in (0.001, 0.999):
        options = dataclasses.replace(prepare_options, heldout_fraction=fraction)
        with pytest.raises(ValueError, match="1 documents .* Hold out 0 for no evaluation"):
            make_corpus([path], tokenizer, tmp_path / "out", options, 1)


def test_documents_without_tokens_are_counted(
    tokenizer, tmp_path, prepare_options, write_json_lines
):
    path = write_json_lines(tmp_path / "in.jsonl", ["the cat.", "\u200b", "the dog."])
    options = dataclasses.replace(prepare_options, heldout_fraction=0)
    manifest = make_corpus([path], tokenizer, tmp_path / "out", options, 1)
    assert (manifest.train.num_documents, manifest.empty_documents) == (2, 1)
    assert manifest.heldout.shards == ()


ODD_TEXTS = {
    "one token": "cat",
    "one character": "é",
    "punctuation": ".",
    "a NUL within": "the\0cat \0 dog",
    "one sentence without a full stop": "the cat " * 15_000,
    "one long word": "x" * 300_000,
    "special tokens spelled out": "[MASK] [SEP]",
    "CJK without a space": "中文" * 5_000,
    "line separators": "the\u2028cat\u2029dog\x85house",
    "no token: NUL": "\0",
    "no token: zero width": "\u200b\ufeff",
    "no token: white space": " \n\t\u3000 ",
}


@pytest.mark.parametrize("max_length", [8, 512])
def test_odd_documents_keep_every_token(
    tokenizer, tmp_path, prepare_options, write_json_lines, max_length
):
    path = write_json_lines(tmp_path / "in.jsonl", list(ODD_TEXTS.values()))
    options = dataclasses.replace(
        prepare_options, max_length=max_length, max_documents_per_record=2, heldout_fraction=0
    )
    manifest = make_corpus([path], tokenizer, tmp_path / "out", options, 1)
    assert manifest.empty_documents == 3
    documents = documents_of(decode(tmp_path / "out", manifest.train))
    plain = PlainTokenizer.from_file(str(tmp_path / "out" / "tokenizer" / "tokenizer.json"))
    plain.encode_special_tokens = True
    expected = [
        plain.encode(text, add_special_tokens=False).ids
        for name, text in ODD_TEXTS.items()
        if name != "one long word"
    ]
    token_ids = [tokens.tolist() for _, (tokens, _) in sorted(documents.items())]
    # A word that is too long for one tokenizer call becomes one [UNK] per part.
    assert [tokenizer.unk_id] * 2 in token_ids
    token_ids.remove([tokenizer.unk_id] * 2)
    assert token_ids == [ids for ids in expected if ids]
    assert all(starts[0] == 0 for _, starts in documents.values())


def test_token_ids_over_65535_are_stored_in_four_bytes(tmp_path, prepare_options, write_json_lines):
    path = tmp_path / "vocab.txt"
    entries = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{n}" for n in range(69_998))]
    path.write_text("\n".join([*entries, "last"]))
    inputs = [write_json_lines(tmp_path / "in.jsonl", ["last w0"])]
    options = dataclasses.replace(prepare_options, heldout_fraction=0)
    manifest = make_corpus(inputs, Tokenizer.load(path), tmp_path / "out", options, 1)
    assert manifest.token_bytes == 4
    reader = ArrayRecordReader(str(tmp_path / "out" / "train-00000.arrayrecord"))
    assert decode_records(reader.read_all(), 4).tokens.tolist() == [70_003, 5]
    reader.close()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_length": 7}, "max_length=7: expected 8 to 65535"),
        ({"max_length": 70_000}, "max_length=70000: expected 8 to 65535"),
        ({"max_documents_per_record": 0}, "max_documents_per_record=0: expected 1 to 16"),
        ({"max_documents_per_record": 17}, "max_documents_per_record=17: expected 1 to 16"),
        ({"heldout_fraction": 1.0}, "heldout_fraction=1.0: expected a fraction .* less than 1"),
        ({"heldout_fraction": -0.1}, "heldout_fraction=-0.1: expected"),
        ({"unit_bytes": 1}, "unit_bytes=1: expected at least 1024"),
        ({"language": "tlh"}, "language='tlh': there are no sentence rules for this language"),
    ],
)
def test_invalid_options_are_refused(change, message, prepare_options):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(prepare_options, **change)


def test_an_impossible_number_of_workers_is_refused(corpus, tokenizer, tmp_path, prepare_options):
    with pytest.raises(ValueError, match="num_workers=0: expected at least 1"):
        make_corpus(corpus.inputs, tokenizer, tmp_path / "out", prepare_options, 0)
    with pytest.raises(ValueError, match="num_workers=10000000: that many worker processes need"):
        make_corpus(corpus.inputs, tokenizer, tmp_path / "out", prepare_options, 10_000_000)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.parametrize("max_length", [128, 512])
def test_real_english_is_packed_tightly(shared_data, tmp_path, max_length):
    tokenizer = Tokenizer.load(shared_data / "vocab" / "bert-base-uncased" / "vocab.txt")
    inputs = [str(shared_data / "corpus_small" / "*.jsonl.xz")]
    options = PrepareOptions(max_length=max_length, heldout_fraction=0)
    states = []
    manifest = make_corpus(inputs, tokenizer, tmp_path / "out", options, 2, states.append)
    assert manifest.train.num_documents == 15 + 365
    # The token counts come from a simple loop over the lines of the books and articles, using the
    # tokenizers library.
    assert manifest.train.num_tokens == 1_319_572 + 708_553
    assert manifest.train.fill_rate >= 0.99
    assert states[-1].peak_worker_memory < 1 << 30
