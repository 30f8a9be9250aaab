"""Define the tasks: their recipes, and where their files are in a folder of public data sets."""

from __future__ import annotations

import hashlib
import json
import lzma
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bert_jax.files import write_file
from bert_jax.labeled_data.files import find_file, has_file

# With --fast, each set has this many rows, sentences or questions.
FAST_TRAIN, FAST_VALIDATION = 400, 200


@dataclass(frozen=True)
class Task:
    """A task of this experiment.

    name: the task's name.
    recipe: the name of a recipe in configs/finetune.
    metric: the metric to report.
    baselines: a dict from each baseline's name to its description.
    glue: the task's official name in GLUE; "" for tasks outside GLUE.
    test: the file that contains a test set with public answers; "" if there is none.
    epochs, batch_size, learning_rates: the training defaults.
    """

    name: str
    recipe: str
    metric: str
    baselines: Mapping[str, str]
    glue: str = ""
    test: str = ""
    epochs: int = 3
    batch_size: int = 16
    learning_rates: tuple[float, ...] = (1e-4, 3e-4)


BAG, WORD_PAIRS, COMPARED = "bag of words", "with pairs of words", "with comparisons"
MNLI_TOO = "with comparisons and MNLI"
SPELLING, CASELESS = "spelling", "spelling without capitals"
IN_CONTEXT = "words in context"
_SINGLE = {BAG: "logistic regression on TF-IDF of words"}
_SINGLE |= {WORD_PAIRS: "the same on words and pairs of words"}
_WITH_COMPARISONS = (
    "the same on products and differences of the sentences' vectors, and their cosine"
)
_PAIRED = {BAG: "logistic regression on TF-IDF of either sentence's words"}
_PAIRED |= {WORD_PAIRS: _SINGLE[WORD_PAIRS], COMPARED: _WITH_COMPARISONS}
_SCORED = _PAIRED | {BAG: "ridge regression on TF-IDF of either sentence's words"}
_SPELLED = "logistic regression on each word's spelling and the adjacent words"
_TAGGED = {SPELLING: _SPELLED, CASELESS: f"{_SPELLED}, in lowercase like the model's input"}
_SPANS = {IN_CONTEXT: "logistic regressions on each word, the adjacent words and the question word"}
_SPANS |= {COMPARED: "the same, and on the surrounding words that occur in the question"}
TASKS = {
    task.name: task
    for task in (
        Task("SST-2", "sst2", "accuracy", _SINGLE, "SST-2", epochs=2, batch_size=32),
        Task("CoLA", "cola", "Matthews correlation", _SINGLE, "CoLA", epochs=5, batch_size=32),
        Task("MRPC", "mrpc", "F1", _PAIRED, "MRPC", test="glue/MRPC/msr_paraphrase_test.txt"),
        Task("RTE", "rte", "accuracy", _PAIRED, "RTE"),
        Task("STS-B", "stsb", "Spearman correlation", _SCORED, "STS-B", epochs=6, batch_size=32),
        # For one seed, the pretrained side had an F1 of 22.7 at this batch size and 16.8 at 32.
        Task("SQuAD", "squad", "F1", _SPANS, epochs=2, batch_size=8, learning_rates=(3e-4,)),
        Task(
            *("WNUT-17", "wnut17", "F1", _TAGGED),
            test="ner_wnut17/emerging.test.annotated",
            epochs=6,
            learning_rates=(1e-4, 3e-4, 1e-3),
        ),
    )
}


# For these tasks, the label to use for MNLI pairs in which the first sentence entails the second.
ENTAILED = {"RTE": "entailment", "MRPC": "1"}


def after_mnli(task: Task) -> Task:
    """Return the task with an additional baseline: a linear model that is also trained on MNLI."""
    if task.name not in ENTAILED:
        return task
    description = f"the same, also trained on MNLI, with entailed pairs as {ENTAILED[task.name]}"
    return replace(task, baselines={**task.baselines, MNLI_TOO: description})


@dataclass(frozen=True)
class Files:
    """The locations of a task's files: a GLUE directory, or one file per split."""

    directory: str = ""
    train: str = ""
    validation: str = ""

    def overrides(self, task: Task) -> list[str]:
        """Return the recipe overrides that set the files."""
        if task.glue:
            return [f"--config.glue.directory={self.directory}"]
        section = "spans" if task.name == "SQuAD" else "tags"
        words = [f"--config.{section}.files.train={self.train}"]
        words += [f"--config.{section}.files.validation={self.validation}"]
        # The test set is not scored, so it need not be read.
        return words + (["--config.tags.files.test="] if section == "tags" else [])

    def checksum(self) -> str:
        """Return the checksum of the training and validation files."""
        if self.directory:
            paths = sorted(Path(self.directory).glob("*.tsv*"))
        else:
            paths = [find_file(name) for name in (self.train, self.validation)]
        return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()


