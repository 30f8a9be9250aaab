"""A loader for loops of one's own gives the batches of a pretraining run, from any step."""

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


def test_batches_are_those_of_a_run_for_several_epochs(finished: Path) -> None:
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
def test_it_starts_at_any_step_with_any_rows(finished: Path, num_workers: int) -> None:
    loader = CorpusLoader(Corpus(finished, "train"), batch_size=4, num_workers=num_workers)
    whole = list(itertools.islice(loader, 6))
    with loader.batches(4, rows=np.array([1, 3])) as batches:
        for step in (4, 5):
            for name, array in next(batches).items():
                np.testing.assert_array_equal(array, whole[step][name][[1, 3]])


def test_identity_tells_different_batches_apart(finished: Path) -> None:
    loader = CorpusLoader(finished, batch_size=4)
    others = [
        CorpusLoader(finished, batch_size=5),
        CorpusLoader(finished, batch_size=4, seed=1),
        CorpusLoader(finished, batch_size=4, sentence_pairs="none"),
        CorpusLoader(finished, batch_size=4, masking=MaskingConfig(rate=0.3)),
        CorpusLoader(finished, batch_size=4, sentence_pairs="none", join_documents=True),
    ]
    identities = [str(each.identity) for each in (loader, *others)]
    assert len(set(identities)) == len(identities)
    assert CorpusLoader(finished, batch_size=4, num_workers=2).identity == loader.identity


def test_an_end_is_needed_only_for_a_changing_rate(finished: Path) -> None:
    changing = MaskingConfig(rate=0.3, final_rate=0.1)
    with pytest.raises(ValueError, match="num_steps=None: masking.final_rate=0.1 .*Set num_st"):
        CorpusLoader(finished, batch_size=4, masking=changing)
    loader = CorpusLoader(finished, batch_size=4, masking=changing, num_steps=3)
    assert len(list(loader)) == 3
    with pytest.raises(ValueError, match="batch_size=0: expected at least 1"):
        CorpusLoader(finished, batch_size=0)
    with pytest.raises(ValueError, match="^sentence_pairs='nsp': expected one of 'none', 'next_s"):
        CorpusLoader(finished, batch_size=4, sentence_pairs="nsp")
