import shutil
import subprocess

import pytest

from bert_jax.files import CHECKSUMS_NAME, check_checksums, write_checksums
from bert_jax.tokenizers.tokenizer import Tokenizer


@pytest.fixture
def directory(tmp_path):
    (tmp_path / "inside").mkdir()
    for name in ("vocab.txt", "inside/a b.bin", "empty"):
        (tmp_path / name).write_bytes(name.encode() if name != "empty" else b"")
    write_checksums(tmp_path)
    return tmp_path


def test_checksum_files_are_compatible_with_sha256sum(directory):
    if shutil.which("sha256sum") is None:
        pytest.skip("sha256sum is not installed")
    subprocess.run(["sha256sum", "--check", "--strict", CHECKSUMS_NAME], cwd=directory, check=True)
    binary = subprocess.run(
        ["sha256sum", "--binary", "vocab.txt"], cwd=directory, check=True, capture_output=True
    )
    (directory / CHECKSUMS_NAME).write_bytes(binary.stdout)
    check_checksums(directory)
    (directory / "vocab.txt").write_text("other")
    with pytest.raises(ValueError, match="vocab.txt: differs from its checksum"):
        check_checksums(directory)


def test_errors_name_files_that_differ_or_are_missing(directory):
    check_checksums(directory)
    (directory / "unlisted").write_text("added by the user")
    check_checksums(directory)
    (directory / "inside/a b.bin").write_bytes(b"inside/a b.bim")
    with pytest.raises(ValueError, match="inside/a b.bin: differs from its checksum in SHA256SUMS"):
        check_checksums(directory)
    check_checksums(directory, names=["vocab.txt"])
    (directory / "vocab.txt").unlink()
    with pytest.raises(ValueError, match="vocab.txt: missing, but listed in SHA256SUMS"):
        check_checksums(directory, names=["vocab.txt"])
    (directory / CHECKSUMS_NAME).unlink()
    check_checksums(directory)


@pytest.mark.parametrize(
    "line", ["", "x", "0" * 64, "0" * 63 + "g  a", "0" * 64 + "  ../a", "\xff"]
)
def test_errors_name_the_line_of_damaged_checksums(directory, line):
    (directory / CHECKSUMS_NAME).write_bytes(f"{line}\n".encode("latin-1"))
    with pytest.raises(ValueError, match=f"{CHECKSUMS_NAME}:1: damaged"):
        check_checksums(directory)


def test_a_modified_tokenizer_is_rejected(directory):
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    (directory / "vocab.txt").write_text("\n".join([*specials, "boat"]) + "\n")
    write_checksums(directory)
    assert Tokenizer.load(directory).vocab_size == 6
    (directory / "vocab.txt").write_text("\n".join([*specials, "boau"]) + "\n")
    with pytest.raises(ValueError, match="vocab.txt: differs from its checksum"):
        Tokenizer.load(directory / "vocab.txt")
