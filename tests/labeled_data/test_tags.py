"""Test reading, checking and writing tagged sentences in column files and CoNLL-U."""

from __future__ import annotations

import lzma
import re
from pathlib import Path

import pytest

from bert_jax.labeled_data.tag_features import write_tags
from bert_jax.labeled_data.tags import (
    TagFiles,
    TagSentences,
    check_tags,
    collect_labels,
    read_tags,
    report_unknown_tags,
)

# This is in the format of CoNLL-2003's eng.testb, which used IOB1 when it was first released.
CONLL_2003 = """-DOCSTART- -X- O O

SOCCER NN I-NP O
JAPAN NNP I-NP I-LOC
CHINA NNP B-NP B-LOC

Nadim NNP I-NP I-PER
Ladki NNP I-NP I-PER

-DOCSTART- -X- -X- O

AL-AIN NNP I-NP I-LOC
"""


def tags_of_text(tmp_path: Path, text: str, *, labeled: bool = True, **options) -> TagSentences:
    path = tmp_path / "train.txt"
    path.write_text(text, encoding="utf-8")
    return read_tags(TagFiles(train=str(path), **options), "train", labeled=labeled)


def test_carriage_returns_without_line_feeds_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"train.txt:1: there is a carriage return \(CR\)"):
        tags_of_text(tmp_path, CONLL_2003.replace("\n", "\r"))


@pytest.mark.parametrize("separator", [" ", "\t", "  "])
@pytest.mark.parametrize("end", ["\n", "\r\n", " \n"])
def test_column_files(tmp_path: Path, separator: str, end: str) -> None:
    text = CONLL_2003.replace(" ", separator).replace("\n", end)
    sentences = tags_of_text(tmp_path, text)
    assert sentences.words == [["SOCCER", "JAPAN", "CHINA"], ["Nadim", "Ladki"], ["AL-AIN"]]
    assert sentences.tags == [["O", "B-LOC", "B-LOC"], ["B-PER", "I-PER"], ["B-LOC"]]
    assert sentences.documents == [1, 1, 2]
    assert sentences.locations[1] == [f"{tmp_path}/train.txt:7", f"{tmp_path}/train.txt:8"]
    assert collect_labels(sentences) == ("O", "B-LOC", "B-PER", "I-PER")
    iob1 = tags_of_text(tmp_path, text, learn_as="IOB1")
    assert iob1.tags == [["O", "I-LOC", "B-LOC"], ["I-PER", "I-PER"], ["I-LOC"]]
    as_written = tags_of_text(tmp_path, text, learn_as="as_written")
    assert as_written.tags == [["O", "I-LOC", "B-LOC"], ["I-PER", "I-PER"], ["I-LOC"]]
    chunks = tags_of_text(tmp_path, text, tag="2")
    assert chunks.tags is not None and chunks.tags[0] == ["B-NP", "I-NP", "B-NP"]
    speech = tags_of_text(tmp_path, text, tag="1")
    assert collect_labels(speech) == ("NN", "NNP")


def test_empty_tags_of_conllu_are_rejected(tmp_path: Path) -> None:
    row = "{0}\t{1}\t_\t{2}" + "\t_" * 6 + "\n"
    text = row.format(1, "she", "PRON") + row.format(2, "runs", "") + "\n"
    with pytest.raises(ValueError, match=r"train.txt:2: column UPOS of .* is empty"):
        tags_of_text(tmp_path, text, kind="conllu")


