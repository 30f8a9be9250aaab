"""What needs no encoder: bags of words, words in their place, the nearest likely words."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from scipy import sparse
from sklearn.feature_extraction import DictVectorizer
from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS, TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import ParameterGrid
from tasks import BAG, CASELESS, NEAREST, PAIRS, SPELLING, Files, Task

from bert_jax.data.finetuning.glue import glue_files, glue_task
from bert_jax.data.finetuning.labels import label_numbers
from bert_jax.data.finetuning.sentences import SentenceExamples, read_sentences
from bert_jax.data.finetuning.spans import SpanExample, read_squad
from bert_jax.data.finetuning.tags import TagFiles, read_tags
from bert_jax.tasks.entity_scores import entity_scores
from bert_jax.tasks.sentence_scores import sentence_scores
from bert_jax.tasks.span_scores import squad_scores

# Penalties and weights of classes. They are chosen on the validation set, as the networks' rates
# are, one baseline out of more than those have rates.
_LINEAR = ParameterGrid({"C": [0.1, 1.0, 10.0, 100.0], "class_weight": [None, "balanced"]})
_RIDGE = ParameterGrid({"alpha": [0.1, 1.0, 10.0]})


def baseline_scores(task: Task, files: Files) -> dict[str, float]:
    """Of a task's baselines on its validation set: fractions."""
    by_name = {
        BAG: lambda: _sentences(task, files, paired=False),
        PAIRS: lambda: _sentences(task, files, paired=True),
        NEAREST: lambda: _spans(files),
        SPELLING: lambda: _tags(files, capitals=True),
        CASELESS: lambda: _tags(files, capitals=False),
    }
    return {name: by_name[name]() for name in task.baselines}


def validation_size(task: Task, files: Files) -> int:
    """How many sentences, pairs or questions are scored."""
    if task.glue:
        found = glue_files(task.glue, files.directory).validation["validation"]
        return len(read_sentences(found, "validation", labelled=True).firsts)
    if task.name == "SQuAD":
        return len(read_squad(Path(files.validation), labelled=True))
    named = TagFiles(train=files.train, validation=files.validation)
    return len(read_tags(named, "validation", labelled=True).words)


def _sentences(task: Task, files: Files, *, paired: bool) -> float:
    found, metric = glue_files(task.glue, files.directory), glue_task(task.glue).primary
    training = read_sentences(found.train, "train", labelled=True)
    held_out = read_sentences(found.validation["validation"], "validation", labelled=True)
    labels = [label_numbers(each.labels or [], found.train.labels) for each in (training, held_out)]
    words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, token_pattern=r"\w+|[^\w\s]")
    words.fit(training.firsts + (training.seconds or []))
    model = LogisticRegression(solver="liblinear", random_state=0)
    model, grid = (model, _LINEAR) if found.train.labels else (Ridge(), _RIDGE)
    learned, judged = _bag(words, training, paired), _bag(words, held_out, paired)
    scores = []
    for chosen in grid:
        predicted = model.set_params(**chosen).fit(learned, labels[0]).predict(judged)
        scores.append(sentence_scores([metric], predicted, labels[1])[metric])
    return max(scores)


def _bag(words: TfidfVectorizer, examples: SentenceExamples, paired: bool) -> sparse.csr_matrix:
    """[examples, features]: the words of every sentence.

    paired: instead what the two share, how they differ, and how alike they are.
    """
    first = words.transform(examples.firsts)
    if examples.seconds is None:
        return first
    second = words.transform(examples.seconds)
    if not paired:
        return sparse.hstack([first, second]).tocsr()
    shared = first.multiply(second)
    alike = sparse.csr_matrix(np.asarray(shared.sum(axis=1)))
    return sparse.hstack([shared, abs(first - second), alike]).tocsr()


def _tags(files: Files, *, capitals: bool) -> float:
    named = TagFiles(train=files.train, validation=files.validation)
    training = read_tags(named, "train", labelled=True)
    held_out = read_tags(named, "validation", labelled=True)
    assert training.tags is not None and held_out.tags is not None
    features = DictVectorizer()
    model = LogisticRegression(max_iter=200, C=10.0)
    gold = [tag for tags in training.tags for tag in tags]
    model.fit(features.fit_transform(_words(training.words, capitals)), gold)
    flat = iter(model.predict(features.transform(_words(held_out.words, capitals))).tolist())
    predicted = [[next(flat) for _ in sentence] for sentence in held_out.words]
    return entity_scores(predicted, held_out.tags, "IOB2")["f1"]


def _words(sentences: Sequence[Sequence[str]], capitals: bool) -> list[dict[str, str]]:
    """Features of every word: its spelling, and the words beside it."""
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
    """Capitals as X, small letters as x, digits as 9, repeats once: "McDonald's" is "XxXx'x"."""
    kinds = re.sub(r"[^\W\d_]", lambda c: "X" if c[0].isupper() else "x", word)
    return re.sub(r"(.)\1+", r"\1", re.sub(r"\d", "9", kinds))


def _spans(files: Files) -> float:
    examples = read_squad(Path(files.validation), labelled=True)
    weights = TfidfVectorizer(token_pattern=r"\w+").fit([each.context for each in examples])
    idf = dict(zip(weights.get_feature_names_out(), weights.idf_, strict=True))
    predicted = {each.id: _answer(each, idf) for each in examples}
    return squad_scores(predicted, {each.id: each.answer_texts for each in examples})["f1"] / 100


def _answer(example: SpanExample, idf: dict[str, float]) -> str:
    """In the sentence that shares the rarest words with the question, the likely words nearest.

    Likely are numbers where a question asks when or how many, else names, else any other words
    that the question lacks; near is few words from those that it has.
    """
    asked = {word.lower() for word in re.findall(r"\w+", example.question)} - ENGLISH_STOP_WORDS
    sentences = re.split(r"(?<=[.!?])\s+", example.context)

    def shared(sentence: str) -> float:
        there = {word.lower() for word in re.findall(r"\w+", sentence)}
        return sum(idf.get(word, 0.0) for word in asked & there)

    sentence = max(sentences, key=shared)
    words = list(re.finditer(r"\w+", sentence))
    known = [place for place, word in enumerate(words) if word[0].lower() in asked] or [0]
    wants_number = re.match(
        r"(?i).*\b(when|what year|how (many|much|old|long))\b", example.question
    )
    for pattern in ([r"\d"] if wants_number else []) + [r"[A-Z]", r"\w"]:
        runs = list(_runs([w[0] for w in words], asked, pattern))
        if runs:
            begin, end = min(runs, key=lambda run: min(abs(run[0] - place) for place in known))
            return sentence[words[begin].start() : words[end - 1].end()]
    return sentence


def _runs(words: Sequence[str], asked: set[str], pattern: str) -> Iterator[tuple[int, int]]:
    """Longest stretches [begin, end) of words of a pattern, neither asked for nor common."""
    begin = 0
    for place, word in enumerate([*words, ""]):
        low = word.lower()
        if not re.match(pattern, word) or low in asked or low in ENGLISH_STOP_WORDS:
            if place > begin:
                yield begin, place
            begin = place + 1
