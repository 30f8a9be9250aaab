"""Test that each failure is reported in a sentence, and that nothing unfinished looks finished."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import bert_jax as bj
from bert_jax.cli.main import main
from bert_jax.corpus.prepare import prepare, prepare_part
from bert_jax.storage import lease as lease_module
from bert_jax.storage import uploads
from bert_jax.storage.objects import find, list_objects, upload_directory
from bert_jax.storage.uploads import LEASE
from bert_jax.storage.urls import ObjectUrl

from .conftest import Emulator
from .test_models import foreign, ours, upload_tree
from .test_prepare import OPTIONS, SHORT_LEASES, OnDisk, checksums, checksums_on_disk, on_disk

__all__ = ["foreign", "on_disk", "ours"]

EXPIRED = "there are no valid credentials for this store. Run `"


@pytest.fixture(autouse=True)
def short_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_module, "LEASE_SECONDS", 3.0)
    monkeypatch.setattr(lease_module, "RENEWAL_SECONDS", 0.5)
    monkeypatch.setattr(lease_module, "POLL_SECONDS", 0.1)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system of 16 KiB."""
    target = tmp_path / "disk"
    target.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "none", target]).returncode:
        pytest.skip("mounting a file system requires root")
    yield target
    subprocess.run(["umount", "-l", target], check=True)


@pytest.mark.slow
def test_a_preparation_whose_credentials_expire_is_continued(
    on_disk: OnDisk, bucket: ObjectUrl, emulator: Emulator
) -> None:
    output = bucket / "corpus"

    def run(*, part: str | None = None, **settings: object) -> None:
        words = (on_disk.text, on_disk.tokenizer, output)
        options = {**OPTIONS, "workers": 1, **settings}
        prepare_part(part, *words, **options) if part else prepare(*words, **options)

    for after, settings in ((25, {"part": "0/2"}), (40, {"part": "0/2"}), (60, {})):
        emulator.expire_credentials(after)
        with pytest.raises((OSError, ValueError), match=re.escape(EXPIRED)) as caught:
            run(**settings)
        assert str(bucket) in str(caught.value) and "\n" not in str(caught.value)
        emulator.clear_faults()
        assert find(output / "manifest.json") is None
    run()
    assert checksums(output) == checksums_on_disk(on_disk.corpus)


@pytest.mark.slow
def test_an_export_whose_credentials_expire_leaves_nothing_that_looks_finished(
    ours: Path, bucket: ObjectUrl, emulator: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = bucket / "exported"

    def upload_with_expiring_credentials(*args: Any) -> None:
        emulator.expire_credentials(after=5)
        upload_directory(*args)

    with monkeypatch.context() as patch:
        patch.setattr(uploads, "upload_directory", upload_with_expiring_credentials)
        with pytest.raises((OSError, ValueError), match=re.escape(EXPIRED)):
            bj.export(ours, output, format="huggingface")
    emulator.clear_faults()
    left = {output.relative(info.url) for info in list_objects(output)}
    assert "config.json" not in left and LEASE in left and len(left) > 1
    with pytest.raises(ValueError, match="config.json: missing"):
        bj.import_model(output, bucket / "imported")
    assert find(bucket / "imported" / LEASE) is None
    # The next export succeeds once the lease has expired.
    bj.export(ours, output, format="huggingface")
    assert bj.verify(output, ours).passed
    assert find(output / LEASE) is None


@pytest.mark.slow
def test_an_export_killed_during_the_upload_is_repeated(
    ours: Path, bucket: ObjectUrl, emulator: Emulator
) -> None:
    output = bucket / "exported"
    words = [sys.executable, "-W", "ignore", "-c", SHORT_LEASES, "export", str(ours)]
    words += ["--format", "huggingface", "--output", str(output)]
    emulator.fail("stall", 1, seconds=60, path="exported/config.json", methods="PUT POST")
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while emulator.faults_left():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert find(output / "model.safetensors") and find(output / "config.json") is None
    run = subprocess.run(words, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert bj.verify(output, ours).passed


@pytest.mark.slow
def test_a_full_cache_disk_is_named(
    ours: Path,
    bucket: ObjectUrl,
    on_disk: OnDisk,
    small_disk: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    upload_tree(ours, bucket / "ours")
    monkeypatch.setenv("XDG_CACHE_HOME", str(small_disk))
    full = "cannot be written: No space left on device"
    assert main(["fill-mask", "--work-dir", str(bucket / "ours"), "The [MASK] sat."]) == 2
    (error,) = [line for line in capsys.readouterr().err.splitlines() if "error:" in line]
    assert full in error and str(small_disk) in error
    assert main(["export", str(ours), "--format", "onnx", "--output", str(bucket / "x")]) == 2
    assert full in capsys.readouterr().err
    assert not list(list_objects(bucket / "x"))
    with pytest.raises(OSError, match=full):
        prepare(on_disk.text, on_disk.tokenizer, bucket / "corpus", workers=1, **OPTIONS)
    assert find(bucket / "corpus/manifest.json") is None
    assert not [file for file in small_disk.rglob("*.tmp")]


def test_missing_buckets_and_permissions_are_named(
    bucket: ObjectUrl, emulator: Emulator, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = f"{bucket.scheme}://no-such-bucket/x"
    lines = tmp_path / "lines.txt"
    lines.write_text("a\n")
    for words in (
        ["predict", missing, "--input", str(lines)],
        ["export", str(tmp_path), "--format", "onnx", "--output", missing],
        ["import", missing, "--output", str(tmp_path / "model")],
        ["evaluate", str(tmp_path), "--minimal-pairs", missing],
        ["look", str(tmp_path), "text", "--output", f"{missing}.html"],
    ):
        assert main(words) == 2
        error = capsys.readouterr().err
        assert "the bucket 'no-such-bucket' does not exist. Correct its name" in error, error
    emulator.fail("status", 1, status=403)
    assert main(["predict", str(bucket / "model"), "--input", str(lines)]) == 2
    assert f"{bucket}/model: the store denies access." in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # Beam and its workers warn about optional packages.
def test_a_beam_worker_that_dies_is_named(
    on_disk: OnDisk, bucket: ObjectUrl, tmp_path: Path
) -> None:
    pytest.importorskip("apache_beam", reason="needs the extra `beam`")
    from ..corpus.test_beam import RUNNERS, workers_of

    output = bucket / "corpus"
    words = [sys.executable, "-W", "ignore", "-c", SHORT_LEASES, "prepare"]
    words += ["--input", str(on_disk.text), "--tokenizer", str(on_disk.tokenizer)]
    words += ["--output", str(output), "--workers", "1", "--max-length", "64", "--held-out", "0.1"]
    words += ["--unit-bytes", str(32 << 10), "--runner", "DirectRunner"]
    words += [f"--runner-args={RUNNERS['two processes'][1]}"]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    while find(output / ".work/beam/units.json") is None or len(workers_of(process.pid)) < 2:
        assert process.poll() is None
        time.sleep(0.02)
    os.kill(workers_of(process.pid)[0], signal.SIGKILL)
    error = process.communicate(timeout=120)[1]
    assert process.returncode == 2
    assert "the Beam pipeline failed: a worker died" in error and f"{output}/.work" in error
    assert find(output / "manifest.json") is None
    run = subprocess.run(words, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert checksums(output) == checksums_on_disk(on_disk.corpus)
