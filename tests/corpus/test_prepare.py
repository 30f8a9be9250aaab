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
    """Each document's token ids and sentence starts, put together from its pieces in order."""
    tokens: dict[int, list] = {}
    starts: dict[int, list] = {}
    length: dict[int, int] = {}
    for index, document in enumerate(batch.piece_document.tolist()):
        piece = batch.piece(index)
        begin = length.get(document, 0)
        length[document] = begin + len(piece.token_ids)
        tokens.setdefault(document, []).append(piece.token_ids)
        starts.setdefault(document, []).extend((piece.sentence_starts + begin).tolist())
    return {
        document: (np.concatenate(parts), starts[document]) for document, parts in tokens.items()
    }


def test_no_token_is_lost_and_the_manifest_counts_right(corpus, finished, prepare_options):
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
        assert split.num_pieces == len(batch.piece_record)
        assert split.num_documents == len(documents)
        assert split.num_tokens == len(batch.tokens)
        assert split.num_sentences == len(batch.starts)
        used = np.bincount(batch.piece_record, batch.piece_length + 3)
        assert used.max() <= prepare_options.max_length
        assert split.fill_rate == pytest.approx(used.sum() / used.size / prepare_options.max_length)
        assert np.bincount(batch.piece_record).max() <= prepare_options.max_pieces
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
    # by hash, about a tenth: 3 standard deviations of a binomial
    assert abs(manifest.heldout.num_documents - 30) < 16


def test_finished_corpus_verifies_and_holds_nothing_else(corpus, finished, tokenizer):
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


def test_a_document_keeps_its_side_whatever_else_is_in_the_corpus(
    corpus, finished, tokenizer, tmp_path, prepare_options
):
    inputs, texts = corpus.inputs, corpus.texts
    make_corpus(inputs[1:], tokenizer, tmp_path, prepare_options, 1)
    alone = decode(tmp_path, read_manifest(tmp_path).heldout)
    both = decode(finished, read_manifest(finished).heldout)
    rank = {text: index for index, text in enumerate(texts)}
    lines = Path(inputs[1]).read_text().splitlines()
    order = [rank[json.loads(line)["text"]] for line in lines]
    assert {order[document] for document in alone.piece_document} == set(
        both.piece_document.tolist()
    ) & set(order)


def test_skipped_lines_are_counted_and_logged_once(
    corpus, tokenizer, tmp_path, prepare_options, write_json_lines, caplog
):
    """Also where the texts are read a second time, to see which words lose marks."""
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


def test_truncated_gzip_names_the_file_and_leaves_nothing_finished(
    corpus, tokenizer, tmp_path, prepare_options
):
    path = tmp_path / "in.jsonl.gz"
    path.write_bytes(gzip.compress(Path(corpus.inputs[0]).read_bytes())[:-2000])
    with pytest.raises(ValueError, match=r"in\.jsonl\.gz"):
        make_corpus([str(path)], tokenizer, tmp_path / "out", prepare_options, 2)
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_empty_corpus(tokenizer, tmp_path, prepare_options, write_json_lines):
    path = write_json_lines(tmp_path / "in.jsonl", ["\u200b\u200b", "\x01"])
    options = dataclasses.replace(prepare_options, heldout_fraction=0)
    with pytest.raises(ValueError, match="corpus is empty: no token in the 2 documents of 1 inp"):
        make_corpus([path], tokenizer, tmp_path / "out", options, 1)


