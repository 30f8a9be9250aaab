"""Run a `bert-jax` command in a fork of a server.

The command-line arguments are the path of the server's socket and the command's own arguments. If
the environment differs from the server's in a way that affects imports, the command runs in a
process of its own. This program imports little, since it starts hundreds of times.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import sys

NUMBER = struct.Struct("!q")
# Signals that are sent on to the command. If this program is killed, the server kills the command.
FORWARDED = {signal.SIGABRT, signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1}


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
    request = {"words": words, "directory": os.getcwd(), "environment": dict(os.environ)}
    message = json.dumps(request).encode()
    # Signals wait until it is known which process to send them to.
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
        for number in FORWARDED:
            signal.signal(number, lambda number, _: os.kill(command, number))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
        code = receive_number(connection)
    if code < 0:  # A signal ended the command, so the same signal ends this process.
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)


if __name__ == "__main__":
    _run(sys.argv[1], sys.argv[2:])
