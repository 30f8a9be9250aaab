"""Test that `prepare` resumes or rejects an existing output, whether finished or not."""

import dataclasses
import gzip
import hashlib
import multiprocessing
import os

import pytest

from bert_jax.corpus import prepare as prepare_module
from bert_jax.corpus import workspace
from bert_jax.corpus.manifest import read_manifest, write_manifest
from bert_jax.corpus.prepare import make_corpus
from bert_jax.corpus.synthetic import random_documents, write_corpus
from bert_jax.corpus.workspace import Workspace
from bert_jax.tokenizers.tokenizer import Tokenizer


def test_a_finished_corpus_is_not_changed(corpus, finished, tokenizer, prepare_options):
    before = {path: path.stat().st_mtime_ns for path in finished.rglob("*")}
    reports = []
    manifest = make_corpus(corpus.inputs, tokenizer, finished, prepare_options, 2, reports.append)
    assert manifest == read_manifest(finished)
    assert not reports
    assert {path: path.stat().st_mtime_ns for path in finished.rglob("*")} == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_length": 128}, "max_length was 64 and is now 128"),
        ({"heldout_fraction": 0.2}, "heldout_fraction was 0.1 and is now 0.2"),
        ({"language": "de"}, "language was en and is now de"),
    ],
)
def test_a_finished_corpus_with_other_options_is_refused(
    corpus, finished, tokenizer, change, message, prepare_options
):
    options = dataclasses.replace(prepare_options, **change)
    with pytest.raises(ValueError, match=f"contains a finished corpus.*{message}.*another output"):
        make_corpus(corpus.inputs, tokenizer, finished, options, 1)


def test_a_finished_corpus_of_other_inputs_is_refused(corpus, finished, tokenizer, prepare_options):
    with pytest.raises(ValueError, match=r"b.jsonl was number 2 and is now absent"):
        make_corpus(corpus.inputs[:1], tokenizer, finished, prepare_options, 1)


def test_a_corpus_that_was_finished_in_the_meantime_is_not_changed(
    small, tmp_path, checksums, monkeypatch
):
    run, _ = small
    run()
    before = checksums(tmp_path / "corpus")
    # Another preparation finishes the corpus after this one has looked for the manifest.
    (tmp_path / "corpus/.work").mkdir()
    monkeypatch.setattr(prepare_module, "finished_corpus", lambda *_: None)
    with pytest.raises(ValueError, match="corpus: another preparation has just finished this cor"):
        run()
    monkeypatch.undo()
    run()
    assert checksums(tmp_path / "corpus") == before


@pytest.fixture
def small(tmp_path, tokenizer, prepare_options):
    """Return (run, files), where `run` prepares a corpus from two files with 40 documents each."""
    files = [tmp_path / "a.txt", tmp_path / "b.txt.gz"]
    text = "".join(f"The number {n} is here.\n\n" for n in range(100, 140))
    files[0].write_text(text)
    files[1].write_bytes(gzip.compress(text.replace("here", "there").encode()))

    def run(output=tmp_path / "corpus"):
        return make_corpus(map(str, files), tokenizer, output, prepare_options, 1)

    return run, files


def modified_later(path, content: bytes) -> None:
    path.write_bytes(content)
    os.utime(path, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns + 10**9))


