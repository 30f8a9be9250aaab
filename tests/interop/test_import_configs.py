"""Test which sizes, labels, problem types and tokens are imported from config.json."""

from __future__ import annotations

import numpy as np
import pytest
import transformers

from bert_jax.runs.checkpoints import load_model
from bert_jax.runs.work_dir import read_model

from .conftest import WORDS, change_config, change_tensors, same

POSITIONS = "bert.embeddings.position_embeddings.weight"


def test_label_names_are_unique(make_bert, imported):
    theirs = make_bert("classification")
    change_config(theirs, id2label={"0": "same", "1": "same"})
    output, ours = imported(theirs)
    assert read_model(ours)[0].labels == ("same", "same_1", "LABEL_2")
    assert "id2label names 2 labels, but the classifier has 3" in output


@pytest.mark.parametrize(
    ("settings", "problem", "dropout"),
    [
        (dict(problem_type="regression"), "regression", 0.1),
        (dict(problem_type="multi_label_classification"), "multi_label", 0.1),
        (dict(problem_type=None, classifier_dropout=0.3), "single_label", 0.3),
        (dict(classifier_dropout=0.0, hidden_dropout_prob=0.2), "single_label", 0.0),
    ],
)
def test_the_problem_is_kept(settings, problem, dropout, make_bert, imported, bert_jax_here):
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


def test_a_classifier_of_an_unknown_kind_is_refused(make_bert, refused, imported):
    theirs = make_bert("classification")
    change_config(theirs, architectures=None)
    assert "Set --head to one of classification, multiple_choice, tagging" in refused(theirs)
    _, ours = imported(theirs, "--head", "classification")
    assert read_model(ours)[0].labels == ("no", "maybe", "yes")


def test_a_padded_vocabulary(make_bert, imported, bert_jax_here):
    theirs = make_bert(vocab_size=128)
    change_config(theirs, vocab_size=len(WORDS))
    output, ours = imported(theirs)
    assert f"token table is padded: it has 128 rows for a vocabulary of {len(WORDS)}" in output
    change_config(theirs, vocab_size=128)
    same(ours, theirs, bert_jax_here)
    guesses = bert_jax_here("fill-mask", "--work-dir", ours, "--top", len(WORDS), "ab [MASK].")
    assert guesses.code == 0 and "None" not in guesses.output


def test_a_wrong_vocabulary_is_refused(make_bert, refused, imported):
    theirs, right = make_bert(), make_bert(name="right") / "vocab.txt"
    with (theirs / "vocab.txt").open("a") as file:
        file.write("more\nwords\n")
    errors = refused(theirs)
    assert f"the tokenizer has {len(WORDS) + 2} tokens, but the token table has only" in errors
    assert f"{len(WORDS)} rows, so they belong to different models" in errors
    assert "Specify the model's own tokenizer with --tokenizer FILE_OR_DIR" in errors
    (theirs / "vocab.txt").unlink()
    errors = refused(theirs)
    assert "contains no tokenizer" in errors and "--tokenizer FILE_OR_DIR" in errors
    imported(theirs, "--tokenizer", right)


def test_a_separate_tokenizer(make_bert, imported, tmp_path):
    theirs = make_bert()
    (tmp_path / "words").mkdir()
    (theirs / "vocab.txt").rename(tmp_path / "words/vocab.txt")
    _, ours = imported(theirs, "--tokenizer", tmp_path / "words/vocab.txt")
    assert load_model(str(ours)).tokenizer.vocab_size == len(WORDS)


def test_fewer_positions(make_bert, imported, refused, bert_jax_here):
    theirs = make_bert()
    output, ours = imported(theirs, "--max-positions", "16")
    assert "the first 16 of 40 positions are kept" in output
    config = load_model(str(ours)).config
    assert config.encoder.max_positions == 16
    same(ours, theirs, bert_jax_here)
    errors = refused_elsewhere(bert_jax_here, theirs, "--max-positions", "41")
    assert "--max-positions 41: expected a number from 1 to 40" in errors


