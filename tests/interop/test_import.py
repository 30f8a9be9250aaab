"""What comes in as it is, what comes in explained, and what is refused."""

from __future__ import annotations

import gc
import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch
import transformers

from bert_jax.inference.work_dir import load_trained, read_model
from bert_jax.interop.huggingface_weights import open_weights

from .conftest import WORDS, change_config, change_tensors, tensors_of

LAYER = "bert.encoder.layer.1.output.dense.weight"
TABLE = "bert.embeddings.word_embeddings.weight"
POSITIONS = "bert.embeddings.position_embeddings.weight"


@pytest.fixture
def refused(bert_jax_here, tmp_path):
    """A function that imports, expects a refusal, and gives its words."""

    def run(source, *words):
        before = set(tmp_path.iterdir())
        output = tmp_path / "new" / "ours"
        finished = bert_jax_here("import", source, "--output", output, *words)
        assert finished.code == 2, finished.output
        assert finished.errors.startswith("bert-jax: error: ")
        assert "Traceback" not in finished.errors
        assert set(tmp_path.iterdir()) == before
        return finished.errors

    return run


@pytest.fixture
def imported(bert_jax_here, tmp_path):
    """A function that imports and gives what it printed and the parameters."""

    def run(source, *words, name="ours"):
        finished = bert_jax_here("import", source, "--output", tmp_path / name, *words)
        assert finished.code == 0, finished.errors
        return finished.output, tmp_path / name

    return run


def same(directory: Path, other: Path, bert_jax_here) -> None:
    compared = bert_jax_here("verify", directory, other)
    assert compared.code == 0, compared.output + compared.errors


def test_names_of_2018_and_buffers(make_bert, imported, bert_jax_here, tmp_path):
    theirs, old = make_bert(), make_bert(name="old")

    def age(tensors):
        for name in list(tensors):
            if "LayerNorm" in name:
                aged = name.replace("LayerNorm.weight", "LayerNorm.gamma")
                tensors[aged.replace("LayerNorm.bias", "LayerNorm.beta")] = tensors.pop(name)
        tensors["bert.embeddings.position_ids"] = np.arange(40)[None]
        tensors["cls.predictions.decoder.weight"] = tensors[TABLE].copy()
        tensors["cls.predictions.decoder.bias"] = tensors["cls.predictions.bias"].copy()

    change_tensors(old, age)
    output, ours = imported(old)
    assert "+ bert.embeddings.position_ids: left out, a buffer" in output
    assert f"+ cls.predictions.decoder.weight: left out, the same as {TABLE}" in output
    same(ours, theirs, bert_jax_here)


def test_the_output_layer_under_its_other_names(make_bert, imported, bert_jax_here):
    theirs, other = make_bert("masked_lm"), make_bert("masked_lm", name="other")

    def rename(tensors):
        tensors["cls.predictions.decoder.bias"] = tensors.pop("cls.predictions.bias")
        tensors["cls.predictions.decoder.weight"] = tensors.pop(TABLE)

    change_tensors(other, rename)
    same(imported(other)[1], theirs, bert_jax_here)


def test_an_output_layer_of_its_own_is_refused(make_bert, refused):
    theirs = make_bert()

    def untie(tensors):
        tensors["cls.predictions.decoder.weight"] = tensors[TABLE] + 1

    change_tensors(theirs, untie)
    assert "an output layer of its own" in refused(theirs)


def test_an_encoder_is_taken_from_under_an_output_layer_of_its_own(
    make_bert, imported, bert_jax_here
):
    theirs, other = make_bert(), make_bert(name="other")

    def untie(tensors):
        tensors["cls.predictions.decoder.weight"] = tensors[TABLE] + 1

    change_tensors(other, untie)
    output, ours = imported(other, "--head", "encoder")
    assert "+ cls.predictions.decoder.weight: left out, not part of a model" in output
    same(ours, theirs, bert_jax_here)


def test_two_names_of_one_tensor_are_refused(make_bert, refused):
    theirs = make_bert()

    def double(tensors):
        tensors[TABLE.removeprefix("bert.")] = tensors[TABLE] * 2

    change_tensors(theirs, double)
    assert f"{TABLE} and {TABLE.removeprefix('bert.')} are two names" in refused(theirs) or (
        f"{TABLE.removeprefix('bert.')} and {TABLE} are two names" in refused(theirs)
    )