def test_a_changed_input_of_the_same_size_is_refused(small, tmp_path):
    run, files = small
    manifest = run()
    for file, source in zip(files, manifest.sources, strict=True):
        assert source["sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()
        assert source["mtime_ns"] == file.stat().st_mtime_ns
    before = files[0].read_bytes()
    modified_later(files[0], before.replace(b"number", b"letter"))
    changed = r"built from different inputs: .*a\.txt has changed since the corpus was prepared"
    with pytest.raises(ValueError, match=f"{changed}, although its size has not"):
        run()
    modified_later(files[0], before)  # Keep the text, but change the modification time.
    assert run() == manifest
    assert run(tmp_path / "other").fingerprint == manifest.fingerprint


def test_an_unmodified_input_is_not_read_again(small, monkeypatch):
    run, files = small
    manifest = run()
    read = []
    monkeypatch.setattr(workspace, "sha256_of", lambda path: read.append(path) or "")
    assert run() == manifest and not read
    modified_later(files[1], files[1].read_bytes())
    with pytest.raises(ValueError, match="has changed since the corpus was prepared"):
        run()
    assert read == [files[1]]


def test_inputs_of_an_early_corpus_are_checked_by_modification_time(small, tmp_path, caplog):
    run, files = small
    manifest = run()
    sources = tuple(
        {key: x for key, x in source.items() if key not in ("mtime_ns", "sha256")}
        for source in manifest.sources
    )
    write_manifest(tmp_path / "corpus", dataclasses.replace(manifest, sources=sources))
    caplog.clear()
    assert run().sources == sources and not caplog.records
    modified_later(files[0], files[0].read_bytes())
    assert run().sources == sources
    assert "a.txt was modified after" in caplog.text and "b.txt" not in caplog.text


class Stopped(Exception):
    """An exception that a progress callback raises to stop a preparation."""


def stop_after(num_shards):
    def progress(state):
        if state.new_shards >= num_shards:
            raise Stopped

    return progress


def stopped(corpus, tokenizer, directory, options, num_shards=4):
    with pytest.raises(Stopped):
        make_corpus(corpus.inputs, tokenizer, directory, options, 2, stop_after(num_shards))
    assert not multiprocessing.active_children()


def test_a_preparation_continues_from_its_finished_shards(
    corpus, finished, tokenizer, tmp_path, prepare_options, checksums
):
    stopped(corpus, tokenizer, tmp_path, prepare_options)
    with pytest.raises(ValueError, match="is not finished. Run the same `bert-jax prepare` again"):
        read_manifest(tmp_path)
    work = tmp_path / ".work"
    shards = {path.stem for path in work.glob("*.json") if path.stem != "plan"}
    damaged, truncated, *intact = sorted(shards)
    inodes = {name: (work / f"{name}.arrayrecord").stat().st_ino for name in intact}
    content = bytearray((work / f"{damaged}.arrayrecord").read_bytes())
    content[len(content) // 2] ^= 1
    (work / f"{damaged}.arrayrecord").write_bytes(content)
    (work / f"{truncated}.json").write_text("{")
    (work / "train-00099.arrayrecord.1.tmp").write_text("half")
    states = []
    make_corpus(corpus.inputs, tokenizer, tmp_path, prepare_options, 2, states.append)
    assert states[-1].shards - states[-1].new_shards == len(intact) >= 1
    assert states[-1].fraction == pytest.approx(1)
    assert checksums(tmp_path) == checksums(finished)
    assert inodes == {name: (tmp_path / f"{name}.arrayrecord").stat().st_ino for name in intact}


def test_continuing_with_other_options_is_refused(corpus, tokenizer, tmp_path, prepare_options):
    stopped(corpus, tokenizer, tmp_path, prepare_options, 1)
    options = dataclasses.replace(prepare_options, max_documents_per_record=2, unit_bytes=1 << 20)
    message = (
        "unfinished preparation with different settings: max_pieces was 4 and is now 2; "
        "unit_bytes was 65536 and is now 1048576. Use the same .* delete .*/.work to start over"
    )
    with pytest.raises(ValueError, match=message):
        make_corpus(corpus.inputs, tokenizer, tmp_path, options, 1)


def test_a_fixed_input_is_continued_from_the_failure(
    corpus, tokenizer, tmp_path, prepare_options, write_json_lines, checksums
):
    texts = corpus.texts
    path = tmp_path / "in.jsonl"
    write_json_lines(path, texts)
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines[:250], '{"text": \n', *lines[250:]]))
    with pytest.raises(ValueError, match=r"in\.jsonl:251: .*--on-bad-line skip"):
        make_corpus([str(path)], tokenizer, tmp_path / "out", prepare_options, 2)
    path.write_text("".join(lines))
    states = []
    make_corpus([str(path)], tokenizer, tmp_path / "out", prepare_options, 2, states.append)
    assert states[-1].new_shards < states[-1].shards
    make_corpus([str(path)], tokenizer, tmp_path / "new", prepare_options, 2)
    assert checksums(tmp_path / "out") == checksums(tmp_path / "new")


