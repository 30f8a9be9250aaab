import json
import multiprocessing
import os
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from transformers import AutoTokenizer, BertTokenizerFast

from bert_jax.tokenizers.special_tokens import BERT
from bert_jax.tokenizers.tokenizer import Tokenizer
from bert_jax.tokenizers.wordpiece_files import wordpiece_backend
from bert_jax.tokenizers.wordpiece_training import train_wordpiece

TORTURE = Path(__file__).with_name("unicode_torture.txt")
CASES = pytest.mark.parametrize("lowercase", [True, False], ids=["uncased", "cased"])


def torture_lines() -> list[str]:
    # Do not split lines at "\r" and U+2028.
    with open(TORTURE, encoding="utf-8", newline="\n") as file:
        return [line.removesuffix("\n") for line in file]


@pytest.fixture(scope="module")
def trained() -> dict[bool, Tokenizer]:
    lines = torture_lines()
    return {
        lowercase: train_wordpiece(lines, vocab_size=2500, lowercase=lowercase, min_frequency=1)
        for lowercase in (True, False)
    }


def hugging_face(vocab_file: Path, lowercase: bool) -> BertTokenizerFast:
    # `vocab_file=` is ignored by transformers 5, which then builds a vocabulary of five tokens.
    tokenizer = BertTokenizerFast(vocab=str(vocab_file), do_lower_case=lowercase)
    assert len(tokenizer) > 5
    return tokenizer


def assert_same_ids(tokenizer: Tokenizer, reference, lines: list[str]) -> None:
    encoded = tokenizer.encode_batch(lines)
    for line, ids in zip(lines, encoded, strict=True):
        assert ids == reference(line, add_special_tokens=False)["input_ids"], repr(line)
    assert sum(map(len, encoded)) > 20 * len(lines)


@CASES
def test_ids_equal_hugging_face_with_a_trained_vocabulary(trained, tmp_path, lowercase):
    trained[lowercase].save(tmp_path)
    tokenizer = Tokenizer.load(tmp_path / "vocab.txt", lowercase=lowercase)
    assert_same_ids(tokenizer, hugging_face(tmp_path / "vocab.txt", lowercase), torture_lines())


@CASES
def test_ids_equal_hugging_face_with_the_released_vocabularies(shared_data, lowercase):
    name = "bert-base-uncased" if lowercase else "bert-base-cased"
    vocab_file = shared_data / "vocab" / name / "vocab.txt"
    tokenizer = Tokenizer.load(vocab_file)
    assert tokenizer.vocab_size == (30_522 if lowercase else 28_996)
    assert tokenizer.lowercase == lowercase
    assert tokenizer.special_ids == (0, 100, 101, 102, 103)
    reference = hugging_face(vocab_file, lowercase)
    assert tokenizer.vocabulary == reference.get_vocab()
    assert_same_ids(tokenizer, reference, torture_lines())


@CASES
def test_a_saved_directory_loads_in_transformers_and_in_this_package(trained, tmp_path, lowercase):
    tokenizer = trained[lowercase]
    tokenizer.save(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "special_tokens_map.json", "tokenizer.json", "tokenizer_config.json", "vocab.txt",
    ]  # fmt: skip
    reference = AutoTokenizer.from_pretrained(tmp_path)
    assert isinstance(reference, BertTokenizerFast)
    assert reference.do_lower_case == lowercase
    assert reference.get_vocab() == tokenizer.vocabulary
    assert (
        reference.pad_token_id, reference.unk_token_id, reference.cls_token_id,
        reference.sep_token_id, reference.mask_token_id,
    ) == tokenizer.special_ids  # fmt: skip
    assert reference("a", "b")["input_ids"][:1] == [tokenizer.cls_id]
    lines = torture_lines()
    assert_same_ids(tokenizer, reference, lines)
    for path in (tmp_path, tmp_path / "tokenizer.json", tmp_path / "vocab.txt"):
        reloaded = Tokenizer.load(path)
        assert reloaded.fingerprint == tokenizer.fingerprint
        assert reloaded.lowercase == lowercase
        assert reloaded.encode_batch(lines) == tokenizer.encode_batch(lines)


