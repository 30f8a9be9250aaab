"""Configure JAX and pytest, and define the fixtures that the tests of multiple packages share."""

import gc
import os
import random
import shutil
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from .commands import REPOSITORY, Command, Finished, xla_flags

# JAX reads these variables when it is first imported by a test. Eight CPU devices emulate a mesh,
# and the compilation cache keeps all programs except the smallest.
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")
# If a flag is repeated, its last value takes effect.
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {xla_flags(devices=8)}".strip()
# Most tests with subprocesses import hundreds of modules, so the compiled modules are kept.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# If this variable were set, user errors would raise exceptions.
os.environ.pop("BERT_JAX_TRACEBACK", None)
# All workers share a compilation cache, and so do the commands that they start. JAX locks a cache
# only if its size is limited.
os.environ["JAX_COMPILATION_CACHE_MAX_SIZE"] = str(10**10)

# The test files that take half a minute or more. They run first, so that no worker is still running
# a slow file when all others have finished.
SLOW_FILES = (
    "docs/test_course.py",
    "storage/test_runs.py",
    "test_faults.py",
    "test_modern.py",
    "test_end_to_end.py",
    "golden/test_recipes.py",
    "golden/test_frozen.py",
    "distributed/test_processes.py",
    "test_distillation_run.py",
    "test_replaced_token_run.py",
    "test_run_faults.py",
    "tasks/test_replaced_token.py",
    "finetuning/test_sweep_runs.py",
    "interop/test_families.py",
    "test_from_raw_text.py",
    "finetuning/test_disturbed_runs.py",
    "finetuning/test_tasks.py",
    "finetuning/test_starts.py",
    "interop/test_formats.py",
    "training/test_tuning.py",
    "training/test_step.py",
    "tasks/test_distillation.py",
    "distributed/test_finetuning.py",
    "interop/test_round_trip.py",
)


# Each test in these files may run on a different worker.
SPLIT_FILES = ("tests/docs/test_pages.py", "tests/docs/test_course.py")


