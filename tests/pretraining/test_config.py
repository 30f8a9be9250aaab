"""Test the config of a pretraining run and the pretraining recipes."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers

from bert_jax.models.compute_config import ComputeConfig
from bert_jax.models.config import EncoderConfig
from bert_jax.models.model import ModelConfig, define_model
from bert_jax.models.parameters import count
from bert_jax.models.variants import variant
from bert_jax.pretraining.config import EvaluationConfig, PhaseConfig, PretrainConfig
from bert_jax.recipes.load import load_config
from bert_jax.tasks.matched_layers import matched_layers
from bert_jax.tasks.replaced_token import ReplacedTokenConfig
from bert_jax.training.checkpoint_files import CheckpointConfig

CONFIGS = Path(__file__).parents[2] / "configs/pretrain"
RECIPES = sorted(CONFIGS.glob("*.py"))
SMALL = sorted(CONFIGS.glob("small/*.py"))


def config(**changes: object) -> PretrainConfig:
    values: dict = dict(
        work_dir="run", model=EncoderConfig(), phases={"phase1": PhaseConfig("corpus", 10)}
    )
    return PretrainConfig(**(values | changes))


@pytest.mark.parametrize("recipe", RECIPES + SMALL, ids=lambda path: path.stem)
def test_every_recipe_loads(recipe: Path) -> None:
    loaded = load_config(recipe, kind="pretrain")
    assert all(p.sequence_length <= loaded.model.max_positions for p in loaded.phases.values())


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("bert_base", "base"),
        ("bert_large", "large"),
        ("tiny", "tiny"),
        ("mini", "mini"),
        ("roberta_base", "roberta-base"),
        ("albert_base", "albert-base-v1"),
        ("distilbert", "distilbert"),
        ("electra_small", "electra-small"),
    ],
)
def test_recipes_have_the_published_sizes(name: str, size: str) -> None:
    recipe = next(path for path in RECIPES if path.stem == name)
    assert load_config(recipe, kind="pretrain").model == variant(size)


@pytest.mark.parametrize("recipe", SMALL, ids=lambda path: path.stem)
def test_a_small_recipe_differs_from_its_large_one_only_in_sizes(recipe: Path) -> None:
    large, small = (load_config(path, kind="pretrain") for path in (CONFIGS / recipe.name, recipe))
    sizes = ("vocab_size", "hidden_dim", "num_layers", "num_heads", "ffn_dim", "max_positions")
    sizes += ("embedding_dim", "initializer_range", "attention_window")
    # This recipe continues the pretraining of a model, and keeps the model's dropout rates.
    if recipe.stem == "domain":
        sizes += ("hidden_dropout", "attention_dropout")
    # This small ELECTRA is trained for a few minutes, in which it learns something only if its
    # dropout and masking rates differ from those of the large one.
    if recipe.stem == "electra_small":
        sizes += ("hidden_dropout", "attention_dropout")
        small = replace(small, masking=replace(small.masking, rate=large.masking.rate))
    same_model = {name: getattr(large.model, name) for name in sizes}
    assert replace(small.model, **same_model) == large.model
    assert (small.model.embedding_dim is None) == (large.model.embedding_dim is None)
    names = ("peak_learning_rate", "warmup_steps", "end_learning_rate", "decay_steps")
    rates = {name: getattr(large.optimizer, name) for name in names}
    assert replace(small.optimizer, **rates) == large.optimizer
    for name in ("sentence_pairs", "join_documents", "vocabulary", "masking", "phases"):
        value, large_value = getattr(small, name), getattr(large, name)
        if name == "phases":
            assert value.keys() == large_value.keys()
        else:
            assert value == large_value
    if large.distillation is not None:
        assert small.distillation is not None
        assert replace(small.distillation, teacher=large.distillation.teacher) == large.distillation


@pytest.mark.parametrize("name", ["bert_base", "bert_large"])
def test_the_original_recipe_has_a_million_steps_in_two_phases(name: str) -> None:
    recipe = next(path for path in RECIPES if path.stem == name)
    loaded = load_config(recipe, kind="pretrain")
    (_, first, short), (_, second, long) = loaded.ordered_phases()
    assert (first, short.num_steps, short.sequence_length, short.batch_size) == (
        0, 900_000, 128, 256,
    )  # fmt: skip
    assert (second, long.num_steps, long.sequence_length, long.batch_size) == (
        900_000, 100_000, 512, 256,
    )  # fmt: skip
    optimizer = loaded.optimizer
    assert (optimizer.name, optimizer.peak_learning_rate, optimizer.warmup_steps) == (
        "adamw", 1e-4, 10_000,
    )  # fmt: skip
    assert (optimizer.schedule, optimizer.weight_decay) == ("linear", 0.01)


def test_the_recipe_of_electra_matches_its_paper() -> None:
    # These values are from Clark et al. 2020, table 6 ("Small") and section 3.3.
    (path,) = (path for path in RECIPES if path.stem == "electra_small")
    config = load_config(path, kind="pretrain")
    (_, _, phase), optimizer, masking = *config.ordered_phases(), config.optimizer, config.masking
    assert (phase.num_steps, phase.batch_size, phase.sequence_length) == (1_000_000, 128, 128)
    assert (optimizer.peak_learning_rate, optimizer.warmup_steps) == (5e-4, 10_000)
    assert (optimizer.name, optimizer.schedule, optimizer.epsilon) == ("adamw", "linear", 1e-6)
    assert (optimizer.beta1, optimizer.beta2, optimizer.weight_decay) == (0.9, 0.999, 0.01)
    assert (masking.rate, masking.mask_fraction, masking.unit) == (0.15, 1.0, "token")
    assert config.replaced_token == ReplacedTokenConfig(generator_size=0.25, weight=50.0)


@pytest.mark.parametrize(
    ("size", "batch_sizes", "warmup", "rate", "rate_warmup", "tokens", "long"),
    [
        ("base", range(768, 4_609, 768), 50e9, 8e-4, 3e9, 1719e9, (576, 576, 3e-4, 1e-5)),
        ("large", range(448, 4_929, 448), 10e9, 5e-4, 2e9, 900e9, (616, 624, 5e-5, 1e-6)),
    ],
)
def test_the_recipes_of_modernbert_match_their_paper(
    size: str, batch_sizes: range, warmup: float, rate: float, rate_warmup: float,
    tokens: float, long: tuple[int, int, float, float],
) -> None:  # fmt: skip
    """Compare with Warner et al. 2024, section 2.2.2 and tables 3 and 4."""
    model = variant(f"modernbert-{size}", attention_output_dropout=0.1)
    first = load_config(f"pretrain/modernbert_{size}")
    assert first.model == replace(model, max_positions=1024, rotary_theta=10_000.0)
    assert (first.masking.rate, first.evaluation.masking_rate) == (0.3, 0.15)
    ((_, _, phase),) = first.ordered_phases()
    assert phase.batch_sizes == tuple(batch_sizes)
    sequences = [stage.num_steps * stage.batch_size for stage in phase.stages]
    assert sum(sequences[:-1]) * 1024 == pytest.approx(warmup, rel=1e-3)
    assert phase.num_sequences * 1024 == pytest.approx(tokens, rel=1e-5)
    optimizer = first.optimizer
    assert (optimizer.name, optimizer.schedule) == ("stable_adamw", "constant")
    assert (optimizer.beta1, optimizer.beta2, optimizer.epsilon) == (0.9, 0.98, 1e-6)
    assert optimizer.peak_learning_rate == rate
    assert optimizer.weight_decay * rate == pytest.approx(1e-5)
    stage = phase.stage_at(optimizer.warmup_steps)
    before = stage.first_sequence + (optimizer.warmup_steps - stage.first_step) * stage.batch_size
    assert before * 1024 == pytest.approx(rate_warmup, rel=1e-3)

    second = load_config(f"pretrain/modernbert_{size}_long")
    assert second.model == model and second.init_from == first.work_dir
    (_, _, constant), (_, start, decay) = second.ordered_phases()
    *batch_sizes_long, rate, weight_decay = long
    assert [constant.batch_size, decay.batch_size] == batch_sizes_long
    for part, total in ((constant, 250e9), (decay, 50e9)):
        assert part.sequence_length == 8192
        assert part.num_sequences * 8192 == pytest.approx(total, rel=1e-4)
    assert second.optimizer.decay_start(second.total_steps) == start
    assert second.optimizer.peak_learning_rate == rate
    assert second.optimizer.weight_decay * rate == pytest.approx(weight_decay)


def test_the_recipe_for_continued_pretraining_matches_its_paper() -> None:
    """Compare with Gururangan et al. 2020, section 3.2, appendix B and table 13.

    The masking rate, the dropout and the lack of clipping are RoBERTa's, which the paper follows.
    """
    config = load_config("pretrain/domain")
    ((_, _, phase),) = config.ordered_phases()
    assert (phase.num_steps, phase.batch_size, phase.sequence_length) == (12_500, 2_048, 512)
    optimizer = config.optimizer
    assert (optimizer.name, optimizer.schedule) == ("adamw", "linear")
    assert (optimizer.beta1, optimizer.beta2, optimizer.epsilon) == (0.9, 0.98, 1e-6)
    assert (optimizer.peak_learning_rate, optimizer.weight_decay) == (5e-4, 0.01)
    assert (optimizer.warmup_steps, optimizer.warmup_fraction) == (0, 0.06)
    assert optimizer.clip_norm == 0.0
    assert (config.masking.rate, config.masking.final_rate) == (0.15, 0.0)
    assert (config.model.hidden_dropout, config.model.attention_dropout) == (0.1, 0.1)


def test_the_recipes_of_other_families_match_their_papers() -> None:
    loaded = {
        path.stem: load_config(path, kind="pretrain")
        for path in RECIPES
        if path.stem in ("roberta_base", "albert_base", "distilbert")
    }
    # These values are from Liu et al. 2019 (table 9), Lan et al. 2020 (section 4.1) and Sanh et al.
    # 2019 (section 3).
    published = {
        "roberta_base": (500_000, 8_192, "adamw", 6e-4, 24_000, "none", "token"),
        "albert_base": (125_000, 4_096, "lamb", 0.00176, 3_125, "sentence_order", "ngram"),
        "distilbert": (5_600, 4_000, "adamw", 5e-4, 280, "none", "token"),
    }
    for name, expected in published.items():
        config, (_, _, phase) = loaded[name], *loaded[name].ordered_phases()
        optimizer = config.optimizer
        assert phase.sequence_length == 512
        assert expected == (
            phase.num_steps, phase.batch_size, optimizer.name, optimizer.peak_learning_rate,
            optimizer.warmup_steps, config.sentence_pairs, config.masking.unit,
        )  # fmt: skip
    assert loaded["roberta_base"].optimizer.beta2 == 0.98
    distillation = loaded["distilbert"].distillation
    assert distillation is not None
    assert (distillation.soft_weight, distillation.mlm_weight, distillation.cosine_weight) == (
        5.0, 2.0, 1.0,
    )  # fmt: skip
    assert distillation.temperature == 2.0 and distillation.init_layers


@pytest.mark.parametrize(
    "recipe", sorted(CONFIGS.parent.glob("*/**/*.py")), ids=lambda path: path.stem
)
def test_the_commands_of_a_recipe_can_be_copied(recipe: Path) -> None:
    """Check in the source text that a continued line ends in a single backslash."""
    text = recipe.read_text(encoding="utf-8")
    docstring = text.split('"""')[1]
    assert "\\\\" not in docstring
    assert ("\\" in docstring) <= text.startswith("r")