def test_a_preparation_without_shards_can_be_replaced(
    corpus, finished, tokenizer, tmp_path, prepare_options, write_json_lines, checksums
):
    refused = write_json_lines(tmp_path / "in.jsonl", [])
    cased = Tokenizer.load(finished / "tokenizer", lowercase=False)
    output = tmp_path / "out"
    with pytest.raises(ValueError, match="the file is empty"):
        make_corpus([refused], cased, output, prepare_options, 1)
    (output / ".work" / "tokenizer" / "leftover.txt").write_text("of another tokenizer")
    make_corpus(corpus.inputs, tokenizer, output, prepare_options, 1)
    assert checksums(output) == checksums(finished)


def test_shards_of_unknown_options_are_not_used(
    corpus, finished, tokenizer, tmp_path, prepare_options, checksums
):
    options = dataclasses.replace(prepare_options, max_documents_per_record=2)
    stopped(corpus, tokenizer, tmp_path, options)
    # Remove one file, as if the removal of the directory had been interrupted.
    (tmp_path / ".work" / "plan.json").unlink()
    make_corpus(corpus.inputs, tokenizer, tmp_path, prepare_options, 1)
    assert checksums(tmp_path) == checksums(finished)


def test_an_error_names_a_damaged_plan(corpus, tokenizer, tmp_path, prepare_options):
    stopped(corpus, tokenizer, tmp_path, prepare_options, 1)
    (tmp_path / ".work" / "plan.json").write_text("{")
    with pytest.raises(ValueError, match=r"plan\.json: not valid JSON: .*Delete .*\.work to start"):
        make_corpus(corpus.inputs, tokenizer, tmp_path, prepare_options, 1)


def test_an_output_inside_an_input_is_refused(tokenizer, tmp_path, prepare_options):
    (tmp_path / "a.txt").write_text("the cat")
    (tmp_path / "link").symlink_to(tmp_path)
    for output in (tmp_path, tmp_path / "corpora" / "mine", tmp_path / "link" / "mine"):
        with pytest.raises(ValueError, match="inside the input directory .*Choose another output"):
            make_corpus([str(tmp_path)], tokenizer, output, prepare_options, 1)
    assert not (tmp_path / "corpora").exists()


def test_a_corpus_with_other_settings_is_refused(corpus, tokenizer, tmp_path, prepare_options):
    documents = random_documents(2000, 100, seed=0)
    write_corpus(tmp_path, documents, documents, max_length=64, vocab_size=100)
    with pytest.raises(ValueError, match="contains a finished corpus with different settings: "):
        make_corpus(corpus.inputs, tokenizer, tmp_path, prepare_options, 1)


def test_an_output_with_other_files_is_refused(corpus, tokenizer, tmp_path, prepare_options):
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(ValueError, match="is not empty, and does not contain an unfinished prep"):
        make_corpus(corpus.inputs, tokenizer, tmp_path, prepare_options, 1)
    with pytest.raises(ValueError, match=r"thesis\.txt: this is a file\. Specify a directory"):
        make_corpus(corpus.inputs, tokenizer, tmp_path / "thesis.txt", prepare_options, 1)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_second_preparation_of_a_directory_is_refused(
    corpus, tokenizer, tmp_path, prepare_options
):
    plan = {"tokenizer_fingerprint": "", "options": {"libraries": {}}, "sources": []}
    with (
        Workspace(tmp_path, plan),
        pytest.raises(ValueError, match="another preparation is writing to it"),
    ):
        make_corpus(corpus.inputs, tokenizer, tmp_path, prepare_options, 1)


def test_a_preparation_with_held_out_inputs_is_continued(
    corpus, tokenizer, tmp_path, prepare_options, checksums
):
    options = dataclasses.replace(prepare_options, heldout_fraction=0)
    first, second = corpus.inputs
    uninterrupted, continued = tmp_path / "uninterrupted", tmp_path / "continued"
    with pytest.raises(Stopped):
        make_corpus([first], tokenizer, continued, options, 1, stop_after(3), [second])
    with pytest.raises(ValueError, match="unfinished preparation with different settings"):
        make_corpus([first], tokenizer, continued, options, 1)
    make_corpus([first], tokenizer, continued, options, 2, heldout_inputs=[second])
    make_corpus([first], tokenizer, uninterrupted, options, 1, heldout_inputs=[second])
    assert checksums(continued) == checksums(uninterrupted)
