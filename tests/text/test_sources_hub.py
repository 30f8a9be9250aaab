"""Test reading datasets of the Hugging Face Hub, which a local server provides."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bert_jax.text import hub_names
from bert_jax.text.files import expand_inputs
from bert_jax.text.hub_names import HubName, parse_hub, pinned_hub

from .fake_hub import commit_of, serve_hub


def test_names_are_parsed() -> None:
    assert parse_hub("hf:a/b") == HubName("a/b", None, None, "train")
    name = "hf:wikimedia/wikipedia/20231101.en@refs%2Fpr%2F1:test"
    parsed = parse_hub(name)
    assert parsed == HubName("wikimedia/wikipedia", "20231101.en", "refs%2Fpr%2F1", "test")
    assert str(parsed) == name and not parsed.is_pinned
    for wrong in ("hf:", "hf:a", "hf:a/b/c/d", "hf:a/b:", "hf:a/b:train[:10%]x:y"):
        with pytest.raises(ValueError, match="not a valid name. Expected hf:OWNER/NAME, optional"):
            parse_hub(wrong)


def test_a_pinned_name_is_final_and_the_library_is_required(monkeypatch) -> None:
    name = f"hf:a/b/default@{'0123456789' * 4}:train"
    assert pinned_hub(name) == name and expand_inputs([name]) == [name]
    pinned_hub.cache_clear()
    monkeypatch.setattr(hub_names.importlib.util, "find_spec", lambda _: None)
    message = r"hf:a/b: reading .* requires datasets, .*: pip install 'bert_jax\[datasets\]'"
    with pytest.raises(ValueError, match=message):
        expand_inputs(["hf:a/b"])


_PREPARE = """
import json, sys
from bert_jax import prepare
from bert_jax.text.sources import SourceCounts, SourceOptions, expand_inputs, read_documents

def refused(function, *arguments, **options):
    try:
        function(*arguments, **options)
    except ValueError as error:
        return str(error)

def made(inputs, output, **options):
    corpus = prepare(inputs, "tokenizer", output, held_out=0, workers=1, max_length=32, **options)
    return {
        "sources": corpus.manifest.sources,
        "shards": [shard.sha256 for shard in corpus.manifest.train.shards],
        "documents": corpus.manifest.train.num_documents,
    }

if __name__ == "__main__":
    if sys.argv[1] == "first":
        result = {
            "hub": made(["hf:someone/books"], "hub"),
            "files": made(["root/someone/books/data/train-*.parquet"], "files"),
            "test": made(["hf:someone/books:test"], "test"),
            "unknown": refused(expand_inputs, ["hf:someone/films"]),
            "split": refused(expand_inputs, ["hf:someone/sized:dev"]),
            "config": refused(expand_inputs, ["hf:someone/books/large"]),
            "column": refused(
                made, ["hf:someone/books"], "column", sources=SourceOptions(text_field="body")
            ),
        }
        counts = SourceCounts(checksums={})
        (name,) = expand_inputs(["hf:someone/sized"])
        list(read_documents([name], SourceOptions(), counts))
        result["bytes"] = counts.bytes_read
    else:
        result = {"changed": refused(made, ["hf:someone/books"], "hub")}
        result["pinned"] = made([sys.argv[2]], "hub")
    print(json.dumps(result))
"""


@pytest.mark.slow
def test_a_corpus_is_prepared_from_the_hub(tmp_path: Path) -> None:
    root = tmp_path / "root"
    books = root / "someone" / "books"
    texts = [f"Sentence number {number} is here. It ends." for number in range(90)]
    _write(books / "data" / "train-00000-of-00002.parquet", texts[:50])
    _write(books / "data" / "train-00001-of-00002.parquet", texts[50:])
    _write(books / "data" / "test-00000-of-00001.parquet", texts[:5])
    sized = root / "someone" / "sized"
    _write(sized / "data" / "train-00000-of-00001.parquet", texts)
    (sized / "README.md").write_text(_CARD, encoding="utf-8")
    (tmp_path / "tokenizer").mkdir()
    words = ["sentence", "number", "is", "here", ".", "it", "ends", *(f"{n}" for n in range(90))]
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]
    (tmp_path / "tokenizer" / "vocab.txt").write_text("\n".join(vocabulary))
    (tmp_path / "make.py").write_text(_PREPARE)

    with serve_hub(root) as address:
        first = _run(tmp_path, address, "first")
        commit = commit_of(books)
        name = f"hf:someone/books/default@{commit}:train"
        assert [source["path"] for source in first["hub"]["sources"]] == [name]
        assert first["hub"]["shards"] == first["files"]["shards"]
        assert (first["hub"]["documents"], first["test"]["documents"]) == (90, 5)
        assert "hf:someone/films: cannot find this dataset: " in first["unknown"]
        assert first["split"] == "hf:someone/sized:dev: no split 'dev'; the splits are 'train'."
        assert "cannot find this dataset or configuration" in first["config"]
        assert "no column 'body'; the columns are 'text'. Choose" in first["column"]
        assert first["bytes"] == 12_345
        # The dataset changes, but its old commit can still be specified.
        _write(books / "data" / "test-00000-of-00001.parquet", texts[:6])
        second = _run(tmp_path, address, "second", name)
        assert name in second["changed"] and commit_of(books) in second["changed"]
        assert second["pinned"] == first["hub"]


_CARD = """---
dataset_info:
  features:
  - name: text
    dtype: string
  splits:
  - name: train
    num_bytes: 12345
    num_examples: 90
---
"""


def _write(path: Path, texts: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"text": texts}), path)


def _run(directory: Path, address: str, *words: str) -> dict:
    places = {"HF_ENDPOINT": address, "HF_HOME": str(directory / "cache"), "HF_HUB_OFFLINE": "0"}
    path = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    run = subprocess.run(
        [sys.executable, "make.py", *words],
        cwd=directory,
        env={**os.environ, **places, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout.splitlines()[-1])