@pytest.mark.parametrize(
    "name, sentences, tokens",
    [
        ("wnut17train.conll", 3_394, 62_730),
        ("emerging.dev.conll", 1_009, 15_733),
        ("emerging.test.annotated", 1_287, 23_394),
    ],
)
def test_wnut17_has_the_published_sizes_and_tags(
    shared_data: Path, name: str, sentences: int, tokens: int
) -> None:
    path = shared_data / "ner_wnut17" / name
    actual = read_tags(TagFiles(test=str(path)), "test", labeled=True)
    assert len(actual) == sentences and sum(map(len, actual.words)) == tokens
    assert actual.documents is None and actual.tags is not None
    kinds = ("corporation", "creative-work", "group", "location", "person", "product")
    labels = ("O", *(f"{prefix}-{kind}" for prefix in "BI" for kind in kinds))
    assert collect_labels(actual) == labels
    lines = [line.rstrip() for line in path.read_text(encoding="utf-8").split("\n")]
    tags_in_file = [line.rpartition("\t")[2] for line in lines if line]
    # The file already uses IOB2.
    assert [tag for tags in actual.tags for tag in tags] == tags_in_file


@pytest.mark.parametrize(
    "part, sentences, words",
    [("train", 12_544, 204_577), ("dev", 2_001, 25_147), ("test", 2_077, 25_094)],
)
def test_ud_ewt_has_the_published_sizes_and_tags(
    shared_data: Path, part: str, sentences: int, words: int
) -> None:
    path = shared_data / f"ud_ewt/en_ewt-ud-{part}.conllu"
    actual = read_tags(TagFiles(test=str(path), kind="conllu"), "test", labeled=True)
    assert len(actual) == sentences and sum(map(len, actual.words)) == words
    text = lzma.open(f"{path}.xz", "rt", encoding="utf-8").read()
    assert actual.documents is not None
    assert actual.documents[-1] == text.count("# newdoc id")
    assert set(collect_labels(actual)) == set(
        "ADJ ADP ADV AUX CCONJ DET INTJ NOUN NUM PART PRON PROPN PUNCT SCONJ SYM VERB X".split()
    )  # https://universaldependencies.org/u/pos


CONLLU = """# newdoc
# text = Don't go!
1-2\tDon't\t_\t_\t_\t_\t_\t_\t_\t_
1\tDo\tdo\tAUX\tVBP\t_\t0\troot\t_\t_
2\tn't\tnot\tPART\tRB\t_\t1\tx\t_\t_
2.1\tyou\tyou\tPRON\tPRP\t_\t_\t_\t_\t_
3\tgo !\tgo\tVERB\tVB\t_\t1\tx\t_\t_
"""


def test_multiword_tokens_and_empty_nodes_are_skipped(tmp_path: Path) -> None:
    sentences = tags_of_text(tmp_path, CONLLU, kind="conllu")
    assert sentences.words == [["Do", "n't", "go !"]]
    assert sentences.tags == [["AUX", "PART", "VERB"]]
    xpos = tags_of_text(tmp_path, CONLLU, kind="conllu", tag="XPOS")
    assert xpos.tags == [["VBP", "RB", "VB"]]


def test_predictions_are_appended_to_lines(tmp_path: Path) -> None:
    for text, options in [
        (CONLL_2003, {}),
        (CONLL_2003.replace(" ", "\t"), {}),
    ]:
        sentences = tags_of_text(tmp_path, text, **options)
        predicted = [[f"T{word}" for word in range(len(words))] for words in sentences.words]
        out = tmp_path / "out.txt"
        write_tags(TagFiles(test=str(out)), sentences, predicted, out)
        output = read_tags(TagFiles(test=str(out)), "test", labeled=True)
        assert output.words == sentences.words and output.tags == predicted
        gold = read_tags(TagFiles(test=str(out), tag="3"), "test", labeled=True)
        assert gold.tags == sentences.tags


IOB1 = "a I-PER\nb I-PER\nc B-PER\n\nd O\ne I-LOC\n"
BIOES = "a B-PER\nb E-PER\nc S-PER\n\nd O\ne S-LOC\n"