def test_labels_keep_names_of_their_own(make_bert, imported):
    theirs = make_bert("classification")
    change_config(theirs, id2label={"0": "same", "1": "same"})
    output, ours = imported(theirs)
    assert read_model(ours)[0].labels == ("same", "same_1", "LABEL_2")
    assert "id2label names 2 labels, the classifier has 3" in output


def test_every_unexplained_tensor_is_listed(make_bert, refused):
    theirs = make_bert()

    def spoil(tensors):
        del tensors[LAYER]
        tensors["bert.encoder.layer.2.output.dense.bias"] = np.zeros(32, np.float32)
        tensors["cls.seq_relationship.weight"] = np.zeros((3, 32), np.float32)

    change_tensors(theirs, spoil)
    errors = refused(theirs)
    assert f"  - encoder.layers.1.ffn.down.kernel (there {LAYER}) [48, 32]: MISSING" in errors
    assert "  + bert.encoder.layer.2.output.dense.bias [32]: UNEXPECTED" in errors
    assert " != cls.seq_relationship.weight: [3, 32] there, [2, 32] by its config" in errors
    # A head may be drawn anew when it is asked for; a layer never.
    assert "MISSING" in refused(theirs, "--head", "encoder")


def test_a_head_is_drawn_anew_when_asked_for(make_bert, imported, refused):
    theirs = make_bert()
    output, ours = imported(theirs, "--head", "classification", "--labels", "bad", "good")
    assert "  - classifier.kernel: drawn anew, random until it is trained" in output
    assert (
        "  + cls.seq_relationship.bias: left out, not part of a model with the head "
        "'classification'" in output
    )
    loaded = load_trained(str(ours))
    assert loaded.config.labels == ("bad", "good")
    model, tensors = loaded.model, tensors_of(theirs)
    np.testing.assert_array_equal(model.encoder.embeddings.token[...], tensors[TABLE])
    np.testing.assert_array_equal(
        model.pooler.dense.kernel[...], tensors["bert.pooler.dense.weight"].T
    )
    kernel = np.asarray(model.classifier.kernel[...])
    assert (
        kernel.shape == (32, 2) and 0.05 < kernel.std() < 0.12 and not model.classifier.bias.any()
    )
    _, other = imported(
        *(theirs, "--head", "classification", "--labels", "bad", "good", "--seed", "1"),
        name="other",
    )
    assert not np.allclose(load_trained(str(other)).model.classifier.kernel[...], kernel)
    assert "--labels NAME" in refused(theirs, "--head", "tagging")


def test_a_head_is_left_out_when_asked_for(make_bert, imported, bert_jax_here):
    theirs = make_bert("classification")
    output, ours = imported(theirs, "--head", "encoder")
    assert "+ classifier.weight: left out" in output
    same(ours, theirs, bert_jax_here)


def test_a_classifier_of_another_task_is_drawn_anew(make_bert, imported, refused):
    theirs = make_bert("tagging")
    assert "no such classifier, so one is drawn anew" in refused(
        *(theirs, "--head", "classification")
    )
    words = ("--head", "classification", "--labels", "a", "b", "c", "d")
    output, ours = imported(theirs, *words)
    assert "  - classifier.kernel: drawn anew" in output and "  - pooler.dense.bias" in output
    assert "  + classifier.weight: left out, the classifier of another task" in output
    kernel = load_trained(str(ours)).model.classifier.kernel[...]
    assert kernel.shape == (32, 4)
    assert not np.array_equal(kernel, tensors_of(theirs)["classifier.weight"].T)


def test_a_classifier_with_other_labels(make_bert, imported):
    theirs = make_bert("classification")
    words = (theirs, "--head", "classification", "--labels")
    output, ours = imported(*words, "x", "y", "z")
    assert "the scores of the source's classifier are now x, y, z" in output
    kernel = load_trained(str(ours)).model.classifier.kernel[...]
    np.testing.assert_array_equal(kernel, tensors_of(theirs)["classifier.weight"].T)
    output, ours = imported(*words, "yes", "no", name="fewer")
    assert "  - classifier.kernel: drawn anew" in output and "left out" in output
    assert load_trained(str(ours)).model.classifier.kernel.shape == (32, 2)


