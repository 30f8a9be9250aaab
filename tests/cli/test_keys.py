"""Every key of the configs is told, with the default that holds at its place."""

from __future__ import annotations

import re

import pytest

from bert_jax.cli.main import main
from bert_jax.config_keys import lines, sections
from bert_jax.finetuning.config import FinetuneConfig
from bert_jax.recipes.keys import with_all_keys
from bert_jax.recipes.load import CONFIGS


@pytest.mark.parametrize("name", CONFIGS)
def test_every_key_that_can_be_set_is_told(name: str) -> None:
    """Against the tree that the command line is read by."""
    told = {
        match[1]
        for section in sections(CONFIGS[name])
        for line in lines(section)
        if (match := re.match(r"  ([\w.]+): ", line))
    }
    tree = with_all_keys(CONFIGS[name], {})

    def leaves(section, prefix=""):
        for key in section:
            value = section[key]
            inner = hasattr(value, "keys") and len(value)
            yield from leaves(value, f"{prefix}{key}.") if inner else [prefix + key]

    assert set(leaves(tree)) <= told
    assert all(section.cls.__doc__ for section in sections(CONFIGS[name]))


def test_a_default_is_that_of_its_place(capsys: pytest.CaptureFixture[str]) -> None:
    """Fine-tuning's optimizer has another warm-up than the class of its section."""
    assert main(["keys", "finetune", "optimizer"]) == 0
    shown = capsys.readouterr().out
    default = FinetuneConfig.__dataclass_fields__["optimizer"].default_factory()
    assert default != type(default)()
    for key in ("peak_learning_rate", "schedule", "weight_decay"):
        assert re.search(rf"^  optimizer\.{key}: .*{getattr(default, key)!r}$", shown, re.M), key


def test_a_section_inside_another_and_one_of_many(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["keys", "pretrain", "phases.NAME"]) == 0
    shown = capsys.readouterr().out
    assert "phases.NAME.corpus: text, required" in shown
    assert "corpus: a directory made by `bert-jax prepare`." in shown


def test_a_section_that_is_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["keys", "pretrain", "optimiser"]) == 2
    assert "no section 'optimiser'; nearest: optimizer" in capsys.readouterr().err
