"""Provide small models with masked-LM heads, and pseudo-log-likelihoods from transformers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import transformers

from bert_jax import import_model

from ..interop.conftest import make, quiet  # noqa: F401
from ..interop.families import make as make_family


@dataclass(frozen=True)
class ModelPair:
    """One model, stored as a Hugging Face directory and as a work directory."""

    theirs: Path
    ours: Path


@pytest.fixture(scope="session")
def masked_lm(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], ModelPair]:
    """Return a cached function that maps a family to a model with random parameters."""
    made: dict[str, ModelPair] = {}

    def create(family: str) -> ModelPair:
        if family not in made:
            directory = tmp_path_factory.mktemp(family)
            source, output = directory / "theirs", directory / "ours"
            if family == "Bert":
                make(source, "masked_lm")
            else:
                make_family(source, family, "masked_lm")
            import_model(source, output)
            made[family] = ModelPair(source, output)
        return made[family]

    return create


@pytest.fixture(scope="session")
def model_without_head(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the work directory of a model without a masked-LM head."""
    directory = tmp_path_factory.mktemp("encoder")
    make(directory / "theirs", "encoder")
    import_model(directory / "theirs", directory / "ours")
    return directory / "ours"


def their_scores(directory: Path, texts: Sequence[str], *, whole_words: bool) -> list[float]:
    """Compute pseudo-log-likelihoods with transformers, simply scoring one sentence at a time."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    model = transformers.AutoModelForMaskedLM.from_pretrained(directory, dtype=torch.float32)
    model.eval()
    scores = []
    for text in texts:
        encoding = tokenizer(text, return_tensors="pt")
        ids, words = encoding["input_ids"][0], encoding.word_ids()
        last = len(ids) - 1  # This is the index of the final [SEP].
        rows = ids.repeat(last - 1, 1)
        for at in range(1, last):
            for other in range(at, last):
                if other == at or (whole_words and words[other] == words[at]):
                    rows[at - 1, other] = tokenizer.mask_token_id
        with torch.no_grad():
            logits = model(input_ids=rows).logits.double()
        found = logits.log_softmax(-1)
        scores.append(sum(float(found[at - 1, at, ids[at]]) for at in range(1, last)))
    return scores