@pytest.mark.parametrize("gone", ["classifier.bias", "bert.pooler.dense.bias"])
def test_half_a_head_is_not_completed(gone, make_bert, refused):
    theirs = make_bert("classification")
    change_tensors(theirs, lambda tensors: tensors.pop(gone))
    assert "MISSING" in refused(theirs, "--head", "classification")


@pytest.mark.parametrize(
    ("settings", "problem", "dropout"),
    [
        (dict(problem_type="regression"), "regression", 0.1),
        (dict(problem_type="multi_label_classification"), "multi_label", 0.1),
        (dict(problem_type=None, classifier_dropout=0.3), "single_label", 0.3),
        (dict(classifier_dropout=0.0, hidden_dropout_prob=0.2), "single_label", 0.0),
    ],
)
def test_what_scores_mean_is_kept(settings, problem, dropout, make_bert, imported, bert_jax_here):
    theirs = make_bert("classification")
    change_config(theirs, **settings)
    _, ours = imported(theirs)
    config = read_model(ours)[0]
    assert (config.problem, config.head_dropout) == (problem, dropout)
    out = ours.parent / "out"
    words = ("export", ours, "--format", "huggingface", "--output", out)
    assert bert_jax_here(*words).code == 0
    back = transformers.AutoConfig.from_pretrained(out)
    assert back.problem_type.startswith(problem) and back.classifier_dropout == dropout


def test_one_score_is_a_regression(make_bert, imported):
    theirs = make_bert("classification", id2label={0: "score"}, label2id={"score": 0})
    config = read_model(imported(theirs)[1])[0]
    assert (config.problem, config.labels) == ("regression", ("score",))


def test_a_classifier_must_say_of_what(make_bert, refused, imported):
    theirs = make_bert("classification")
    change_config(theirs, architectures=None)
    assert "add --head with one of classification, tagging, multiple_choice" in refused(theirs)
    _, ours = imported(theirs, "--head", "classification")
    assert read_model(ours)[0].labels == ("no", "maybe", "yes")


@pytest.mark.parametrize("safe", [True, False], ids=["safetensors", "pickle"])
@pytest.mark.parametrize("sharded", [True, False], ids=["sharded", "whole"])
def test_every_layout_of_files(safe, sharded, make_bert, imported, bert_jax_here, tmp_path):
    theirs = make_bert()
    model = transformers.BertForPreTraining.from_pretrained(theirs)
    other = tmp_path / "other"
    model.save_pretrained(other, max_shard_size="20KB" if sharded else "5GB")
    (other / "vocab.txt").write_bytes((theirs / "vocab.txt").read_bytes())
    if not safe:
        to_pickles(other)
    assert (len(list(other.glob("*.bin" if not safe else "*.safetensors"))) > 1) == sharded
    same(imported(other)[1], theirs, bert_jax_here)


def test_a_pickle_of_before_2020(make_bert, imported, bert_jax_here):
    theirs, old = make_bert(), make_bert(name="old")
    to_pickles(old)
    file = old / "pytorch_model.bin"
    torch.save(torch.load(file), file, _use_new_zipfile_serialization=False)
    before = num_tensors()
    weights = open_weights(old)
    assert weights.shapes[TABLE] and num_tensors() == before  # what was loaded is on disk alone
    same(imported(old)[1], theirs, bert_jax_here)
    file.write_bytes(file.read_bytes()[:-100])
    finished = bert_jax_here("import", old, "--output", old.parent / "more")
    assert finished.code == 2 and "PyTorch cannot read it" in finished.errors


def num_tensors() -> int:
    """Tensors in this process's memory."""
    gc.collect()
    return sum(issubclass(type(kept), torch.Tensor) for kept in gc.get_objects())


