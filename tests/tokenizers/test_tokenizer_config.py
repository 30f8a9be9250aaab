"""Test that values of the wrong type in tokenizer_config.json are rejected."""

import json
from pathlib import Path

import pytest
import transformers

from bert_jax.tokenizers.tokenizer import Tokenizer

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "A", "b", "##b"]
BOOLEAN_KEYS = (
    *("do_lower_case", "strip_accents", "tokenize_chinese_chars"),
    *("keep_accents", "add_prefix_space"),
)


def load(directory: Path, **config: object) -> Tokenizer:
    (directory / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return Tokenizer.load(directory)


@pytest.mark.parametrize("value", ["maybe", "true", 1, 0.0, [], {}, [True]], ids=repr)
@pytest.mark.parametrize("name", BOOLEAN_KEYS)
def test_boolean_keys_accept_only_true_or_false(name: str, value: object, tmp_path: Path) -> None:
    with pytest.raises(ValueError) as error:
        load(tmp_path, **{name: value})
    file = tmp_path / "tokenizer_config.json"
    assert str(error.value) == f"{file}: {name}={value!r}: expected true or false."


def test_null_means_the_default(tmp_path: Path) -> None:
    default = load(tmp_path)
    nulls = load(tmp_path, **dict.fromkeys((*BOOLEAN_KEYS, "tokenizer_class")))
    assert nulls.fingerprint == default.fingerprint
    assert nulls.encode_batch(["A a"]) == [[6, 5]]
    assert load(tmp_path, do_lower_case=True).encode_batch(["A a"]) == [[5, 5]]


@pytest.mark.parametrize("own", [True, False])
def test_null_strips_accents_if_text_is_lower_cased(own: bool, tmp_path: Path) -> None:
    load(tmp_path, do_lower_case=True).save(tmp_path)
    file = tmp_path / "tokenizer.json"
    content = json.loads(file.read_text())
    content["normalizer"]["strip_accents"] = own
    file.write_text(json.dumps(content))
    config = {"tokenizer_class": "BertTokenizer", "do_lower_case": True, "strip_accents": None}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    reference = transformers.AutoTokenizer.from_pretrained(tmp_path, local_files_only=True)
    normalizer = reference.backend_tokenizer.normalizer
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.normalize("MÖCHTE") == normalizer.normalize_str("MÖCHTE") == "mochte"


@pytest.mark.parametrize("value", [1, True, ["BertTokenizer"], {}], ids=repr)
def test_tokenizer_class_must_be_a_string(value: object, tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match="tokenizer_config.json: tokenizer_class=.*: expected a string"
    ):
        load(tmp_path, tokenizer_class=value)
