"""A tag for every word: entities, parts of speech."""

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

_OF_ENTITIES = ("f1", "precision", "recall")


@dataclass(frozen=True)
class TagSet(ExampleSet):
    """Sentences, and the tags predicted for their words.

    files: that they are from. scheme: by whose prefixes tags mark entities, None if they do not.
    """

    windows: TagFeatures
    sentences: TagSentences
    files: TagFiles
    scheme: Scheme | None

    @property
    def features(self) -> Features:  # type: ignore[override]
        """Of the windows."""
        return self.windows.features

    @property
    def fingerprint(self) -> str:
        """See `ExampleSet`: with the tags that are no labels, which the features leave out."""
        known = frozenset(self.windows.labels)
        tags = self.sentences.tags or []
        unknown = [(i, tag) for i, each in enumerate(tags) for tag in each if tag not in known]
        found = self.features.fingerprint
        return hashlib.sha256(f"{found} {unknown}".encode()).hexdigest() if unknown else found

    @property
    def written_from(self) -> str:
        """See `ExampleSet`: with the lines of the file."""
        return fingerprint_with(self.fingerprint, self.sentences.lines)

    @property
    def num_examples(self) -> int:
        """Sentences, of which long ones are read in several windows."""
        return len(self.sentences)

    @property
    def metrics(self) -> tuple[str, ...]:  # type: ignore[override]
        """See `ExampleSet`."""
        return (*_OF_ENTITIES, "accuracy") if self.scheme else ("accuracy",)

    def tags(self, logits: Logits) -> list[list[str]]:
        """The predicted tag of every word of every sentence."""
        return word_tags(self.windows, logits.argmax(axis=-1))

    def scores(self, logits: Logits) -> dict[str, float]:
        """accuracy of words; for entities their f1, precision and recall before it."""
        return self._scores(self.tags(logits))

    def scores_by_type(self, logits: Logits) -> dict[str, dict[str, float]]:
        """Of entities: precision, recall and f1 of each type, and how many there are."""
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
        """The file's lines with the predicted tags; of CoNLL-U a .conllu again."""
        file = directory / self.file_names(name)[0]
        write_tags(self.files, self.sentences, self.tags(logits), file)
        return [file]

    def _scores(self, tags: list[list[str]]) -> dict[str, float]:
        gold = self.sentences.tags
        assert gold is not None
        found = {"accuracy": tag_accuracy(tags, gold)}
        if self.scheme is None:
            return found
        entities = entity_scores(tags, gold, self.scheme)
        return {name: entities[name] for name in _OF_ENTITIES} | found


@dataclass(frozen=True)
class TagsConfig(FilesTaskConfig):
    """Files of tagged sentences.

    document_context: fill the rest of a window with the sentences around (Devlin et al. 2019,
      section 5.3). A training file must tell documents apart; others that do not have none.
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
        """See `TaskConfig.open`."""
        return _open(self, tokenizer, max_length, splits, labels)

    def matching(self, model: ModelConfig) -> TagsConfig:
        """Return the task with the model's tag scheme: as written for BIOES, BILOU and BMES.

        IOB1 is recognized by a type with I-X but no B-X, since IOB1 writes B-X only between two
        adjacent entities of a type. If every type has both, only the person who trained the model
        knows, and sets learn_as='IOB1': a setting other than the default is kept.
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
        """See `TaskConfig.inference_defaults`: adds whether sentences are read in context."""
        defaults = super().inference_defaults(max_length, data)
        return replace(defaults, document_context=self.document_context)


def _check_scheme(sentences: TagSentences, scheme: Scheme) -> None:
    """Refuses a tag that marks no entity: ValueError naming file and line."""
    assert sentences.tags is not None
    marked: set[str] = set()
    for tags, places in zip(sentences.tags, sentences.locations, strict=True):
        if marked.issuperset(tags):  # places are made where they are asked for
            continue
        for tag, place in zip(tags, places, strict=True):
            try:
                entities_of([tag], scheme)
            except ValueError as error:
                raise ValueError(f"{place}: {error}. Fix the file") from error
            marked.add(tag)


def _open(
    config: TagsConfig,
    tokenizer: Tokenizer,
    max_length: int,
    splits: Collection[Split],
    labels: tuple[str, ...] = (),
) -> TaskData:
    """Reads the files.

    The labels are those given, of a model that is there already, or those of the config, or else
    the tags of the training file. What is judged may have tags that are none of them, which no
    prediction can get right; not if the config names the labels and no model does.

    Raises:
      ValueError: names file and line of what is not as it should be.
    """
    files, train = config.files, "train" in splits
    if labels:
        files = replace(files, labels=())  # what they are is asked of the model, not of the file
    else:
        labels = files.labels
    learned = read_tags(files, "train", labeled=True) if train or not labels else None
    if learned is not None and not labels:
        labels = collect_labels(learned, files.tag or ("UPOS" if files.kind == "conllu" else ""))
    scheme = scheme_of(labels)

    def windows(sentences: TagSentences, *, for_evaluation: bool) -> TagFeatures:
        context = config.document_context
        return tag_features(
            sentences,
            tokenizer,
            max_length,
            labels,
            document_context=context,
            for_evaluation=for_evaluation,
        )

    def read(split: Split) -> TagSet:
        sentences = read_tags(files, split, labeled=split != "test")
        read_in = scheme
        if scheme is not None and sentences.tags is not None:
            # The training file may lack some of the scheme's prefixes.
            there = {tag for tags in sentences.tags for tag in tags}
            read_in = scheme_of([*labels, *there]) or scheme
            _check_scheme(sentences, read_in)
        return TagSet(windows(sentences, for_evaluation=True), sentences, files, read_in)

    return TaskData(
        head=HeadConfig(TAGGING, labels),
        train=windows(learned, for_evaluation=False).features
        if train and learned is not None
        else None,
        validation={"validation": read("validation")} if "validation" in splits else {},
        test={"test": read("test")} if "test" in splits and files.test else {},
        primary="f1" if scheme else "accuracy",
        per_token=True,
    )


TAGS = TaskKind(
    section="tags",
    config=TagsConfig,
    head=TAGGING,
    loss=Tagging,
    predict=TAG,
    huggingface=HuggingFaceTask("ForTokenClassification", "token-classification"),
)
