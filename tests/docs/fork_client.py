"""Run a `bert-jax` command in a fork of a server.

The command-line arguments are the path of the server's socket and the command's own arguments. If
the environment differs from the server's in a way that affects imports, the command runs in a
process of its own. This program imports little, since it starts hundreds of times.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import struct
import sys

NUMBER = struct.Struct("!q")
# Signals that are forwarded to the command. If this program is killed, the server kills the
# command.
FORWARDED = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)


def receive(connection: socket.socket, count: int) -> bytes:
    """Return `count` bytes from a connection.

    Raises:
      EOFError: the connection ended first.
    """
    received = b""
    while len(received) < count:
        part = connection.recv(count - len(received))
        if not part:
            raise EOFError("the other process closed the connection")
        received += part
    return received


def receive_number(connection: socket.socket) -> int:
    """Return a number from a connection."""
    return NUMBER.unpack(receive(connection, NUMBER.size))[0]


def _run(path: str, words: list[str]) -> None:
    ignored = [number for number in FORWARDED if signal.getsignal(number) is signal.SIG_IGN]
    request = {
        "words": words,
        "directory": os.getcwd(),
        "environment": dict(os.environ),
        "ignored_signals": ignored,
    }
    message = json.dumps(request).encode()
    # Signals wait until it is known which process to forward them to.
    signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        socket.send_fds(connection, [NUMBER.pack(len(message))], [0, 1, 2])
        connection.sendall(message)
        command = receive_number(connection)
        if not command:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
            program = os.path.join(os.path.dirname(sys.executable), "bert-jax")
            os.execv(program, [program, *words])

        def forward(number: int, _: object) -> None:
            with contextlib.suppress(ProcessLookupError):  # The command has just exited.
                os.kill(command, number)

        for number in FORWARDED:
            if number not in ignored:
                signal.signal(number, forward)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
        code = receive_number(connection)
    if code >= 0:
        sys.exit(code)
    # A signal ended the command, so the same signal ends this process.
    if -code != signal.SIGKILL:
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)


if __name__ == "__main__":
    _run(sys.argv[1], sys.argv[2:])
