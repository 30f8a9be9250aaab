"""Start emulators of object stores, and give each test its own bucket."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from bert_jax.local_paths import Scheme
from bert_jax.storage import retries
from bert_jax.storage.urls import ObjectUrl

HERE = Path(__file__).parent
# The tests in these files run complete jobs, which takes minutes. By default, they use one store.
JOBS = (
    *("test_models.py", "test_parts.py", "test_process_runs.py", "test_runs.py", "test_sweeps.py"),
    *("test_scoring_jobs.py", "test_tasks.py"),
)


@dataclass(frozen=True)
class Emulator:
    """A running emulator, and a proxy in front of it that injects faults."""

    scheme: Scheme
    port: int
    proxy_port: int

    def environment(self) -> dict[str, str]:
        """Return the variables that direct requests to the proxy."""
        endpoint = f"http://127.0.0.1:{self.proxy_port}"
        if self.scheme == "gs":
            return {"STORAGE_EMULATOR_HOST": endpoint}
        return {
            "AWS_ENDPOINT_URL": endpoint,
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def create_bucket(self) -> ObjectUrl:
        """Create a bucket with a new name."""
        name = f"bucket-{uuid.uuid4().hex[:12]}"
        if self.scheme == "gs":
            body = json.dumps({"name": name}).encode()
            self._request("POST", self.port, "/storage/v1/b", body)
        else:
            self._request("PUT", self.port, f"/{name}", b"")
        return ObjectUrl(self.scheme, name)

    def create_folder(self, url: ObjectUrl) -> None:
        """Create the empty object that web consoles and gcsfuse write for a folder."""
        if self.scheme == "gs":
            path = f"/upload/storage/v1/b/{url.bucket}/o?uploadType=media&name={url.key}/"
            self._request("POST", self.port, path, b"")
        else:
            self._request("PUT", self.port, f"/{url.bucket}/{url.key}/", b"")

    def fail(
        self,
        kind: str,
        count: int = 1,
        *,
        methods: str = "GET HEAD POST PUT DELETE",
        path: str = "",
        seconds: float = 0,
        status: int = 503,
        after: int = 0,
        body: str = "an injected fault",
        spreads: bool = False,
    ) -> None:
        """Let `after` matching requests pass and the next `count` fail; see fault_proxy.py."""
        fault = {
            "kind": kind,
            "count": count,
            "methods": methods.split(),
            "path": path,
            "seconds": seconds,
            "status": status,
            "after": after,
            "body": body,
            "spreads": spreads,
        }
        self._request("POST", self.proxy_port, "/-/faults", json.dumps(fault).encode())

    def expire_credentials(self, after: int = 0, path: str = "") -> None:
        """Let `after` matching requests pass, then reject all others, as if a token had expired."""
        code = "<Error><Code>ExpiredToken</Code><Message>It has expired.</Message></Error>"
        status = 401 if self.scheme == "gs" else 403
        self.fail("status", 1 << 30, status=status, after=after, body=code, path=path, spreads=True)

    def deny_access(self, path: str) -> None:
        """Reject the first matching request and all later ones, as if access had been revoked."""
        code = "<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
        self.fail("status", 1 << 30, status=403, body=code, path=path, spreads=True)

    def release(self) -> None:
        """Forward the request that a fault of the kind "hold" has delayed."""
        self._request("DELETE", self.proxy_port, "/-/held")

    def faults_left(self) -> int:
        """Return the number of faults that have not been injected yet."""
        return int(self._request("GET", self.proxy_port, "/-/faults"))

    def clear_faults(self) -> None:
        """Remove all faults that have not been injected yet."""
        self._request("DELETE", self.proxy_port, "/-/faults")

    @staticmethod
    def _request(method: str, port: int, path: str, body: bytes | None = None) -> bytes:
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}{path}",
            body,
            {"Content-Type": "application/json"},
            method=method,
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.read()


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def start(*command: str, port: int) -> subprocess.Popen[bytes]:
    """Start a server, and wait until it accepts connections."""
    process = subprocess.Popen([sys.executable, *command], stderr=subprocess.DEVNULL)
    for _ in range(600):
        with socket.socket() as client:
            if client.connect_ex(("127.0.0.1", port)) == 0:
                return process
        assert process.poll() is None, f"{command} ended with {process.returncode}"
        time.sleep(0.05)
    raise AssertionError(f"{command} does not listen")


def run_emulator(scheme: Scheme, *command: str, port: int) -> Iterator[Emulator]:
    proxy_port = free_port()
    processes = [start(*command, port=port)]
    try:
        proxy = str(HERE / "fault_proxy.py")
        processes.append(start(proxy, str(proxy_port), str(port), port=proxy_port))
        yield Emulator(scheme, port, proxy_port)
    finally:
        for process in processes:
            process.kill()
            process.wait()


@pytest.fixture(scope="session")
def gcs_emulator() -> Iterator[Emulator]:
    """Return an emulator of Google Cloud Storage."""
    pytest.importorskip("gcsfs")
    port = free_port()
    yield from run_emulator("gs", str(HERE / "fake_gcs.py"), str(port), port=port)


@pytest.fixture(scope="session")
def s3_emulator() -> Iterator[Emulator]:
    """Return an emulator of Amazon S3."""
    pytest.importorskip("s3fs")
    pytest.importorskip("moto")
    port = free_port()
    yield from run_emulator(
        "s3", "-W", "ignore", "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port), port=port
    )


# The fast tests use only one emulator, since it takes seconds to start the other one.
@pytest.fixture(params=["gs", pytest.param("s3", marks=pytest.mark.slow)])
def emulator(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Emulator]:
    """Direct requests to each of the emulators in turn, and use an empty cache."""
    if (
        request.param == "s3"
        and request.path.name in JOBS
        and not os.environ.get("BERT_JAX_TEST_ALL_STORES")
    ):
        pytest.skip("runs complete jobs with S3 only if BERT_JAX_TEST_ALL_STORES=1 is set")
    name = "gcs_emulator" if request.param == "gs" else "s3_emulator"
    started: Emulator = request.getfixturevalue(name)
    for variable in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(variable)
    for variable, value in started.environment().items():
        monkeypatch.setenv(variable, value)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(retries, "FIRST_DELAY", 0.02)
    yield started
    started.clear_faults()


@pytest.fixture
def bucket(emulator: Emulator) -> ObjectUrl:
    """Return an empty bucket."""
    return emulator.create_bucket()
