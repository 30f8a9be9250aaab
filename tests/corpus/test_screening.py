import json
import random
import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from bert_jax.corpus import part_screening, screened_blocks, screening_report
from bert_jax.corpus.inputs import PrepareOptions
from bert_jax.corpus.manifest import read_manifest, verify_shards
from bert_jax.corpus.parts import Part, make_part, merge_parts
from bert_jax.corpus.preparation import Preparation
from bert_jax.corpus.prepare import make_corpus
from bert_jax.corpus.progress import ProgressMeter
from bert_jax.corpus.report import corpus_table
from bert_jax.corpus.requests import check_request
from bert_jax.corpus.screened_blocks import (
    BlockScreener,
    ScreenedBlock,
    signatures_path,
    write_block,
)
from bert_jax.corpus.screened_files import kept_screening
from bert_jax.corpus.screening import Screener
from bert_jax.corpus.workspace import Workspace
from bert_jax.filtering.c4 import C4, clean_c4
from bert_jax.filtering.clusters import Clusters
from bert_jax.filtering.near_duplicates import SignatureFiles, estimate
from bert_jax.filtering.options import FilterOptions

QUESTION = " ".join(f"q{number} the cat" for number in range(6))
# Each key is the position of an edited copy, and its value is the position of the original.
COPIES = {40: 3, 41: 3, 42: 8, 43: 41, 50: 40}
EXACT = {51: 42, 52: 5}
SHORT, CONTAMINATED, SPANISH = (20, 21), (22, 44), (23,)
REMOVED = {*COPIES, *SHORT, *CONTAMINATED, *SPANISH}


def make_texts(words: list[str]) -> list[str]:
    """Return 53 texts, including some that filters or the search for near-duplicates must
    remove."""
    chance = random.Random(0)
    texts = [
        ". ".join(" ".join(chance.choices(words, k=9)).capitalize() for _ in range(30)) + "."
        for _ in range(50)
    ]
    texts += [""] * 3
    for number in SHORT:
        texts[number] = "The cat saw the dog."
    for number in SPANISH:
        texts[number] = "El gato negro vio al perro en la casa y se fue corriendo al mar. " * 3
    for number in CONTAMINATED:
        texts[number] += " " + QUESTION
    for number, original in COPIES.items():
        parts = texts[original].split()
        parts[chance.randrange(len(parts))] = "quick"
        texts[number] = " ".join(parts)
    for number, original in EXACT.items():
        texts[number] = texts[original]
    return texts


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("screening")
    (folder / "questions.txt").write_text(QUESTION)
    return folder


@pytest.fixture(scope="module")
def texts(words: list[str]) -> list[str]:
    return make_texts(words)


@pytest.fixture(scope="module")
def options(prepare_options: PrepareOptions, folder: Path) -> PrepareOptions:
    filters = FilterOptions(
        min_words=8,
        keep_languages=("en", "la"),
        min_language_probability=0.0,
        decontaminate=(str(folder / "questions.txt"),),
        near_duplicates=0.8,
    )
    return replace(prepare_options, filters=filters)


