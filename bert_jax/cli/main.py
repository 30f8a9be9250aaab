"""Run the `bert-jax` command: find the verb, run it, and explain errors."""

import contextlib
import os
import sys
import traceback
from collections.abc import Sequence

from bert_jax.argument_errors import naming_arguments
from bert_jax.error_advice import file_message, library_message
from bert_jax.failures import raised_by_this_package
from bert_jax.finetuning.plugins import register_plugins
from bert_jax.interop.small_models import replace_short_names
from bert_jax.processes import (
    command_begins,
    importing,
    return_freed_memory,
    tune_malloc_for_training,
)
from bert_jax.terminal import discard_output, log_to, reader_exited, write_line
from bert_jax.uncaught import ignore_closed_loops, raise_lost_interrupts
from bert_jax.verbs import VERBS, Verb, make_parser, run_function, select_verb

USER_MISTAKE = 2
INTERRUPTED = 130  # Shells report this code after SIGINT; runs return it after saving, too.


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    A `ValueError` or `OSError` is treated as a user error: its message is printed to stderr without
    a traceback, and the exit code is 2. An error caused by running out of memory in any library is
    handled the same way. If BERT_JAX_TRACEBACK=1 is set in the environment, the original error is
    raised with its traceback instead.
    """
    log_to(sys.stderr)
    own_process = argv is None
    if own_process:
        raise_lost_interrupts()
        ignore_closed_loops()
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        code = _dispatch(words.copy(), own_process)
    except KeyboardInterrupt:
        print("\nbert-jax: interrupted", file=sys.stderr)
        return INTERRUPTED
    except SystemExit:
        raise
    except BaseException as error:  # A Rust panic is not a subclass of Exception.
        explained = _explain(error, words)
        if explained is None and not own_process:
            raise
        if explained is None:
            traceback.print_exc()
        return _leave(error, explained or 1, own_process)
    try:
        sys.stdout.flush()  # Flush here, where a closed pipe or terminal can still be handled.
    except OSError as error:
        if not reader_exited(error):
            raise
        discard_output(sys.stdout)
        return code or 1
    return code


def _explain(error: BaseException, words: Sequence[str]) -> int | None:
    """Print a message for a user error or an out-of-memory error, and return the exit code.

    Any other error is not printed, and the result is None.
    """
    if isinstance(error, BrokenPipeError):  # The reader, such as `head`, has exited.
        discard_output(sys.stdout)
        return 1
    if os.environ.get("BERT_JAX_TRACEBACK") == "1":
        return None
    verb = " ".join(words[: 2 if words[:1] == ["bench"] else 1])
    # Check for a full disk first: TensorStore reports it as RESOURCE_EXHAUSTED, the status that XLA
    # uses when it runs out of memory.
    file = file_message(error, verb, sys.stdout)
    message = file or library_message(error, verb) or _lost_process(error)
    if message is None and not isinstance(error, ValueError | OSError):
        return None
    write_line(f"bert-jax: error: {message or error}", sys.stderr)
    if not file and not raised_by_this_package(error):
        write_line("(set BERT_JAX_TRACEBACK=1 to see where it was raised)", sys.stderr)
    return USER_MISTAKE


def _leave(error: BaseException, code: int, own_process: bool) -> int:
    """Return the exit code of a failed command, but exit at once from a distributed run."""
    if own_process and "jax" in sys.modules:
        from bert_jax.training.distributed import leave

        leave(code, lost=_lost_process(error) is not None)
    return code


def _lost_process(error: BaseException) -> str | None:
    """Return a message if another process of a distributed run was lost, or None."""
    if "jax" not in sys.modules:
        return None
    from bert_jax.training.distributed import lost_process

    return lost_process(error)


def _dispatch(words: list[str], own_process: bool) -> int:
    selected = select_verb("bert-jax", words, VERBS)
    if isinstance(selected, str):
        print(selected)
        return 0 if words else USER_MISTAKE
    return _run(*selected, words, own_process)


def _run(verb: Verb, program: str, words: Sequence[str], own_process: bool) -> int:
    if verb.on_cpu and own_process:
        os.environ.setdefault("JAX_PLATFORMS", "cpu")  # JAX reads this variable on import.
    with importing() if own_process else contextlib.nullcontext():
        register_plugins()
        parser = make_parser(verb, program)
    args = parser.parse_words(words, mixed=verb.mixed)
    if files := parser.output_files(args):
        from bert_jax.runs.outputs import check_output_files  # This imports slow libraries.

        check_output_files(files)
    given = parser.given_values(args)
    short_names = replace_short_names(vars(args))
    # JAX has been imported by now, but does not start threads until it is first used.
    if verb.repeats and own_process:
        tune_malloc_for_training()
        command_begins()
    if verb.converts and own_process:
        return_freed_memory()
    with naming_arguments(given, short_names):
        return run_function(verb)(args)


if __name__ == "__main__":
    sys.exit(main())
