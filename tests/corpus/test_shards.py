import json
import resource
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from bert_jax.corpus.shards import ShardSettings, read_result, split_info, write_shard
from bert_jax.corpus.units import Unit
from bert_jax.files import write_file

SETTINGS = ShardSettings(max_length=32, max_fragments=2, token_bytes=2, language="en", unknown_id=4)
UNIT = Unit("train", 3, [0, 1], [b"one two. three four.", b"five"], "digest")


class OneIdPerWord:
    """An encoder that turns each word into one token, whose id is the word's length."""

    spaces_are_text = False

    def encode_batch(self, texts, *, specials_as_text):
        assert specials_as_text
        return [[len(word) for word in text.split()] for text in texts]


def test_the_result_describes_the_shard(tmp_path):
    result = write_shard(UNIT, OneIdPerWord(), SETTINGS, tmp_path)
    assert (result.num_documents, result.num_sentences, result.num_tokens) == (2, 3, 5)
    assert (result.num_fragments, result.shard.num_records) == (2, 1)
    assert result.num_unknown == 2  # The unknown words are "two." and "five".
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "train-00003.arrayrecord",
        "train-00003.json",
    ]
    assert read_result(tmp_path, "train-00003") == result
    assert read_result(tmp_path, "train-00004") is None


def test_an_older_result_without_unknown_counts_is_read(tmp_path):
    write_shard(UNIT, OneIdPerWord(), SETTINGS, tmp_path)
    path = tmp_path / "train-00003.json"
    content = json.loads(path.read_text())
    del content["num_unknown"]
    path.write_text(json.dumps(content))
    result = read_result(tmp_path, "train-00003")
    assert result is not None and result.num_unknown is None
    assert split_info([result], 32).unknown_share is None


def test_an_error_names_the_document(tmp_path):
    class Failing:
        spaces_are_text = False

        def encode_batch(self, texts, *, specials_as_text):
            if texts == ["five"]:
                raise ZeroDivisionError
            return [[1] for _ in texts]

    with pytest.raises(ZeroDivisionError) as error:
        write_shard(UNIT, Failing(), SETTINGS, tmp_path)
    assert error.value.__notes__ == ["in the document that begins with 'five'"]
    assert not list(tmp_path.iterdir())


@contextmanager
def small_files() -> Iterator[None]:
    """Limit files to 10 bytes, to simulate a full disk.

    This is not a fixture, because pytest writes a test's outcome, possibly to a file, before it
    tears down the fixtures.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_leaves_no_finished_shard(tmp_path):
    with small_files():
        with pytest.raises(OSError, match="train-00003.arrayrecord: cannot be written: .*too la"):
            write_shard(UNIT, OneIdPerWord(), SETTINGS, tmp_path)
        with pytest.raises(OSError, match="train-00003.json: cannot be written: .*too large"):
            write_file(tmp_path / "train-00003.json", "{" + 10 * " " + "}")
    assert not list(tmp_path.iterdir())
    assert read_result(tmp_path, "train-00003") is None