@pytest.mark.parametrize("text", [IOB1, BIOES])
@pytest.mark.parametrize("labeled", [True, False])
def test_correct_tags_are_repeated_in_the_scheme_of_the_predictions(
    tmp_path: Path, text: str, labeled: bool
) -> None:
    """Check that both columns use one scheme, since conlleval compares tags one by one."""
    sentences = tags_of_text(tmp_path, text, labeled=labeled)
    iob2 = [["B-PER", "I-PER", "B-PER"], ["O", "B-LOC"]]
    out = tmp_path / "out.txt"
    write_tags(TagFiles(test="x"), sentences, iob2, out)
    rows = [line.split() for line in out.read_text().splitlines() if line]
    assert [row[:2] for row in rows] == [line.split() for line in text.splitlines() if line]
    assert [row[2:] for row in rows] == [[tag, tag] for tags in iob2 for tag in tags]
    write_tags(TagFiles(test="x", learn_as="as_written"), sentences, iob2, out)
    assert {len(line.split()) for line in out.read_text().splitlines() if line} == {3}


BILOU = "a B-PER\nb L-PER\nc U-PER\n\nd O\ne U-LOC\n"
BMES = "a B-PER\nb E-PER\nc S-PER\n\nd B-LOC\ne M-LOC\nf E-LOC\n"


@pytest.mark.parametrize("learn_as", ["IOB2", "IOB1"])
@pytest.mark.parametrize("text", [BILOU, BMES])
def test_predictions_for_bilou_and_bmes_use_the_scheme_of_the_file(
    tmp_path: Path, text: str, learn_as: str
) -> None:
    sentences = tags_of_text(tmp_path, text, learn_as=learn_as)
    assert sentences.tags is not None
    assert sentences.tags[0] == ["B-PER" if learn_as == "IOB2" else "I-PER", "I-PER", "B-PER"]
    out = tmp_path / "out.txt"
    write_tags(TagFiles(test="x", learn_as=learn_as), sentences, sentences.tags, out)
    rows = [line.split() for line in text.splitlines() if line]
    output = [line.split() for line in out.read_text().splitlines() if line]
    assert output == [[*row, row[-1]] for row in rows]
    more = "".join(f"{line} X\n" if line else "\n" for line in text.splitlines())
    sentences = tags_of_text(tmp_path, more, tag="1", learn_as=learn_as)
    assert sentences.tags is not None
    write_tags(TagFiles(test="x", tag="1", learn_as=learn_as), sentences, sentences.tags, out)
    output = [line.split() for line in out.read_text().splitlines() if line]
    assert output == [[*row, "X", row[-1], row[-1]] for row in rows]


def test_predictions_for_conllu_use_the_scheme_of_the_file(tmp_path: Path) -> None:
    row = ("{}\t{}\t_\t_\t{}" + "\t_" * 5).format
    text = "\n".join([row(1, "New", "B-LOC"), row(2, "York", "L-LOC"), row(3, "Rome", "U-LOC")])
    sentences = tags_of_text(tmp_path, text, kind="conllu", tag="XPOS")
    assert sentences.tags == [["B-LOC", "I-LOC", "B-LOC"]]
    out, files = tmp_path / "out.conllu", TagFiles(test="x", kind="conllu", tag="XPOS")
    write_tags(files, sentences, [["O", "B-LOC", "I-LOC"]], out)
    output = [line.split("\t")[4] for line in out.read_text().splitlines()]
    assert output == ["O", "B-LOC", "L-LOC"]


@pytest.mark.parametrize(("tag", "column"), [("", 3), ("XPOS", 4)])
def test_predictions_for_conllu_replace_only_tags(tmp_path: Path, tag: str, column: int) -> None:
    """Check that comments, multiword tokens, empty nodes and all other columns are unchanged."""
    sentences = tags_of_text(tmp_path, CONLLU, kind="conllu", tag=tag)
    out = tmp_path / "out.conllu"
    files = TagFiles(test=str(out), kind="conllu", tag=tag)
    write_tags(files, sentences, [["T0", "T1", "T2"]], out)
    expected = [line.split("\t") for line in CONLLU.splitlines()]
    for number, row in enumerate((3, 4, 6)):
        expected[row][column] = f"T{number}"
    assert out.read_text() == "".join("\t".join(row) + "\n" for row in expected)
    assert read_tags(files, "test", labeled=True).tags == [["T0", "T1", "T2"]]


