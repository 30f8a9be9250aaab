"""Test that errors of the Python API name the URL of a model in a bucket, not its local copy."""

from collections.abc import Callable
from pathlib import Path

import pytest

import bert_jax as bj
from bert_jax.local_paths import COPIES
from bert_jax.runs import views
from bert_jax.runs.comparison import compare_runs
from bert_jax.runs.status import read_status
from bert_jax.runs.verification import verify_steps
from bert_jax.storage.objects import list_objects, remove, upload, write_bytes
from bert_jax.storage.urls import ObjectUrl

from ..downstream.test_changing_checkpoints import saved

__all__ = ["saved"]


@pytest.fixture
def url(saved: Path, bucket: ObjectUrl, monkeypatch: pytest.MonkeyPatch) -> ObjectUrl:
    """Return the URL of a masked language model with checkpoints at steps 2, 4 and 6."""
    monkeypatch.setattr(views, "_views", {})
    for file in saved.rglob("*"):
        if file.is_file():
            upload(file, bucket / "models/mine" / file.relative_to(saved).as_posix())
    return bucket / "models/mine"


def message_of(call: Callable[[], object]) -> str:
    """Return the message of a call's error, which must not contain the path of a local copy."""
    with pytest.raises((ValueError, OSError)) as caught:
        call()
    message = str(caught.value)
    assert not any(copy in message for copy in COPIES), message
    return message


def test_an_unsuitable_model_or_step_is_named_by_its_url(url: ObjectUrl, tmp_path: Path) -> None:
    calls: dict[str, Callable[[], object]] = {
        "head": lambda: bj.Classify(url),
        "step": lambda: bj.load_model(url, step=3),
        "step of a predictor": lambda: bj.FillMask(url, step=3),
        "step to extract": lambda: bj.extract(url, tmp_path / "out", step=3),
        "steps to verify": lambda: list(verify_steps(url, 3)),
        "task": lambda: bj.evaluate(url),
        "log": lambda: compare_runs([url, tmp_path]),
        "attention": lambda: bj.Attention(url, step=3),
    }
    for name, call in calls.items():
        assert str(url) in message_of(call), name


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("model.json", "{"),
        ("model.json", '{"encoder": {"vocab_size": "many"}}'),
        ("tokenizer/tokenizer.json", "{"),
        ("checkpoints/6/checksums.json", "{}"),
        ("checkpoints/6/params/manifest.ocdbt", "damaged"),
    ],
)
def test_a_damaged_file_is_named_by_its_url(url: ObjectUrl, file: str, content: str) -> None:
    assert any(info.url == url / file for info in list_objects(url))
    write_bytes(url / file, content)
    for call in (lambda: bj.load_model(url), lambda: bj.FillMask(url), lambda: bj.Embed(url)):
        assert str(url) in message_of(call)


def test_a_missing_part_is_named_by_its_url(url: ObjectUrl) -> None:
    for info in list(list_objects(url / "checkpoints")):
        remove(info.url)
    assert str(url) in message_of(lambda: bj.load_model(url))
    remove(url / "model.json")
    assert str(url) in message_of(lambda: bj.load_model(url))
    write_bytes(url / "sweep.json", "{}")
    message = message_of(lambda: bj.load_model(url))
    assert f"{url}: this is a sweep. Specify the directory of one of its runs" in message
    write_bytes(url / "model.json", "{}")
    remove(url / "sweep.json")
    write_bytes(url / "metrics.jsonl", "x\n")
    views._views.clear()  # Clear the cache, as if this were a new process.
    assert str(url) in message_of(lambda: read_status(str(url)))