def test_empty_splits_are_refused_with_a_share_that_works(
    tokenizer, tmp_path, prepare_options, write_json_lines, words
):
    path = write_json_lines(tmp_path / "in.jsonl", [f"the cat saw {word}." for word in words])
    output = tmp_path / "out"
    options = dataclasses.replace(prepare_options, heldout_fraction=0.001)
    with pytest.raises(ValueError, match="0.001 left none of 19 documents to evaluate") as error:
        make_corpus([path], tokenizer, output, options, 1)
    share = float(str(error.value).rpartition("Hold out ")[2].split(",")[0])
    options = dataclasses.replace(prepare_options, heldout_fraction=share)
    assert make_corpus([path], tokenizer, output, options, 1).heldout.num_documents == 1
    shutil.rmtree(output)
    options = dataclasses.replace(prepare_options, heldout_fraction=0.9999)
    with pytest.raises(ValueError, match="0.9999 left none of 19 documents to train on") as error:
        make_corpus([path], tokenizer, output, options, 1)
    share = float(str(error.value).rpartition("less than ")[2]) - 0.001
    options = dataclasses.replace(prepare_options, heldout_fraction=share)
    assert make_corpus([path], tokenizer, output, options, 1).train.num_documents >= 1


def test_text_of_ones_own_is_held_out_whole(
    corpus, tokenizer, tmp_path, prepare_options, write_json_lines, checksums
):
    other = "  ".join(corpus.texts[7].swapcase().split(" ")) + "\n"
    own = [corpus.texts[150], "A house of its own. The sea is blue.", other]
    judged = write_json_lines(tmp_path / "judged.jsonl", [*own, own[1]])
    options = dataclasses.replace(prepare_options, heldout_fraction=0)
    made = [tmp_path / str(workers) for workers in (1, 2)]
    for workers, output in enumerate(made, start=1):
        make_corpus(corpus.inputs, tokenizer, output, options, workers, heldout_inputs=[judged])
    assert checksums(made[0]) == checksums(made[1])
    manifest = read_manifest(made[0])
    # What is judged is not trained on, though both hold it.
    assert (manifest.heldout.num_documents, manifest.train.num_documents) == (3, 298)
    assert (manifest.duplicates_removed, manifest.heldout_repeats) == (1 + corpus.num_repeated, 2)
    paths = [Path(judged), *map(Path, corpus.inputs)]
    assert [source["path"] for source in manifest.sources] == list(map(str, paths))
    assert [source.get("split") for source in manifest.sources] == ["heldout", None, None]
    documents = documents_of(decode(made[0], manifest.heldout))
    plain = PlainTokenizer.from_file(str(made[0] / "tokenizer" / "tokenizer.json"))
    for number, text in enumerate(own):
        expected = plain.encode(text, add_special_tokens=False).ids
        assert documents[number][0].tolist() == expected
    # Asked for again it is there; without its held-out text it would be another corpus.
    again = make_corpus(corpus.inputs, tokenizer, made[0], options, 1, heldout_inputs=[judged])
    assert again == manifest
    with pytest.raises(ValueError, match=r"judged.jsonl is number 1, held out there and absent"):
        make_corpus(corpus.inputs, tokenizer, made[0], options, 1)
    with pytest.raises(ValueError, match=r"judged.jsonl is number 1, held out there and number 1 "):
        make_corpus([judged, *corpus.inputs], tokenizer, made[0], options, 1)


def test_a_file_that_is_held_out_is_not_one_of_its_directory(
    corpus, tokenizer, tmp_path, prepare_options
):
    options = dataclasses.replace(prepare_options, heldout_fraction=0)
    first, second = corpus.inputs
    everything, output = str(Path(first).parent), tmp_path / "out"
    manifest = make_corpus([everything], tokenizer, output, options, 1, heldout_inputs=[second])
    assert [source["path"] for source in manifest.sources] == [second, first]
    # Of the first file's 200 documents eight are in the second too.
    assert (manifest.train.num_documents, manifest.heldout.num_documents) == (192, 108)
    assert (manifest.duplicates_removed, manifest.heldout_repeats) == (0, 8)