def to_pickles(directory: Path) -> None:
    """Turns .safetensors files into the .bin files that transformers wrote until 2024."""
    from safetensors.torch import load_file

    for file in list(directory.glob("*.safetensors")):
        name = file.name.replace("model", "pytorch_model", 1).replace(".safetensors", ".bin")
        torch.save(load_file(file), directory / name)
        file.unlink()
    index = directory / "model.safetensors.index.json"
    if index.is_file():
        text = index.read_text().replace("model-", "pytorch_model-").replace(".safetensors", ".bin")
        (directory / "pytorch_model.bin.index.json").write_text(text)
        index.unlink()


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64])
@pytest.mark.parametrize("safe", [True, False], ids=["safetensors", "pickle"])
def test_other_precisions_become_float32(dtype, safe, make_bert, imported):
    theirs = make_bert()

    def convert(tensors):
        tensors |= {name: array.astype(dtype) for name, array in tensors.items()}

    change_tensors(theirs, convert)
    expected = tensors_of(theirs)[TABLE].astype(np.float32)
    if not safe:
        to_pickles(theirs)
    table = load_trained(str(imported(theirs)[1])).model.encoder.embeddings.token[...]
    assert table.dtype == np.float32
    np.testing.assert_array_equal(table, expected)


def test_integers_and_infinities_are_no_weights(make_bert, refused):
    theirs = make_bert()
    change_tensors(theirs, lambda tensors: tensors.update({LAYER: np.ones((32, 48), np.int8)}))
    assert f"{LAYER} holds int8, expected floating-point numbers" in refused(theirs)
    endless = np.full((32, 48), np.inf, np.float32)
    change_tensors(theirs, lambda tensors: tensors.update({LAYER: endless}))
    assert f"{LAYER} holds numbers that are not finite" in refused(theirs)


def test_a_padded_vocabulary(make_bert, imported, bert_jax_here):
    theirs = make_bert(vocab_size=128)
    change_config(theirs, vocab_size=len(WORDS))
    output, ours = imported(theirs)
    assert f"the token table has 128 rows for a vocabulary of {len(WORDS)}: padded" in output
    change_config(theirs, vocab_size=128)
    same(ours, theirs, bert_jax_here)
    guesses = bert_jax_here("fill-mask", "--work-dir", ours, "--top", len(WORDS), "ab [MASK].")
    assert guesses.code == 0 and "None" not in guesses.output


def test_a_vocabulary_that_does_not_fit(make_bert, refused):
    theirs = make_bert()
    with (theirs / "vocab.txt").open("a") as file:
        file.write("more\nwords\n")
    assert f"the tokenizer has {len(WORDS) + 2} entries, the token table {len(WORDS)} rows" in (
        refused(theirs)
    )
    (theirs / "vocab.txt").unlink()
    assert "holds no tokenizer" in refused(theirs)


def test_a_tokenizer_from_elsewhere(make_bert, imported, tmp_path):
    theirs = make_bert()
    (tmp_path / "words").mkdir()
    (theirs / "vocab.txt").rename(tmp_path / "words/vocab.txt")
    _, ours = imported(theirs, "--tokenizer", tmp_path / "words/vocab.txt")
    assert load_trained(str(ours)).tokenizer.vocab_size == len(WORDS)


def test_fewer_positions(make_bert, imported, refused, bert_jax_here):
    theirs = make_bert()
    output, ours = imported(theirs, "--max-positions", "16")
    assert "the first 16 of 40 positions are kept" in output
    config = load_trained(str(ours)).config
    assert config.encoder.max_positions == 16
    same(ours, theirs, bert_jax_here)
    errors = refused_elsewhere(bert_jax_here, theirs, "--max-positions", "41")
    assert "--max-positions is 41, the source has learned 40" in errors


def refused_elsewhere(bert_jax_here, source, *words):
    finished = bert_jax_here("import", source, "--output", source.parent / "more", *words)
    assert finished.code == 2 and not (source.parent / "more").exists()
    return finished.errors


@pytest.mark.parametrize("rows", [24, 64])
def test_another_number_of_positions_than_its_config_says(rows, make_bert, refused):
    theirs = make_bert()
    table = np.zeros((rows, 32), np.float32)
    change_tensors(theirs, lambda tensors: tensors.update({POSITIONS: table}))
    assert f" != {POSITIONS}: [{rows}, 32] there, [40, 32] by its config" in refused(theirs)