@pytest.fixture(scope="module")
def screened(texts, options, tokenizer, write_json_lines, folder) -> Path:
    """Return a corpus without the documents that are listed in `REMOVED`."""
    inputs = [
        write_json_lines(folder / "a.jsonl", texts[:30]),
        write_json_lines(folder / "b.jsonl", texts[30:]),
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(screened_blocks, "BLOCK_BYTES", 20_000)  # A block contains about 12 texts.
        make_corpus(inputs, tokenizer, folder / "screened", options, num_workers=1)
    return folder / "screened"


def shards(directory: Path) -> dict[str, str]:
    manifest = read_manifest(directory)
    return {
        shard.name: shard.sha256 for shard in (*manifest.train.shards, *manifest.heldout.shards)
    }


def test_the_corpus_contains_all_other_documents(
    texts, screened, prepare_options, tokenizer, write_json_lines, folder
) -> None:
    """Compare the corpus with one prepared from only the texts that the filters should keep."""
    kept = [text for number, text in enumerate(texts) if number not in REMOVED | EXACT.keys()]
    plain = folder / "plain"
    make_corpus(
        [write_json_lines(folder / "kept.jsonl", kept)], tokenizer, plain, prepare_options, 1
    )
    assert shards(screened) == shards(plain)
    assert read_manifest(screened).fingerprint != read_manifest(plain).fingerprint
    assert not (screened / ".work").exists()


def test_the_manifest_counts_what_is_left_out(screened: Path) -> None:
    manifest = read_manifest(screened)
    assert manifest.filters is not None
    files = manifest.filters.pop("files")
    # The two short texts are equal, so one of them is removed too.
    assert manifest.duplicates_removed == len(EXACT) + 1
    assert manifest.filters == {
        "num_documents": 50,
        "filtered": {
            "contaminated": len(CONTAMINATED),
            "language": len(SPANISH),
            "min_words": len(SHORT) - 1,
        },
        "contaminated_kept": 0,
        "near_duplicates": len(COPIES),
        "clusters": 2,
        "evaluation_texts": 1,
        "short_evaluation_texts": 0,
    }
    assert files.keys() == {"near_duplicates.jsonl", "filters.html"}
    table = corpus_table(read_manifest(screened))
    assert f"removed by language: {len(SPANISH)}" in table
    where = "filters.html in the corpus directory"
    assert table[-1] == f"examples of documents that were left out: {where}"


def test_clusters_name_the_kept_document(screened: Path, folder: Path) -> None:
    lines = (screened / "near_duplicates.jsonl").read_text().splitlines()
    clusters = {
        json.loads(line)["kept"]: [each["source"] for each in json.loads(line)["removed"]]
        for line in lines
    }

    def source(number: int) -> str:
        return f"{folder}/{'a' if number < 30 else 'b'}.jsonl:{number % 30 + 1}"

    assert clusters == {
        source(3): [source(number) for number in (40, 41, 43, 50)],
        source(8): [source(42)],
    }
    assert all(
        0.8 < each["similarity"] < 1 for line in lines for each in json.loads(line)["removed"]
    )


def test_exact_similarities_decide_if_near_duplicates_are_verified(
    texts, screened, options, tokenizer, folder
) -> None:
    filters = replace(options.filters, verify_near_duplicates=True)
    inputs = [str(folder / name) for name in ("a.jsonl", "b.jsonl")]
    output = folder / "verified"
    make_corpus(inputs, tokenizer, output, replace(options, filters=filters), num_workers=1)
    assert shards(output) == shards(screened)

    def shingles(source: str) -> set[tuple[str, ...]]:
        path, line = source.rsplit(":", 1)
        text = json.loads(Path(path).read_text().splitlines()[int(line) - 1])["text"]
        words = re.findall(r"\w+", text.lower())
        return {tuple(words[start : start + 5]) for start in range(len(words) - 4)}

    clusters = (output / "near_duplicates.jsonl").read_text().splitlines()
    for cluster in map(json.loads, clusters):
        kept = shingles(cluster["kept"])
        for removed in cluster["removed"]:
            other = shingles(removed["source"])
            assert removed["similarity"] == round(len(kept & other) / len(kept | other), 3)


def test_the_page_shows_examples(screened: Path) -> None:
    page = (screened / "filters.html").read_text(encoding="utf-8")
    assert re.findall("<h2>(.*?)</h2>", page) == [
        *("contaminated", "language", "min_words", "near-duplicates"),
    ]
    assert "5, at least 8" in page and "es with probability" in page and "and 1 more" in page
    assert "http" not in page


def test_changed_files_are_detected(screened: Path) -> None:
    verify_shards(screened, read_manifest(screened))
    path = screened / "near_duplicates.jsonl"
    content = path.read_text()
    path.write_text(content.replace("kept", "lost"))
    try:
        with pytest.raises(ValueError, match=r"near_duplicates\.jsonl is corrupt"):
            verify_shards(screened, read_manifest(screened))
    finally:
        path.write_text(content)


def test_other_filters_need_another_directory(screened, options, tokenizer, folder) -> None:
    inputs = [str(folder / name) for name in ("a.jsonl", "b.jsonl")]
    assert make_corpus(inputs, tokenizer, screened, options, 1) == read_manifest(screened)
    other = replace(options, filters=replace(options.filters, near_duplicates=0.9))
    with pytest.raises(ValueError, match=r"filters.near_duplicates was 0.8 and is now 0.9"):
        make_corpus(inputs, tokenizer, screened, other, 1)
    (folder / "questions.txt").write_text(QUESTION + " more")
    try:
        with pytest.raises(ValueError, match=r"filters.decontaminate was"):
            make_corpus(inputs, tokenizer, screened, options, 1)
    finally:
        (folder / "questions.txt").write_text(QUESTION)


@pytest.fixture
def request_screened(screened, options, tokenizer, folder, tmp_path):
    """Return a function that describes the screened corpus, to be written to tmp_path / "out"."""
    inputs = [str(folder / name) for name in ("a.jsonl", "b.jsonl")]

    def make(num_workers: int = 1):
        return check_request(
            inputs, tokenizer, tmp_path / "out", options, num_workers, None, (), allow_unknown=False
        )

    return make


def test_merged_parts_equal_a_corpus_prepared_at_once(
    screened, request_screened, tmp_path, checksums, monkeypatch
) -> None:
    """Check that only the part that is made first combines the results of screening blocks."""
    monkeypatch.setattr(screened_blocks, "BLOCK_BYTES", 20_000)
    monkeypatch.setattr(part_screening, "BLOCK_BYTES", 20_000)
    make_part(request_screened(), Part(1, 2))
    monkeypatch.setattr(Screener, "combine", None)
    make_part(request_screened(), Part(0, 2))
    merge_parts(request_screened())
    assert checksums(tmp_path / "out") == checksums(screened)


@pytest.mark.slow
def test_merging_names_documents_that_have_not_been_screened(request_screened, tmp_path) -> None:
    make_part(request_screened(), Part(0, 1))
    (tmp_path / "out" / ".work" / "screened" / "result.json").unlink()
    result = tmp_path / "out" / ".work" / "screening" / "block-000000.jsonl"
    content = result.read_text()
    result.unlink()
    with pytest.raises(ValueError, match="1 of 1 blocks of documents have not been screened"):
        merge_parts(request_screened())
    result.write_text(content)
    merge_parts(request_screened())


@pytest.mark.slow
def test_bytes_do_not_depend_on_workers_or_blocks(
    texts, screened, request_screened, options, tokenizer, tmp_path, folder, checksums
) -> None:
    """Also stop the preparation midway, so that finished blocks are reused."""
    request = request_screened(num_workers=3)
    work = tmp_path / "out" / ".work"
    with Workspace(request.output, request.plan) as workspace:
        preparation = request.preparation(workspace.work)
        preparation.screen(
            request.screener, workspace.files, request.plan, 3, ProgressMeter(), None
        )
    assert len(list((work / "screening").glob("block-*"))) == 2
    (work / "screened/result.json").unlink()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BlockScreener, "screen", None)
        make_corpus(request.inputs.paths, tokenizer, request.output, options, num_workers=3)
    assert checksums(tmp_path / "out") == checksums(screened)


