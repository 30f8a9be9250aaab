"""Emulate the JSON API of Google Cloud Storage in memory, as far as gcsfs and TensorStore use it.

Unlike the emulators on PyPI, this one checks the conditions on generations. Usage: fake_gcs.py PORT
"""

import base64
import hashlib
import json
import re
import sys
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from urllib.parse import parse_qs, unquote, urlsplit

import google_crc32c


@dataclass
class Stored:
    content: bytes
    generation: int
    updated: float


@dataclass
class State:
    buckets: dict[str, dict[str, Stored]] = field(default_factory=dict)
    uploads: dict[str, tuple[str, str, dict[str, str], bytearray]] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)
    generations: count = field(default_factory=lambda: count(1_700_000_000_000_000))


STATE = State()


class Failure(Exception):
    def __init__(self, status: int, message: str):
        super().__init__(message)
        self.status, self.message = status, message


def described(bucket: str, name: str, stored: Stored) -> dict:
    seconds, fraction = divmod(stored.updated, 1)
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    crc32c = google_crc32c.Checksum(stored.content).digest()
    return {
        "kind": "storage#object",
        "id": f"{bucket}/{name}/{stored.generation}",
        "bucket": bucket,
        "name": name,
        "size": str(len(stored.content)),
        "generation": str(stored.generation),
        "metageneration": "1",
        "updated": f"{stamp}.{int(fraction * 1000):03d}Z",
        "timeCreated": f"{stamp}.{int(fraction * 1000):03d}Z",
        "contentType": "application/octet-stream",
        "md5Hash": base64.b64encode(hashlib.md5(stored.content).digest()).decode(),
        "crc32c": base64.b64encode(crc32c).decode(),
        "etag": str(stored.generation),
        "storageClass": "STANDARD",
    }


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args) -> None:
        pass

    def handle_any(self) -> None:
        url = urlsplit(self.path)
        self.query = {name: values[-1] for name, values in parse_qs(url.query).items()}
        try:
            body = self.read_body()
            with STATE.lock:
                self.route(url.path, body)
        except Failure as failure:
            error = {"code": failure.status, "message": failure.message}
            self.answer(failure.status, json.dumps({"error": error}).encode())

    do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = do_HEAD = handle_any

    def read_body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return body
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def json(self, content: dict) -> None:
        self.answer(200, json.dumps(content).encode(), Content_Type="application/json")

    def route(self, path: str, body: bytes) -> None:
        path = re.sub("^/(upload/|download/)?storage/v1", "", path)
        if path == "/b" and self.command == "POST":
            STATE.buckets.setdefault(json.loads(body)["name"], {})
            return self.json({})
        match = re.fullmatch(r"/b/([^/]+)(/o(?:/(.*))?)?/?", path, re.DOTALL)
        if match is None:
            raise Failure(501, f"not emulated: {self.command} {path}")
        bucket = match[1]
        if bucket not in STATE.buckets:
            raise Failure(404, "The specified bucket does not exist.")
        if match[2] is None:
            return self.json({"kind": "storage#bucket", "name": bucket, "location": "US"})
        if match[3]:
            return self.object(bucket, match[3], body)
        if self.command == "GET":
            return self.list(bucket)
        return self.upload(bucket, body)

    def object(self, bucket: str, rest: str, body: bytes) -> None:
        target = re.fullmatch(r"(.*)/(?:copyTo|rewriteTo|moveTo)/b/([^/]+)/o/(.*)", rest, re.DOTALL)
        name = unquote(target[1] if target else rest)
        stored = STATE.buckets[bucket].get(name)
        wanted = self.query.get("generation")
        if stored is None or (wanted is not None and int(wanted) != stored.generation):
            if "ifGenerationMatch" in self.query and self.command != "GET":
                raise Failure(412, "At least one of the pre-conditions did not hold.")
            raise Failure(404, f"No such object: {bucket}/{name}")
        self.check_conditions(stored)
        if target:
            other, copied = target[2], unquote(target[3])
            if other not in STATE.buckets:
                raise Failure(404, "The specified bucket does not exist.")
            new = self.store(other, copied, stored.content)
            if "/rewriteTo/" in rest:
                return self.json({"done": True, "resource": described(other, copied, new)})
            return self.json(described(other, copied, new))
        if self.command == "DELETE":
            del STATE.buckets[bucket][name]
            return self.answer(204)
        if self.query.get("alt") == "media" or self.path.startswith("/download/"):
            return self.media(stored)
        self.json(described(bucket, name, stored))

    def check_conditions(self, stored: Stored | None) -> None:
        generation = 0 if stored is None else stored.generation
        if int(self.query.get("ifGenerationMatch", generation)) != generation:
            raise Failure(412, "At least one of the pre-conditions did not hold.")
        if int(self.query.get("ifGenerationNotMatch", -1)) == generation:
            raise Failure(304 if self.command == "GET" else 412, "The generation matches.")

    def media(self, stored: Stored) -> None:
        content, generation = stored.content, str(stored.generation)
        bounds = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        if bounds is None:
            return self.answer(200, content, x_goog_generation=generation)
        if bounds[1]:
            start, end = int(bounds[1]), int(bounds[2] or len(content) - 1) + 1
        else:
            start, end = len(content) - int(bounds[2]), len(content)
        if start >= len(content):
            raise Failure(416, "The requested range cannot be satisfied.")
        end = min(end, len(content))
        span = f"bytes {start}-{end - 1}/{len(content)}"
        self.answer(206, content[start:end], Content_Range=span, x_goog_generation=generation)

    def list(self, bucket: str) -> None:
        prefix, delimiter = self.query.get("prefix", ""), self.query.get("delimiter")
        limit, after = int(self.query.get("maxResults", 1000)), self.query.get("pageToken", "")
        start = self.query.get("startOffset", "")
        items, prefixes, token, last = [], [], None, after
        for name in sorted(STATE.buckets[bucket]):
            if not name.startswith(prefix) or name < start:
                continue
            cut = name.find(delimiter, len(prefix)) if delimiter else -1
            entry = name if cut < 0 else name[: cut + 1]
            if entry <= after or entry in prefixes:
                continue
            if len(items) + len(prefixes) == limit:
                token = last
                break
            last = entry
            if cut < 0:
                items.append(described(bucket, name, STATE.buckets[bucket][name]))
            else:
                prefixes.append(entry)
        page = {"kind": "storage#objects", "items": items, "prefixes": prefixes}
        self.json(page | ({"nextPageToken": token} if token else {}))

    def upload(self, bucket: str, body: bytes) -> None:
        match self.query.get("uploadType"):
            case "media":
                self.finish_upload(bucket, self.query["name"], body)
            case "multipart":
                boundary = re.search('boundary="?([^";]+)', self.headers["Content-Type"])[1]
                _, meta, data = body.split(b"--" + boundary.encode(), 2)
                metadata = json.loads(re.split(rb"\r?\n\r?\n", meta, maxsplit=1)[1])
                data = re.split(rb"\r?\n\r?\n", data, maxsplit=1)[1]
                # The data may end with "\r" itself.
                newline = rb"\r\n" if meta.startswith(b"\r\n") else rb"\n"
                end = re.search(newline + b"--" + re.escape(boundary.encode()) + rb"--\s*$", data)
                self.finish_upload(bucket, metadata["name"], data[: end.start()])
            case "resumable" if "upload_id" not in self.query:
                name = self.query.get("name") or json.loads(body)["name"]
                upload_id = f"u{next(STATE.generations)}"
                STATE.uploads[upload_id] = bucket, name, dict(self.query), bytearray()
                location = (
                    f"http://{self.headers['Host']}/upload/storage/v1/b/{bucket}/o"
                    f"?uploadType=resumable&upload_id={upload_id}"
                )
                self.answer(200, Location=location)
            case _:
                self.resume(body)

    def resume(self, body: bytes) -> None:
        upload_id = self.query.get("upload_id", "")
        if upload_id not in STATE.uploads:
            raise Failure(404, "No such upload.")
        if self.command == "DELETE":
            del STATE.uploads[upload_id]
            return self.answer(499)
        bucket, name, query, received = STATE.uploads[upload_id]
        span = re.fullmatch(
            r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)", self.headers.get("Content-Range", "bytes */*")
        )
        if span[1]:
            del received[int(span[1]) :]
            received += body
        if span[3] != "*" and len(received) == int(span[3]):
            del STATE.uploads[upload_id]
            self.query = query
            return self.finish_upload(bucket, name, bytes(received))
        extent = {"Range": f"bytes=0-{len(received) - 1}"} if received else {}
        self.answer(308, **extent)

    def finish_upload(self, bucket: str, name: str, content: bytes) -> None:
        self.check_conditions(STATE.buckets[bucket].get(name))
        self.json(described(bucket, name, self.store(bucket, name, content)))

    def store(self, bucket: str, name: str, content: bytes) -> Stored:
        stored = Stored(content, next(STATE.generations), time.time())
        STATE.buckets[bucket][name] = stored
        return stored


if __name__ == "__main__":
    ThreadingHTTPServer.request_queue_size = 64
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