def test_a_pairs_weight_is_refused_without_sentence_pairs() -> None:
    """Also check TinyBERT's recipe, which has sentence pairs without a loss and masks no tokens."""
    recipe = str(CONFIGS / "tinybert.py")
    loaded = load_config(recipe, kind="pretrain")
    assert loaded.sentence_pairs == "next_sentence"
    assert loaded.distillation is not None and loaded.distillation.pairs_weight == 0
    assert loaded.masking.mask_fraction == loaded.masking.random_fraction == 0
    with pytest.raises(ValueError, match="pairs_weight=0.0 with sentence_pairs='none'"):
        load_config(recipe, ["--config.sentence_pairs=none"], kind="pretrain")


def test_tinybert_has_the_published_size() -> None:
    """Expect 14.5 million parameters (Jiao et al. 2020, table 1), as in Hugging Face's model."""
    loaded = load_config(str(CONFIGS / "tinybert.py"), kind="pretrain")
    compute = ComputeConfig(dtype="float32", attention="xla")
    sizes = dict(num_hidden_layers=4, hidden_size=312, intermediate_size=1200)
    with torch.device("meta"):
        reference = transformers.BertModel(transformers.BertConfig(**sizes)).num_parameters()
    size = count(define_model(ModelConfig(loaded.model, "encoder"), compute).shapes)
    assert size == reference == 14_350_248
    assert matched_layers(loaded.model.num_layers, 12) == [3, 6, 9, 12]
    assert loaded.distillation is not None
    assert loaded.distillation.losses == ("hidden_loss", "attention_loss")


