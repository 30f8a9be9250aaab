"""Execute a page's code blocks in a directory that looks like a checkout."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from ..commands import REPOSITORY
from .blocks import Block
from .fork_server import ForkServer
from .python_session import PythonSession

# The number of seconds after which a block is considered to be stuck.
TIMEOUT = 300
# Files that are copied into a page's directory, since the page may change them.
COPIED = ("configs", "examples", "launch")
# Files that are copied only for a page that changes the code, which then runs from the copy.
COPIED_CODE = ("bert_jax", "tests", "README.md", "CHANGELOG.md", "pyproject.toml", "setup.py")
LINKED = ("experiments",)
SHIM = """\
#!/bin/bash
# Run bert-jax, and add the test's arguments to training commands.
case "$1" in
  pretrain | finetune | sweep) set -- "$@" {args} ;;
esac
exec {program} "$@"
"""


def page_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables for pages, given the variables for the tests' commands."""
    return {
        # Pytest's variables are meant only for the process that runs the tests.
        **{key: environment[key] for key in environment if not key.startswith("PYTEST_")},
        "PYTHONPATH": str(REPOSITORY),
        "PYTHONDONTWRITEBYTECODE": "1",
        "HF_HUB_OFFLINE": "1",
    }


class BlockFailed(AssertionError):
    """A block that did not do what its page promises."""


def make_checkout(directory: Path, *, with_code: bool) -> None:
    """Fill a directory with the parts of a checkout that a page's commands use.

    Copied directories keep the modification times of files, so compiled modules remain valid.
    """
    half_written = shutil.ignore_patterns("*.pyc.*")
    for name in (*COPIED, *(COPIED_CODE if with_code else ())):
        source = REPOSITORY / name
        if source.is_dir():
            shutil.copytree(source, directory / name, ignore=half_written)
        else:
            shutil.copy(source, directory / name)
    for name in LINKED:
        (directory / name).symlink_to(REPOSITORY / name)


def remove_checkout(directory: Path) -> None:
    """Remove what `make_checkout` put into a directory, except for code."""
    for name in COPIED:
        shutil.rmtree(directory / name)
    for name in LINKED:
        (directory / name).unlink()


class Runner:
    """A context manager that executes blocks in one directory.

    Args:
      directory: the directory in which blocks run.
      environment: the result of `page_environment`, and variables that differ between pages.
      tools: the directory to create for the `bert-jax` that blocks find on their PATH.
      name: the page's name in messages.
      server: a server with the same environment, which runs commands unless the directory contains
        code.
    """

    def __init__(
        self,
        directory: Path,
        environment: Mapping[str, str],
        tools: Path,
        name: str,
        server: ForkServer,
    ):
        self._directory = directory
        self._tools = tools
        self._name = name
        programs = Path(sys.executable).parent
        with_code = (directory / "bert_jax").exists()
        self._program = [str(programs / "bert-jax")] if with_code else server.program()
        self._environment = {
            **environment,
            **({"PYTHONPATH": str(directory)} if with_code else {}),
            "PATH": f"{tools}:{programs}:{environment['PATH']}",
            # Without this, a patch applied in a directory inside a repository would change the
            # repository's files.
            "GIT_CEILING_DIRECTORIES": str(directory.parent),
        }
        tools.mkdir()
        self._python: PythonSession | None = None

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *_: object) -> None:
        if self._python:
            self._python.close()

    def run(self, block: Block) -> str:
        """Execute a block and return its output.

        Raises:
          BlockFailed: the block's exit status or output differs from what its directives say.
        """
        if block.file:
            path = self._directory / block.file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.source, encoding="utf-8")
            return ""
        if block.language == "python":
            problem, output = self._run_python(block)
        else:
            problem, output = self._run_shell(block)
        if block.fails and problem in ("failed", ""):
            problem = "" if problem else "succeeded, but should fail"
        if problem:
            raise BlockFailed(self._report(block, problem, output))
        if block.apply and self._python:
            # The process has already imported the code as it was before the change.
            self._python.close()
            self._python = None
        for text in block.expect:
            if text not in output:
                raise BlockFailed(self._report(block, f"does not print {text!r}", output))
        return output

    def _report(self, block: Block, problem: str, output: str) -> str:
        title = f"{self._name}:{block.line}: the {block.language} block {problem}"
        return f"{title}\n--- block\n{block.source}--- output\n{output}"

    def _run_shell(self, block: Block) -> tuple[str, str]:
        shim = self._tools / "bert-jax"
        text = SHIM.format(args=block.args, program=shlex.join(self._program))
        shim.write_text(text, encoding="utf-8")
        shim.chmod(0o755)
        words = ["bash", "-euo", "pipefail", "-c", block.source]
        if block.language == "console":
            words[-1] = console_commands(block.source)
        elif block.language == "diff":
            words = ["git", "apply", "--verbose", "-"]
        process = subprocess.Popen(
            words,
            cwd=self._directory,
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(block.source if block.apply else "", timeout=TIMEOUT)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            return f"timed out after {TIMEOUT} s", output
        return "failed" if process.returncode else "", output

    def _run_python(self, block: Block) -> tuple[str, str]:
        if self._python is None:
            log = self._tools / "python.log"
            self._python = PythonSession(self._directory, self._environment, log)
        # Empty lines are prepended so that tracebacks show the line numbers on the page.
        return self._python.run("\n" * block.line + block.source, self._name, TIMEOUT)


def console_commands(source: str) -> str:
    """Return a console block's commands: lines after `$`, and their continuations after `>`."""
    lines = [line for line in source.splitlines() if line[:2] in ("$ ", "> ")]
    return "".join(f"{line[2:]}\n" for line in lines)
