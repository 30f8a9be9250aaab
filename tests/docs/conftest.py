"""Prepare the directories in which documentation pages start, and execute the pages.

A page names its setups at the top: <!-- run: setup="corpus run" -->. Each setup is prepared only
once, with the commands that a reader would use, and then copied into the page's directory.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from ..commands import Command
from .blocks import Block, Page, parse_page
from .fork_server import ForkServer
from .runner import Runner, make_checkout, page_environment, remove_checkout


@dataclass(frozen=True)
class Setup:
    """A prepared directory: the setups that it starts from, and the commands that complete it."""

    after: tuple[str, ...]
    commands: str


SETUPS = {
    # The setup `books` creates books/tales.txt with 500 short documents (120 KB).
    "books": Setup((), 'mkdir books; cp "$TALES" books/tales.txt'),
    # The setup `tokenizer` trains a WordPiece vocabulary of 300 tokens on books/tales.txt.
    "tokenizer": Setup(
        ("books",),
        "bert-jax train-tokenizer --input books --output tokenizer --vocab-size 300 --num-unused 0",
    ),
    # The setup `corpus` prepares books/tales.txt for sequences of 32 tokens, in corpora/mine.
    "corpus": Setup(
        ("tokenizer",),
        "bert-jax prepare --input books --tokenizer tokenizer --output corpora/mine "
        "--max-length 32 --held-out 0.1 --workers 1",
    ),
    # The setup `run` pretrains a BERT with 2 layers and a hidden dimension of 16 on corpora/mine
    # for 20 steps, in runs/mine.
    "run": Setup(
        ("corpus",),
        "bert-jax pretrain --config tiny --config.work_dir=runs/mine "
        "--config.phases.phase1.corpus=corpora/mine --config.phases.phase1.sequence_length=32 "
        "--config.phases.phase1.num_steps=20 --config.optimizer.warmup_steps=4 "
        "--config.model.vocab_size=300 --config.model.hidden_dim=16 --config.model.ffn_dim=32 "
        "--config.model.max_positions=64 --config.evaluation.every_steps=20 "
        "--config.checkpoint.every_steps=20 --config.reporting.tensorboard=False",
    ),
    # The setup `mini-bert` copies runs/mine to mini-bert, which takes precedence over the larger
    # built-in model with that name.
    "mini-bert": Setup(("run",), "cp -r runs/mine mini-bert"),
}


class Pages:
    """An object that executes pages, each in a new directory.

    Args:
      environment: the environment variables for the tests' commands.
      tales: the text for the setup `books`.
      new_directory: a function that makes a directory whose name begins with the given word.
    """

    def __init__(
        self, environment: dict[str, str], tales: Path, new_directory: Callable[[str], Path]
    ):
        self._environment = page_environment(environment)
        self._tales = tales
        self._server: ForkServer | None = None
        self._new_directory = new_directory
        self._prepared: dict[str, Path] = {}

    def close(self) -> None:
        """End the server that runs commands."""
        if self._server is not None:
            self._server.close()

    def run(self, page: Page) -> None:
        """Execute all blocks on a page.

        Raises:
          BlockFailed: a block does not do what its directives say.
        """
        directory = self._start(page.setups)
        make_checkout(directory, with_code=any(block.apply for block in page.blocks))
        with self._runner(directory, str(page.path)) as runner:
            for block in page.blocks:
                runner.run(block)

    def run_text(self, text: str) -> None:
        """Execute a page, given its text."""
        self.run(parse_page(text, Path("page.md")))

    def _runner(self, directory: Path, name: str, **variables: str) -> Runner:
        self._server = self._server or ForkServer(self._environment)
        tools = self._new_directory("tools") / "bin"
        return Runner(directory, self._environment | variables, tools, name, self._server)

    def _start(self, setups: Sequence[str]) -> Path:
        """Return a new directory that contains the given setups."""
        directory = self._new_directory("page") / "checkout"
        directory.mkdir()
        for name in setups:
            shutil.copytree(self._prepare(name), directory, dirs_exist_ok=True)
        return directory

    def _prepare(self, name: str) -> Path:
        """Return the directory for a setup, which callers must not change."""
        if name not in self._prepared:
            assert name in SETUPS, f"there is no setup {name!r}. Use one of {list(SETUPS)}"
            directory = self._start(SETUPS[name].after)
            make_checkout(directory, with_code=False)
            with self._runner(directory, f"setup {name}", TALES=str(self._tales)) as runner:
                runner.run(Block(0, "bash", SETUPS[name].commands))
            remove_checkout(directory)
            self._prepared[name] = directory
        return self._prepared[name]


@pytest.fixture(scope="session")
def pages(
    tmp_path_factory: pytest.TempPathFactory, bert_jax: Command, tiny_text: Path
) -> Iterator[Pages]:
    """Return an object that executes documentation pages."""
    pages = Pages(bert_jax.environment(), tiny_text, tmp_path_factory.mktemp)
    yield pages
    pages.close()
