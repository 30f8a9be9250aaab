"""Test that the fine-tuning recipes load and that their paths can be overridden."""

from pathlib import Path

import pytest

from bert_jax.finetuning.config import FinetuneConfig
from bert_jax.finetuning.registry import kind_of_task, task_sections
from bert_jax.labeled_data.glue import GLUE_TASKS
from bert_jax.recipes.load import load_config
from bert_jax.tokenizers.tokenizer import Tokenizer

RECIPES = {path.stem: path for path in Path(__file__).parents[2].glob("configs/finetune/*.py")}
INIT = "--config.init_from=models/base"


def load(name: str, *overrides: str) -> FinetuneConfig:
    words = (INIT, *(f"--config.{word}" for word in overrides))
    return load_config(str(RECIPES[name]), words, kind="finetune")


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_every_recipe_loads(name: str) -> None:
    config = load(name)
    assert config.work_dir == f"runs/{name}"
    assert config.max_length <= 512
    assert f"--config configs/finetune/{name}.py" in RECIPES[name].read_text()


def test_every_glue_task_and_every_kind_of_task_has_a_recipe() -> None:
    configs = [load(name) for name in RECIPES]
    names = {config.task.official_name for config in configs} - {""}
    assert names == GLUE_TASKS.keys()
    assert {kind_of_task(config.task).section for config in configs} == task_sections().keys()


def test_a_recipe_requires_an_initial_model() -> None:
    with pytest.raises(ValueError, match="init_from is empty .*Set it to a directory"):
        load_config(str(RECIPES["sst2"]), kind="finetune")


@pytest.mark.parametrize(
    ("name", "word", "read"),
    [
        ("cola", "glue.directory=d", lambda config: config.task.directory),
        ("table", "sentences.files.validation=d", lambda c: c.task.files.validation),
        ("swag", "choices.files.train=d", lambda config: config.task.files.train),
        ("wnut17", "tags.files.test=d", lambda config: config.task.files.test),
        ("squad", "spans.files.train=d", lambda config: config.task.files.train),
    ],
)
def test_paths_can_be_overridden(name: str, word: str, read) -> None:
    assert read(load(name, word)) == "d"


@pytest.mark.parametrize(
    ("name", "words", "validation", "test"),
    [
        ("cola", ["glue.directory={}/glue/CoLA"], 1043, 1063),
        ("mrpc", ["glue.directory={}/glue/MRPC"], 408, 1725),
        ("stsb", ["glue.directory={}/glue/STS-B"], 1500, 1379),
        ("rte", ["glue.directory={}/glue/RTE"], 277, 3000),
        (
            "wnut17",
            [
                "tags.files.train={}/ner_wnut17/wnut17train.conll",
                "tags.files.validation={}/ner_wnut17/emerging.dev.conll",
                "tags.files.test={}/ner_wnut17/emerging.test.annotated",
            ],
            1009,
            1287,
        ),
    ],
)
def test_recipes_read_the_official_files(
    shared_data: Path, name: str, words: list[str], validation: int, test: int
) -> None:
    config = load(name, *(word.format(shared_data) for word in words))
    tokenizer = Tokenizer.load(shared_data / "vocab/bert-base-uncased")
    data = config.open(tokenizer, ["validation", "test"])
    for sets, examples in ((data.validation, validation), (data.test, test)):
        (examples_set,) = sets.values()
        sentences = getattr(examples_set, "sentences", None)
        assert len(examples_set.features if sentences is None else sentences) == examples


@pytest.mark.parametrize("name", ["squad", "table"])
def test_changing_the_learning_rate_keeps_the_warm_up(name: str) -> None:
    optimizer = load(name, "optimizer.peak_learning_rate=1e-5").optimizer
    assert (optimizer.warmup_steps, optimizer.warmup_fraction) == (0, 0.1)