def test_only_an_uncased_tokenizer_strips_accents(trained):
    texts = ["crème brûlée ångström", "CRÈME Brûlée A\u030angstro\u0308m", "creme brulee angstrom"]
    uncased = trained[True].encode_batch(texts)
    assert uncased[0] == uncased[1] == uncased[2]
    cased = trained[False].encode_batch(texts)
    assert cased[0] != cased[1] and cased[0] != cased[2]
    assert trained[False].decode(trained[False].encode_batch(["Crème, naïve"])[0]) == "Crème, naïve"
    assert trained[True].decode(trained[True].encode_batch(["Crème, naïve"])[0]) == "creme, naive"


def test_words_longer_than_a_hundred_characters_are_unknown(trained):
    tokenizer = trained[True]
    assert tokenizer.encode_batch(["b" * 101]) == [[tokenizer.unk_id]]
    assert tokenizer.unk_id not in tokenizer.encode_batch(["b" * 100])[0]


def test_special_tokens_in_a_text_can_be_encoded_as_text(trained):
    tokenizer = trained[True]
    special = tokenizer.encode_batch(["the [MASK] sat [SEP]"])[0]
    assert special.count(tokenizer.mask_id) == special.count(tokenizer.sep_id) == 1
    plain = tokenizer.encode_batch(["the [MASK] sat [SEP]"], specials_as_text=True)[0]
    assert not set(plain) & set(tokenizer.special_ids)
    assert tokenizer.decode(plain).replace(" ", "") == "the[mask]sat[sep]"
    assert tokenizer.encode_batch(["the [MASK] sat [SEP]"])[0] == special


def test_continuation_ids_belong_to_pieces_inside_words(trained):
    tokenizer = trained[True]
    pieces = [tokenizer.id_to_token(i) for i in tokenizer.continuation_ids.tolist()]
    assert pieces and all(piece.startswith("##") for piece in pieces)
    assert len(pieces) == sum(token.startswith("##") for token in tokenizer.vocabulary)


def test_random_ids_exclude_special_and_unused_tokens(trained):
    tokenizer = trained[True]
    assert tokenizer.random_ids.tolist() == list(range(104, tokenizer.vocab_size))
    assert tokenizer.random_ids.dtype == np.int32
    assert tokenizer.id_to_token(99) == "[unused98]"
    assert tokenizer.token_to_id("no such entry") is None


def test_a_tokenizer_can_be_sent_to_a_worker_process(trained, monkeypatch):
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    lines = torture_lines()
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        ids = pool.apply(trained[True].encode_batch, (lines,))
    assert ids == trained[True].encode_batch(lines)


def test_the_fingerprint_depends_on_vocabulary_and_case(trained, tmp_path):
    trained[True].save(tmp_path)
    cased = Tokenizer.load(tmp_path, lowercase=False)
    fingerprints = {trained[True].fingerprint, trained[False].fingerprint, cased.fingerprint}
    assert len(fingerprints) == 3
    assert not cased.lowercase
    lines = (tmp_path / "vocab.txt").read_text(encoding="utf-8").splitlines()
    lines[200], lines[201] = lines[201], lines[200]
    (tmp_path / "vocab.txt").write_text("\n".join(lines), encoding="utf-8")
    fingerprints.add(Tokenizer.load(tmp_path / "vocab.txt").fingerprint)
    assert len(fingerprints) == 4


def test_truncation_and_padding_in_tokenizer_json_are_ignored(tmp_path):
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "B"]
    backend = wordpiece_backend({word: i for i, word in enumerate(words)}, lowercase=False)
    backend.enable_truncation(8)
    backend.enable_padding(length=8)
    backend.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.encode_batch(["a", "a " * 600]) == [[5], [5] * 600]
    assert not tokenizer.lowercase


