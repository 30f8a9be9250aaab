"""Test that counts for English EWT match published ones, and that malformed files are rejected."""

from __future__ import annotations

import pytest

from bert_jax.labeled_data.treebank import find_treebank, read_treebank

ROWS = """# sent_id = 1
# text = Don't eat
1-2\tDon't\t_\t_\t_\t_\t_\t_\t_\t_
1\tDo\tdo\tAUX\t_\t_\t3\taux\t_\t_
2\tn't\tnot\tPART\t_\t_\t3\tadvmod\t_\t_
3\teat\teat\tVERB\t_\t_\t0\troot\t_\t_
3.1\tit\tit\tPRON\t_\t_\t_\t_\t3:obj\t_

# sent_id = 2
1\tRain\train\tNOUN\t_\t_\t0\troot\t_\t_
"""


def test_words_heads_and_relations_are_read(tmp_path):
    (tmp_path / "x.conllu").write_text(ROWS, encoding="utf-8")
    treebank = read_treebank(tmp_path / "x.conllu")
    first, second = treebank.sentences
    assert first.words == ("Do", "n't", "eat") and second.words == ("Rain",)
    assert first.heads.tolist() == [2, 2, -1]
    assert first.relations == ("aux", "advmod", "root")
    assert first.tags == ("AUX", "PART", "VERB")
    assert treebank.notes == ["skipped lines: 1 for multiword tokens and 1 for empty nodes"]
    assert (len(treebank), treebank.num_words) == (2, 4)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1\tRain\t_\tNOUN\t_\t_\t_\troot\t_\t_", r"x\.conllu:1: HEAD='_': expected the number of"),
        ("1\tRain\t_\tNOUN\t_\t_\t2\troot\t_\t_", "HEAD='2': expected .* from 1 to 1, or 0"),
        ("1 Rain", "has 1 columns, but CoNLL-U has 10"),
        ("# nothing", "contains no sentences"),
    ],
)
def test_malformed_files_are_rejected(tmp_path, line, message):
    (tmp_path / "x.conllu").write_text(f"{line}\n\n", encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        read_treebank(tmp_path / "x.conllu")


def test_a_directory_needs_one_file_of_the_split(tmp_path):
    for name in ("en-ud-train.conllu", "en-ud-test.conllu.xz"):
        (tmp_path / name).touch()
    assert find_treebank(tmp_path, "test") == tmp_path / "en-ud-test.conllu"
    assert find_treebank(tmp_path / "a.conllu", "test") == tmp_path / "a.conllu"
    with pytest.raises(ValueError, match=r"expected one file \*dev\.conllu, but it contains"):
        find_treebank(tmp_path, "dev")


def test_the_counts_of_english_ewt_are_the_published_ones(shared_data):
    treebank = read_treebank(find_treebank(shared_data / "ud_ewt", "test"))
    assert (len(treebank), treebank.num_words) == (2_077, 25_094)
