"""Test the messages with which processes copy their parts of a checkpoint to a bucket."""

from pathlib import Path

import pytest
from jax._src import distributed

from bert_jax.runs.checkpoint_parts import PartCollector
from bert_jax.storage.urls import ObjectUrl
from bert_jax.training.agreement import ProcessMessages


class KeyValues:
    """The methods of JAX's client that exchange messages, for a single process."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}

    def key_value_set(self, key: str, value: str, *, allow_overwrite: bool) -> None:
        assert allow_overwrite
        self.values[key] = value

    def key_value_dir_get(self, key: str) -> list[tuple[str, str]]:
        return [each for each in self.values.items() if each[0].startswith(key)]

    def key_value_delete(self, key: str) -> None:
        for each, _ in self.key_value_dir_get(key):
            del self.values[each]


def test_messages_about_earlier_checkpoints_are_removed(
    bucket: ObjectUrl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = KeyValues()
    with monkeypatch.context() as patch:
        patch.setattr(distributed.global_state, "client", client)
        messages = ProcessMessages()
    collector = PartCollector(tmp_path, bucket / "run", messages)
    for step in range(3):
        checkpoint = tmp_path / f"checkpoints/{step}"
        checkpoint.mkdir(parents=True)
        (checkpoint / "checksums.json").write_text('{"files": {}}')
        collector.copy(step, f"{step}.1.1", ["checksums.json"], lambda: None)
        collector.completed(step, f"{step}.1.1")
    sent = ["/".join(key.split("/")[-2:]) for key in client.values]
    assert sent == ["checkpoint-2/begin", "checkpoint-2/completed"]
