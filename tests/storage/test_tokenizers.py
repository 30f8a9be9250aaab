"""Test that a tokenizer can be trained on text in a bucket, written there and loaded from there."""

import pytest

from bert_jax.corpus.train_tokenizer import train_tokenizer
from bert_jax.storage.objects import list_objects, read_bytes, write_bytes
from bert_jax.storage.urls import ObjectUrl
from bert_jax.tokenizers.tokenizer import Tokenizer

TEXT = "the cat saw a house and the dog ran to the old red tree by the sea\n\n" * 20


def test_a_tokenizer_is_written_to_a_bucket_and_loaded(bucket: ObjectUrl) -> None:
    write_bytes(bucket / "text.txt", TEXT)
    output = bucket / "tokenizer"
    trained = train_tokenizer(
        [str(bucket / "text.txt")], vocab_size=120, num_unused=0, output=output
    )
    names = [output.relative(info.url) for info in list_objects(output)]
    assert {"tokenizer.json", "vocab.txt", "SHA256SUMS"} <= set(names)
    for path in (output, str(output), output / "vocab.txt", output / "tokenizer.json"):
        assert Tokenizer.load(path).fingerprint == trained.fingerprint
    with pytest.raises(ValueError, match=f"output={output}: the bucket already contains objects"):
        train_tokenizer([str(bucket / "text.txt")], vocab_size=120, num_unused=0, output=output)
    write_bytes(output / "vocab.txt", read_bytes(output / "vocab.txt") + b"x\n")
    with pytest.raises(ValueError, match=f"{output}/vocab.txt"):
        Tokenizer.load(output)
    with pytest.raises(ValueError, match=f"{bucket}/none: contains no tokenizer"):
        Tokenizer.load(bucket / "none")