def test_predictions_can_be_written_without_the_input_file(tmp_path: Path) -> None:
    sentences = tags_of_text(tmp_path, "a O\nb O\n")
    (tmp_path / "train.txt").unlink()
    write_tags(TagFiles(test="x"), sentences, [["X", "Y"]], tmp_path / "out.txt")
    assert (tmp_path / "out.txt").read_text() == "a O X\nb O Y\n\n"


GERMEVAL = """#\thttp://de.wikipedia.org/wiki/x [2009-10-17]
1\tAufgrund\tO\tO
2\tBerlins\tB-LOC\tO

"""


def test_words_can_be_in_any_column(tmp_path: Path) -> None:
    columns = {"word": "1", "tag": "2", "comment": "#\t"}
    sentences = tags_of_text(tmp_path, GERMEVAL, **columns)
    assert sentences.words == [["Aufgrund", "Berlins"]]
    assert sentences.tags == [["O", "B-LOC"]]
    out = tmp_path / "out.txt"
    write_tags(TagFiles(test="x", **columns), sentences, [["X", "Y"]], out)
    # conlleval reads the correct and the predicted tag from the last two columns.
    assert out.read_text() == "1\tAufgrund\tO\tO\tO\tX\n2\tBerlins\tB-LOC\tO\tB-LOC\tY\n\n"
    with pytest.raises(ValueError, match="train.txt:1: the last column contains the words"):
        tags_of_text(tmp_path, "1\ta\n", word="1")


def test_unlabeled_files_need_no_tags(tmp_path: Path) -> None:
    sentences = tags_of_text(tmp_path, "# \na\n\nb\n", labeled=False)
    assert sentences.words == [["#", "a"], ["b"]] and sentences.tags is None
    files = TagFiles(test="file")
    write_tags(files, sentences, [["X", "Y"], ["Z"]], tmp_path / "out.txt")
    assert (tmp_path / "out.txt").read_text() == "# X\na Y\n\nb Z\n\n"


