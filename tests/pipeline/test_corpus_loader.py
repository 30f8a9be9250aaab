"""Test that `CorpusLoader` yields the same batches as a pretraining run, from any step."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from bert_jax.corpus.corpus import Corpus
from bert_jax.pipeline.corpus_loader import CorpusLoader
from bert_jax.pipeline.examples import ExampleConfig, ExampleSource
from bert_jax.pipeline.loader import BatchSource
from bert_jax.pipeline.masking import MaskingConfig
from bert_jax.tokenizers.special_tokens import Vocabulary

BATCH_SIZE = 7


@pytest.mark.slow
def test_batches_of_several_epochs_equal_those_of_a_run(finished: Path) -> None:
    loader = CorpusLoader(finished, batch_size=BATCH_SIZE, seed=5)
    corpus, config = Corpus(finished, "train"), ExampleConfig(5)
    source = BatchSource(
        ExampleSource(corpus, Vocabulary.of(loader.tokenizer), config),
        batch_size=BATCH_SIZE,
        num_steps=2 * loader.steps_per_epoch + 1,
    )
    assert loader.steps_per_epoch == -(-len(corpus) // BATCH_SIZE)
    assert loader.length == corpus.manifest.max_length
    for step, batch in enumerate(itertools.islice(loader, len(source))):
        assert batch.keys() == source[step].keys()
        for name, array in source[step].items():
            np.testing.assert_array_equal(batch[name], array)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_loader_starts_at_any_step_with_any_rows(finished: Path, num_workers: int) -> None:
    loader = CorpusLoader(Corpus(finished, "train"), batch_size=4, num_workers=num_workers)
    all_rows = list(itertools.islice(loader, 6))
    with loader.batches(4, rows=np.array([1, 3])) as batches:
        for step in (4, 5):
            for name, array in next(batches).items():
                np.testing.assert_array_equal(array, all_rows[step][name][[1, 3]])


def test_loaders_with_different_batches_have_different_identities(finished: Path) -> None:
    loader = CorpusLoader(finished, batch_size=4)
    others = [
        CorpusLoader(finished, batch_size=5),
        CorpusLoader(finished, batch_size=4, seed=1),
        CorpusLoader(finished, batch_size=4, sentence_pairs="none"),
        CorpusLoader(finished, batch_size=4, masking=MaskingConfig(rate=0.3)),
        CorpusLoader(finished, batch_size=4, sentence_pairs="none", join_documents=True),
    ]
    identities = [str(other.identity) for other in (loader, *others)]
    assert len(set(identities)) == len(identities)
    assert CorpusLoader(finished, batch_size=4, num_workers=2).identity == loader.identity


def test_num_steps_is_required_only_for_a_changing_rate(finished: Path) -> None:
    changing = MaskingConfig(rate=0.3, final_rate=0.1)
    with pytest.raises(ValueError, match="num_steps=None: masking.final_rate=0.1 .*Set num_st"):
        CorpusLoader(finished, batch_size=4, masking=changing)
    loader = CorpusLoader(finished, batch_size=4, masking=changing, num_steps=3)
    assert len(list(loader)) == 3
    with pytest.raises(ValueError, match="batch_size=0: expected at least 1"):
        CorpusLoader(finished, batch_size=0)
    with pytest.raises(ValueError, match="num_steps=0: expected at least 1, or None"):
        CorpusLoader(finished, batch_size=4, num_steps=0)
    with pytest.raises(ValueError, match="^sentence_pairs='nsp': expected one of 'none', 'next_s"):
        CorpusLoader(finished, batch_size=4, sentence_pairs="nsp")
