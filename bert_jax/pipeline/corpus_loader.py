"""Load pretraining batches from a prepared corpus, for custom training loops."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from bert_jax.corpus.corpus import Corpus
from bert_jax.corpus.manifest import TOKENIZER
from bert_jax.objectives import SentencePairs
from bert_jax.pipeline.examples import Batch, ExampleConfig, ExampleSource
from bert_jax.pipeline.loader import BatchSource, Loader
from bert_jax.pipeline.masking import MaskingConfig
from bert_jax.tokenizers.special_tokens import Vocabulary
from bert_jax.tokenizers.tokenizer import Tokenizer
from bert_jax.validation import check_choice

_ENDLESS = 2**31 - 1  # the training state's step counter is an int32


class CorpusLoader:
    """An iterable over the batches of a corpus's training split, epoch after epoch.

    Every batch is a pure function of the corpus, the arguments and the step, so a loop that
    resumes with `batches(step)` gets the same batches as an uninterrupted one::

        loader = CorpusLoader("corpora/mine", batch_size=256)
        for batch in loader:
            ...
    """

    def __init__(
        self,
        corpus: str | os.PathLike[str] | Corpus,
        *,
        batch_size: int,
        num_steps: int | None = None,
        seed: int = 0,
        sentence_pairs: SentencePairs = "next_sentence",
        masking: MaskingConfig | None = None,
        join_documents: bool = False,
        num_workers: int = 0,
        prefetch: int = 2,
    ):
        """Open the corpus. Records are read only when the first batch is requested.

        Args:
          corpus: a directory written by `prepare`, or the opened training split.
          batch_size: the number of rows in a batch, across all processes.
          num_steps: the total number of batches; None for no limit. A changing masking rate
            requires this number, because the rate then depends on the progress of the run.
          seed: the random seed for the order of records, the masks and the sentence pairs.
          sentence_pairs: "next_sentence", "sentence_order" or "none".
          masking: how tokens are masked; defaults to masking 15% of them, as in BERT.
          join_documents: whether the documents in a row attend to each other.
          num_workers: the number of processes that make batches; 0 makes them in a thread.
            The processes import the main script, so the code that starts the training loop must be
            below `if __name__ == "__main__":`.
          prefetch: the number of batches that the thread, or each process, keeps ready.

        Raises:
          ValueError: the corpus is unfinished or damaged, or is incompatible with an argument.
        """
        check_choice("sentence_pairs", sentence_pairs, get_args(SentencePairs))
        corpus = corpus if isinstance(corpus, Corpus) else Corpus(corpus, "train")
        masking = MaskingConfig() if masking is None else masking
        if num_steps is None and masking.changes:
            key = "final_rate" if masking.final_rate else "later_rates"
            raise ValueError(
                f"num_steps=None: masking.{key}={getattr(masking, key)} applies at the last "
                "step, so the number of steps must be known. Set num_steps."
            )
        if batch_size < 1:
            raise ValueError(f"batch_size={batch_size}: expected at least 1.")
        if num_steps is not None and num_steps < 1:
            raise ValueError(f"num_steps={num_steps}: expected at least 1, or None for no limit.")
        self.tokenizer = Tokenizer.load(corpus.directory / TOKENIZER)
        self.batch_size = batch_size
        self.num_steps = _ENDLESS if num_steps is None else num_steps
        config = ExampleConfig(seed, sentence_pairs, masking, join_documents)
        self._examples = ExampleSource(corpus, Vocabulary.of(self.tokenizer), config)
        self._num_workers, self._prefetch = num_workers, prefetch
        self.identity: dict[str, object] = {
            "corpus": corpus.manifest.fingerprint,
            "tokenizer": corpus.manifest.tokenizer_fingerprint,
            "batch_size": batch_size,
            "seed": seed,
            "sentence_pairs": sentence_pairs,
            "masking": masking.identity,
            "join_documents": join_documents,
            **({"num_steps": num_steps} if masking.changes else {}),
        }

    @property
    def length(self) -> int:
        """The number of positions in a row."""
        return self._examples.length

    @property
    def steps_per_epoch(self) -> int:
        """The number of batches in an epoch, rounded up."""
        return -(-len(self._examples) // self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        with self.batches() as batches:
            yield from batches

    def batches(self, start_step: int = 0, *, rows: NDArray[np.int64] | None = None) -> Loader:
        """Return an iterator over the batches, which is also a context manager.

        Args:
          start_step: the step of the first batch.
          rows: which rows of each batch to make, in ascending order; None for all. With multiple
            processes, each process makes the rows that its own devices need.
        """
        source = BatchSource(
            self._examples,
            batch_size=self.batch_size,
            num_steps=self.num_steps,
            local_rows=rows,
        )
        return Loader(
            source,
            start_step=start_step,
            num_workers=self._num_workers,
            prefetch=self._prefetch,
        )