def test_held_out_text_is_refused_in_words(
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

    refused("a share of 0.1 is to be held out .* and inputs are", [one], [same], prepare_options)
    refused("a.jsonl is named as an input to train on, and is held out", [one], [same, one])
    refused("all inputs are held out", [str(Path(one).parent)], corpus.inputs)
    refused("nothing to hold out in the 1 inputs for it: 1 documents without", [one], [blank])
    refused("nothing to train on in the 1 inputs: 1 documents that are held out", [same], [one])
    refused("nowhere.txt: does not exist", [one], ["nowhere.txt"])
    refused("the output .* lies in the input directory", [one], [str(tmp_path)])


def test_one_document_cannot_be_on_both_sides(
    tokenizer, tmp_path, prepare_options, write_json_lines
):
    path = write_json_lines(tmp_path / "in.jsonl", ["the cat."])
    for fraction in (0.001, 0.999):
        options = dataclasses.replace(prepare_options, heldout_fraction=fraction)
        with pytest.raises(ValueError, match="1 documents .* Hold out 0 to do without evaluation"):
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
    "one sentence without an end": "the cat " * 15_000,
    "one word of letters": "x" * 300_000,
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
        prepare_options, max_length=max_length, max_pieces=2, heldout_fraction=0
    )
    manifest = make_corpus([path], tokenizer, tmp_path / "out", options, 1)
    assert manifest.empty_documents == 3
    found = documents_of(decode(tmp_path / "out", manifest.train))
    plain = PlainTokenizer.from_file(str(tmp_path / "out" / "tokenizer" / "tokenizer.json"))
    plain.encode_special_tokens = True
    expected = [
        plain.encode(text, add_special_tokens=False).ids
        for name, text in ODD_TEXTS.items()
        if name != "one word of letters"
    ]
    got = [tokens.tolist() for _, (tokens, _) in sorted(found.items())]
    # a run of letters too long for one call of the tokenizer is an [UNK] for each part of it
    assert [tokenizer.unk_id] * 2 in got
    got.remove([tokenizer.unk_id] * 2)
    assert got == [ids for ids in expected if ids]
    assert all(starts[0] == 0 for _, starts in found.values())


def test_a_vocabulary_over_65536_takes_four_bytes_a_token(
    tmp_path, prepare_options, write_json_lines
):
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
        ({"max_length": 7}, "max_length is 7; expected 8 to 65535"),
        ({"max_length": 70_000}, "max_length is 70000; expected 8 to 65535"),
        ({"max_pieces": 0}, "max_pieces is 0; expected 1 to 16"),
        ({"max_pieces": 17}, "max_pieces is 17; expected 1 to 16"),
        ({"heldout_fraction": 1.0}, "heldout_fraction is 1.0; expected .* below 1"),
        ({"heldout_fraction": -0.1}, "heldout_fraction is -0.1"),
        ({"unit_bytes": 1}, "unit_bytes is 1; expected at least 1024"),
        ({"language": "tlh"}, "no sentence rules for language 'tlh'"),
    ],
)
def test_bad_options(change, message, prepare_options):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(prepare_options, **change)


def test_no_workers(corpus, tokenizer, tmp_path, prepare_options):
    with pytest.raises(ValueError, match="num_workers is 0; expected at least 1"):
        make_corpus(corpus.inputs, tokenizer, tmp_path / "out", prepare_options, 0)
    with pytest.raises(ValueError, match="num_workers=10000000: that many worker processes need"):
        make_corpus(corpus.inputs, tokenizer, tmp_path / "out", prepare_options, 10_000_000)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("max_length", [128, 512])
def test_real_english(shared_data, tmp_path, max_length):
    tokenizer = Tokenizer.load(shared_data / "vocab" / "bert-base-uncased" / "vocab.txt")
    inputs = [str(shared_data / "corpus_small" / "*.jsonl.xz")]
    options = PrepareOptions(max_length=max_length, heldout_fraction=0)
    states = []
    manifest = make_corpus(inputs, tokenizer, tmp_path / "out", options, 2, states.append)
    assert manifest.train.num_documents == 15 + 365
    # of a plain tokenizers loop over the lines of the books and of the articles
    assert manifest.train.num_tokens == 1_319_572 + 708_553
    assert manifest.train.fill_rate >= 0.99
    assert states[-1].peak_worker_memory < 1 << 30
