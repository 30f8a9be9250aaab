import json
import re
import sys

import pytest

from bert_jax.cli.main import main
from bert_jax.text import python_docs
from bert_jax.text.documents import SourceCounts, SourceOptions
from bert_jax.text.python_docs import write_python_docs
from bert_jax.text.sources import read_documents


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    path = tmp_path_factory.mktemp("docs") / "python_docs.jsonl"
    return path, write_python_docs(path)


def test_corpus_has_two_megabytes_of_readable_documents(corpus):
    path, written = corpus
    counts = SourceCounts()
    documents = list(read_documents([str(path)], SourceOptions(), counts))
    assert counts.documents == written.num_documents > 600
    # Debian's Python comes with less text than others.
    assert counts.text_bytes == written.num_bytes > 1_900_000
    assert counts.empty_documents == counts.split_documents == 0
    assert len({document.text for document in documents}) == len(documents)
    assert min(len(document.text) for document in documents) >= 200


def test_corpus_contains_only_prose_of_the_reference_and_the_library(corpus):
    records = [json.loads(line) for line in corpus[0].read_text(encoding="utf-8").splitlines()]
    texts = {record["source"]: record["text"] for record in records}
    assert len(texts) == len(records)
    assert texts["topic assert"].startswith('The "assert" statement\n\nAssert statements are')
    assert "Counter" in " ".join(texts) and "class argparse.Action" in texts
    assert "split" in texts["class builtins.str"]
    assert not [source for source in texts if re.search(r"site-packages|\.tests?\.", source)]
    assert not any(re.search(r"^[*=~-]{3,}$", text, re.MULTILINE) for text in texts.values())
    assert not any(re.search(r" at 0x[0-9a-f]{6,}>", texts[f"module {name}"]) for name in ("sys",))


@pytest.mark.slow
def test_corpus_is_reproducible_and_parsed_modules_are_not_imported(corpus, tmp_path, capsys):
    assert "antigravity" not in sys.modules  # Importing this module opens a web browser.
    again = tmp_path / "again.jsonl"
    assert main(["demo-corpus", "--output", str(again)]) == 0
    assert f"{corpus[1].num_documents} documents" in capsys.readouterr().out
    assert again.read_bytes() == corpus[0].read_bytes()
    assert main(["demo-corpus", "--output", str(tmp_path / "x.txt")]) == 2


def test_a_python_without_sources_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(python_docs, "_library", lambda: tmp_path)
    monkeypatch.setattr(python_docs, "_C_MODULES", ())
    with pytest.raises(ValueError, match="installed without source files"):
        write_python_docs(tmp_path / "docs.jsonl")
    assert list(tmp_path.iterdir()) == []
