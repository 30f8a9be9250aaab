"""Detect a table's text columns, label column and labels if they are not configured.

Column names take precedence over column contents. An ambiguous table is rejected with a message
that lists its columns and the config keys to set, since a model trained on the wrong column looks
just as confident as one trained on the right column.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import replace

from bert_jax.labeled_data.column_profiles import (
    FEW_CLASSES,
    KEYS,
    ColumnProfile,
    column_profiles,
    kept,
    labels_in,
)
from bert_jax.labeled_data.delimited import format_advice
from bert_jax.labeled_data.files import Split
from bert_jax.labeled_data.sentences import AUTO, DETECT_CLASSES, SentenceFiles
from bert_jax.text.files import is_tfds

logger = logging.getLogger(__name__)

# Column names are compared in lower case, after replacing spaces and hyphens with "_".
_TEXT_NAMES = frozenset(
    "text sentence review content comment tweet body document message utterance".split()
)
_LABEL_NAMES = frozenset(
    "label gold_label class category sentiment target polarity opinion intent emotion topic rating "
    "stars score is_duplicate".split()
)
_PAIR_NAMES = (
    ("premise", "hypothesis"),
    ("sentence1", "sentence2"),
    ("sentence_1", "sentence_2"),
    ("sentence_a", "sentence_b"),
    ("text1", "text2"),
    ("text_1", "text_2"),
    ("text_a", "text_b"),
    ("question1", "question2"),
    ("question_1", "question_2"),
    ("question", "answer"),
    ("question", "sentence"),
    ("question", "passage"),
    ("query", "passage"),
    ("query", "document"),
)
# The column with the longest texts on average is chosen only if its mean text length is at least
# this factor times the next column's mean.
_CLEARLY_LONGER = 2.0


def detect_columns(
    files: SentenceFiles, split: Split = "train", model_labels: Sequence[str] | None = None
) -> SentenceFiles:
    """Detect the columns and labels that are set to "auto" in `files`, and log the results.

    Labels are sorted in ascending order, with integers sorted by value. The result depends only on
    the file's content.

    Args:
        files: the task's files. They are returned unchanged if there is nothing to detect.
        split: the split whose file is inspected. A test file needs no labels.
        model_labels: the labels an existing model predicts, () if it predicts numbers, or None if
            there is no model yet.

    Returns:
        The files, with the detected columns and labels filled in.

    Raises:
        ValueError: the file cannot be read or is ambiguous. The message lists the columns and the
            config keys to set.
    """
    if not files.needs_detection:
        return files
    path = getattr(files, files.source_of(split))
    if not path:
        raise ValueError(
            f"{KEYS}{split} is not set. Set it to the file whose columns should be detected"
        )
    if is_tfds(path):
        raise ValueError(
            f"{path}: columns are detected only in files, not in TensorFlow datasets. Set "
            f"{KEYS}first, second, label and labels (for labels, list the names of the dataset's "
            "labels)"
        )
    table = _Table(path, column_profiles(path, files.form), files)
    label: str | None = files.label
    if label == AUTO:
        label = table.named_label()
    first, second = table.texts(set(files.labels) if label == "" else {label})
    if label is None:
        label = "label" if split == "test" else table.label_by_content({first, second})
    labels = files.labels
    if files.needs_label_detection:
        labels = tuple(model_labels or ())
        if model_labels is None or not (split == "test" or table.fits(label, labels)):
            table.check_mostly_known(label, labels)
            labels = table.labels(label)
    table.check_header([first, second, *([] if split == "test" else [label])])
    detected = replace(files, first=first, second=second, label=label, labels=labels)
    table.report(detected)
    return detected


class _Table:
    """The columns in a file, with methods that choose among them and report ambiguities."""

    def __init__(self, path: str, profiles: Sequence[ColumnProfile], files: SentenceFiles):
        self._path, self._files = path, files
        self._profiles = {profile.name: profile for profile in profiles}

    def named_label(self) -> str | None:
        """Return the only column whose name is typical of labels, or None if there is none."""
        named = self._named(_LABEL_NAMES, self._profiles.values())
        if len(named) > 1:
            raise self._error(f"{_quote(named)} could each be the label", "label")
        return named[0].name if named else None

    def label_by_content(self, texts: Collection[str]) -> str:
        """Return the only column, other than those in `texts`, whose values could be labels."""
        candidates = [
            profile
            for name, profile in self._profiles.items()
            if name not in texts and name != self._files.index and self._may_be_label(profile)
        ]
        if len(candidates) == 1:
            return candidates[0].name
        could = f"{_quote(candidates)} could each be" if candidates else "no column seems to be"
        raise self._error(f"{could} the label", "label")

    def texts(self, others: Collection[str | None]) -> tuple[str, str]:
        """Return the columns with the first and the second text; "" stands for a missing column.

        Args:
            others: the label columns, which cannot be texts.
        """
        first, second = self._files.first, self._files.second
        if first != AUTO:
            return first, "" if second == AUTO else second
        free = [
            profile
            for name, profile in self._profiles.items()
            if name not in {*others, self._files.index} and profile.rows and not profile.numbers
            if not profile.nested
        ]
        names = {_plain(profile.name): profile.name for profile in free}
        pairs = [(names[a], names[b]) for a, b in _PAIR_NAMES if a in names and b in names]
        singles = [p for p in self._named(_TEXT_NAMES, free) if p.name != second]
        match second:
            case "":
                pairs = []
            case "auto":
                singles = [p for p in singles if not any(p.name in pair for pair in pairs)]
            case _:
                pairs = [pair for pair in pairs if pair[1] == second]
                singles = [] if pairs else singles
        if len(pairs) + len(singles) > 1:
            named = [self._profiles[name] for pair in pairs for name in pair] + singles
            raise self._error(f"{_quote(named)} could each be the text", "first", "second")
        if pairs:
            return pairs[0]
        given_second = "" if second == AUTO else second
        return (singles[0].name if singles else self._longest(free)), given_second

    def fits(self, label: str, model_labels: Sequence[str]) -> bool:
        """Return whether a model either predicts numbers or knows all labels in a column."""
        values = self._profile(label).values
        return (
            not model_labels
            or values is not None
            and kept(values, self._files.skip_labels).keys() <= set(model_labels)
        )

    def check_mostly_known(self, label: str, model_labels: Sequence[str]) -> None:
        """Raise ValueError if only some of a column's labels are labels of the model.

        A column with none of the model's labels is accepted, since it presumably belongs to a
        different task.
        """
        counted = self._profile(label).values
        if counted is None:
            return
        values = kept(counted, self._files.skip_labels)
        others = sorted(values.keys() - set(model_labels))
        if others and len(others) < len(values):
            raise ValueError(
                f"{self._path}: {others[0]!r} in the label column {label!r} is not one of the "
                f"model's labels ({', '.join(model_labels)}). Fix the label, or skip such rows "
                f"""with {KEYS}skip_labels="({others[0]!r},)\""""
            )

    def labels(self, label: str) -> tuple[str, ...]:
        """Return a column's labels in ascending order, or () if they are numbers to predict."""
        forced = self._files.labels == DETECT_CLASSES
        return labels_in(self._profile(label), self._path, self._files.skip_labels, forced=forced)

    def check_header(self, columns: Sequence[str]) -> None:
        """Reject a file in which the name of a chosen column is also a value in that column."""
        if not self._files.form.header:
            return
        for profile in (self._profiles[name] for name in columns if name in self._profiles):
            if profile.values is not None and profile.name in profile.values:
                raise ValueError(
                    f"{self._path}:1: the column name {profile.name!r} is also a value in that "
                    "column, so the first line may be an example. If it is, set "
                    f"{KEYS}form.header=False; otherwise, set {self._keys()}"
                )

    def report(self, detected: SentenceFiles) -> None:
        """Log which columns and labels were chosen, and which columns are unused."""
        texts = " and ".join(repr(name) for name in (detected.first, detected.second) if name)
        label_columns = [detected.label] if detected.label else detected.labels
        used = {detected.first, detected.second, detected.index, *label_columns}
        unused = [repr(name) for name in self._profiles if name not in used]
        logger.info(
            "%s: text in %s, label in %s (%s)%s. To change this, set %sfirst, second, label "
            "or labels",
            *(
                self._path,
                texts,
                ", ".join(map(repr, label_columns)),
                _describe_labels(detected.labels),
            ),
            *(f"; not used: {', '.join(unused)}" if unused else "", KEYS),
        )

    def _named(
        self, names: Collection[str], profiles: Collection[ColumnProfile]
    ) -> list[ColumnProfile]:
        given = {self._files.first, self._files.second, self._files.index}
        return [p for p in profiles if _plain(p.name) in names and p.name not in given]

    def _longest(self, free: Sequence[ColumnProfile]) -> str:
        texts = [p for p in free if p.like_text and not self._has_classes(p)]
        texts.sort(key=lambda profile: -profile.mean_length)
        if not texts:
            raise self._error("no column seems to contain text", "first")
        if len(texts) > 1 and texts[0].mean_length < _CLEARLY_LONGER * texts[1].mean_length:
            raise self._error(f"{_quote(texts[:2])} could each be the text", "first", "second")
        return texts[0].name

    def _may_be_label(self, profile: ColumnProfile) -> bool:
        """Return whether a column could be the label column.

        Depending on the config, its values must be numbers, look like classes, or be listed labels.
        """
        if not self._files.labels:
            return profile.numbers and profile.rows > 0
        if self._files.needs_label_detection or profile.nested or profile.values is None:
            return self._has_classes(profile)
        values = kept(profile.values, self._files.skip_labels)
        return bool(values) and values.keys() <= set(self._files.labels)

    def _has_classes(self, profile: ColumnProfile) -> bool:
        if profile.nested or profile.values is None:
            return False
        values = kept(profile.values, self._files.skip_labels)
        few = 2 <= len(values) <= FEW_CLASSES and 2 * len(values) <= sum(values.values())
        return few and (not profile.missing or "" in self._files.skip_labels)

    def _profile(self, name: str) -> ColumnProfile:
        if name not in self._profiles:
            raise self._error(f"no column {name!r}", "label")
        return self._profiles[name]

    def _keys(self, *keys: str) -> str:
        return ", ".join(f"{KEYS}{key}" for key in keys or ("first", "second", "label"))

    def _error(self, problem: str, *keys: str) -> ValueError:
        columns = ", ".join(map(_describe_column, list(self._profiles.values())[:20])) or "none"
        header, form = "", self._files.form.resolve(self._path)
        if form.header and form.kind in ("csv", "tsv"):
            header = f", or {KEYS}form.header=False if its first line is an example"
            if advice := format_advice(list(self._profiles) or [""], form):
                return ValueError(f"{self._path}: {problem}. Its columns are {columns}. {advice}")
        return ValueError(
            f"{self._path}: {problem}. Its columns are {columns}. Set {self._keys(*keys)}{header}"
        )


def _plain(name: str) -> str:
    return name.strip().casefold().replace(" ", "_").replace("-", "_")


def _quote(profiles: Sequence[ColumnProfile]) -> str:
    return " and ".join(repr(profile.name) for profile in profiles)


def _describe_column(profile: ColumnProfile) -> str:
    if profile.like_text:
        return f"{profile.name!r} (text of {profile.mean_length:.0f} characters)"
    count = "many" if profile.values is None else f"{len(profile.values):,}"
    kind = "numbers" if profile.numbers and profile.rows else "values"
    return f"{profile.name!r} ({count} distinct {kind})"


def _describe_labels(labels: Sequence[str]) -> str:
    if not labels:
        return "numbers"
    few = ", ".join(map(repr, labels[:10])) + (", ..." if len(labels) > 10 else "")
    return f"{len(labels)} classes: {few}"