def refused_elsewhere(bert_jax_here, source, *words):
    finished = bert_jax_here("import", source, "--output", source.parent / "more", *words)
    assert finished.code == 2 and not (source.parent / "more").exists()
    return finished.errors


@pytest.mark.parametrize("rows", [24, 64])
def test_a_wrong_number_of_positions_is_refused(rows, make_bert, refused):
    theirs = make_bert()
    table = np.zeros((rows, 32), np.float32)
    change_tensors(theirs, lambda tensors: tensors.update({POSITIONS: table}))
    problem = f"[{rows}, 32] in the source, but its config implies [40, 32]"
    assert f" != {POSITIONS}: {problem}" in refused(theirs)


REFUSED_CONFIGS = {
    "another architecture": (dict(model_type="xlnet"), "model_type is 'xlnet'"),
    "another activation": (dict(hidden_act="elu"), "hidden_act is 'elu'; expected one of gelu"),
    "relative positions": (
        dict(position_embedding_type="relative_key"),
        "position_embedding_type is 'relative_key'; only 'absolute'",
    ),
    "a decoder": (dict(is_decoder=True), "is_decoder is True"),
    "an incomplete file": (dict(hidden_size=None), "it lacks hidden_size"),
    "a billion layers": (
        dict(num_hidden_layers=10**9),
        "config.json: num_layers=1000000000: expected at most 2,000 (every layer is traced",
    ),
    "a width beyond any memory": (
        dict(intermediate_size=10**12),
        "config.json: ffn_dim=1000000000000: expected at most 2,147,483,647",
    ),
    "odd sizes": (dict(num_attention_heads=5), "hidden_dim=32: not divisible by num_heads=5"),
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


def test_settings_that_old_files_omit(make_bert, imported, bert_jax_here):
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
    "a label without a name": (dict(id2label={"0": "a", "1": " "}), "with --labels NAME NAME"),
    "another problem": (dict(problem_type="hard"), "problem_type is 'hard'"),
}


@pytest.mark.parametrize("case", ODD_CONFIGS)
def test_invalid_settings_are_reported(case, make_bert, refused):
    changes, words = ODD_CONFIGS[case]
    theirs = make_bert("classification")
    change_config(theirs, **changes)
    errors = refused(theirs)
    assert words in errors and str(theirs) in errors


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (dict(id2label={"0": "", "1": "b"}), ("--labels", "a", "b", "c")),
        (dict(problem_type="hard"), ("--problem", "single_label")),
    ],
)
def test_the_error_names_the_option_that_replaces_a_setting(
    changes, words, make_bert, imported, refused
):
    theirs = make_bert("classification")
    change_config(theirs, **changes)
    assert words[0] in refused(theirs)
    assert read_model(imported(theirs, *words)[1])[0].problem == "single_label"


def test_added_tokens_are_refused(make_bert, refused):
    theirs = make_bert()
    (theirs / "added_tokens.json").write_text('{"<new>": 77}')
    assert "tokens added to a vocab.txt are not supported" in refused(theirs)


def test_wrong_labels_are_refused_and_a_new_classifier_is_made(make_bert, imported, refused):
    theirs = make_bert("classification")
    errors = refused(theirs, "--labels", "yes", "no")
    assert "--labels gives 2 names, but the classifier in" in errors and "has 3 scores (" in errors
    output, ours = imported(theirs, "--head", "classification", "--labels", "yes", "no")
    assert "+ classifier.weight: left out because the classifier is replaced with" in output
    assert "- classifier.kernel: randomly initialized, to be trained" in output
    config, origin = read_model(ours)
    assert config.problem == "single_label" and "classifier.kernel" in str(origin)
    errors = refused(make_bert(name="bare"), "--labels", "yes", "no")
    assert "has no classifier. To add one, set --head" in errors
    one = ("--head", "classification", "--labels", "stars")
    output, ours = imported(theirs, *one, name="number")
    assert read_model(ours)[0].problem == "regression"
    assert "the model has one label, so it is treated as a regression model" in output
    _, ours = imported(theirs, *one, "--problem", "multi_label", name="binary")
    assert read_model(ours)[0].problem == "multi_label"
