"""Tag the words in texts, and extract the entities that the tags mark."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, overload

import jax
import numpy as np
from numpy.typing import NDArray

from bert_jax.inference.predictor import Outputs, Predictor, Row, as_list, check_strings
from bert_jax.labeled_data.tag_features import TagFeatures, tag_features
from bert_jax.labeled_data.tags import TagSentences
from bert_jax.models.model import Model, infer
from bert_jax.tasks.span_scores import entities_of, scheme_of
from bert_jax.tasks.task import Batch
from bert_jax.tokenizers.words import Word, split_words

logger = logging.getLogger(__name__)

Words = str | Sequence[str]


@dataclass(frozen=True)
class TaggedWord:
    """A word with its most probable tag.

    Attributes:
      text: the input's characters from `start` to `end`.
      start: the offset of the first character.
      end: the offset after the last character.
      tag: the most probable tag.
      probability: the tag's probability.
    """

    text: str
    start: int
    end: int
    tag: str
    probability: float


@dataclass(frozen=True)
class TaggedEntity:
    """An entity of one or more words.

    Attributes:
      type: the entity's type.
      text: the input's characters from `start` to `end`.
      start: the offset of the first character.
      end: the offset after the last character.
    """

    type: str
    text: str
    start: int
    end: int


@dataclass(frozen=True)
class TaggedText:
    """A text's words with their tags.

    Attributes:
      words: the words with their tags, in text order.
      entities: the entities that the tags mark; None if the tags do not have the prefixes of IOB,
        BIOES, BILOU or BMES.
    """

    words: tuple[TaggedWord, ...]
    entities: tuple[TaggedEntity, ...] | None


class _Split(NamedTuple):
    text: str
    words: list[Word]


class Tag(Predictor):
    """Tags the words in texts of any length.

    >>> tag = Tag("runs/wnut17")                                              # doctest: +SKIP
    >>> tag("Matt lives in Canada").entities                                  # doctest: +SKIP
    (TaggedEntity(type='person', text='Matt', start=0, end=4), ...)
    """

    heads = ("tagging",)
    purpose = "tag words"
    made_by = "`bj.finetune`"
    _warned = False

    @overload
    def __call__(self, text: str | tuple[str, ...]) -> TaggedText: ...
    @overload
    def __call__(self, text: list[str] | list[Sequence[str]] | list[Words]) -> list[TaggedText]: ...
    def __call__(
        self, text: str | tuple[str, ...] | list[str] | list[Sequence[str]] | list[Words]
    ) -> TaggedText | list[TaggedText]:
        """Tag a text, or each text in a list.

        The tokenizer splits a string into words and separates all punctuation marks, so that
        "U.S.A." becomes six words. Many data sets split texts less finely. If your text is already
        split into words, pass them as a tuple of strings or, in a list of texts, as any sequence of
        strings. `start` and `end` are then offsets into the words joined by spaces. A text that is
        too long is split into parts. Each part is tagged with as much of the surrounding text as
        fits.

        Args:
          text: a text as a string or as a tuple of words, or a list of texts.

        Raises:
          ValueError: the argument is not a string, a tuple or a list.
          UnusableText: a text is not a string or a sequence of strings, or is not valid Unicode.
        """
        if isinstance(text, (str, tuple)):
            return self._tag([text])[0]
        return self._tag(as_list(text, "a string, a tuple of words or a list of them"))

    def document(self, sentences: Sequence[Words]) -> list[TaggedText]:
        """Tag consecutive sentences, each with as much of the surrounding document as fits.

        Models fine-tuned with `document_context` were trained this way. Sentences and results have
        the same form as when the tagger is called with a list of texts.

        Args:
          sentences: the sentences, in document order.

        Raises:
          ValueError: the argument is not a list.
          UnusableText: a sentence is not a string or a sequence of strings, or is not valid
            Unicode.
        """
        items = as_list(sentences, "a list of sentences, each a string or a list of words")
        return self._tag(items, one_document=True)

    def _tag(self, texts: Sequence[Words], *, one_document: bool = False) -> list[TaggedText]:
        context = self.defaults is not None and self.defaults.document_context
        if context and not one_document and not self._warned:
            self._warned = True
            logger.warning(
                "the model was trained on sentences within their documents, but these texts have "
                "no surrounding sentences. Pass whole documents (Tag.document, or the field "
                '"sentences" of JSON Lines)'
            )
        check_words(texts)
        splits = self._split(texts)
        tags = iter(self._tags([words for _, words in splits if words], one_document))
        return [self._result(split, next(tags) if split.words else []) for split in splits]

    def _split(self, texts: Sequence[Words]) -> list[_Split]:
        words_of_strings = iter(
            split_words(self.tokenizer, [text for text in texts if isinstance(text, str)])
        )
        return [
            _Split(text, next(words_of_strings)) if isinstance(text, str) else _join(text)
            for text in texts
        ]

    def _tags(
        self, sentences: Sequence[Sequence[Word]], one_document: bool
    ) -> list[list[tuple[str, float]]]:
        """Return the tag and probability of each word; no sentence may be empty."""
        if not sentences:
            return []
        features = tag_features(
            TagSentences(
                [[word.text for word in words] for words in sentences],
                documents=[0] * len(sentences) if one_document else None,
            ),
            self.tokenizer,
            self.max_length,
            self.config.labels,
            document_context=one_document,
        )
        rows = self._run(_best_tags, features.features)
        lengths = features.features.lengths
        tags = _at_words(features, rows, lengths, "tags").tolist()
        probabilities = _at_words(features, rows, lengths, "probabilities").tolist()
        pairs = iter(zip(tags, probabilities, strict=True))
        return [
            [(self.config.labels[tag], p) for _, (tag, p) in zip(words, pairs, strict=False)]
            for words in sentences
        ]

    def _result(self, split: _Split, tags: Sequence[tuple[str, float]]) -> TaggedText:
        words = tuple(
            TaggedWord(*word, tag, p) for word, (tag, p) in zip(split.words, tags, strict=True)
        )
        scheme = scheme_of(self.config.labels)
        if scheme is None:
            return TaggedText(words, None)
        spans = [
            (entity.type, words[entity.start].start, words[entity.end].end)
            for entity in entities_of([word.tag for word in words], scheme)
        ]
        entities = (TaggedEntity(t, split.text[start:end], start, end) for t, start, end in spans)
        return TaggedText(words, tuple(entities))


def check_words(texts: Sequence[Words]) -> None:
    """Raise `UnusableText` if a text or a word is not a string or is not valid Unicode."""
    check_strings([text if isinstance(text, (tuple, list)) else [text] for text in texts])


def _join(words: Sequence[str]) -> _Split:
    located, start = [], 0
    for word in words:
        located.append(Word(word, start, start + len(word)))
        start += len(word) + 1
    return _Split(" ".join(words), located)


def _at_words(
    features: TagFeatures, rows: Sequence[Row], lengths: NDArray[np.int64], name: str
) -> NDArray:
    """Return one of the model's outputs at the scored token of each word, sentence by sentence."""
    tokens = np.concatenate(
        [row[name][:length] for row, length in zip(rows, lengths.tolist(), strict=True)]
    )
    order = np.lexsort((features.words, features.sentences))
    return tokens[features.positions[order]]


@jax.jit
def _best_tags(model: Model, batch: Batch) -> Outputs:
    outputs = infer(model, batch["token_ids"], batch["segment_ids"], batch["attention_mask"])
    probabilities = jax.nn.softmax(outputs["logits"], axis=-1)
    return {"tags": probabilities.argmax(axis=-1), "probabilities": probabilities.max(axis=-1)}
