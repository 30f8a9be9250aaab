"""Train linear baselines without an encoder, on bags of words or on words in context."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import numpy as np
from mnli import MnliPair
from scipy import sparse
from sklearn.base import clone
from sklearn.feature_extraction import DictVectorizer, FeatureHasher
from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS, TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import ParameterGrid
from tasks import (
    BAG,
    CASELESS,
    COMPARED,
    ENTAILED,
    IN_CONTEXT,
    MNLI_TOO,
    SPELLING,
    WORD_PAIRS,
    Files,
    Task,
)

from bert_jax.labeled_data.files import Split
from bert_jax.labeled_data.glue import glue_files, glue_task
from bert_jax.labeled_data.labels import label_numbers
from bert_jax.labeled_data.sentences import SentenceExamples, read_sentences
from bert_jax.labeled_data.squad import SpanExample, read_squad
from bert_jax.labeled_data.tags import TagFiles, TagSentences, read_tags
from bert_jax.tasks.sentence_scores import sentence_scores
from bert_jax.tasks.span_scores import entity_scores, squad_scores

# The penalties and class weights to try; those that are best on the validation set are used. The
# networks' learning rates are chosen in the same way, but from fewer values.
_LINEAR = ParameterGrid({"C": [0.1, 1.0, 10.0, 100.0], "class_weight": [None, "balanced"]})
_RIDGE = ParameterGrid({"alpha": [0.1, 1.0, 10.0]})
_WORD = r"\w+|[^\w\s]"
_TAGGING = ParameterGrid({"C": [10.0, 100.0, 1000.0, 10000.0]})
_ENDS = ParameterGrid({"C": [0.01, 0.1, 1.0]})
_ASKING = {"what", "which", "who", "whom", "whose", "when", "where", "why", "how"}
# The number of negative examples per passage, and the maximum number of words in an answer.
_NEGATIVES, _LONGEST = 20, 20
_Linear = LogisticRegression | Ridge
_Fit = TypeVar("_Fit")


def baseline_scores(
    task: Task, sets: Sequence[Files], mnli: Sequence[MnliPair]
) -> dict[str, list[float]]:
    """Return the scores of a task's baselines on each validation set in `sets`, as fractions.

    The baselines are trained and selected on the first entry in `sets`.

    mnli: MNLI pairs on which one of the baselines is also trained.
    """
    by_name = {
        BAG: lambda: _sentences(task, sets, longest=1),
        WORD_PAIRS: lambda: _sentences(task, sets, longest=2),
        COMPARED: lambda: _compared(task, sets),
        MNLI_TOO: lambda: _sentences(task, sets, longest=2, compared=True, mnli=mnli),
        IN_CONTEXT: lambda: _spans(sets, compared=False),
        SPELLING: lambda: _tags(sets, capitals=True),
        CASELESS: lambda: _tags(sets, capitals=False),
    }
    return {name: by_name[name]() for name in task.baselines}


def _compared(task: Task, sets: Sequence[Files]) -> list[float]:
    if task.glue:
        return _sentences(task, sets, longest=2, compared=True)
    return _spans(sets, compared=True)


def _scores_of_best(
    fits: Sequence[_Fit], scorers: Sequence[Callable[[_Fit], float]]
) -> list[float]:
    """Return all scores of the fit that is best according to the first scorer."""
    best = max(fits, key=scorers[0])
    return [scorer(best) for scorer in scorers]


def sizes(task: Task, files: Files) -> dict[str, int]:
    """Return the numbers of training and validation examples (sentences, pairs or questions)."""
    return {"training": _size(task, files, "train"), "validation": _size(task, files, "validation")}


def _size(task: Task, files: Files, split: Split) -> int:
    if task.glue:
        found = glue_files(task.glue, files.directory)
        sentences = found.train if split == "train" else found.validation["validation"]
        return len(read_sentences(sentences, split, labeled=True).firsts)
    if task.name == "SQuAD":
        return len(read_squad(Path(getattr(files, split)), labeled=True))
    named = TagFiles(train=files.train, validation=files.validation)
    return len(read_tags(named, split, labeled=True).words)


def _sentences(
    task: Task,
    sets: Sequence[Files],
    *,
    longest: int,
    compared: bool = False,
    mnli: Sequence[MnliPair] = (),
) -> list[float]:
    """Score linear models on n-grams of up to `longest` words; `mnli` adds training pairs."""
    found, metric = glue_files(task.glue, sets[0].directory), glue_task(task.glue).primary
    training = read_sentences(found.train, "train", labeled=True)
    training = _with_mnli(training, mnli, task, found.train.labels) if mnli else training
    words = TfidfVectorizer(ngram_range=(1, longest), sublinear_tf=True, token_pattern=_WORD)
    words.fit(training.firsts + (training.seconds or []))
    model = LogisticRegression(solver="liblinear", random_state=0)
    model, grid = (model, _LINEAR) if found.train.labels else (Ridge(), _RIDGE)
    learned = _bag(words, training, compared)
    labels = label_numbers(training.labels or [], found.train.labels)
    fits = [clone(model).set_params(**chosen).fit(learned, labels) for chosen in grid]

    def scorer(files: Files) -> Callable[[_Linear], float]:
        validation = glue_files(task.glue, files.directory).validation["validation"]
        examples = read_sentences(validation, "validation", labeled=True)
        inputs = _bag(words, examples, compared)
        gold = label_numbers(examples.labels or [], validation.labels)
        return lambda fit: sentence_scores([metric], fit.predict(inputs), gold)[metric]

    return _scores_of_best(fits, [scorer(files) for files in sets])


def _with_mnli(
    examples: SentenceExamples, mnli: Sequence[MnliPair], task: Task, labels: Sequence[str]
) -> SentenceExamples:
    entailed = ENTAILED[task.name]
    (other,) = (label for label in labels if label != entailed)
    return replace(
        examples,
        firsts=[*examples.firsts, *(pair["premise"] for pair in mnli)],
        seconds=[*(examples.seconds or []), *(pair["hypothesis"] for pair in mnli)],
        labels=[
            *(examples.labels or []),
            *(entailed if pair["label"] == "entailment" else other for pair in mnli),
        ],
    )


def _bag(words: TfidfVectorizer, examples: SentenceExamples, compared: bool) -> sparse.csr_matrix:
    """Return the words in every sentence as a feature matrix [examples, features].

    compared: whether to return features that compare the two sentences instead: the words that they
      share, the words that only one of them contains, and their similarity.
    """
    first = words.transform(examples.firsts)
    if examples.seconds is None:
        return first
    second = words.transform(examples.seconds)
    if not compared:
        return sparse.hstack([first, second]).tocsr()
    shared = first.multiply(second)
    similarity = sparse.csr_matrix(np.asarray(shared.sum(axis=1)))
    return sparse.hstack([shared, abs(first - second), similarity]).tocsr()


def _tags(sets: Sequence[Files], *, capitals: bool) -> list[float]:
    def read(files: Files, split: Split) -> TagSentences:
        named = TagFiles(train=files.train, validation=files.validation)
        return read_tags(named, split, labeled=True)

    training, features = read(sets[0], "train"), DictVectorizer()
    learned = features.fit_transform(_words(training.words, capitals))
    gold = [tag for tags in training.tags or [] for tag in tags]
    model = LogisticRegression(max_iter=200)
    fits = [clone(model).set_params(**chosen).fit(learned, gold) for chosen in _TAGGING]

    def scorer(files: Files) -> Callable[[_Linear], float]:
        held_out = read(files, "validation")
        inputs = features.transform(_words(held_out.words, capitals))

        def score(fit: _Linear) -> float:
            flat = iter(fit.predict(inputs).tolist())
            predicted = [[next(flat) for _ in sentence] for sentence in held_out.words]
            return entity_scores(predicted, held_out.tags or [], "IOB2")["f1"]

        return score

    return _scores_of_best(fits, [scorer(files) for files in sets])


def _words(sentences: Sequence[Sequence[str]], capitals: bool) -> list[dict[str, str]]:
    """Return features for every word: its spelling, and the adjacent words."""
    found = []
    for words in sentences:
        words = words if capitals else [word.lower() for word in words]
        padded = ["<s>", *words, "</s>"]
        for before, word, after in zip(padded, words, padded[2:], strict=False):
            named = {"word": word.lower(), "shape": _shape(word), "start": word[:3].lower()}
            named |= {"end": word[-3:].lower(), "before": before.lower(), "after": after.lower()}
            named |= {"shapes": f"{_shape(before)} {_shape(word)} {_shape(after)}"}
            found.append(named)
    return found


def _shape(word: str) -> str:
    """Return a word's shape without repetitions, such as "XxXx'x" for "McDonald's"."""
    kinds = re.sub(r"[^\W\d_]", lambda c: "X" if c[0].isupper() else "x", word)
    return re.sub(r"(.)\1+", r"\1", re.sub(r"\d", "9", kinds))