def files_of(task: Task, data: Path, work: Path, *, fast: bool) -> Files:
    """Return a task's files; joined or shortened files are first written to `work`."""
    work.mkdir(parents=True, exist_ok=True)
    if task.name == "SQuAD":
        return _squad(data, work, fast)
    if task.name == "WNUT-17":
        return _wnut(data / "ner_wnut17", work, fast)
    directory = data / "glue" / task.glue
    if not fast:
        return Files(directory=str(directory))
    cuts = {"train.tsv": FAST_TRAIN, "dev.tsv": FAST_VALIDATION, "test.tsv": FAST_VALIDATION}
    for name, count in cuts.items():
        if name == "test.tsv" and not has_file(directory / name):
            continue  # The test set is optional, since many copies of GLUE do not include it.
        lines = table_text(directory / name).split("\n")
        write_file(work / name, "\n".join(lines[: count + 1]) + "\n")
    return Files(directory=str(work))


def sample_of(task: Task, data: Path, work: Path, count: int) -> Files:
    """Return a fixed random sample of a GLUE task's training set, and its whole validation set."""
    work.mkdir(parents=True, exist_ok=True)
    for name in ("train.tsv", "dev.tsv"):
        header, *lines = table_text(data / "glue" / task.glue / name).splitlines()
        if name == "train.tsv":
            lines = random.Random(0).sample(lines, count)
        write_file(work / name, "\n".join([header, *lines]) + "\n")
    return Files(directory=str(work))


def test_files_of(task: Task, files: Files, data: Path, work: Path, *, fast: bool) -> Files:
    """Return files with the same training set, and the test set in place of the validation set."""
    work.mkdir(parents=True, exist_ok=True)
    test = data / task.test
    if not task.glue:
        if fast:
            test = _cut_sentences(test, work / "test.conll", FAST_VALIDATION)
        return Files(train=files.train, validation=str(test))
    # The test file has the same columns as dev.tsv.
    lines = table_text(test).split("\n")
    shortened = lines[: FAST_VALIDATION + 1] if fast else lines
    (work / "dev.tsv").write_text("\n".join(shortened), encoding="utf-8")
    training = table_text(Path(files.directory) / "train.tsv")
    (work / "train.tsv").write_text(training, encoding="utf-8")
    return Files(directory=str(work))


def table_text(file: Path) -> str:
    """Return the text of a file, or of its compressed version."""
    if file.is_file():
        return file.read_text(encoding="utf-8")
    with lzma.open(f"{file}.xz", "rt", encoding="utf-8") as stream:
        return stream.read()


def _squad(data: Path, work: Path, fast: bool) -> Files:
    """Join the available official training questions with SQuADShifts' Wikipedia questions."""
    parts = ["squad/train-v1.1-prefix", "squad/train-v1.1-subset", "squad_shifts/new_wiki_v1.0"]
    training = [article for part in parts for article in _articles(data / f"{part}.json")]
    validation = _articles(data / "squad/dev-v1.1.json")
    if fast:
        training = _cut(training, FAST_TRAIN)
        validation = _cut(validation, FAST_VALIDATION)
    files = {"train": training, "validation": validation}
    for split, articles in files.items():
        content = json.dumps({"version": "1.1", "data": articles})
        (work / f"{split}.json").write_text(content, encoding="utf-8")
    return Files(train=str(work / "train.json"), validation=str(work / "validation.json"))


def _articles(file: Path) -> list[dict]:
    articles: list[dict] = json.loads(table_text(file))["data"]
    return articles


def _cut(articles: Sequence[dict], count: int) -> list[dict]:
    """Return paragraphs, taken from each article in turn, that have `count` questions in total."""
    turns = max(len(article["paragraphs"]) for article in articles)
    kept: list[dict] = []
    for turn in range(turns):
        for article in articles:
            if sum(len(paragraph["qas"]) for paragraph in kept) >= count:
                return [{"title": "", "paragraphs": kept}]
            kept += article["paragraphs"][turn : turn + 1]
    return [{"title": "", "paragraphs": kept}]


def _wnut(directory: Path, work: Path, fast: bool) -> Files:
    names = {"train": "wnut17train.conll", "validation": "emerging.dev.conll"}
    if not fast:
        return Files(**{split: str(directory / name) for split, name in names.items()})
    counts = {"train": FAST_TRAIN, "validation": FAST_VALIDATION}
    cut = {
        split: str(_cut_sentences(directory / name, work / f"{split}.conll", counts[split]))
        for split, name in names.items()
    }
    return Files(**cut)


def _cut_sentences(file: Path, into: Path, count: int) -> Path:
    lines = [line.strip() for line in table_text(file).split("\n")]
    sentences = "\n".join(lines).split("\n\n")
    into.write_text("\n\n".join(sentences[:count]) + "\n", encoding="utf-8")
    return into