def test_the_result_of_screening_is_used_again(
    screened, request_screened, tmp_path, checksums, monkeypatch
) -> None:
    """If an input has changed, this is noticed at the end, and everything is screened again."""
    request = request_screened()
    with Workspace(request.output, request.plan) as workspace:
        preparation = request.preparation(workspace.work)
        arguments = (request.screener, workspace.files, request.plan, 1, ProgressMeter(), None)
        preparation.screen(*arguments)
        again = request.preparation(workspace.work)
        monkeypatch.setattr(Screener, "for_blocks", None)
        again.screen(*arguments)
        assert again.screening == preparation.screening
        assert again.screened_digest == preparation.screened_digest
        other = {**request.plan, "tokenizer_fingerprint": "another"}
        assert kept_screening(workspace.files, other) is None
        for name in ("verdicts.bin", "near_duplicates.jsonl", "filters.html"):
            path = workspace.work / "screened" / name
            content = path.read_bytes()
            path.write_bytes(content[1:])
            assert kept_screening(workspace.files, request.plan) is None
            path.write_bytes(content)
        assert kept_screening(workspace.files, request.plan) is not None
        result = workspace.work / "screened/result.json"
        described = json.loads(result.read_text())
        result.write_text(json.dumps({**described, "documents": "00" * 16}))
    make = partial(
        make_corpus, request.inputs.paths, request.tokenizer, request.output, request.options, 1
    )
    with pytest.raises(ValueError, match="inputs: a file has changed since its documents"):
        make()
    assert not result.exists()
    monkeypatch.undo()
    make()
    assert checksums(request.output) == checksums(screened)


