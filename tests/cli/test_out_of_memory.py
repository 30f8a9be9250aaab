"""Test that out-of-memory errors from all libraries are reported in one sentence."""

from __future__ import annotations

import argparse
import errno
import os
import subprocess
import sys
from collections.abc import Callable
from types import ModuleType

import numpy as np
import pytest
import tokenizers

from bert_jax.cli import main as cli
from bert_jax.cli.main import main
from bert_jax.error_advice import library_message
from bert_jax.verbs import VERBS, Verb


def numpy_array() -> None:
    np.empty(1 << 60, np.uint8)


def arrow_buffer() -> None:
    import pyarrow as pa

    pa.allocate_buffer(1 << 60)


def jax_array() -> None:
    import jax

    jax.device_put(np.zeros(1)).block_until_ready()
    jax.jit(lambda: jax.numpy.zeros((1 << 30, 1 << 22)))().block_until_ready()


def torch_tensor() -> None:
    import torch

    torch.empty(1 << 60)


def tokenizer_training() -> None:
    trainer = tokenizers.trainers.WordPieceTrainer(vocab_size=1 << 60, show_progress=False)
    tokenizers.Tokenizer(tokenizers.models.WordPiece()).train_from_iterator(["a"], trainer)


def system_call() -> None:
    raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))


def under_another_error() -> None:
    try:
        numpy_array()
    except MemoryError as error:
        raise ValueError("pytorch_model.bin: it cannot be read") from error


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None]], int]:
    def fail(function: Callable[[], None]) -> int:
        module = ModuleType("failing_verb", "Fails.")
        module.add_arguments = lambda parser: None  # type: ignore[attr-defined]

        def run(args: argparse.Namespace) -> int:
            function()
            return 0

        module.run = run  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "failing_verb", module)
        monkeypatch.setattr(cli, "VERBS", {"pretrain": Verb("fail", "failing_verb")})
        return main(["pretrain"])

    return fail


@pytest.mark.parametrize(
    "function",
    [
        *(numpy_array, arrow_buffer, jax_array, torch_tensor, tokenizer_training),
        *(system_call, under_another_error),
    ],
    ids=lambda function: function.__name__,
)
def test_errors_of_real_libraries_are_reported(
    function: Callable[[], None],
    failing: Callable[[Callable[[], None]], int],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert failing(function) == 2
    errors = capsys.readouterr().err
    assert "bert-jax: error: out of memory" in errors and "Raise accumulation_steps" in errors
    assert "Traceback" not in errors


def test_other_rust_panics_are_also_reported_in_one_sentence(
    failing: Callable[[Callable[[], None]], int], capsys: pytest.CaptureFixture[str]
) -> None:
    class PanicException(BaseException):
        """A copy of the exception that pyo3 raises after a panic."""

    def panic() -> None:
        raise PanicException("called `Option::unwrap()` on a `None` value")

    assert failing(panic) == 2
    assert "a library stopped with an internal error: called" in capsys.readouterr().err


def test_other_errors_are_not_reported_as_out_of_memory() -> None:
    for error in (RuntimeError("shapes differ"), KeyError("out of memory"), OSError(2, "gone")):
        assert library_message(error, "pretrain") is None


def test_every_verb_has_advice() -> None:
    verbs = [*VERBS, *(f"bench {name}" for name in VERBS["bench"].verbs)]
    sentences = {verb: library_message(MemoryError(), verb) for verb in verbs}
    assert all(sentence and sentence.endswith(".") for sentence in sentences.values())
    assert "--workers" in str(sentences["prepare"]) and "--batch-size" in str(sentences["predict"])


def test_the_message_contains_the_librarys_details() -> None:
    error = RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating\n 123 bytes.")
    sentence = library_message(error, "sweep")
    assert sentence is not None
    assert sentence.startswith(
        "out of memory (RESOURCE_EXHAUSTED: Out of memory allocating 123 bytes). Raise"
    )


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is Linux's")
def test_a_command_with_limited_memory() -> None:
    program = (
        "import resource, sys; from bert_jax.cli import main as cli; "
        "from types import ModuleType; module = ModuleType('m', 'Allocates.'); "
        "module.add_arguments = lambda parser: None; module.run = lambda args: bytearray(1 << 32); "
        "sys.modules['m'] = module; cli.VERBS = {'prepare': cli.Verb('fail', 'm')}; "
        "resource.setrlimit(resource.RLIMIT_AS, (1 << 31, 1 << 31)); "
        "sys.argv[1:] = ['prepare']; sys.exit(cli.main())"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.returncode == 2
    assert result.stderr.startswith("bert-jax: error: out of memory. Use fewer --workers or")