REFUSED_CONFIGS = {
    "another architecture": (dict(model_type="xlnet"), "model_type is 'xlnet'"),
    "another activation": (dict(hidden_act="relu"), "hidden_act is 'relu'; understood are gelu"),
    "relative positions": (
        dict(position_embedding_type="relative_key"),
        "position_embedding_type is 'relative_key'; only 'absolute'",
    ),
    "a decoder": (dict(is_decoder=True), "is_decoder is True"),
    "an incomplete file": (dict(hidden_size=None), "it lacks hidden_size"),
    "odd sizes": (dict(num_attention_heads=5), "hidden_dim=32 is not divisible by num_heads=5"),
    "text for a number": (
        dict(hidden_size="wide"),
        "config.json: hidden_size is 'wide'; expected a whole number",
    ),
}


@pytest.mark.parametrize("case", REFUSED_CONFIGS)
def test_another_kind_of_model_is_refused(case, make_bert, refused):
    changes, words = REFUSED_CONFIGS[case]
    theirs = make_bert()
    change_config(theirs, **changes)
    assert words in refused(theirs)


def test_settings_that_old_files_leave_out(make_bert, imported, bert_jax_here):
    theirs = make_bert()
    change_config(theirs, type_vocab_size=None, layer_norm_eps=None, model_type=None)
    config = read_model(imported(theirs)[1])[0].encoder
    assert (config.num_segments, config.layer_norm_epsilon) == (2, 1e-12)


ODD_CONFIGS = {
    "a fraction": (dict(hidden_size=32.0), "hidden_size is 32.0; expected a whole number"),
    "a truth": (dict(layer_norm_eps=True), "layer_norm_eps is True; expected a number"),
    "a list": (dict(hidden_act=["gelu"]), "hidden_act is ['gelu']"),
    "labels in a list": (dict(id2label=["a"]), "id2label is ['a']"),
    "labels without numbers": (dict(id2label={"x": "a"}), "id2label is {'x': 'a'}"),
    "dropout in words": (dict(classifier_dropout="much"), "classifier_dropout is 'much'"),
    "another problem": (dict(problem_type="hard"), "problem_type is 'hard'"),
}


@pytest.mark.parametrize("case", ODD_CONFIGS)
def test_odd_settings_are_named(case, make_bert, refused):
    changes, words = ODD_CONFIGS[case]
    theirs = make_bert("classification")
    change_config(theirs, **changes)
    errors = refused(theirs)
    assert words in errors and str(theirs) in errors


@pytest.mark.parametrize(
    "index",
    [
        "[]",
        '{"weight_map": {"a": 1}}',
        '{"weight_map": {}}',
        '{"weight_map": null}',
        '{"weight_map": {"a": "../model.safetensors"}}',
    ],
)
def test_an_index_of_something_else(index, make_bert, refused):
    theirs = make_bert()
    (theirs / "model.safetensors").rename(theirs.parent / "model.safetensors")
    (theirs / "model.safetensors.index.json").write_text(index)
    assert "expected a weight_map of names of files beside it" in refused(theirs)


def test_a_tensor_in_two_files(make_bert, refused):
    theirs = make_bert()
    whole = theirs / "model.safetensors"
    for name in ("a.safetensors", "b.safetensors"):
        (theirs / name).write_bytes(whole.read_bytes())
    whole.unlink()
    index = {"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}}
    (theirs / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "which counts is not known" in refused(theirs)


def test_added_tokens_are_not_forgotten(make_bert, refused):
    theirs = make_bert()
    (theirs / "added_tokens.json").write_text('{"<new>": 77}')
    assert "tokens added to a vocab.txt are not understood" in refused(theirs)


def test_here_as_source_and_as_output(make_bert, bert_jax_here, monkeypatch, tmp_path):
    monkeypatch.chdir(make_bert())
    assert bert_jax_here("import", ".", "--output", "../ours").code == 0
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    refused = bert_jax_here("import", "../theirs", "--output", ".")
    assert refused.code == 2 and "the current directory cannot be replaced" in refused.errors
    refused = bert_jax_here("import", "../theirs/vocab.txt", "--output", "../more")
    assert refused.code == 2 and "is a file: give the directory it is in" in refused.errors


def test_damaged_files(make_bert, refused):
    theirs = make_bert()
    file = theirs / "model.safetensors"
    whole = file.read_bytes()
    for length in (4, 100, len(whole) // 2, len(whole) - 1):
        file.write_bytes(whole[:length])
        assert f"{file}: damaged or cut short" in refused(theirs), length
    file.unlink()
    assert "no weights in it" in refused(theirs)
    (theirs / "pytorch_model.bin").write_bytes(b"PK\x03\x04 and no more")
    assert "PyTorch cannot read it" in refused(theirs)
    (theirs / "pytorch_model.bin").unlink()
    index = theirs / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {LAYER: "model-00001-of-00002.safetensors"}}))
    assert "names model-00001-of-00002.safetensors, which" in refused(theirs)
    index.write_text("{")
    assert "damaged: expected a weight_map of names" in refused(theirs)
    (theirs / "config.json").write_text("{")
    assert "config.json: not valid JSON" in refused(theirs)
    (theirs / "config.json").unlink()
    assert "no config.json in it" in refused(theirs)