@pytest.mark.slow
def test_held_out_inputs_are_not_filtered(
    texts, options, tokenizer, folder, tmp_path, screened, write_json_lines
) -> None:
    """Check that held-out documents may be short, and that their near-duplicates are removed."""
    heldout = write_json_lines(tmp_path / "dev.jsonl", ["The cat ran.", texts[40]])
    options = replace(options, heldout_fraction=0.0)
    inputs = [str(folder / "a.jsonl"), str(folder / "b.jsonl")]
    manifest = make_corpus(
        inputs, tokenizer, tmp_path / "out", options, 1, heldout_inputs=[heldout]
    )
    assert manifest.heldout.num_documents == 2
    # The training text at position 40 is the same as the held-out text.
    assert manifest.heldout_repeats == 1
    cluster = json.loads((tmp_path / "out" / "near_duplicates.jsonl").read_text().splitlines()[0])
    assert cluster["kept"] == f"{heldout}:2"
    assert len(cluster["removed"]) == 4  # The original and the three copies besides text 40.


@pytest.mark.slow
def test_contaminated_documents_may_be_counted_only(
    options, tokenizer, folder, tmp_path, screened
) -> None:
    filters = FilterOptions(decontaminate=options.filters.decontaminate, contaminated="count")
    inputs = [str(folder / "a.jsonl"), str(folder / "b.jsonl")]
    manifest = make_corpus(
        inputs, tokenizer, tmp_path / "out", replace(options, filters=filters), 1
    )
    assert manifest.filters is not None and manifest.filters["filtered"] == {}
    assert manifest.filters["contaminated_kept"] == len(CONTAMINATED)
    assert manifest.train.num_documents + manifest.heldout.num_documents == 50


@pytest.mark.slow
def test_lines_are_removed_from_documents(
    prepare_options, tokenizer, tmp_path, write_json_lines
) -> None:
    """Compare the shards with those of a corpus prepared from texts that are already clean."""
    lines = ["The cat saw the dog and ran.", "See more here", "The dog ran to the old house."]
    texts = ["\n".join([*lines, f"The cat ran to house {number} of the dogs."]) for number in "abc"]
    cleaned = [clean_c4(text, C4()) for text in texts]
    options = replace(prepare_options, heldout_fraction=0.0)
    filters = FilterOptions(quality_rules=("c4",))
    for name, content, chosen in (("raw", texts, filters), ("clean", cleaned, FilterOptions())):
        path = write_json_lines(tmp_path / f"{name}.jsonl", content)
        make_corpus([path], tokenizer, tmp_path / name, replace(options, filters=chosen), 1)
    assert cleaned[0].count("\n") == 2
    assert shards(tmp_path / "raw") == shards(tmp_path / "clean")


