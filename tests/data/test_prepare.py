import dataclasses
import gzip
import hashlib
import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from array_record.python.array_record_module import ArrayRecordReader
from tokenizers import Tokenizer as PlainTokenizer

from bert_jax.data.manifest import read_manifest, verify_shards
from bert_jax.data.prepare import prepare
from bert_jax.data.prepare_options import PrepareOptions
from bert_jax.data.records import decode_records
from bert_jax.data.sources import SourceOptions
from bert_jax.data.tokenizer import Tokenizer
from bert_jax.data.workspace import Workspace

WORDS = "the a of cat dog house sea tree run ran see saw old new red blue and or not".split()
OPTIONS = PrepareOptions(max_length=64, max_pieces=4, heldout_fraction=0.1, unit_bytes=64 << 10)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    path = tmp_path_factory.mktemp("tokenizer") / "vocab.txt"
    entries = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *".,![]", *WORDS[2:], *letters]
    path.write_text("\n".join([*entries, *(f"##{letter}" for letter in letters)]))
    return Tokenizer.load(path)


def random_texts(seed, count):
    """Documents of 1 to 60 sentences; every tenth is long, and one spells out special tokens.

    No sentence ends in what could be an abbreviation or an initial.
    """
    rng = random.Random(seed)
    texts = ["The cat saw [MASK] and [SEP]. It ran."]
    for index in range(count - 1):
        sentences = [
            " ".join(rng.choices([*WORDS, "zebra", "quick,"], k=rng.randint(1, 30))).capitalize()
            + " house"
            for _ in range(rng.randint(1, 600 if index % 10 == 0 else 60))
        ]
        texts.append(f"{index} " + ". ".join(sentences) + ".")
    return texts


