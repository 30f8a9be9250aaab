"""Define the tagging task, which predicts entities, parts of speech or other tags for words."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

from bert_jax.finetuning.task_data import ExampleSet, HeadConfig, Logits, TaskData, fingerprint_with
from bert_jax.finetuning.task_kind import FilesTaskConfig, HuggingFaceTask, TaskKind
from bert_jax.inference.predict_tasks import TAG
from bert_jax.labeled_data.features import Features
from bert_jax.labeled_data.files import Split
from bert_jax.labeled_data.tag_features import TagFeatures, tag_features, word_tags, write_tags
from bert_jax.labeled_data.tags import TagFiles, TagSentences, collect_labels, read_tags
from bert_jax.models.model import TAGGING, ModelConfig
from bert_jax.runs.work_dir import InferenceDefaults
from bert_jax.tasks.finetuning import Tagging
from bert_jax.tasks.span_scores import (
    Scheme,
    entities_of,
    entity_counts,
    entity_scores,
    scheme_of,
    tag_accuracy,
)
from bert_jax.tokenizers.tokenizer import Tokenizer

_ENTITY_METRICS = ("f1", "precision", "recall")


@dataclass(frozen=True)
class TagSet(ExampleSet):
    """Tagged sentences.

    Attributes:
      windows: the features of the windows that contain the sentences.
      sentences: the sentences and, if they were read, their tags.
      files: the files that the sentences come from.
      scheme: the scheme whose prefixes mark entities, such as IOB2; None if tags have no prefixes.
    """

    windows: TagFeatures
    sentences: TagSentences
    files: TagFiles
    scheme: Scheme | None

    @property
    def features(self) -> Features:  # type: ignore[override]
        """The features of the windows."""
        return self.windows.features

    @property
    def fingerprint(self) -> str:
        """A checksum as in `ExampleSet.fingerprint` that also covers tags unknown to the model."""
        labels = frozenset(self.windows.labels)
        tags = self.sentences.tags or []
        unknown = [(i, tag) for i, row in enumerate(tags) for tag in row if tag not in labels]
        checksum = self.features.fingerprint
        if not unknown:
            return checksum
        return hashlib.sha256(f"{checksum} {unknown}".encode()).hexdigest()

    @property
    def written_from(self) -> str:
        """A checksum as in `ExampleSet.written_from` that also covers the lines of the file."""
        return fingerprint_with(self.fingerprint, self.sentences.lines)

    @property
    def num_examples(self) -> int:
        """The number of sentences; a long sentence is read in multiple windows."""
        return len(self.sentences)

    @property
    def metrics(self) -> tuple[str, ...]:  # type: ignore[override]
        """See `ExampleSet`."""
        return (*_ENTITY_METRICS, "accuracy") if self.scheme else ("accuracy",)

    def tags(self, logits: Logits) -> list[list[str]]:
        """Return the predicted tag for every word, as lists [sentences][words]."""
        return word_tags(self.windows, logits.argmax(axis=-1))

    def scores(self, logits: Logits) -> dict[str, float]:
        """Return word accuracy and, if tags mark entities, their F1, precision and recall."""
        return self._scores(self.tags(logits))

    def scores_by_type(self, logits: Logits) -> dict[str, dict[str, float]]:
        """Return precision, recall, F1 and counts for each entity type."""
        gold = self.sentences.tags
        assert gold is not None
        if self.scheme is None:
            return {}
        counts = entity_counts(self.tags(logits), gold, self.scheme)
        return {kind: row.scores() | row._asdict() for kind, row in counts.items()}

    def chance(self, metric: str) -> float:
        """See `ExampleSet.chance`."""
        sizes = self.windows.sizes.tolist()
        return max(
            self._scores([[label] * size for size in sizes])[metric]
            for label in self.windows.labels
        )

    def file_names(self, name: str) -> list[str]:
        """See `ExampleSet`."""
        return [f"{name}.{'conllu' if self.files.kind == 'conllu' else 'txt'}"]

    def write(self, logits: Logits, directory: Path, name: str) -> list[Path]:
        """Write the file's lines with predicted tags; a CoNLL-U file yields a .conllu file."""
        file = directory / self.file_names(name)[0]
        write_tags(self.files, self.sentences, self.tags(logits), file)
        return [file]

    def _scores(self, tags: list[list[str]]) -> dict[str, float]:
        gold = self.sentences.tags
        assert gold is not None
        accuracy = {"accuracy": tag_accuracy(tags, gold)}
        if self.scheme is None:
            return accuracy
        entities = entity_scores(tags, gold, self.scheme)
        return {name: entities[name] for name in _ENTITY_METRICS} | accuracy


