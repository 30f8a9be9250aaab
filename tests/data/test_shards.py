import os
from pathlib import Path

import pytest

from bert_jax.data.shards import ShardSettings, read_result, write_shard
from bert_jax.data.units import Unit

SETTINGS = ShardSettings(max_length=32, max_pieces=2, token_bytes=2, language="en")
UNIT = Unit("train", 3, [0, 1], [b"one two. three four.", b"five"], "digest")


class OneIdPerWord:
    """Encodes each word as its length."""

    spaces_are_text = False

    def encode_batch(self, texts, *, specials_as_text):
        assert specials_as_text
        return [[len(word) for word in text.split()] for text in texts]


def test_result_describes_the_shard(tmp_path):
    result = write_shard(UNIT, OneIdPerWord(), SETTINGS, tmp_path)
    assert (result.num_documents, result.num_sentences, result.num_tokens) == (2, 3, 5)
    assert (result.num_pieces, result.shard.num_records) == (2, 1)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "train-00003.arrayrecord",
        "train-00003.json",
    ]
    assert read_result(tmp_path, "train-00003") == result
    assert read_result(tmp_path, "train-00004") is None


def test_a_failure_says_in_which_document(tmp_path):
    class Failing:
        spaces_are_text = False

        def encode_batch(self, texts, *, specials_as_text):
            if texts == ["five"]:
                raise ZeroDivisionError
            return [[1] for _ in texts]

    with pytest.raises(ZeroDivisionError) as error:
        write_shard(UNIT, Failing(), SETTINGS, tmp_path)
    assert error.value.__notes__ == ["in the document that begins 'five'"]
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is full")
@pytest.mark.parametrize("suffix", [".arrayrecord", ".json"])
def test_a_full_disk_leaves_nothing_that_looks_finished(tmp_path, suffix):
    temporary = tmp_path / f"train-00003{suffix}.{os.getpid()}.tmp"
    temporary.symlink_to("/dev/full")
    with pytest.raises(OSError, match="train-00003.* cannot be written: .*No space left on dev"):
        write_shard(UNIT, OneIdPerWord(), SETTINGS, tmp_path)
    assert not temporary.is_symlink()
    assert Path("/dev/full").is_char_device()
    assert read_result(tmp_path, "train-00003") is None