def write_jsonl(path, texts):
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return str(path)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Input files, and the distinct texts in them in order."""
    directory = tmp_path_factory.mktemp("corpus")
    texts = random_texts(0, 300)
    repeated = texts[:5] + texts[100:103]
    inputs = [
        write_jsonl(directory / "a.jsonl", texts[:200]),
        write_jsonl(directory / "b.jsonl", repeated + texts[200:]),
    ]
    return inputs, texts, len(repeated)


@pytest.fixture(scope="module")
def finished(corpus, tokenizer, tmp_path_factory):
    """The corpus prepared by one worker without an interruption."""
    directory = tmp_path_factory.mktemp("finished") / "out"
    prepare(corpus[0], tokenizer, directory, OPTIONS, num_workers=1)
    return directory


def files(directory):
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(Path(directory).rglob("*"))
        if path.is_file()
    }


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
    for index, document in enumerate(batch.piece_document.tolist()):
        piece = batch.piece(index)
        begin = sum(map(len, tokens.setdefault(document, [])))
        tokens[document].append(piece.token_ids)
        starts.setdefault(document, []).extend((piece.sentence_starts + begin).tolist())
    return {
        document: (np.concatenate(parts), starts[document]) for document, parts in tokens.items()
    }


def test_no_token_is_lost_and_the_manifest_counts_right(corpus, finished):
    _, texts, repeated = corpus
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
        assert used.max() <= OPTIONS.max_length
        assert split.fill_rate == pytest.approx(used.sum() / used.size / OPTIONS.max_length)
        assert np.bincount(batch.piece_record).max() <= OPTIONS.max_pieces
        seen |= documents
    assert len(seen) == len(texts)
    for document, text in enumerate(texts):
        tokens, starts = seen[document]
        expected = plain.encode(text, add_special_tokens=False).ids
        assert tokens.tolist() == expected
        stops = [index + 1 for index, token in enumerate(expected) if token == full_stop]
        assert starts == [0, *stops[:-1]]
    assert manifest.duplicates_removed == repeated
    assert manifest.empty_documents == manifest.bad_lines_skipped == manifest.documents_split == 0
    # by hash, about a tenth: 3 standard deviations of a binomial
    assert abs(manifest.heldout.num_documents - 30) < 16


def test_finished_corpus_verifies_and_holds_nothing_else(corpus, finished, tokenizer):
    manifest = read_manifest(finished)
    verify_shards(finished, manifest)
    assert manifest.tokenizer_fingerprint == tokenizer.fingerprint
    assert Tokenizer.load(finished / "tokenizer").fingerprint == tokenizer.fingerprint
    assert [source["path"] for source in manifest.sources] == corpus[0]
    assert manifest.options["language"] == "en"
    shards = {shard.name for split in (manifest.train, manifest.heldout) for shard in split.shards}
    assert len(shards) > 10
    assert {path.name for path in finished.iterdir()} == {*shards, "tokenizer", "manifest.json"}


@pytest.mark.parametrize("num_workers", [2, 3])
def test_bytes_do_not_depend_on_the_number_of_workers(
    corpus, finished, tokenizer, tmp_path, num_workers
):
    prepare(corpus[0], tokenizer, tmp_path, OPTIONS, num_workers)
    assert files(tmp_path) == files(finished)


def test_a_document_keeps_its_side_whatever_else_is_in_the_corpus(
    corpus, finished, tokenizer, tmp_path
):
    inputs, texts, _ = corpus
    prepare(inputs[1:], tokenizer, tmp_path, OPTIONS, 1)
    alone = decode(tmp_path, read_manifest(tmp_path).heldout)
    both = decode(finished, read_manifest(finished).heldout)
    rank = {text: index for index, text in enumerate(texts)}
    lines = Path(inputs[1]).read_text().splitlines()
    order = [rank[json.loads(line)["text"]] for line in lines]
    assert {order[document] for document in alone.piece_document} == set(
        both.piece_document.tolist()
    ) & set(order)


def test_finished_is_left_alone(corpus, finished, tokenizer):
    before = {path: path.stat().st_mtime_ns for path in finished.rglob("*")}
    shown = []
    manifest = prepare(corpus[0], tokenizer, finished, OPTIONS, 2, shown.append)
    assert manifest == read_manifest(finished)
    assert not shown
    assert {path: path.stat().st_mtime_ns for path in finished.rglob("*")} == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_length": 128}, "max_length is 64 there and 128 here"),
        ({"heldout_fraction": 0.2}, "heldout_fraction is 0.1 there and 0.2 here"),
        ({"language": "de"}, "language is en there and de here"),
    ],
)
def test_finished_with_other_options_is_refused(corpus, finished, tokenizer, change, message):
    options = dataclasses.replace(OPTIONS, **change)
    with pytest.raises(ValueError, match=f"holds a finished corpus.*{message}.*another output"):
        prepare(corpus[0], tokenizer, finished, options, 1)


def test_finished_from_other_inputs_is_refused(corpus, finished, tokenizer):
    with pytest.raises(ValueError, match=r"b.jsonl is number 2 there and absent here"):
        prepare(corpus[0][:1], tokenizer, finished, OPTIONS, 1)


class Stopped(Exception):
    """Ends a preparation from its progress callback."""


def stop_after(num_shards):
    def progress(state):
        if state.new_shards >= num_shards:
            raise Stopped

    return progress


def stopped(corpus, tokenizer, directory, num_shards=4):
    with pytest.raises(Stopped):
        prepare(corpus[0], tokenizer, directory, OPTIONS, 2, stop_after(num_shards))
    assert not multiprocessing.active_children()


def test_continues_with_the_finished_shards(corpus, finished, tokenizer, tmp_path):
    stopped(corpus, tokenizer, tmp_path)
    with pytest.raises(ValueError, match="is not finished: run the same `bert-jax prepare` again"):
        read_manifest(tmp_path)
    work = tmp_path / ".work"
    made = {path.stem for path in work.glob("*.json") if path.stem != "plan"}
    damaged, truncated, *whole = sorted(made)
    inodes = {name: (work / f"{name}.arrayrecord").stat().st_ino for name in whole}
    content = bytearray((work / f"{damaged}.arrayrecord").read_bytes())
    content[len(content) // 2] ^= 1
    (work / f"{damaged}.arrayrecord").write_bytes(content)
    (work / f"{truncated}.json").write_text("{")
    (work / "train-00099.arrayrecord.1.tmp").write_text("half")
    states = []
    prepare(corpus[0], tokenizer, tmp_path, OPTIONS, 2, states.append)
    assert states[-1].shards - states[-1].new_shards == len(whole) >= 1
    assert states[-1].fraction == pytest.approx(1)
    assert files(tmp_path) == files(finished)
    assert inodes == {name: (tmp_path / f"{name}.arrayrecord").stat().st_ino for name in whole}


def test_continuing_with_other_options_is_refused(corpus, tokenizer, tmp_path):
    stopped(corpus, tokenizer, tmp_path, 1)
    options = dataclasses.replace(OPTIONS, max_pieces=2, unit_bytes=1 << 20)
    message = (
        "unfinished preparation of something else: max_pieces is 4 there and 2 here; "
        "unit_bytes is 65536 there and 1048576 here. Repeat that one .* delete .*/.work to begin"
    )
    with pytest.raises(ValueError, match=message):
        prepare(corpus[0], tokenizer, tmp_path, options, 1)


def test_a_mended_input_is_taken_up_where_it_failed(corpus, tokenizer, tmp_path):
    texts = corpus[1]
    path = tmp_path / "in.jsonl"
    write_jsonl(path, texts)
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines[:250], '{"text": \n', *lines[250:]]))
    with pytest.raises(ValueError, match=r"in\.jsonl:251: .*--on-bad-line skip"):
        prepare([str(path)], tokenizer, tmp_path / "out", OPTIONS, 2)
    path.write_text("".join(lines))
    states = []
    prepare([str(path)], tokenizer, tmp_path / "out", OPTIONS, 2, states.append)
    assert states[-1].new_shards < states[-1].shards
    prepare([str(path)], tokenizer, tmp_path / "new", OPTIONS, 2)
    assert files(tmp_path / "out") == files(tmp_path / "new")


def test_skipped_lines_are_counted(corpus, tokenizer, tmp_path):
    path = tmp_path / "in.jsonl"
    write_jsonl(path, corpus[1])
    with path.open("ab") as file:
        file.write(b'{"text": "\xff"}\n{"title": "none"}\n{"text": "Fine."}\n')
    options = dataclasses.replace(OPTIONS, sources=SourceOptions(on_bad_line="skip"))
    manifest = prepare([str(path)], tokenizer, tmp_path / "out", options, 1)
    assert manifest.bad_lines_skipped == 2
    assert manifest.train.num_documents + manifest.heldout.num_documents == len(corpus[1]) + 1


def test_output_that_holds_something_else_is_refused(corpus, tokenizer, tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(ValueError, match="is not empty and holds no preparation to continue"):
        prepare(corpus[0], tokenizer, tmp_path, OPTIONS, 1)
    with pytest.raises(ValueError, match=r"thesis\.txt is a file; the output of prepare is a dir"):
        prepare(corpus[0], tokenizer, tmp_path / "thesis.txt", OPTIONS, 1)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_two_preparations_of_one_directory(corpus, tokenizer, tmp_path):
    plan = {"tokenizer_fingerprint": "", "options": {"libraries": {}}, "sources": []}
    with (
        Workspace(tmp_path, plan),
        pytest.raises(ValueError, match="another preparation is writing to"),
    ):
        prepare(corpus[0], tokenizer, tmp_path, OPTIONS, 1)


def test_a_killed_worker_is_reported_and_its_unit_made_again(corpus, finished, tokenizer, tmp_path):
    def kill_one(state):
        child = multiprocessing.active_children()[0]
        os.kill(child.pid, signal.SIGKILL)

    with pytest.raises(
        OSError, match=r"preparing (train|heldout)-\d+ was killed by SIGKILL; .*mem"
    ):
        prepare(corpus[0], tokenizer, tmp_path, OPTIONS, 1, kill_one)
    assert not multiprocessing.active_children()
    assert not (tmp_path / "manifest.json").exists()
    prepare(corpus[0], tokenizer, tmp_path, OPTIONS, 1)
    assert files(tmp_path) == files(finished)


def command(inputs, tokenizer_directory, output):
    return [
        *(sys.executable, "-m", "bert_jax.cli.main", "prepare", "--input", *inputs),
        *("--tokenizer", str(tokenizer_directory), "--output", str(output), "--workers", "2"),
        *("--max-length", "64", "--max-documents-per-record", "4", "--held-out", "0.1"),
        *("--unit-bytes", str(64 << 10)),
    ]


def children(process_id):
    """Processes whose parent is `process_id`, by Linux's /proc."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended
        if int(fields[1]) == process_id:
            found.append(int(stat.parent.name))
    return found


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes in /proc")
def test_sigkill_at_any_moment(corpus, finished, tmp_path):
    output = tmp_path / "out"
    words = command(corpus[0], finished / "tokenizer", output)
    for shards_before_kill in (0, 3, 9):
        process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        while len(list(output.glob(".work/*.json"))) < 1 + shards_before_kill:
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.005)
        workers = children(process.pid)
        process.kill()
        process.wait()
        process.stderr.close()
        assert not (output / "manifest.json").exists()
        deadline = time.monotonic() + 5  # workers go with their parent
        while any(Path(f"/proc/{worker}/exe").exists() for worker in workers):
            assert time.monotonic() < deadline
            time.sleep(0.01)
    run = subprocess.run(words, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert "shards were there" in run.stdout
    assert files(output) == files(finished)
    again = subprocess.run(words, capture_output=True, text=True)
    assert again.returncode == 0
    assert f"{output} was finished before: nothing to do" in again.stdout


def test_disk_full(corpus, finished, tmp_path):
    output = tmp_path / "out"
    words = command(corpus[0], finished / "tokenizer", output)

    # the nearest to a full disk that needs no rights: no file may grow over 64 KiB
    limit = "import os, resource as r, sys; r.setrlimit(r.RLIMIT_FSIZE, (1 << 16, 1 << 16)); "
    limited = [sys.executable, "-c", limit + "os.execv(sys.argv[1], sys.argv[1:])", *words]
    run = subprocess.run(limited, capture_output=True, text=True)
    assert run.returncode == 2
    assert "cannot be written: " in run.stderr and "File too large" in run.stderr
    assert f"The finished shards are kept in {output}/.work" in run.stderr
    assert "Traceback" not in run.stderr
    assert not (output / "manifest.json").exists()
    assert not list(output.rglob("*.arrayrecord"))
    assert subprocess.run(words, stdout=subprocess.DEVNULL).returncode == 0
    assert files(output) == files(finished)


def test_interrupt(corpus, finished, tmp_path):
    output = tmp_path / "out"
    # a suite run in the background ignores SIGINT, and so would what it starts
    heed = "import os, signal as s, sys; s.signal(s.SIGINT, s.SIG_DFL); "
    words = command(corpus[0], finished / "tokenizer", output)
    process = subprocess.Popen(
        [sys.executable, "-c", heed + "os.execv(sys.argv[1], sys.argv[1:])", *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    while not list(output.glob(".work/*-00000.json")):
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    assert process.communicate()[1].strip() == "bert-jax: interrupted"
    assert process.returncode == 130
    assert not (output / "manifest.json").exists()


def test_truncated_gzip_names_the_file_and_leaves_nothing_finished(corpus, tokenizer, tmp_path):
    path = tmp_path / "in.jsonl.gz"
    path.write_bytes(gzip.compress(Path(corpus[0][0]).read_bytes())[:-2000])
    with pytest.raises(ValueError, match=r"in\.jsonl\.gz"):
        prepare([str(path)], tokenizer, tmp_path / "out", OPTIONS, 2)
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_empty_corpus(tokenizer, tmp_path):
    path = write_jsonl(tmp_path / "in.jsonl", ["\u200b\u200b", "\x01"])
    options = dataclasses.replace(OPTIONS, heldout_fraction=0)
    with pytest.raises(ValueError, match="corpus is empty: no token in the 2 documents of 1 inp"):
        prepare([path], tokenizer, tmp_path / "out", options, 1)


def test_empty_splits_are_refused_with_a_share_that_works(tokenizer, tmp_path):
    path = write_jsonl(tmp_path / "in.jsonl", [f"the cat saw {word}." for word in WORDS])
    output = tmp_path / "out"
    options = dataclasses.replace(OPTIONS, heldout_fraction=0.001)
    with pytest.raises(ValueError, match="0.001 left none of 19 documents to evaluate") as error:
        prepare([path], tokenizer, output, options, 1)
    share = float(str(error.value).rpartition("Hold out ")[2].split(",")[0])
    options = dataclasses.replace(OPTIONS, heldout_fraction=share)
    assert prepare([path], tokenizer, output, options, 1).heldout.num_documents == 1
    shutil.rmtree(output)
    options = dataclasses.replace(OPTIONS, heldout_fraction=0.9999)
    with pytest.raises(ValueError, match="0.9999 left none of 19 documents to train on") as error:
        prepare([path], tokenizer, output, options, 1)
    share = float(str(error.value).rpartition("less than ")[2]) - 0.001
    options = dataclasses.replace(OPTIONS, heldout_fraction=share)
    assert prepare([path], tokenizer, output, options, 1).train.num_documents >= 1


def test_one_document_cannot_be_on_both_sides(tokenizer, tmp_path):
    path = write_jsonl(tmp_path / "in.jsonl", ["the cat."])
    for fraction in (0.001, 0.999):
        options = dataclasses.replace(OPTIONS, heldout_fraction=fraction)
        with pytest.raises(ValueError, match="1 documents .* Hold out 0 to do without evaluation"):
            prepare([path], tokenizer, tmp_path / "out", options, 1)


def test_documents_without_tokens_are_counted(tokenizer, tmp_path):
    path = write_jsonl(tmp_path / "in.jsonl", ["the cat.", "\u200b", "the dog."])
    options = dataclasses.replace(OPTIONS, heldout_fraction=0)
    manifest = prepare([path], tokenizer, tmp_path / "out", options, 1)
    assert (manifest.train.num_documents, manifest.empty_documents) == (2, 1)
    assert manifest.heldout.shards == ()


def test_a_vocabulary_over_65536_takes_four_bytes_a_token(tmp_path):
    path = tmp_path / "vocab.txt"
    entries = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{n}" for n in range(69_998))]
    path.write_text("\n".join([*entries, "last"]))
    inputs = [write_jsonl(tmp_path / "in.jsonl", ["last w0"])]
    options = dataclasses.replace(OPTIONS, heldout_fraction=0)
    manifest = prepare(inputs, Tokenizer.load(path), tmp_path / "out", options, 1)
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
def test_bad_options(change, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(OPTIONS, **change)


def test_no_workers(corpus, tokenizer, tmp_path):
    with pytest.raises(ValueError, match="num_workers is 0; expected at least 1"):
        prepare(corpus[0], tokenizer, tmp_path / "out", OPTIONS, 0)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("max_length", [128, 512])
def test_real_english(shared_data, tmp_path, max_length):
    tokenizer = Tokenizer.load(shared_data / "vocab" / "bert-base-uncased" / "vocab.txt")
    inputs = [str(shared_data / "corpus_small" / "*.jsonl.xz")]
    options = PrepareOptions(max_length=max_length, heldout_fraction=0)
    states = []
    manifest = prepare(inputs, tokenizer, tmp_path / "out", options, 2, states.append)
    assert manifest.train.num_documents == 15 + 365
    # of a plain tokenizers loop over the lines of the books and of the articles
    assert manifest.train.num_tokens == 1_319_572 + 708_553
    assert manifest.train.fill_rate >= 0.99
    assert states[-1].peak_worker_memory < 1 << 30