@pytest.mark.parametrize("batch", [1, 3, 100])
def test_clusters_are_written_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch: int
) -> None:
    expected = {0: [3, 4, 8, 10, 11], 1: [9], 2: [5, 6, 7]}
    sizes, sources = [4, 5, 3], [f"ü.jsonl:{number}" for number in range(12)]
    different = {8: 0.75, 6: 0.5}
    signatures = np.array([[number] * 64 for number in (0, 1, 2, 0, 0, 2, 2, 2, 0, 1, 0, 0)]).T
    for position, similarity in different.items():
        signatures[int(64 * similarity) :, position] = 9
    ends = np.cumsum(sizes).tolist()
    for number, (end, size) in enumerate(zip(ends, sizes, strict=True)):
        block = ScreenedBlock("", sources[end - size : end], [])
        write_block(tmp_path, number, block, [f"text {each}" for each in range(end - size, end)])
        path = signatures_path(tmp_path, number)
        np.save(path, signatures[:, end - size : end].astype(np.uint16))
    clusters = Clusters(tmp_path / "parents.bin", 12)
    for first, members in expected.items():
        for position in members:
            clusters.join(position, first)
    calls = []
    files = SignatureFiles([signatures_path(tmp_path, number) for number in range(3)], sizes)

    def similarities(pairs: np.ndarray) -> np.ndarray:
        calls.append(len(pairs))
        return estimate(files, pairs)

    monkeypatch.setattr(screening_report, "PAIRS", 2)
    monkeypatch.setattr(screening_report, "_BATCH", batch)
    writer = screening_report.ClusterWriter(tmp_path, sizes, tmp_path)
    writer.write(clusters, similarities)
    lines = [
        {
            "kept": sources[first],
            "removed": [
                {"source": sources[each], "similarity": different.get(each, 1.0)}
                for each in members
            ],
        }
        for first, members in expected.items()
    ]
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    assert (tmp_path / "near_duplicates.jsonl").read_text("utf-8") == text
    assert max(calls) == min(2, batch) and sum(calls) == 9
    assert (writer.num_clusters, writer.num_removed) == (3, 9)
    shown = [
        (each.kept.beginning, each.num_removed, [one.beginning for one in each.removed])
        for each in writer.examples
    ]
    assert shown == [
        ("text 0", 5, ["text 3", "text 4", "text 8"]),
        ("text 1", 1, ["text 9"]),
        ("text 2", 3, ["text 5", "text 6", "text 7"]),
    ]


@pytest.mark.parametrize("replacement", ["cow", ""])
def test_an_input_that_changes_after_the_first_pass_is_noticed(
    prepare_options, tokenizer, tmp_path, write_json_lines, monkeypatch, replacement
) -> None:
    """Change the text of an input's last document, or remove this document."""
    texts = [f"The cat ran to house {number}." for number in range(10)]
    path = write_json_lines(tmp_path / "a.jsonl", texts)
    options = replace(prepare_options, filters=FilterOptions(min_words=2))
    screen = Preparation.screen

    def screen_and_change(self: Preparation, *arguments: object) -> None:
        screen(self, *arguments)
        changed = texts[9].replace("cat", replacement) if replacement else ""
        write_json_lines(tmp_path / "a.jsonl", [*texts[:9], changed])

    with monkeypatch.context() as patch:
        patch.setattr(Preparation, "screen", screen_and_change)
        with pytest.raises(ValueError, match="inputs: a file has changed since its documents"):
            make_corpus([path], tokenizer, tmp_path / "out", options, 1)
    assert not (tmp_path / "out/manifest.json").exists()


def test_leaving_out_all_documents_is_an_error(
    prepare_options, tokenizer, tmp_path, write_json_lines
) -> None:
    path = write_json_lines(tmp_path / "a.jsonl", ["The cat ran.", "The dog ran."])
    options = replace(prepare_options, filters=FilterOptions(min_words=9))
    with pytest.raises(ValueError, match="filters: all 2 documents would be left out"):
        make_corpus([path], tokenizer, tmp_path / "out", options, 1)
    assert not (tmp_path / "out" / ".work").exists()
