"""Compare the speeds of corpus preparation and of a plain loop over the same text."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bert_jax.corpus.inputs import PrepareOptions
from bert_jax.corpus.prepare import make_corpus
from bert_jax.corpus.progress import Progress
from bert_jax.text.documents import SourceCounts, SourceOptions
from bert_jax.text.sources import read_documents
from bert_jax.tokenizers.tokenizer import Tokenizer

_LINES_PER_CALL = 1024


@dataclass(frozen=True)
class PreparationSpeed:
    """The best times measured for preparation and for the plain loop.

    Attributes:
      counts: the number of documents and bytes in the text.
      plain_seconds: the shortest time that the plain loop took.
      prepare_seconds: the shortest time that preparation took.
      peak_worker_memory: the maximum memory that any worker used, in bytes.
    """

    counts: SourceCounts
    plain_seconds: float
    prepare_seconds: float
    peak_worker_memory: int


def measure_preparation(
    inputs: Sequence[str],
    tokenizer: Tokenizer,
    *,
    sources: SourceOptions,
    workers: int,
    repeat: int,
) -> PreparationSpeed:
    """Measure how long preparation and a plain `tokenizers` loop take, alternating between them.

    The plain loop runs on text in memory, while preparation reads the inputs. This function sets
    the environment variables that control how many threads `tokenizers` uses.

    Args:
      inputs: files, directories or patterns.
      tokenizer: the tokenizer that both use.
      sources: the options for reading the inputs.
      workers: the number of processes for preparation, and the number of threads for the plain
        loop.
      repeat: how many times to run preparation and the loop. Only the fastest run of each counts.

    Raises:
      ValueError: an input is unusable.
      OSError: a file cannot be read or written.
    """
    # `tokenizers` reads both variables before its first parallel call.
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    os.environ["RAYON_NUM_THREADS"] = str(workers)
    counts = SourceCounts()
    texts = [document.text for document in read_documents(inputs, sources, counts)]
    plain, prepared, memory = [], [], 0
    for _ in range(repeat):
        with tempfile.TemporaryDirectory() as scratch:
            directory = Path(scratch)
            tokenizer.save(directory / "tokenizer")
            plain.append(_time_plain(texts, directory / "tokenizer" / "tokenizer.json"))
            options = PrepareOptions(heldout_fraction=0, sources=sources)
            seconds, progress = _time_prepare(inputs, tokenizer, directory, options, workers)
            prepared.append(seconds)
            memory = max(memory, progress.peak_worker_memory)
    return PreparationSpeed(counts, min(plain), min(prepared), memory)


def _time_plain(texts: Sequence[str], path: Path) -> float:
    from tokenizers import Tokenizer as PlainTokenizer

    plain = PlainTokenizer.from_file(str(path))
    lines = [line for text in texts for line in text.split("\n") if line]
    num_tokens = 0
    start = time.perf_counter()
    for begin in range(0, len(lines), _LINES_PER_CALL):
        batch = plain.encode_batch(lines[begin : begin + _LINES_PER_CALL], add_special_tokens=False)
        num_tokens += sum(len(encoding.ids) for encoding in batch)
    return time.perf_counter() - start


def _time_prepare(
    inputs: Sequence[str],
    tokenizer: Tokenizer,
    directory: Path,
    options: PrepareOptions,
    workers: int,
) -> tuple[float, Progress]:
    reported: list[Progress] = []
    start = time.perf_counter()
    make_corpus(
        inputs,
        tokenizer,
        directory / "corpus",
        options,
        workers,
        reported.append,
        allow_unknown=True,
    )
    return time.perf_counter() - start, reported[-1]