def test_phases_run_in_the_order_of_their_numbers() -> None:
    phases = {f"phase{n}": PhaseConfig("corpus", n) for n in (10, 2, 1)}
    ordered = [(name, first) for name, first, _ in config(phases=phases).ordered_phases()]
    assert ordered == [("phase1", 0), ("phase2", 1), ("phase10", 3)]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"phases": {}}, "phases is empty"),
        ({"work_dir": ""}, "work_dir is empty"),
        ({"seed": -1}, "seed=-1: must be between 0 and"),
        ({"seed": 1 << 32}, "must be between 0 and 2\\^32 - 1"),
        (
            {"sentence_pairs": "none", "checkpoint": CheckpointConfig(best_metric="nsp_loss")},
            "'nsp_loss' is not a held-out metric.* mlm_loss, mlm_accuracy, mlm_perplexity",
        ),
        ({"accumulation_steps": 0}, "accumulation_steps=0: must be at least 1"),
    ],
)
def test_invalid_configs_are_refused(changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config(**changes)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"text_length": 64}, "text_length=64: has no effect without evaluation.texts. Set texts"),
        ({"max_sentences": 0}, "max_sentences=0: has no effect .* leave max_sentences at 100"),
        ({"minimal_pairs": "pairs.jsonl", "text_length": 64}, "no effect without evaluation.texts"),
        ({"texts": ("a.txt",), "max_pairs": 5}, "no effect without evaluation.minimal_pairs"),
        (
            {"downstream_every": 2},
            "downstream_every=2: has no effect without evaluation.downstream",
        ),
        (
            {"texts": "novel.txt"},
            r"texts='novel.txt': expected a list, got a string. Use \['novel.txt'\]",
        ),
    ],
)
def test_evaluation_settings_without_their_data_are_refused(settings: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        EvaluationConfig(**settings)


def test_an_evaluation_batch_has_as_many_rows_as_a_micro_batch() -> None:
    """Check that evaluation splits batches if training must split them to save memory."""
    run = config(accumulation_steps=4)
    (phase,) = run.phases.values()
    assert run.evaluation_batch_size(phase) == phase.batch_size // 4
    run = config(accumulation_steps=4, evaluation=EvaluationConfig(batch_size=24))
    assert run.evaluation_batch_size(phase) == 24