@dataclass(frozen=True)
class TagsConfig(FilesTaskConfig):
    """The config section for files of tagged sentences.

    Attributes:
      files: the files and their format.
      document_context: whether to fill up windows with surrounding sentences (Devlin et al. 2019,
        section 5.3). The training file must mark where documents begin; an evaluation file without
        such marks is read sentence by sentence.
    """

    files: TagFiles
    document_context: bool = False

    def open(
        self,
        tokenizer: Tokenizer,
        max_length: int,
        splits: Collection[Split],
        labels: tuple[str, ...] = (),
    ) -> TaskData:
        """Read and tokenize the files; see `TaskConfig.open`.

        The labels are taken from `labels` if it is not empty, otherwise from the config, and if
        that lists none, from the tags in the training file. Other tags in an evaluation file count
        as errors, unless the labels come from the config: in that case, the file is rejected.
        """
        files = self.files
        if labels:
            # An existing model's labels replace those in the config.
            files = replace(files, labels=())
        labels = labels or files.labels
        training = None
        if not labels or "train" in splits:
            training = read_tags(files, "train", labeled=True)
            column = files.tag or ("UPOS" if files.kind == "conllu" else "")
            labels = labels or collect_labels(training, column)
        scheme = scheme_of(labels)

        def windows(sentences: TagSentences, *, for_evaluation: bool) -> TagFeatures:
            return tag_features(
                sentences,
                tokenizer,
                max_length,
                labels,
                document_context=self.document_context,
                for_evaluation=for_evaluation,
            )

        def read(split: Split) -> TagSet:
            sentences = read_tags(files, split, labeled=split != "test")
            read_in = scheme
            if scheme is not None and sentences.tags is not None:
                # The training file may lack some of the scheme's prefixes.
                present = {tag for tags in sentences.tags for tag in tags}
                read_in = scheme_of([*labels, *present]) or scheme
                _check_scheme(sentences, read_in)
            return TagSet(windows(sentences, for_evaluation=True), sentences, files, read_in)

        def train() -> Features:
            assert training is not None
            return windows(training, for_evaluation=False).features

        primary = "f1" if scheme else "accuracy"
        return self._data(HeadConfig(TAGGING, labels), primary, splits, read, train=train)

    def matching(self, model: ModelConfig) -> TagsConfig:
        """Return the task with the tag scheme that the model's labels suggest.

        BIOES, BILOU and BMES tags are learned as written. IOB1 is recognized if some entity type X
        has I-X but no B-X, since IOB1 writes B-X only between two adjacent entities of the same
        type. If every type has both prefixes, IOB1 cannot be recognized, and the user must set
        learn_as='IOB1'. If `learn_as` is not the default, it is kept.
        """
        if self.files.learn_as != "IOB2":
            return self
        begun = {label[2:] for label in model.labels if label.startswith("B-")}
        if any(label.startswith(("S-", "E-", "U-", "L-", "M-")) for label in model.labels):
            return self._with_files(learn_as="as_written")
        if any(label.startswith("I-") and label[2:] not in begun for label in model.labels):
            return self._with_files(learn_as="IOB1")
        return self

    def inference_defaults(self, max_length: int, data: TaskData) -> InferenceDefaults:
        """Return the settings from `TaskConfig.inference_defaults`, and `document_context`."""
        defaults = super().inference_defaults(max_length, data)
        return replace(defaults, document_context=self.document_context)


def _check_scheme(sentences: TagSentences, scheme: Scheme) -> None:
    """Raise ValueError, naming the file and line, if a tag does not follow the scheme."""
    assert sentences.tags is not None
    marked: set[str] = set()
    for tags, places in zip(sentences.tags, sentences.locations, strict=True):
        # Skip tags that are known to be valid, since computing locations takes time.
        if marked.issuperset(tags):
            continue
        for tag, place in zip(tags, places, strict=True):
            try:
                entities_of([tag], scheme)
            except ValueError as error:
                raise ValueError(f"{place}: {error}. Fix the file") from error
            marked.add(tag)


TAGS = TaskKind(
    section="tags",
    config=TagsConfig,
    head=TAGGING,
    loss=Tagging,
    predict=TAG,
    huggingface=HuggingFaceTask("ForTokenClassification", "token-classification"),
)