def _spans(sets: Sequence[Files], *, compared: bool) -> list[float]:
    """Score two logistic regressions, one for the first and one for the last word of an answer."""
    rng = np.random.default_rng(0)
    rows, ends = [], []
    for example in read_squad(Path(sets[0].train), labeled=True):
        words = list(re.finditer(_WORD, example.context))
        start = example.answer_starts[0]
        stop = start + len(example.answer_texts[0])
        inside = [place for place, word in enumerate(words) if start <= word.start() < stop]
        if not inside:
            continue  # Skip answers in which no word begins.
        others = rng.integers(len(words), size=_NEGATIVES).tolist()
        places = sorted({inside[0], inside[-1], *others})
        features = _places(example, words, compared)
        rows += [features[place] for place in places]
        ends += [(place == inside[0], place == inside[-1]) for place in places]
    vectors = FeatureHasher(input_type="string")
    learned, labels = vectors.transform(rows), np.asarray(ends).T
    model = LogisticRegression(solver="liblinear", random_state=0)
    fits = [
        [clone(model).set_params(**chosen).fit(learned, end) for end in labels] for chosen in _ENDS
    ]

    def scorer(files: Files) -> Callable[[Sequence[LogisticRegression]], float]:
        held_out = []
        for example in read_squad(Path(files.validation), labeled=True):
            words = list(re.finditer(_WORD, example.context))
            held_out.append((example, words, vectors.transform(_places(example, words, compared))))
        gold = {example.id: example.answer_texts for example, _, _ in held_out}

        def score(fit: Sequence[LogisticRegression]) -> float:
            predicted = {each[0].id: _span(*each, fit) for each in held_out}
            return squad_scores(predicted, gold)["f1"] / 100

        return score

    return _scores_of_best(fits, [scorer(files) for files in sets])


