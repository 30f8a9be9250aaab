"""Test that `bert-jax keys` lists all config keys with their defaults."""

from __future__ import annotations

import re

import pytest

from bert_jax.cli.main import main
from bert_jax.config_keys import lines, sections
from bert_jax.finetuning.config import FinetuneConfig
from bert_jax.recipes.keys import with_all_keys
from bert_jax.recipes.load import CONFIGS


@pytest.mark.parametrize("name", CONFIGS)
def test_every_key_that_can_be_set_is_listed(name: str) -> None:
    """Compare the listed keys with the keys that overrides can set."""
    listed = {
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

    assert set(leaves(tree)) <= listed
    assert all(section.cls.__doc__ for section in sections(CONFIGS[name]))


def test_defaults_depend_on_the_section(capsys: pytest.CaptureFixture[str]) -> None:
    """Check that `keys finetune` shows the optimizer defaults that are specific to fine-tuning."""
    assert main(["keys", "finetune", "optimizer"]) == 0
    output = capsys.readouterr().out
    default = FinetuneConfig.__dataclass_fields__["optimizer"].default_factory()
    assert default != type(default)()
    for key in ("peak_learning_rate", "schedule", "weight_decay"):
        assert re.search(rf"^  optimizer\.{key}: .*{getattr(default, key)!r}$", output, re.M), key


def test_sections_of_named_parts_are_described(capsys: pytest.CaptureFixture[str]) -> None:
    for path in ("phases.NAME", "phases", "phases.phase1", "phases.phase1.corpus"):
        assert main(["keys", "pretrain", path]) == 0
        output = capsys.readouterr().out
        assert "phases.NAME.corpus: text, required" in output
        assert "corpus: a directory made by `bert-jax prepare`, or its URL in a bucket." in output


def test_a_key_shows_its_section(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["keys", "pretrain", "reporting.notify"]) == 0
    assert capsys.readouterr().out.startswith("reporting\n")
    for path in ("reporting.notifies", "phases.phase1.corpora", "NAME", "phases.phase1.corpus.x"):
        assert main(["keys", "pretrain", path]) == 2
        assert f"no section or key {path!r}" in capsys.readouterr().err


def test_an_unknown_section_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["keys", "pretrain", "optimiser"]) == 2
    problem = "the config has no section or key 'optimiser'; nearest: optimizer"
    assert problem in capsys.readouterr().err
