"""Test which parameters a run keeps from its source, initializes randomly, or freezes."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from bert_jax.finetuning.run import FinetuneRun
from bert_jax.finetuning.run_description import describe
from bert_jax.interop.model_card import model_card
from bert_jax.labeled_data.feature_batches import FeatureBatches
from bert_jax.models.sentence_embedding import SETTINGS_DROPPED, SentenceEmbedding
from bert_jax.recipes.load import load_config
from bert_jax.runs.ownership import keep_config
from bert_jax.runs.work_dir import read_model, read_sentence_embedding
from bert_jax.training.checkpoint import Checkpointer
from bert_jax.training.checkpoint_files import CheckpointConfig
from bert_jax.training.sharding import make_mesh

from .conftest import history, parameters, scores


@pytest.fixture
def opened(toy, tmp_path):
    """Return a function that opens a run without training it."""

    def run(task: str, *overrides: str, **more) -> FinetuneRun:
        _, _, path, _, init, *words = toy.words(task, tmp_path / "run", *overrides, **more)
        config = load_config(
            path, [f"--config.init_from={init}", *map(str, words)], kind="finetune"
        )
        return FinetuneRun.open(config, make_mesh(config.mesh))

    return run


@pytest.fixture
def begun(opened, tmp_path):
    """Return a function that returns (parameters, origin) for the initial state of a run."""

    def begin(*words, **more) -> tuple[dict[str, np.ndarray], str]:
        run = opened(*words, **more)
        with Checkpointer(tmp_path / "none", CheckpointConfig(), {}) as checkpointer:
            state, told = run.first_state(checkpointer)
        return {name: np.asarray(x) for name, x in state.params.items()}, told

    return begin


def kept(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> set[str]:
    """Return the names of the parameters whose values are the same in both models."""
    return {
        name
        for name in found.keys() & expected.keys()
        if found[name].shape == expected[name].shape and (found[name] == expected[name]).all()
    }


def test_parameters_shared_with_the_source_are_kept(begun, toy, source):
    theirs = parameters(source)
    found, told = begun("glue")
    new = {"classifier.bias", "classifier.kernel"}
    assert told == f"the parameters of {source}; randomly initialized: {', '.join(sorted(new))}"
    assert kept(found, theirs) == found.keys() - new
    assert "pooler.dense.kernel" in found and "mlm.transform.kernel" not in found


def test_a_missing_pooler_is_randomly_initialized_and_reported(begun, make_source):
    init = make_source("tagging", ("O", "B-PER", "B-LOC"))
    found, told = begun("glue", init=init)
    new = {f"{part}.{x}" for part in ("classifier", "pooler.dense") for x in ("bias", "kernel")}
    assert told.endswith(f"randomly initialized: {', '.join(sorted(new))}")
    assert not kept(found, parameters(init)) & {"classifier.kernel", "pooler.dense.kernel"}


def test_sentence_embedding_settings_are_dropped(begun, opened, make_source, tmp_path):
    init = make_source("tagging", ("O", "B-PER", "B-LOC"))
    file = init / "model.json"
    before = file.read_text()
    assert SETTINGS_DROPPED not in begun("glue", init=init)[1]
    file.write_text(json.dumps(json.loads(before) | {"sentence_embedding": {"pooling": ["cls"]}}))
    assert read_sentence_embedding(init) == SentenceEmbedding(("cls",))
    _, told = begun("glue", init=init)
    assert told.endswith(f"; {SETTINGS_DROPPED}")
    run = opened("glue", init=init)
    run.write_model(None)
    assert read_sentence_embedding(tmp_path / "run") is None


@pytest.mark.parametrize(
    ("labels", "same"),
    [(("O", "B-LOC", "B-PER"), True), (("O", "B-PER", "B-LOC"), False)],
    ids=["the same labels", "in another order"],
)
def test_a_classifier_of_the_same_labels_is_kept(begun, make_source, labels, same):
    init = make_source("tagging", labels)
    found, told = begun("tags", init=init)
    assert ("randomly initialized" not in told) == same
    assert ("classifier.kernel" in kept(found, parameters(init))) == same


@pytest.mark.parametrize("same", [True, False])
def test_a_classifier_of_classes_is_kept_by_their_names(begun, opened, make_source, same):
    labels = opened("glue").model.labels
    init = make_source("classification", labels if same else labels[::-1])
    found, told = begun("glue", init=init)
    assert (", including the classifier, which has the same labels" in told) == same
    assert ("classifier.kernel" in kept(found, parameters(init))) == same


def test_from_scratch_takes_only_sizes_and_tokenizer(begun, source):
    found, told = begun("glue", "from_scratch=True", "seed=3")
    assert told == "random parameters (seed 3)"
    theirs = parameters(source)
    random = {name for name in found if not name.endswith((".bias", ".scale"))}
    assert not kept(found, theirs) & random
    assert all(found[name].shape == theirs[name].shape for name in found.keys() & theirs.keys())


@pytest.mark.parametrize(
    ("scratch", "named", "drawn"),
    [
        (False, "source", ""),
        (
            *(True, "sizes and tokenizer of"),
            "random parameters, with the sizes and the tokenizer of ",
        ),
    ],
)
def test_model_json_names_the_source(opened, source, scratch, named, drawn):
    run = opened("glue", f"from_scratch={scratch}")
    run.work_dir.mkdir(parents=True, exist_ok=True)
    run.write_model(None)
    model, origin = read_model(run.work_dir)
    assert origin == {"command": "bert-jax finetune", named: str(source)}
    keep_config(run.resolved, run.work_dir, 0, finished=False)
    card = model_card(run.work_dir, model, origin, 12, "bert-jax", "", "float32")
    assert f"\n- {named}: {source.name}\n" in card
    assert f"\n- started from: {drawn}{source.name}\n" in card


def test_another_seed_initializes_another_classifier(begun):
    one, other = (begun("glue", f"seed={seed}")[0] for seed in (0, 1))
    assert one.keys() - kept(one, other) == {"classifier.kernel"}


@pytest.mark.parametrize(
    ("tuning", "frozen"),
    [
        ("top_layers=0", ("encoder.",)),
        ("top_layers=1", ("encoder.embeddings.", "encoder.layers.0.")),
        ("embeddings=False", ("encoder.embeddings.",)),
    ],
)
def test_frozen_parameters_do_not_change(toy, bert_jax_here, make_source, tmp_path, tuning, frozen):
    init = make_source(num_layers=2)
    words = toy.words("glue", tmp_path, f"tuning.{tuning}", "num_epochs=1", init=init)
    finished = bert_jax_here(*words)
    assert finished.code == 0, finished.errors
    found, theirs = parameters(tmp_path), parameters(init)
    wanted = {name for name in found if name.startswith(frozen)}
    assert wanted and kept(found, theirs) == wanted


@pytest.mark.parametrize("task", ["glue", "choices"])
def test_the_reported_padding_is_that_of_the_training_batches(opened, task):
    run = opened(task, "max_shapes=3", "batch_size=40")
    batches = FeatureBatches(run.data.train, run.plan)
    masks = [batches[step]["attention_mask"] for step in range(len(batches))]
    assert (
        masks[0].ndim == (3 if task == "choices" else 2) and len(masks) == 5
    )  # The last batch is not full.
    share = 1 - sum(mask.sum() for mask in masks) / sum(mask.size for mask in masks)
    assert describe(run)[-1].endswith(f" {share:.1%} padding")


def test_unknown_tokens_are_reported_for_every_set(opened, toy, tmp_path):
    shares = next(line for line in describe(opened("glue")) if line.startswith("unknown "))
    assert shares == "unknown    0.00% of train, 0.00% of validation, 0.00% of SST-2 ([UNK])"
    directory = tmp_path / "reviews"
    shutil.copytree(toy.root / "reviews", directory)
    train = directory / "train.tsv"
    rows = train.read_text().replace("film", "фильм").replace("lovely", "чудесный")
    train.write_text(rows)
    words = [word for row in rows.splitlines()[1:] for word in row.split("\t")[0].split()]
    share = sum(not word.isascii() for word in words) / len(words)
    lines = describe(opened("glue", f"glue.directory={directory}"))
    assert f"unknown    {share:.2%} of train, 0.00% of validation, 0.00% of SST-2 ([UNK])" in lines
    (warning,) = [line for line in lines if line.startswith("WARNING")]
    assert warning.startswith(f"WARNING    {share:.1%} of {len(words):,} tokens of train are")


def test_a_set_of_mostly_unknown_tokens_is_refused(opened, toy, tmp_path):
    directory = tmp_path / "reviews"
    shutil.copytree(toy.root / "reviews", directory)
    header, *rows = (directory / "dev.tsv").read_text().splitlines()
    rows = [f"плохой фильм и актёр тоже\t{row.split(chr(9))[1]}" for row in rows]
    (directory / "dev.tsv").write_text("\n".join([header, *rows]) + "\n")
    with pytest.raises(ValueError, match="100.0% of 105 tokens of validation are .*allow_unknown="):
        opened("glue", f"glue.directory={directory}")
    opened("glue", f"glue.directory={directory}", "allow_unknown=True")


def test_a_directory_without_a_test_set_is_accepted(toy, bert_jax_here, tmp_path):
    directory, work_dir = tmp_path / "reviews", tmp_path / "run"
    shutil.copytree(toy.root / "reviews", directory, ignore=shutil.ignore_patterns("test.tsv"))
    words = toy.words("glue", work_dir, f"glue.directory={directory}", "num_epochs=1")
    finished = bert_jax_here(*words)
    assert finished.code == 0, finished.errors
    assert "examples   192 for training, 21 validation, no test set\n" in finished.output
    assert scores(work_dir)["predictions"] == []


def test_rows_are_at_most_as_long_as_the_positions_of_the_model(opened, make_source):
    run = opened("glue", "max_length=13", init=make_source(max_positions=13))
    assert max(run.row_lengths) == 13


@pytest.mark.slow
def test_a_model_with_options_of_the_other_families_trains_on_pairs(
    toy, bert_jax_here, make_source, tmp_path
):
    """Combine options from RoBERTa, ALBERT and DistilBERT in one model with shared layers."""
    source = make_source(
        head="masked_lm", num_layers=2, embedding_dim=8, sharing="all", num_segments=1,
        position_offset=2, pooler_activation="relu", pooler_dropout=True,
    )  # fmt: skip
    work_dir = tmp_path / "run"
    words = toy.words("regression", work_dir, "num_epochs=2", "head_dropout=0.1", init=source)
    finished = bert_jax_here(*words)
    assert finished.code == 0, finished.errors
    assert "randomly initialized: classifier.bias, classifier.kernel, pooler" in finished.output
    before, after = parameters(source), parameters(work_dir)
    assert "encoder.layers.0.ffn.up.kernel" in after
    assert not any(name.startswith("encoder.layers.1.") for name in after)
    for name in ("encoder.embeddings.projection.kernel", "encoder.layers.0.attention.query.kernel"):
        assert not np.array_equal(before[name], after[name]), name
    told = bert_jax_here("evaluate", work_dir)
    assert told.code == 0 and "spearman" in told.output
    apart = bert_jax_here(
        *toy.words("regression", tmp_path / "x", "tuning.top_layers=1", init=source)
    )
    assert apart.code == 2 and "the model's layers share parameters" in apart.errors


def test_a_run_resumes_without_its_source_and_with_a_moved_source(
    toy, bert_jax_here, make_source, tmp_path
):
    """Resume from a checkpoint, which contains all parameters, but reject a different source."""
    init, moved, work_dir = tmp_path / "model", tmp_path / "moved", tmp_path / "run"
    shutil.copytree(make_source(), init)

    def words(epochs: int, init=init, into=work_dir) -> list:
        return toy.words("glue", into, f"num_epochs={epochs}", init=init)

    assert bert_jax_here(*words(1)).code == 0
    # Move the checkpoints away, as a user might do to free up disk space.
    (init / "checkpoints").rename(moved)
    emptied = bert_jax_here(*words(1))
    assert emptied.code == 0 and "(finished: nothing to do)" in emptied.output
    assert not (init / "checkpoints").exists()
    moved.rename(init / "checkpoints")
    init.rename(moved)
    elsewhere = bert_jax_here(*words(1, moved))
    assert elsewhere.code == 0 and "(finished: nothing to do)" in elsewhere.output
    gone = bert_jax_here(*words(2))
    assert gone.code == 0, gone.errors
    assert "this run's checkpoint at step 12" in gone.output
    assert ("evaluation", 24) in history(work_dir)
    misspelled = bert_jax_here(*words(3, tmp_path / "modle"))
    assert misspelled.code == 2
    assert f"modle: contains no model, but the run in {work_dir} started" in misspelled.errors
    assert f"Set init_from={init}," in misspelled.errors

    other = bert_jax_here(*words(3, make_source(seed=8)))
    assert other.code == 2
    assert "belongs to another run" in other.errors and "init_from.parameters: '" in other.errors
    nothing = bert_jax_here(*words(1, tmp_path / "nowhere", tmp_path / "new"))
    assert nothing.code == 2 and "nowhere: contains no model.json" in nothing.errors


@pytest.mark.parametrize("task", ["glue", "tags"])
def test_a_prediction_head_starts_from_the_masked_lm_head(begun, make_source, task):
    source = make_source(
        head="masked_lm", positions="rotary", num_segments=0, classifier_transform="prediction"
    )
    found, told = begun(task, init=source)
    assert told.endswith("randomly initialized: classifier.bias, classifier.kernel")
    expected = parameters(source)
    for part, other in (
        ("prediction.dense.kernel", "masked_lm.transform.kernel"),
        ("prediction.norm.scale", "masked_lm.norm.scale"),
    ):
        np.testing.assert_array_equal(found[part], expected[other])