def _span(
    example: SpanExample,
    words: Sequence[re.Match[str]],
    features: sparse.csr_matrix,
    models: Sequence[LogisticRegression],
) -> str:
    """Return the most probable span."""
    start, end = (model.decision_function(features) for model in models)
    length = np.arange(1, len(words) + 1)[None, :] - np.arange(len(words))[:, None]
    allowed = (length >= 1) & (length <= _LONGEST)
    scores = np.where(allowed, start[:, None] + end[None, :], -np.inf)
    first, last = np.unravel_index(scores.argmax(), scores.shape)
    return example.context[words[first].start() : words[last].end()]


def _places(
    example: SpanExample, words: Sequence[re.Match[str]], compared: bool
) -> list[list[str]]:
    """Return features for every word in a passage: the word, its neighbors and the question word.

    compared: whether to add features that indicate whether the word and its neighbors occur in the
      question, and how many of the 21 surrounding words do. Stop words are ignored.
    """
    question = [word.lower() for word in re.findall(r"\w+", example.question)]
    question_words = set(question) - ENGLISH_STOP_WORDS
    kinds_of_question = _kinds_of_question(question)
    lower = [word[0].lower() for word in words]
    counts = np.cumsum([0, *(word in question_words for word in lower)])
    found = []
    for place, word in enumerate(lower):
        shape = _shape(words[place][0])
        features = [f"word {word}", f"shape {shape}"]
        features += [
            f"{kind_of_question} {kind}"
            for kind_of_question in kinds_of_question
            for kind in (word, f"shape {shape}")
        ]
        for by in (-2, -1, 1, 2):
            neighbor = lower[place + by] if 0 <= place + by < len(lower) else ""
            features += [f"{by} {neighbor}"]
            features += [f"{by} asked {neighbor in question_words}"] if compared else []
        if compared:
            near = counts[min(place + 11, len(lower))] - counts[max(place - 10, 0)]
            features += [f"asked {word in question_words}", f"near {min(near, 8)}"]
        found.append(features)
    return found


def _kinds_of_question(question: Sequence[str]) -> list[str]:
    """Return the question word by itself and followed by the next word, as in "how many"."""
    place = next((place for place, word in enumerate(question) if word in _ASKING), None)
    if place is None:
        return ["?"]
    return [question[place], " ".join(question[place : place + 2])]
