"""Run `bert-jax` commands in forks of a process that has already imported JAX and other libraries.

These imports take 2 s of CPU time, and the pages contain 160 commands. A fork imports only this
package. It has its own arguments, environment, directory and standard streams, it starts its own
JAX devices, and it exits like any other Python process. Unlike other processes, all forks hash
strings in the same way.

This module is also the server's program. Its arguments are the path of the socket to create, and
the file descriptor of a pipe. When the pipe is closed, the server kills its commands and exits.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..commands import REPOSITORY
from .fork_client import NUMBER, receive

CLIENT = Path(__file__).with_name("fork_client.py")
# Libraries that most commands import.
LIBRARIES = (
    *("flax.nnx", "jax", "matplotlib.figure", "matplotlib.ticker", "ml_collections", "optax"),
    *("orbax.checkpoint", "sentencepiece", "tokenizers"),
)
# No module reads these environment variables while it is being imported.
READ_LATER = set("COLUMNS GIT_CEILING_DIRECTORIES OLDPWD PATH PWD SHLVL TALES XLA_FLAGS _".split())


class ForkServer:
    """A running server, which exits when this object is closed or its process ends.

    Args:
      environment: the environment variables of the server.
    """

    def __init__(self, environment: Mapping[str, str]):
        self._directory = tempfile.TemporaryDirectory(prefix="fork-server-")
        self._socket = Path(self._directory.name, "socket")
        reading, self._alive = os.pipe()
        program = [sys.executable, "-m", "tests.docs.fork_server", str(self._socket), str(reading)]
        self._process = subprocess.Popen(
            program,
            env=dict(environment),
            cwd=REPOSITORY,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            pass_fds=[reading],
            start_new_session=True,
        )
        os.close(reading)
        assert self._process.stdout is not None
        assert self._process.stdout.readline(), "the server failed to start"

    def program(self) -> list[str]:
        """Return the words that run `bert-jax` in a fork when its arguments are appended."""
        return [sys.executable, "-I", "-S", str(CLIENT), str(self._socket)]

    def close(self) -> None:
        """End the server and its commands."""
        os.close(self._alive)
        with self._process:
            code = self._process.wait()
        self._directory.cleanup()
        assert code == 0, f"the server exited with code {code}"


class _Server:
    """The server's loop.

    Args:
      path: the path of the socket to create.
      alive: the reading end of a pipe, which is closed when the server is to exit.
      environment: the environment variables before the libraries were imported.
    """

    def __init__(self, path: str, alive: int, environment: Mapping[str, str]):
        self._environment = environment
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(path)
        self._listening.listen()
        self._alive = alive
        self._ended, self._wake = os.pipe()
        os.set_blocking(self._wake, False)
        signal.set_wakeup_fd(self._wake)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._selector = selectors.DefaultSelector()
        for source in (self._listening, alive, self._ended):
            self._selector.register(source, selectors.EVENT_READ)
        self._clients: dict[int, socket.socket] = {}  # Keyed by the command's process ID.

    def run(self) -> bool:
        """Run commands until the pipe is closed.

        Returns:
          Whether this process is a fork that has to run a command.
        """
        print("ready", flush=True)
        while True:
            ready = {key.fd for key, _ in self._selector.select()}
            # First kill the commands whose clients have exited: the next command may depend on it.
            for process_id, client in list(self._clients.items()):
                if client.fileno() in ready or self._alive in ready:
                    os.kill(process_id, signal.SIGKILL)
                    with contextlib.suppress(ProcessLookupError):  # It had no group yet.
                        os.killpg(process_id, signal.SIGKILL)
                    self._finish(process_id, os.waitpid(process_id, 0)[1])
            if self._alive in ready:
                return False
            if self._ended in ready:
                os.read(self._ended, 4096)
                for process_id in list(self._clients):
                    ended, status = os.waitpid(process_id, os.WNOHANG)
                    if ended:
                        self._finish(process_id, status)
            if self._listening.fileno() in ready and self._start(self._listening.accept()[0]):
                return True

    def _start(self, client: socket.socket) -> bool:
        """Start the command that a client requests; return whether this process is its fork."""
        streams: list[int] = []
        try:
            size, streams, _, _ = socket.recv_fds(client, NUMBER.size, 3)
            request = json.loads(receive(client, *NUMBER.unpack(size)))
        except (EOFError, OSError, struct.error):  # The client was killed.
            process_id = None
        else:
            alike = _imports_are_alike(request["environment"], self._environment)
            process_id = os.fork() if alike else 0
            if alike and not process_id:
                self._leave(client)
                _take_over(request, streams, self._environment)
                return True
        for stream in streams:
            os.close(stream)
        if process_id is not None:
            with contextlib.suppress(OSError):
                client.sendall(NUMBER.pack(process_id))
        if process_id:
            self._clients[process_id] = client
            self._selector.register(client, selectors.EVENT_READ)
        else:
            client.close()
        return False

    def _finish(self, process_id: int, status: int) -> None:
        client = self._clients.pop(process_id)
        self._selector.unregister(client)
        with client, contextlib.suppress(OSError):
            client.sendall(NUMBER.pack(os.waitstatus_to_exitcode(status)))

    def _leave(self, client: socket.socket) -> None:
        """Close the server's files in a fork, and handle signals as a new process would."""
        os.setsid()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._selector.close()
        for opened in (self._listening, client, *self._clients.values()):
            opened.close()
        for descriptor in (self._alive, self._ended, self._wake):
            os.close(descriptor)


def _imports_are_alike(first: Mapping[str, str], second: Mapping[str, str]) -> bool:
    """Return whether imports have the same effects in both environments."""
    names = (first.keys() | second.keys()) - READ_LATER
    return all(first.get(name) == second.get(name) for name in names)


def _take_over(request: dict[str, Any], streams: list[int], environment: Mapping[str, str]) -> None:
    """Give this process the arguments, directory, environment and streams of a command.

    Variables that were set by imports, and so are missing in `environment`, remain set.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in request["ignored_signals"]:
        signal.signal(number, signal.SIG_IGN)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", 1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    os.chdir(request["directory"])
    for name in environment.keys() - request["environment"].keys():
        os.environ.pop(name, None)
    os.environ.update(request["environment"])
    sys.argv = ["bert-jax", *request["words"]]


def _main() -> int:
    environment = dict(os.environ)  # JAX sets variables while it is being imported.
    for name in LIBRARIES:
        importlib.import_module(name)
    # Otherwise, a garbage collection in a fork would copy the memory of all these objects.
    gc.collect()
    gc.freeze()
    path, alive = sys.argv[1:]
    if not _Server(path, int(alive), environment).run():
        return 0
    # The processes that a command spawns import the module `__main__`.
    module = sys.modules["__main__"] = importlib.import_module("bert_jax.cli.main")
    return module.main()


if __name__ == "__main__":
    sys.exit(_main())