def pytest_collection_finish() -> None:
    """Make garbage collection rare, and ignore the millions of objects created by imports.

    By default, full collections are frequent, and each one visits all programs that JAX has cached.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Move the tests in slow files to the front, in the order in which `SLOW_FILES` lists them."""
    ranks = {REPOSITORY / "tests" / name: rank for rank, name in enumerate(SLOW_FILES)}
    missing = [path for path in ranks if not path.is_file()]
    assert not missing, f"SLOW_FILES lists missing files: {missing}"
    items.sort(key=lambda item: ranks.get(item.path, len(ranks)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Let `--dist loadfile` distribute documentation pages and notebooks among the workers."""
    from xdist.scheduler import LoadFileScheduling

    class ByFileOrPage(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            return nodeid if file in SPLIT_FILES else file

    return ByFileOrPage(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Return the directory of public data next to the checkout; skip the test if it is missing."""
    root = Path(os.environ.get("BERT_JAX_SHARED", REPOSITORY.parent / "shared"))
    if not (root / "data").is_dir():
        pytest.skip(f"no datasets in {root} (set BERT_JAX_SHARED to the directory with data/)")
    return root / "data"


@dataclass(frozen=True)
class Document:
    """A sentence pair in a row of a batch. Offsets are relative to the document's `[CLS]`."""

    token_ids: np.ndarray
    segment_ids: np.ndarray
    masked_offsets: np.ndarray
    masked_labels: np.ndarray
    next_sentence_label: int


DrawDocument = Callable[..., Document]
LayOut = Callable[..., dict[str, np.ndarray]]


@pytest.fixture(scope="session")
def draw_document() -> DrawDocument:
    """Return a function that makes a random document of `length` tokens."""

    def draw(rng: np.random.Generator, length: int, vocab_size: int, masked: int = 2) -> Document:
        return Document(
            token_ids=rng.integers(1, vocab_size, length),
            segment_ids=(np.arange(length) >= rng.integers(1, length)).astype(np.int64),
            masked_offsets=np.sort(rng.choice(np.arange(1, length), masked, replace=False)),
            masked_labels=rng.integers(1, vocab_size, masked),
            next_sentence_label=int(rng.integers(2)),
        )

    return draw


@pytest.fixture(scope="session")
def lay_out() -> LayOut:
    """Return a function that packs documents into the rows of a pretraining batch."""

    def lay(
        rows: Sequence[Sequence[Document]], *, length: int, predictions: int, documents_per_row: int
    ) -> dict[str, np.ndarray]:
        count = len(rows)
        batch = {
            name: np.zeros((count, length), np.int32)
            for name in ("token_ids", "segment_ids", "position_ids", "document_ids")
        }
        for name in ("masked_positions", "masked_labels", "masked_weights"):
            dtype = np.float32 if name.endswith("weights") else np.int32
            batch[name] = np.zeros((count, predictions), dtype)
        for name in ("cls_positions", "pair_labels", "pair_weights"):
            dtype = np.float32 if name.endswith("weights") else np.int32
            batch[name] = np.zeros((count, documents_per_row), dtype)
        for row, documents in enumerate(rows):
            start = predicted = 0
            for piece, document in enumerate(documents):
                span = slice(start, start + len(document.token_ids))
                batch["token_ids"][row, span] = document.token_ids
                batch["segment_ids"][row, span] = document.segment_ids
                batch["position_ids"][row, span] = np.arange(len(document.token_ids))
                batch["document_ids"][row, span] = piece + 1
                masked = slice(predicted, predicted + len(document.masked_offsets))
                batch["masked_positions"][row, masked] = start + document.masked_offsets
                batch["masked_labels"][row, masked] = document.masked_labels
                batch["masked_weights"][row, masked] = 1
                batch["cls_positions"][row, piece] = start
                batch["pair_labels"][row, piece] = document.next_sentence_label
                batch["pair_weights"][row, piece] = 1
                start, predicted = span.stop, masked.stop
        return batch

    return lay


# Places, each with its own nouns, adjectives and verbs. No word is used for two places, so a masked
# word can be predicted only from the rest of its document.
PLACES = {
    "harbour": ("boat sailor anchor wave gull rope", "salty wet wooden", "drifted creaked rocked"),
    "kitchen": ("cook oven spoon soup bread knife", "warm fresh spicy", "simmered steamed cooled"),
    "forest": ("owl fox oak stream moss trail", "quiet green ancient", "rustled swayed grew"),
    "railway": (
        "train driver signal bridge whistle cab",
        "late iron loud",
        "rattled stopped hissed",
    ),
    "orchard": ("farmer apple ladder basket wasp fence", "ripe sweet muddy", "fell buzzed leant"),
    "library": ("reader shelf novel lamp clerk map", "dusty old silent", "coughed closed rested"),
}


def _tale(rng: random.Random) -> str:
    place = rng.choice(sorted(PLACES))
    nouns, adjectives, verbs = (words.split() for words in PLACES[place])
    sentences = []
    for _ in range(rng.randint(3, 14)):
        (one, other), adjective, verb = (
            rng.sample(nouns, 2),
            rng.choice(adjectives),
            rng.choice(verbs),
        )
        sentences.append(
            rng.choice(
                [
                    f"The {adjective} {one} {verb}.",
                    f"{one.capitalize()} and {other} {verb} there.",
                    f"A {one} {verb} near the {adjective} {other}!",
                    f"Was {one} or {other} {adjective}?",
                ]
            )
        )
    return " ".join(sentences)


@pytest.fixture(scope="session")
def tiny_text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a file with 500 short generated documents (120 KB), which are always the same."""
    rng = random.Random(0)
    path = tmp_path_factory.mktemp("text") / "tales.txt"
    path.write_text("\n\n".join(_tale(rng) for _ in range(500)) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def interrupts_enabled() -> Iterator[None]:
    """Enable SIGINT in this process and in subprocesses.

    If the test suite was started in the background, SIGINT would otherwise be ignored.
    """
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, previous)


@pytest.fixture
def bert_jax_here(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Finished]:
    """Return a function that runs a `bert-jax` command in the test process, on eight devices.

    Curves are not drawn, which saves half a second per evaluation.
    """
    from bert_jax.cli.main import main
    from bert_jax.training import reporting

    monkeypatch.setattr(reporting, "draw_curves", lambda *_, **__: None)

    def run(*words: str | Path) -> Finished:
        code = main([str(word) for word in words])
        return Finished(code, *capsys.readouterr())

    return run


@pytest.fixture(scope="session")
def bert_jax(tmp_path_factory: pytest.TempPathFactory) -> Command:
    """Return an object that runs `bert-jax` commands in subprocesses."""
    kept = os.environ.get("JAX_COMPILATION_CACHE_DIR")
    return Command(Path(kept, "commands") if kept else tmp_path_factory.mktemp("compiled"))


# Two phases with different sequence lengths: 20 steps of 16 x 32 tokens, and 12 steps of 8 x 64.
TINY_CONFIG = """
from ml_collections import ConfigDict


def get_config():
    return ConfigDict(
        dict(
            work_dir="",
            model=dict(
                vocab_size=300, hidden_dim=16, num_layers=2, num_heads=2, ffn_dim=32,
                max_positions=64,
            ),
            phases=dict(
                phase1=dict(corpus="{0}/32", sequence_length=32, batch_size=16, num_steps=20),
                phase2=dict(corpus="{0}/64", sequence_length=64, batch_size=8, num_steps=12),
            ),
            optimizer=dict(peak_learning_rate=1e-3, warmup_steps=4),
            evaluation=dict(every_steps=16),
            checkpoint=dict(every_steps=5, keep_every=10),
            reporting=dict(every_steps=1, tensorboard=False),
        )
    )
"""


@pytest.fixture(scope="session")
def tiny_config(tmp_path_factory: pytest.TempPathFactory, tiny_text: Path) -> Path:
    """Return the path of a pretraining config next to `tokenizer` and the corpora `32` and `64`."""
    from bert_jax.cli.main import main

    directory = tmp_path_factory.mktemp("tiny")
    source, tokenizer = ["--input", str(tiny_text)], str(directory / "tokenizer")
    sizes = ["--vocab-size", "300", "--num-unused", "0"]
    assert main(["train-tokenizer", *source, "--output", tokenizer, *sizes]) == 0
    for length in ("32", "64"):
        output = ["--output", str(directory / length), "--tokenizer", tokenizer]
        options = ["--max-length", length, "--held-out", "0.1", "--workers", "1"]
        assert main(["prepare", *source, *output, *options]) == 0
    config = directory / "config.py"
    config.write_text(TINY_CONFIG.format(directory), encoding="utf-8")
    return config


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Return a browser, or skip the test if none is installed."""
    reason = "needs playwright: pip install -e '.[browser]'"
    playwright = pytest.importorskip("playwright.sync_api", reason=reason)
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if not program:
        pytest.skip("needs chromium or google-chrome on PATH")
    # The browser's sandbox does not work for root.
    options = ["--no-sandbox"] if os.geteuid() == 0 else []
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=program, args=options, timeout=120_000)
        yield chromium
        chromium.close()