@pytest.mark.parametrize(
    "text, options, message",
    [
        ("a O\nb\n", {}, r"txt:2: 'b' has 1 columns, but previous lines have 2"),
        ("a\nb\n", {}, r"txt:1: 'a' has no tag in column 1 \(columns are counted from 0\)"),
        ("a O\n", {"tag": "2"}, r"txt:1: 'a O' has no tag in column 2 "),
        ("a\tO\n\tO\n", {}, r"txt:2: the line has no word in column 0 \(columns are counted"),
        ("a O\nb O\n", {"word": "2", "tag": "1"}, r"txt:1: the line has no word in column 2 "),
        ("\n \n", {}, "contains no sentences"),
        ("", {}, "contains no sentences"),
        ("a O\nb I-X\nc B-Y\n", {}, r"mixed tag schemes: .*txt:3: 'B-Y' .*txt:2: 'I-X'"),
        ("a O\nb B-Y\n", {"labels": ("O", "B-X")}, r"txt:2: tag 'B-Y' is not one of 'O', 'B-X'"),
        ("1\ta\n", {"kind": "conllu"}, r"txt:1: .* has 2 columns, but CoNLL-U has 10"),
        (CONLLU.replace("2.1", "2a"), {"kind": "conllu"}, r"txt:6: the ID '2a'"),
        (
            CONLLU.replace("go !", ""),
            {"kind": "conllu"},
            r"txt:7: the line has no word in col",
        ),
    ],
)
def test_errors_name_the_line_of_malformed_content(
    tmp_path: Path, text: str, options, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        tags_of_text(tmp_path, text, **options)


def test_single_and_unknown_tags_are_rejected(tmp_path: Path) -> None:
    sentences = tags_of_text(tmp_path, "a O\nb O\n")
    with pytest.raises(ValueError, match=r"train.txt: every tag is 'O', but at least two"):
        collect_labels(sentences)
    with pytest.raises(ValueError, match=r"train.txt:1: tag 'O' is not .* list all tags in labels"):
        check_tags(sentences, ("NOUN", "VERB"))


def test_words_in_the_tag_column_are_rejected(tmp_path: Path) -> None:
    """Check that swapped columns (`TAG word`) are rejected, but large tag sets are not."""
    kinds = [f"{prefix}-kind{number}" for number in range(300) for prefix in "BI"]
    rows = [f"word{number} {kinds[number % 600]}" for number in range(1200)]
    sentences = tags_of_text(tmp_path, "".join(f"{row}\n" for row in rows))
    assert len(collect_labels(sentences)) == 600
    rows = [f"{('NOUN', 'VERB', 'X')[number % 3]}\tword{number}\n" for number in range(1234)]
    message = r"txt: 1,234 distinct tags in {} for 3 distinct words, but .* words, set tags\.files"
    with pytest.raises(ValueError, match=message.format("the last column")):
        collect_labels(tags_of_text(tmp_path, "".join(rows)))
    with pytest.raises(ValueError, match=message.format("column '1'")):
        collect_labels(tags_of_text(tmp_path, "".join(rows), tag="1"), "1")
    assert len(collect_labels(tags_of_text(tmp_path, "".join(rows[:200])))) == 200
    assert collect_labels(tags_of_text(tmp_path, "".join(rows), tag="0", word="1")) == (
        "NOUN", "VERB", "X",
    )  # fmt: skip


def test_unknown_tags_are_counted_and_rejected_if_frequent(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sentences = tags_of_text(tmp_path, "a O\nb B-LOC\n\nc O\nd B-PER\n")
    report_unknown_tags(sentences, ("O", "B-LOC", "B-PER"))
    assert not caplog.text
    report_unknown_tags(sentences, ("O", "B-PER"))
    message = "train.txt:2: tag 'B-LOC' is not one of the model's labels. 1 of 4 words have such"
    assert f"{message} tags" in caplog.text
    report_unknown_tags(sentences, ("B-LOC", "B-PER"))
    with pytest.raises(ValueError, match=r"train.txt:1: tag 'O' is not .*'B-PER'.* 3 of 4 words"):
        report_unknown_tags(sentences, ("B-PER", "I-PER"))


def test_messages_contain_the_original_tag(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    labels = ("O", "B-PER", "I-PER")
    for text, tag in ((BIOES, "S-LOC"), (IOB1, "I-LOC")):
        sentences = tags_of_text(tmp_path, text)
        message = rf"train.txt:6: tag '{tag}' \('B-LOC' in IOB2\)"
        with pytest.raises(ValueError, match=f"{message} is not one of"):
            check_tags(sentences, labels)
        report_unknown_tags(sentences, labels)
        assert re.search(rf"{message} is not one of the model's labels\. 1 of 5 words", caplog.text)
        sentences = tags_of_text(tmp_path, f"rome {tag}\n")
        with pytest.raises(ValueError, match=message.replace(":6", ":1") + " is not one of"):
            report_unknown_tags(sentences, labels)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"kind": "tsv"}, "expected 'columns' or 'conllu'"),
        ({"learn_as": "BIOES"}, "expected 'IOB2', 'IOB1' or 'as_written'"),
        ({"tag": "UPOS"}, "expected a column number"),
        ({"tag": "3", "kind": "conllu"}, "expected one of LEMMA, UPOS"),
        ({"labels": ("O",)}, "at least two"),
    ],
)
def test_invalid_configurations_are_rejected(options, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TagFiles(train="a", **options)
