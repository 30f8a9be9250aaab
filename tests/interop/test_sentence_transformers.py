"""Test that sentence-transformers models give the same vectors after import and after export."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.sentence_transformer.modules import (
    Dense,
    Normalize,
    Pooling,
    Transformer,
)

from bert_jax import Embed
from bert_jax.inference.predictor import UnusableText
from bert_jax.models.sentence_embedding import PoolingMode, SentenceEmbedding, sentence_vectors
from bert_jax.runs.work_dir import read_sentence_embedding

from . import families
from .conftest import card_code, make, same

MODES = list(Pooling.POOLING_MODES)
TEXTS = ["I love my pet Python", "", "b c", "a b c d e f g h i j k l m n o p q r s t", "ABC, abc!"]
PROMPTS = {"query": "query: ", "document": "", "long": "one two three four five"}
Build = Callable[..., Path]


@pytest.fixture
def build(tmp_path: Path) -> Build:
    """Return a function that saves a tiny sentence-transformers model for an encoder family."""

    def saved(
        family: str = "Bert",
        pooling: str | tuple[str, ...] = "mean",
        *behind: torch.nn.Module,
        include_prompt: bool = True,
        encoder: dict | None = None,
        name: str = "theirs",
        **settings: object,
    ) -> Path:
        plain = tmp_path / f"{name}-encoder"
        if family == "Bert":
            make(plain, "encoder")
        else:
            families.make(plain, family, "encoder")
        transformer = Transformer(str(plain), **(encoder or {}))
        modules = [transformer, Pooling(32, pooling, include_prompt=include_prompt), *behind]
        model = SentenceTransformer(modules=modules, device="cpu", **settings)
        model.save(str(tmp_path / name), create_model_card=False)
        return tmp_path / name

    return saved


def load(directory: Path) -> SentenceTransformer:
    return SentenceTransformer(str(directory), device="cpu", local_files_only=True)


def compare(theirs: SentenceTransformer, embed: Embed, **prompt: str) -> None:
    """Check that `Embed` gives the same vectors as sentence-transformers."""
    expected = theirs.encode(TEXTS, batch_size=2, **prompt)
    vectors = np.stack([each.vector for each in embed.sentences(TEXTS, **prompt)])
    np.testing.assert_allclose(vectors, expected, atol=1e-5)
    one = embed(TEXTS[3], **prompt)
    np.testing.assert_allclose(one.vector, expected[3], atol=1e-5)


def exported(work_dir: Path, bert_jax_here, *words: str, form: str = "huggingface") -> Path:
    output = work_dir.with_name(f"{work_dir.name}-{form}")
    finished = bert_jax_here("export", work_dir, "--format", form, "--output", output, *words)
    assert finished.code == 0, finished.errors
    return output


@pytest.mark.parametrize("mode", [*MODES, ("mean", "cls"), ("cls", "max")], ids=str)
@pytest.mark.parametrize("skipped", [0, 2])
def test_pooling_matches_the_library(mode, skipped):
    rng = np.random.default_rng(0)
    hidden = rng.normal(size=(3, 7, 4)).astype(np.float32)
    mask = (np.arange(7) < np.array([7, 3, 5])[:, None]).astype(np.int32)
    pooling = Pooling(4, mode, include_prompt=False)
    features = {
        "token_embeddings": torch.tensor(hidden),
        "attention_mask": torch.tensor(mask),
        "prompt_length": skipped,
    }
    expected = Normalize()(pooling(features))["sentence_embedding"]
    modes: tuple[PoolingMode, ...] = (mode,) if isinstance(mode, str) else mode
    settings = SentenceEmbedding(modes, normalize=True)
    found = sentence_vectors(hidden, mask, skipped, settings)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    shorter = sentence_vectors(hidden, mask, skipped, SentenceEmbedding(modes, truncate_dim=3))
    assert shorter.shape == (3, 3)


CASES = {
    "cls": ("Bert", "cls", [Normalize()], {"encoder": {"max_seq_length": 12}}),
    "mean": ("DistilBert", "mean", [], {"encoder": {"max_seq_length": 9}}),
    "max": ("Roberta", ("mean", "max"), [Normalize()], {"similarity_fn_name": "dot"}),
}


@pytest.mark.parametrize("case", CASES)
def test_vectors_match_after_import_and_export(case, build, imported, bert_jax_here):
    family, pooling, behind, settings = CASES[case]
    theirs = build(family, pooling, *behind, **settings)
    output, ours = imported(theirs)
    modes = (pooling,) if isinstance(pooling, str) else pooling
    assert f"sentence embedding: pooling {' + '.join(modes)}, " in output
    embed, original = Embed(ours), load(theirs)
    compare(original, embed)
    again = exported(ours, bert_jax_here)
    loaded = load(again)
    compare(loaded, embed)
    assert loaded.max_seq_length == embed.max_length <= original.max_seq_length
    assert loaded.similarity_fn_name == original.similarity_fn_name
    _, back = imported(again, name="back")
    assert read_sentence_embedding(back) == read_sentence_embedding(ours)
    same(theirs, ours, bert_jax_here)
    same(ours, again, bert_jax_here)


def test_prompts(build, imported, bert_jax_here):
    theirs = build(
        "Bert",
        "mean",
        include_prompt=False,
        prompts=PROMPTS,
        default_prompt_name="query",
        truncate_dim=20,
    )
    _, ours = imported(theirs)
    again = exported(ours, bert_jax_here)
    embed = Embed(ours)
    for loaded in (load(theirs), load(again)):
        compare(loaded, embed)
        for name in ("document", "long"):
            compare(loaded, embed, prompt_name=name)
        compare(loaded, embed, prompt="x y ")
    found = embed("a pet")
    assert found.vector.shape == (20,)
    assert found.offsets[-5:].tolist() == [[0, 1], [2, 3], [3, 4], [4, 5], [0, 0]]
    assert found.word("pet").shape == (3, 32) and found.text == "a pet"
    with pytest.raises(ValueError, match="prompt_name='queri': no such prompt; nearest: query"):
        embed("a", prompt_name="queri")
    with pytest.raises(ValueError, match="prompt='x' and prompt_name='long' are both set"):
        embed.sentences(["a"], prompt_name="long", prompt="x")
    with pytest.raises(UnusableText, match="text 1 of 2: a lone surrogate"):
        embed(["a", "\udc00"], prompt_name="long")
    # The prompt has five tokens, but the prompt and the text together form a single unknown word.
    with pytest.raises(UnusableText, match="text 1 of 2: no tokens are left to pool"):
        embed.sentences(["a", "\u00df"], prompt="query")


def old_layout(directory: Path, target: Path, **encoder: object) -> None:
    """Convert a model to the layout that was used before version 1.

    This layout has a subdirectory for the encoder, and a flag for each pooling mode.
    """
    shutil.copytree(directory, target / "0_Transformer")
    shutil.copytree(directory / "1_Pooling", target / "1_Pooling")
    for name in ("modules.json", "config_sentence_transformers.json"):
        (target / "0_Transformer" / name).unlink()
    write(target / "0_Transformer/sentence_bert_config.json", encoder)
    flags = {f"pooling_mode_{mode}_tokens": mode == "max" for mode in ("max", "mean")}
    flags |= {"pooling_mode_cls_token": True, "pooling_mode_mean_sqrt_len_tokens": False}
    write(target / "1_Pooling/config.json", {"word_embedding_dimension": 32, **flags})
    package, kinds = "sentence_transformers.models", ("Transformer", "Pooling", "Normalize")
    modules = [
        {"idx": i, "name": str(i), "path": f"{i}_{kind}", "type": f"{package}.{kind}"}
        for i, kind in enumerate(kinds)
    ]
    write(target / "modules.json", modules)


def write(file: Path, content: object) -> None:
    file.write_text(json.dumps(content), encoding="utf-8")


def test_the_layout_of_early_versions(build, imported, tmp_path):
    theirs = tmp_path / "early"
    old_layout(build(), theirs, max_seq_length=10, do_lower_case=True)
    config = theirs / "0_Transformer/tokenizer_config.json"
    write(config, json.loads(config.read_text()) | {"do_lower_case": False})
    assert load(theirs).tokenizer(["ABC"]) == load(theirs).tokenizer(["abc"])
    _, ours = imported(theirs)
    expected = SentenceEmbedding(("cls", "max"), normalize=True, max_length=10)
    assert read_sentence_embedding(ours) == expected
    compare(load(theirs), Embed(ours))


def test_a_model_without_settings_has_the_mean(build, imported, bert_jax_here):
    theirs = build(name="theirs").with_name("theirs-encoder")
    output, ours = imported(theirs)
    assert "sentence embedding" not in output and read_sentence_embedding(ours) is None
    embed = Embed(ours)
    # By default, sentence-transformers also averages the token vectors.
    compare(load(theirs), embed)
    content = json.loads((ours / "model.json").read_text())
    del content["sentence_embedding"]  # Earlier versions did not write this key.
    write(ours / "model.json", content)
    found = Embed(ours)(TEXTS[0])
    np.testing.assert_allclose(found.vector, found.mean, atol=1e-6)
    names = {file.name for file in exported(ours, bert_jax_here).iterdir()}
    assert not names & {"modules.json", "1_Pooling", "sentence_bert_config.json"}


def test_settings_are_printed_and_kept(build, imported, bert_jax_here, tmp_path):
    theirs = build("Bert", "cls", Normalize(), prompts=PROMPTS, encoder={"max_seq_length": 12})
    _, ours = imported(theirs)
    _, shorter = imported(theirs, "--max-positions", "8", name="shorter")
    assert read_sentence_embedding(shorter).max_length == Embed(shorter).max_length == 8
    shown = bert_jax_here("inspect", ours).output
    assert "cls" in shown and "query='query: '" in shown
    words = ("extract", ours, "--step", "newest", "--output", tmp_path / "extracted")
    assert bert_jax_here(*words).code == 0
    assert read_sentence_embedding(tmp_path / "extracted") == read_sentence_embedding(ours)
    again = exported(ours, bert_jax_here)
    card = (again / "README.md").read_text()
    assert "library_name: sentence-transformers" in card and "sentence-similarity" in card
    assert "| pooling | cls |" in card and "| max_length | 12 |" in card
    assert "SentenceTransformer" in card_code(again)
    program = exported(ours, bert_jax_here, form="onnx")
    card = (program / "README.md").read_text()
    assert "| pooling | cls |" in card and "The program does not pool" in card
    assert "library_name: onnx" in card and "the output `last_hidden_state`. Prepend" in card


def test_verify_compares_the_vectors_of_texts(build, imported, bert_jax_here):
    theirs = build("Bert", "cls", Normalize(), encoder={"max_seq_length": 12})
    _, ours = imported(theirs)
    write(theirs / "1_Pooling/config.json", {"embedding_dimension": 32, "pooling_mode": "mean"})
    compared = bert_jax_here("verify", theirs, ours)
    assert compared.code == 1
    assert "FAIL: A and B pool differently (A -> B):\n  pooling: ['mean'] -> ['cls']\n" in (
        compared.output
    )
    (theirs / "modules.json").unlink()
    same(theirs, ours, bert_jax_here)


def test_predict_with_a_prompt(build, imported, bert_jax_here, tmp_path):
    _, ours = imported(build("Bert", "cls", prompts=PROMPTS))
    (tmp_path / "texts.txt").write_text("a b\n")

    def vector(*words: str) -> list[float]:
        found = bert_jax_here("predict", ours, "--input", tmp_path / "texts.txt", *words)
        assert found.code == 0, found.errors
        return json.loads(found.output)["vector"]

    embed = Embed(ours)
    np.testing.assert_allclose(vector(), embed("a b").vector, atol=1e-6)
    asked = embed("a b", prompt_name="query").vector
    np.testing.assert_allclose(vector("--prompt-name", "query"), asked, atol=1e-6)
    assert not np.allclose(asked, embed("a b").vector, atol=1e-3)
    words = ("predict", ours, "--input", tmp_path / "texts.txt")
    refused = bert_jax_here(*words, "--prompt-name", "nothing")
    assert refused.code == 2 and "available: document, long, query" in refused.errors
    refused = bert_jax_here(*words, "--task", "fill-mask", "--prompt-name", "query")
    assert refused.code == 2 and "--prompt-name=query: " in refused.errors


def test_unsupported_settings_are_named(build, imported, refused, tmp_path):
    theirs = build("Bert", "mean", Dense(32, 8), name="dense")
    error = refused(theirs)
    assert "modules.json: a Dense module is not supported" in error and "--head encoder" in error
    output, ours = imported(theirs, "--head", "encoder")
    assert "modules.json: the modules Pooling, Dense are dropped: " in output
    assert read_sentence_embedding(ours) is None
    theirs = build("Bert", "mean", Normalize(), name="damaged")
    pooling, normalize = (theirs / name / "config.json" for name in ("1_Pooling", "2_Normalize"))
    model = theirs / "config_sentence_transformers.json"
    encoder = theirs / "sentence_bert_config.json"
    modules = json.loads((theirs / "modules.json").read_text())
    custom = [modules[0] | {"type": "custom.Transformer"}, *modules[1:]]
    outside = [modules[0], modules[1] | {"path": "../1_Pooling"}]
    for file, content, message in (
        (pooling, {"embedding_dimension": 32, "pooling_mode": "first"}, "pooling_mode=['first'"),
        (pooling, {"embedding_dimension": 32, "pooling_mode": []}, "pooling is empty"),
        (pooling, {"embedding_dimension": 32, "include_prompt": 1}, "include_prompt: expected"),
        (pooling, {"embedding_dimension": 32, "pooling_mode_top": True}, "pooling_mode_top"),
        (pooling, {}, "it lacks word_embedding_dimension"),
        (pooling, None, "1_Pooling/config.json: missing"),
        (normalize, {"module_input_name": "token_embeddings"}, "module_input_name='token_em"),
        (model, {"model_type": "SparseEncoder"}, "model_type='SparseEncoder'"),
        (model, {"prompts": {"a": 1}}, "prompts.a: expected str"),
        (model, {"default_prompt_name": "a"}, "default_prompt_name='a': no such prompt"),
        (model, {"similarity_fn_name": "maxsim"}, "similarity: 'maxsim' is not one of"),
        (encoder, {"query_length": 8}, "query_length=8"),
        (encoder, {"max_seq_length": 3}, "max_seq_length=3: expected at least 5 tokens"),
        (encoder, {"max_seq_length": "3"}, "max_seq_length='3': expected a whole number"),
        (theirs / "modules.json", custom, "a custom.Transformer module is not supported"),
        (theirs / "modules.json", outside, "path '../1_Pooling'"),
        (theirs / "modules.json", [], "lists no modules"),
        (theirs / "modules.json", [1], "modules.json: damaged"),
    ):  # fmt: skip
        before = file.read_bytes()
        file.unlink() if content is None else write(file, content)
        assert message in refused(theirs), content
        file.write_bytes(before)
    imported(theirs, name="whole")


def test_a_cross_encoder_is_a_classifier(bert_jax_here, imported, tmp_path):
    make(tmp_path / "theirs", "classification")
    model = CrossEncoder(str(tmp_path / "theirs"), device="cpu", local_files_only=True)
    model.save_pretrained(str(tmp_path / "cross"), create_model_card=False)
    assert (tmp_path / "cross/modules.json").is_file()
    output, ours = imported(tmp_path / "cross")
    assert "('classification' head)" in output and read_sentence_embedding(ours) is None


@pytest.mark.parametrize("early", [False, True])
def test_the_hub_is_asked_for_every_part(early, build, imported, tmp_path, monkeypatch):
    theirs = build("Bert", "cls", Normalize(), encoder={"max_seq_length": 12})
    if early:
        old_layout(theirs, tmp_path / "early", max_seq_length=12)
        theirs = tmp_path / "early"

    def download(name, revision, allow_patterns):
        snapshot = tmp_path / "snapshot"
        for file in theirs.rglob("*"):
            path = str(file.relative_to(theirs))
            if file.is_file() and any(fnmatch(path, pattern) for pattern in allow_patterns):
                (snapshot / path).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, snapshot / path)
        return str(snapshot)

    _, local = imported(theirs, name="local")
    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    _, ours = imported("someone/sentences")
    settings = read_sentence_embedding(ours)
    assert settings is not None and settings == read_sentence_embedding(local)
    assert settings.normalize and settings.max_length == 12
