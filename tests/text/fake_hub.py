"""Serve the datasets in a directory as the Hugging Face Hub does.

The server supports the part of the Hub's API that is needed to read datasets.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

_API = re.compile(
    r"/api/datasets/(?P<name>[^/]+/[^/]+)"
    r"(/(?P<what>revision|tree|paths-info)/(?P<commit>[^/]+)(/(?P<folder>.+))?)?"
)
_FILE = re.compile(r"/datasets/(?P<name>[^/]+/[^/]+)/resolve/(?P<commit>[^/]+)/(?P<path>.+)")


@contextmanager
def serve_hub(root: Path) -> Iterator[str]:
    """Serve the datasets ROOT/OWNER/NAME, and yield the address to use as HF_ENDPOINT.

    A dataset's only commit is a hash of its files, so it changes with them.
    """

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:  # noqa: N802
            self._answer()

        do_HEAD = do_POST = do_GET  # noqa: N815

        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            url = urlsplit(self.path)
            path = unquote(url.path)
            if match := _API.fullmatch(path):
                directory = root / match["name"]
                if not directory.is_dir():
                    self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"})
                elif match["what"] == "tree":
                    deep = parse_qs(url.query).get("recursive", ["false"])[0].lower() == "true"
                    self._send_json(_tree(directory, match["folder"] or "", deep=deep))
                elif match["what"] == "paths-info":
                    wanted = _paths(body, self.headers.get("Content-Type") or "")
                    everything = _tree(directory, "", deep=True)
                    self._send_json([each for each in everything if each["path"] in wanted])
                else:
                    self._send_json(_description(directory, match["name"]))
            elif (match := _FILE.fullmatch(path)) and (
                root / match["name"] / match["path"]
            ).is_file():
                self._file(root / match["name"], match["path"])
            else:
                self._send(404, b"{}", {"X-Error-Code": "EntryNotFound"})

        def _send_json(self, content: object) -> None:
            self._send(200, json.dumps(content).encode(), {"Content-Type": "application/json"})

        def _file(self, directory: Path, path: str) -> None:
            data = (directory / path).read_bytes()
            headers = {
                "ETag": f'"{hashlib.sha256(data).hexdigest()}"',
                "X-Repo-Commit": commit_of(directory),
                "Accept-Ranges": "bytes",
            }
            status = 200
            if span := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or ""):
                first, last = int(span[1]), min(int(span[2] or len(data)), len(data) - 1)
                headers["Content-Range"] = f"bytes {first}-{last}/{len(data)}"
                status, data = 206, data[first : last + 1]
            self._send(status, data, headers)

        def _send(self, status: int, data: bytes, headers: dict[str, str]) -> None:
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(data))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def commit_of(directory: Path) -> str:
    """Return the commit of a dataset."""
    digest = hashlib.sha1()
    for path in _files(directory):
        digest.update(path.encode() + (directory / path).read_bytes())
    return digest.hexdigest()


def _description(directory: Path, name: str) -> dict[str, Any]:
    return {
        "_id": "1",
        "id": name,
        "sha": commit_of(directory),
        "private": False,
        "gated": False,
        "tags": [],
        "siblings": [{"rfilename": path} for path in _files(directory)],
    }


def _tree(directory: Path, folder: str, *, deep: bool) -> list[dict[str, Any]]:
    """Describe the files and directories in a folder and, if `deep`, in the folders below it."""
    found = (directory / folder).rglob("*") if deep else (directory / folder).glob("*")
    return [
        {
            "type": "file" if path.is_file() else "directory",
            "path": path.relative_to(directory).as_posix(),
            "size": path.stat().st_size if path.is_file() else 0,
            "oid": "0" * 40,
        }
        for path in sorted(found)
    ]


def _paths(body: bytes, kind: str) -> set[str]:
    if "json" in kind:
        return set(json.loads(body)["paths"])
    return set(parse_qs(body.decode()).get("paths", []))


def _files(directory: Path) -> dict[str, int]:
    """Return the size of each file, keyed by its path."""
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    return {path.relative_to(directory).as_posix(): path.stat().st_size for path in files}