def test_tokenizer_config_in_the_same_directory_determines_the_case(tmp_path):
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "é"]
    (tmp_path / "vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    assert Tokenizer.load(tmp_path).lowercase
    config = {"do_lower_case": False}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert Tokenizer.load(tmp_path).encode_batch(["A b é"]) == [[1, 6, 7]]
    config = {"do_lower_case": True, "strip_accents": False}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert Tokenizer.load(tmp_path / "vocab.txt").encode_batch(["A b É"]) == [[5, 6, 7]]
    assert Tokenizer.load(tmp_path, lowercase=False).encode_batch(["A b é"]) == [[1, 6, 7]]


def test_a_lowercased_tokenizer_keeps_accents_in_transformers(tmp_path):
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "é"]
    (tmp_path / "vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    cased = Tokenizer.load(tmp_path, lowercase=False)
    tokenizer = cased.lowercased()
    assert tokenizer.encode_batch(["A b É", "[MASK]"]) == [[5, 6, 7], [4]]
    assert tokenizer.fingerprint != cased.fingerprint and cased.encode_batch(["A"]) == [[1]]
    assert tokenizer.lowercased() is tokenizer
    tokenizer.save(tmp_path / "saved")
    assert Tokenizer.load(tmp_path / "saved").fingerprint == tokenizer.fingerprint
    reference = AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert reference("A b É", add_special_tokens=False)["input_ids"] == [5, 6, 7]


def test_a_tokenizer_json_with_another_normalizer_keeps_it(tmp_path):
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b."]
    backend = wordpiece_backend({word: i for i, word in enumerate(words)}, lowercase=True)
    backend.normalizer = tokenizers.normalizers.Sequence([tokenizers.normalizers.Lowercase()])
    backend.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    backend.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.lowercase
    assert tokenizer.encode_batch(["A B."]) == [[5, 6]]
    with pytest.raises(ValueError, match="lowercase=False: its normalizer .* lowercases text"):
        Tokenizer.load(tmp_path, lowercase=False)
    tokenizer.save(tmp_path / "saved")
    reference = AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert reference("A B.", add_special_tokens=False)["input_ids"] == [5, 6]
    assert reference.mask_token_id == tokenizer.mask_id == 4
    assert Tokenizer.load(tmp_path / "saved").fingerprint == tokenizer.fingerprint


def test_errors_explain_why_a_file_is_not_a_tokenizer(tmp_path, trained):
    specials = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n"
    bpe = tokenizers.Tokenizer(tokenizers.models.BPE())
    for name, content, message in [
        ("repeated/vocab.txt", specials + "a\nb\na\n", r"vocab\.txt:8: the line repeats line 6"),
        ("blank/vocab.txt", specials + "a\n\nb\n", r"vocab\.txt:7: the line is empty.*\[unused0\]"),
        ("lacking/vocab.txt", "[PAD]\n[UNK]\na\n", r"it lacks \[CLS\], \[SEP\], \[MASK\]"),
        ("empty/vocab.txt", "", r"it lacks \[PAD\]"),
        ("broken/tokenizer.json", "{", "not a tokenizer.json"),
        ("other/tokenizer.json", '{"a": 1}', "not a tokenizer.json"),
        ("bpe/tokenizer.json", bpe.to_str(), r"its model is BPE\. Expected WordPiece"),
        ("name/vocabulary.bin", "x", r"expected a tokenizer\.json, vocab\.txt, spiece\.model or"),
        ("damaged/spiece.model", "x", "not a SentencePiece model"),
        ("alone/vocab.json", "{}", r"expected a merges\.txt in the same directory"),
    ]:
        path = tmp_path / name
        path.parent.mkdir()
        path.write_text(content, encoding="utf-8")
        with pytest.raises(ValueError, match=message):
            Tokenizer.load(path)
    (tmp_path / "blank" / "vocab.txt").write_bytes(b"[PAD]\n\xff\n")
    with pytest.raises(ValueError, match="not UTF-8 text"):
        Tokenizer.load(tmp_path / "blank")
    with pytest.raises(ValueError, match="missing: this tokenizer does not exist"):
        Tokenizer.load(tmp_path / "missing")
    (tmp_path / "none").mkdir()
    with pytest.raises(ValueError, match="contains no tokenizer"):
        Tokenizer.load(tmp_path / "none")
    with pytest.raises(ValueError, match=r"texts\[1\]: a lone surrogate at character 1"):
        trained[True].encode_batch(["fine", "x\ud800"])
    with pytest.raises(ValueError, match=r"texts\[0\]: expected a string, got bytes\."):
        trained[True].encode_batch([b"bytes"])


def test_windows_line_ends_and_a_final_blank_line_are_accepted(tmp_path):
    (tmp_path / "vocab.txt").write_bytes(b"[PAD]\r\n[UNK]\r\n[CLS]\r\n[SEP]\r\n[MASK]\r\na\r\n\r\n")
    assert Tokenizer.load(tmp_path).encode_batch(["A"]) == [[5]]


def test_white_space_around_an_entry_is_stripped_as_in_berts_code(tmp_path):
    vocabulary = tmp_path / "vocab.txt"
    specials = "[PAD]\n[UNK] \n[CLS]\t\n[SEP]\n [MASK]\n"
    vocabulary.write_text(specials + "port \n\ta\n##s\u00a0 \r\n", encoding="utf-8")
    tokenizer = Tokenizer.load(vocabulary)
    assert tokenizer.encode_batch(["a ports"]) == [[6, 5, 7]]
    assert list(tokenizer.vocabulary) == [*BERT.tokens, "port", "a", "##s"]


def test_entries_of_white_space_keep_their_ids(tmp_path):
    """Keep the ids of tokens that differ only in whitespace, which occur in some vocabularies."""
    specials = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n"
    entries = ["\u3000", "\u00a0", " ", "a ", "a", "b\t", "b ", "\u2028", "c"]
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text(specials + "\n".join(entries) + "\n", encoding="utf-8")
    tokenizer = Tokenizer.load(vocabulary)
    assert list(tokenizer.vocabulary)[5:] == [*entries[:5], "b", *entries[6:]]
    assert tokenizer.encode_batch(["a b c"]) == [[9, 10, 13]]
    tokenizer.save(tmp_path / "saved")
    assert Tokenizer.load(tmp_path / "saved").fingerprint == tokenizer.fingerprint


def test_a_byte_order_mark_before_a_vocabulary_is_skipped(tmp_path):
    words = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n"
    (tmp_path / "vocab.txt").write_text(words, encoding="utf-8-sig")
    assert list(Tokenizer.load(tmp_path).vocabulary)[0] == "[PAD]"
    assert Tokenizer.load(tmp_path).encode_batch(["a"]) == [[5]]


def test_an_entry_with_a_line_break_is_not_written_as_several_lines(tmp_path):
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "x\ny", "a"]
    backend = wordpiece_backend({word: i for i, word in enumerate(words)}, lowercase=True)
    backend.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer.load(tmp_path)
    tokenizer.save(tmp_path / "saved")
    assert not (tmp_path / "saved/vocab.txt").exists()
    assert Tokenizer.load(tmp_path / "saved").encode_batch(["a"]) == [[6]]


def test_an_interrupted_save_leaves_no_loadable_tokenizer(trained, tmp_path, monkeypatch):
    replaced = []

    def fail_at_the_third(source, target, replace=os.replace):
        if len(replaced) == 2:
            raise OSError("No space left on device")
        replaced.append(target)
        replace(source, target)

    monkeypatch.setattr("os.replace", fail_at_the_third)
    with pytest.raises(OSError, match="No space left"):
        trained[True].save(tmp_path)
    with pytest.raises(ValueError, match="contains no tokenizer"):
        Tokenizer.load(tmp_path)
