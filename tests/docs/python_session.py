"""Execute a page's Python blocks in one process, the way an interactive interpreter would.

Blocks are sent to the process's standard input as JSON, one per line. After each block, the process
writes true or false to a file descriptor, depending on whether the block succeeded. The
descriptor's number is the only command-line argument.
"""

import json
import linecache
import os
import select
import signal
import subprocess
import sys
import traceback
import types
from pathlib import Path


class PythonSession:
    """A process that executes blocks of Python code one after another.

    Args:
      directory: the directory in which the process runs.
      environment: its environment variables.
      log: the file to create for its output.
    """

    def __init__(self, directory: Path, environment: dict[str, str], log: Path):
        self._log = log
        receiving, sending = os.pipe()
        with log.open("w") as output:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(sending)],
                cwd=directory,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
                pass_fds=[sending],
                start_new_session=True,
            )
        os.close(sending)
        self._replies = os.fdopen(receiving, "rb", buffering=0)

    def close(self) -> None:
        """End the process."""
        os.killpg(self._process.pid, signal.SIGKILL)
        with self._process, self._replies:
            pass

    def run(self, source: str, name: str, timeout: float) -> tuple[str, str]:
        """Execute a block.

        Args:
          source: the block's code.
          name: the file name to show in tracebacks.
          timeout: the number of seconds after which the block is considered to be stuck.

        Returns:
          A pair: what went wrong (an empty string if nothing did), and the output.
        """
        start = self._log.stat().st_size
        assert self._process.stdin
        print(json.dumps({"name": name, "source": source}), file=self._process.stdin, flush=True)
        ready, _, _ = select.select([self._replies], [], [], timeout)
        reply = self._replies.readline() if ready else b""
        output = self._log.read_bytes()[start:].decode(errors="replace")
        if not ready:
            return f"timed out after {timeout:g} s", output
        if not reply:
            return "ended its process", output
        return "" if json.loads(reply) else "failed", output


def execute_blocks(replies: int) -> None:
    """Execute blocks until the input ends, and write the replies to a file descriptor."""
    sys.path[0] = ""
    # This main module has no file. If it had one, worker processes would import that file as their
    # own main module.
    sys.modules["__main__"] = main_module = types.ModuleType("__main__")
    with os.fdopen(replies, "w") as file:
        for line in sys.stdin:
            block = json.loads(line)
            name, source = block["name"], block["source"]
            linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
            try:
                exec(compile(source, name, "exec"), vars(main_module))
                succeeded = True
            except BaseException:
                traceback.print_exc()
                succeeded = False
            sys.stdout.flush()
            sys.stderr.flush()
            print(json.dumps(succeeded), file=file, flush=True)


if __name__ == "__main__":
    execute_blocks(int(sys.argv[1]))