class Touch:
    """What a pickle can do on its own: here, leave a file."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_a_pickle_runs_no_code(make_bert, refused, tmp_path):
    theirs = make_bert()
    (theirs / "model.safetensors").unlink()
    torch.save({LAYER: Touch(theirs / "owned")}, theirs / "pytorch_model.bin")
    assert "PyTorch cannot read it" in refused(theirs)
    assert not (theirs / "owned").exists()


def test_files_that_are_something_else_are_named(make_bert, refused):
    theirs = make_bert()
    (theirs / "model.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1\noid x")
    assert "a Git LFS pointer and not the weights" in refused(theirs)
    (theirs / "model.safetensors").write_bytes(b"<!DOCTYPE html><html></html>" * 9)
    assert "a web page and not weights" in refused(theirs)
    (theirs / "model.safetensors").rename(theirs / "model-00001-of-00002.safetensors")
    assert "holds model-00001-of-00002.safetensors, but no .index.json" in refused(theirs)


def test_labels_that_do_not_fit_and_scores_that_mean_something_else(make_bert, imported, refused):
    theirs = make_bert("classification")
    told = refused(theirs, "--labels", "yes", "no")
    assert "--labels gives 2 names, but the classifier of" in told and "has 3 scores (" in told
    output, ours = imported(theirs, "--head", "classification", "--labels", "yes", "no")
    assert "+ classifier.weight: left out, the classifier of another task" in output
    assert "- classifier.kernel: drawn anew, random until it is trained" in output
    config, origin = read_model(ours)
    assert config.problem == "single_label" and "classifier.kernel" in str(origin)
    told = refused(make_bert(name="bare"), "--labels", "yes", "no")
    assert "has no classifier to give names to" in told
    one = ("--head", "classification", "--labels", "stars")
    output, ours = imported(theirs, *one, name="number")
    assert read_model(ours)[0].problem == "regression" and "one label: a regression" in output
    _, ours = imported(theirs, *one, "--problem", "multi_label", name="binary")
    assert read_model(ours)[0].problem == "multi_label"


def test_what_is_ours_already_and_what_cannot_be_written(make_bert, imported, refused, tmp_path):
    _, ours = imported(make_bert())
    assert "is a work directory already" in refused(ours)
    (tmp_path / "new").write_text("a file")
    assert f"{tmp_path / 'new'} is a file, so" in refused(tmp_path / "theirs")


def test_names_of_the_hub(make_bert, imported, refused, monkeypatch):
    snapshot, asked = make_bert(name="86b5e0934494bd15c9632b12f734a8a67f723594"), []

    def download(name, revision, allow_patterns):
        asked.append((name, revision, allow_patterns))
        return str(snapshot)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    _, ours = imported("google-bert/bert-base-uncased", "--revision", "v2")
    [(name, revision, patterns)] = asked
    assert (name, revision) == ("google-bert/bert-base-uncased", "v2")
    files = {"vocab.txt", "tokenizer.json", "spiece.model", "vocab.json", "merges.txt"}
    assert {"config.json", "tokenizer_config.json"} | files <= set(patterns)
    assert "model*.safetensors" in patterns and not any(p.endswith(".bin") for p in patterns)
    assert read_model(ours)[1]["revision"] == snapshot.name
    monkeypatch.undo()
    assert "is a directory, which has none" in refused(snapshot, "--revision", "v2")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert "the hub could not be asked for a model of that name" in refused("someone/nothing")
    assert "no such directory, nor a model's name" in refused("models/of/mine")
