"""Provide a small prepared corpus of English-like sentences, and helpers to inspect batches."""

import hashlib
import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from bert_jax.corpus.corpus import Corpus
from bert_jax.corpus.inputs import PrepareOptions
from bert_jax.corpus.packing import TokenizedDocument
from bert_jax.corpus.prepare import make_corpus
from bert_jax.corpus.synthetic import random_documents, synthetic_vocabulary, write_corpus
from bert_jax.pipeline.examples import Batch, ExampleConfig, ExampleSource
from bert_jax.tokenizers.tokenizer import Tokenizer

WORDS = "the a of cat dog house sea tree run ran see saw old new red blue and or not".split()

SPAN = 1 << 14
LENGTH, MAX_FRAGMENTS = 128, 8

WriteJsonLines = Callable[[Path, Sequence[str]], str]


@dataclass(frozen=True)
class SmallCorpus:
    """The input files, their distinct texts in order, and the number of texts that occur twice."""

    inputs: list[str]
    texts: list[str]
    num_repeated: int


@pytest.fixture(scope="session")
def prepare_options() -> PrepareOptions:
    """Return options that split the small corpus into many shards."""
    return PrepareOptions(
        max_length=64, max_documents_per_record=4, heldout_fraction=0.1, unit_bytes=64 << 10
    )


@pytest.fixture(scope="session")
def words() -> list[str]:
    """Return the words of the small corpus."""
    return WORDS


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory) -> Tokenizer:
    """Return an uncased tokenizer that knows most of the words and spells out the rest."""
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    path = tmp_path_factory.mktemp("tokenizer") / "vocab.txt"
    entries = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *".,![]", *WORDS[2:], *letters]
    path.write_text("\n".join([*entries, *(f"##{letter}" for letter in letters)]))
    return Tokenizer.load(path)


@pytest.fixture(scope="session")
def write_json_lines() -> WriteJsonLines:
    """Return a function that writes texts as JSON Lines and returns the file's path."""

    def write(path: Path, texts: Sequence[str]) -> str:
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        return str(path)

    return write


@pytest.fixture(scope="session")
def checksums() -> Callable[[Path], dict[str, str]]:
    """Return a function that computes the SHA-256 of every file below a directory."""

    def read(directory: Path) -> dict[str, str]:
        return {
            str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(directory.rglob("*"))
            if path.is_file()
        }

    return read


@pytest.fixture(scope="session")
def corpus(tmp_path_factory, write_json_lines) -> SmallCorpus:
    """Write two files with 300 documents, some of which occur twice."""
    directory = tmp_path_factory.mktemp("corpus")
    texts = _random_texts(0, 300)
    repeated = texts[:5] + texts[100:103]
    inputs = [
        write_json_lines(directory / "a.jsonl", texts[:200]),
        write_json_lines(directory / "b.jsonl", repeated + texts[200:]),
    ]
    return SmallCorpus(inputs, texts, len(repeated))


@pytest.fixture(scope="session")
def finished(corpus, tokenizer, prepare_options, tmp_path_factory) -> Path:
    """Return the directory of the small corpus, prepared by one worker without interruption."""
    directory = tmp_path_factory.mktemp("finished") / "out"
    make_corpus(corpus.inputs, tokenizer, directory, prepare_options, num_workers=1)
    return directory


def _random_texts(seed: int, count: int) -> list[str]:
    """Return texts of up to 60 sentences; every tenth text has up to 600.

    One text spells out special tokens. No sentence ends with a word that could be an
    abbreviation or an initial.
    """
    rng = random.Random(seed)
    texts = ["The cat saw [MASK] and [SEP]. It ran."]
    for index in range(count - 1):
        sentences = [
            " ".join(rng.choices([*WORDS, "zebra", "quick,"], k=rng.randint(1, 30))).capitalize()
            + " house"
            for _ in range(rng.randint(1, 600 if index % 10 == 0 else 60))
        ]
        texts.append(f"{index} " + ". ".join(sentences) + ".")
    return texts


@pytest.fixture(scope="session")
def make_source() -> Callable[..., ExampleSource]:
    """Return a function that opens a corpus from `write_corpus` as an `ExampleSource`."""

    def make(directory: Path, split="train", **config) -> ExampleSource:
        corpus = Corpus(directory, split)
        vocabulary = synthetic_vocabulary(corpus.manifest.vocab_size)
        return ExampleSource(corpus, vocabulary, ExampleConfig(**{"seed": 1, **config}))

    return make


@pytest.fixture(scope="session")
def unmasked() -> Callable[[Batch], np.ndarray]:
    """Return a function that restores the token ids that a batch had before masking."""

    def unmask(batch: Batch) -> np.ndarray:
        token_ids = batch["token_ids"].copy()
        rows, columns = np.nonzero(batch["masked_weights"])
        token_ids[rows, batch["masked_positions"][rows, columns]] = batch["masked_labels"][
            rows, columns
        ]
        return token_ids

    return unmask


@pytest.fixture(scope="session")
def fragments_of(
    unmasked,
) -> Callable[[Batch], Iterator[tuple[np.ndarray, np.ndarray, int, float]]]:
    """Return a function that yields a batch's fragments one by one."""

    def fragments(batch: Batch) -> Iterator[tuple[np.ndarray, np.ndarray, int, float]]:
        """Yield (token ids with special tokens, segment ids, label, weight) for each fragment."""
        token_ids = unmasked(batch)
        for row in range(len(token_ids)):
            for number in range(int(batch["document_ids"][row].max())):
                inside = batch["document_ids"][row] == number + 1
                yield (
                    token_ids[row][inside],
                    batch["segment_ids"][row][inside],
                    int(batch["pair_labels"][row, number]),
                    float(batch["pair_weights"][row, number]),
                )

    return fragments


def named_documents(num_tokens: int, seed: int = 0) -> list[TokenizedDocument]:
    """Return documents whose tokens encode their origin: token = document * SPAN + position.

    This lets a test determine where every token in a batch comes from.
    """
    documents = random_documents(num_tokens, 1000, seed)
    return [
        replace(document, token_ids=(number + 1) * SPAN + np.arange(len(document.token_ids)))
        for number, document in enumerate(documents)
        if len(document.token_ids) < SPAN
    ]


@dataclass(frozen=True)
class NamedCorpus:
    """Documents from `named_documents`, and the directory of the corpus made from them."""

    documents: list[TokenizedDocument]
    directory: Path


@pytest.fixture(scope="session")
def named_corpus(tmp_path_factory) -> NamedCorpus:
    """Return a corpus of 600,000 tokens that encode their origin, in rows of `LENGTH`."""
    directory, documents = tmp_path_factory.mktemp("corpus"), named_documents(600_000)
    write_corpus(
        directory,
        documents,
        documents[:40],
        max_length=LENGTH,
        max_fragments=MAX_FRAGMENTS,
        vocab_size=(len(documents) + 1) * SPAN,
        token_bytes=4,
        num_shards=3,
    )
    return NamedCorpus(documents, directory)
