"""Forward HTTP requests to an emulator, and inject faults. Usage: fault_proxy.py PORT EMULATOR_PORT

A POST of {"kind", "count", "methods", "path", "seconds", "status", "after", "body", "spreads"} to
/-/faults defines faults: of the requests that match, the first `after` pass, and the next `count`
fail. With "spreads", only the first request to fail must match; the ones after it fail in any case.
There are six kinds:

- "status" answers with an HTTP status and `body`.
- "stall" sends nothing for some seconds and then closes the connection.
- "cut" sends only half of the response.
- "lost" forwards the request, but then closes the connection instead of responding.
- "freeze" delays all requests, beginning with this one, until some seconds have passed.
- "hold" delays only this request, until a DELETE of /-/held.

A delayed request is forwarded even if the client has given up. GET /-/faults returns the number of
faults that are left, and DELETE removes them.
"""

import http.client
import json
import re
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

FAULTS: list[dict] = []
LOCK = threading.Lock()
RELEASED = threading.Event()
FROZEN_UNTIL = 0.0
TARGET = int(sys.argv[2]) if len(sys.argv) > 2 else 0
NOT_FORWARDED = ("connection", "transfer-encoding", "content-length", "keep-alive")


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args) -> None:
        pass

    def body(self) -> bytes:
        if "chunked" in self.headers.get("Transfer-Encoding", "").lower():
            body = b""
            while size := int(self.rfile.readline().split(b";")[0], 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            while self.rfile.readline().strip():  # Skip the trailers.
                pass
            return body
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def handle_any(self) -> None:
        if self.headers.get("Expect", "").lower() == "100-continue":
            pass  # http.server has already responded.
        body = self.body()
        if self.path == "/-/faults":
            return self.control(body)
        if self.path == "/-/held":
            RELEASED.set()
            return self.answer(200, {}, b"")
        fault = self.matching_fault(body)
        kind = fault["kind"] if fault else None
        if kind == "status":
            return self.answer(fault["status"], {}, fault["body"].encode())
        if kind == "stall":
            time.sleep(fault["seconds"])
            self.close_connection = True
            return None
        if kind == "hold":
            RELEASED.clear()
            RELEASED.wait()
        self.thaw(fault["seconds"] if fault and kind == "freeze" else 0)
        connection = http.client.HTTPConnection("127.0.0.1", TARGET, timeout=60)
        headers = {k: v for k, v in self.headers.items() if k.lower() not in NOT_FORWARDED}
        connection.request(self.command, self.path, body, headers)
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        if kind == "lost":
            self.close_connection = True
            return None
        self.answer(answer.status, dict(answer.getheaders()), content, cut=kind == "cut")

    def thaw(self, seconds: float) -> None:
        """Freeze all requests for some seconds (0 for none), and wait until nothing is frozen."""
        global FROZEN_UNTIL
        if seconds:
            FROZEN_UNTIL = time.monotonic() + seconds
        time.sleep(max(0.0, FROZEN_UNTIL - time.monotonic()))

    do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = do_HEAD = handle_any

    def answer(self, status: int, headers: dict, content: bytes, *, cut: bool = False) -> None:
        self.send_response(status)
        length = str(len(content))
        for name, value in headers.items():
            if self.command == "HEAD" and name.lower() == "content-length":
                length = value
            if name.lower() not in (*NOT_FORWARDED, "date", "server"):
                self.send_header(name, value)
        self.send_header("Content-Length", length)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content[: len(content) // 2] if cut else content)
        if cut:
            self.close_connection = True

    def matching_fault(self, body: bytes) -> dict | None:
        # An upload to Google Cloud Storage has the object's name near the beginning of its body.
        target = f"{self.path} {body[:300].decode(errors='replace')}"
        with LOCK:
            for fault in FAULTS:
                if self.command in fault["methods"] and re.search(fault["path"], target):
                    if fault["after"]:
                        fault["after"] -= 1
                        continue
                    if fault.get("spreads"):
                        fault["methods"], fault["path"] = (
                            ["GET", "HEAD", "POST", "PUT", "DELETE"],
                            "",
                        )
                    fault["count"] -= 1
                    if fault["count"] == 0:
                        FAULTS.remove(fault)
                    return dict(fault)
        return None

    def control(self, body: bytes) -> None:
        with LOCK:
            if self.command == "POST":
                FAULTS.append(json.loads(body))
            elif self.command == "DELETE":
                FAULTS.clear()
            left = sum(fault["count"] for fault in FAULTS)
        self.answer(200, {}, json.dumps(left).encode())


if __name__ == "__main__":
    ThreadingHTTPServer.request_queue_size = 64
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
