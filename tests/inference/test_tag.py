"""Compare tags and entities with those from Hugging Face's pipeline."""

from __future__ import annotations

import json
import shutil

import pytest
import transformers
from seqeval.metrics.sequence_labeling import get_entities

from bert_jax import Tag
from bert_jax.cli.main import main
from bert_jax.inference.predictor import UnusableText
from bert_jax.tasks.span_scores import scheme_of

TEXTS = [
    "Matt lives in Canada, and Sinan in California.",
    "",
    "\u6771\u4eac caf\u00e9 Cafe\u0301! \x00",
    "a",
    " \u200b\x07",
    "x-ray 3.5 [MASK]",
]


@pytest.fixture(scope="module")
def model(model_pair):
    return model_pair("tagging", max_position_embeddings=64)


@pytest.fixture(scope="module")
def tag(model) -> Tag:
    return Tag(model.ours)


@pytest.fixture(scope="module")
def pipeline(model):
    return lambda strategy: transformers.pipeline(
        "token-classification",
        model=transformers.BertForTokenClassification.from_pretrained(model.theirs),
        tokenizer=transformers.AutoTokenizer.from_pretrained(model.theirs),
        aggregation_strategy=strategy,
        ignore_labels=[],
    )


def test_the_tags_of_first_pieces_match_hugging_face(tag, pipeline):
    texts = TEXTS[:1] + TEXTS[2:4]
    theirs = pipeline("none")
    for text, tagged in zip(texts, tag(texts), strict=True):
        pieces = {piece["start"]: piece for piece in reversed(theirs(text))}
        assert tagged.words
        for word in tagged.words:
            assert word.tag == pieces[word.start]["entity"]
            assert word.probability == pytest.approx(pieces[word.start]["score"], abs=1e-5)
            assert word.text == text[word.start : word.end]


def test_entities_match_the_groups_of_hugging_face(tag, pipeline):
    # The pipeline also returns groups of "O" tags. Both in the pipeline and here, an I- tag begins
    # a new group if the previous tag has a different type.
    theirs = pipeline("first")
    found = 0
    for text in [" ".join(TEXTS[0].split()[first:]) for first in range(6)]:
        expected = [
            (group["entity_group"], group["start"], group["end"])
            for group in theirs(text)
            if group["entity_group"] != "O"
        ]
        entities = tag(text).entities
        assert [(e.type, e.start, e.end) for e in entities] == expected
        assert all(e.text == text[e.start : e.end] for e in entities)
        found += len(entities)
    assert found > 5


def test_document_gives_sentences_their_context(tag):
    sentences = ["Matt lives in Canada.", "", "And Sinan in California,", ("since", "May", ".")]
    words = [[word.text for word in tagged.words] for tagged in tag(sentences)]
    # The whole document fits into one window, so each word is scored once.
    together = tag(tuple(word for each in words for word in each))
    found = tag.document(sentences)
    assert [[word.text for word in tagged.words] for tagged in found] == words
    expected = [(word.tag, pytest.approx(word.probability, abs=1e-6)) for word in together.words]
    assert [(word.tag, word.probability) for tagged in found for word in tagged.words] == expected
    single = [word.probability for tagged in tag(sentences) for word in tagged.words]
    assert (
        max(abs(one - other.probability) for one, other in zip(single, together.words, strict=True))
        > 1e-3
    )
    assert tag.document([]) == []


def test_the_context_is_limited_to_a_window(tag):
    sentences = [("Matt", "lives", "in", "California", str(number)) for number in range(40)]

    def middle(**changed: str) -> list[float]:
        words = [(changed.get(last, first), *rest, last) for first, *rest, last in sentences]
        return [word.probability for word in tag.document(words)[20].words]

    assert middle(**{"21": "Sinan"}) != middle()
    assert middle(**{"0": "Sinan", "39": "Sinan"}) == middle()


def test_texts_without_words_have_no_tags(tag):
    tagged = tag(TEXTS)
    assert [len(each.words) for each in tagged] == [10, 0, 5, 1, 0, 9]
    assert tagged[1].entities == tagged[4].entities == ()
    assert tag([]) == [] and tag("").words == ()
    assert tagged[2].words[3].text == "Cafe\u0301"


def test_given_words_are_not_split(tag):
    words = ("Matt", "lives", "in", "New York", "\u200b", "")
    tagged = tag(words)
    assert [word.text for word in tagged.words] == list(words)
    assert [word.start for word in tagged.words] == [0, 5, 11, 14, 23, 25]
    assert tag([list(words)]) == [tagged]
    split = tag(["Matt lives in Canada", ["Matt", "lives", "in", "Canada"]])
    assert split[0] == split[1]


def test_a_long_text_is_tagged_to_its_end(tag, pipeline):
    text = TEXTS[0] + " and so on" * 60 + " Matt"
    tagged = tag(text)
    assert len(tagged.words) == 191 and tagged.words[-1].text == "Matt"
    assert tagged.words[-1].end == len(text)
    # A text's windows do not depend on the other texts.
    for found, single in zip(tag([text, TEXTS[0], text]), (text, TEXTS[0], text), strict=True):
        expected = tag(single).words
        assert [word.tag for word in found.words] == [word.tag for word in expected]
        assert [word.probability for word in found.words] == pytest.approx(
            [word.probability for word in expected], abs=1e-6
        )


def test_sentences_without_documents_give_one_warning(model_pair, tmp_path, caplog):
    model = shutil.copytree(model_pair("tagging").ours, tmp_path / "model")
    content = json.loads((model / "model.json").read_text())
    content["usage"] = {"max_length": 40, "document_context": True}
    (model / "model.json").write_text(json.dumps(content))
    tag = Tag(model)
    tag.document(TEXTS)
    assert not caplog.records
    tag(TEXTS), tag(TEXTS[0])
    (warning,) = caplog.messages
    assert "the model was trained on sentences within their documents" in warning


def test_entities_depend_on_the_label_prefixes(model_pair, tag):
    assert scheme_of(["O", "B-PER", "I-PER"]) == "IOB2"
    assert scheme_of(["O", "I-PER"]) == "IOB2"
    assert scheme_of(["O", "B-PER", "S-PER", "E-PER", "I-PER"]) == "BIOES"
    assert scheme_of(["NOUN", "VERB"]) is None and scheme_of(["B-A", "VERB"]) is None
    nouns = {0: "NOUN", 1: "VERB", 2: "ADJ"}
    numbers = {name: number for number, name in nouns.items()}
    plain = Tag(model_pair("tagging", id2label=nouns, label2id=numbers).ours)("a b")
    assert plain.entities is None and {word.tag for word in plain.words} <= set(nouns.values())


@pytest.mark.parametrize("letters", ["ILU", "MES"])
def test_entities_of_bilou_and_bmes_match_seqeval(model_pair, letters, tmp_path):
    """Compare entities with seqeval's after exporting a tagger and importing it again."""
    inside, last, single = letters
    labels = ["O", *(f"{prefix}-PER" for prefix in ("B", inside, last, single))]
    numbers = {label: number for number, label in enumerate(labels)}
    model = model_pair("tagging", id2label=dict(enumerate(labels)), label2id=numbers).ours
    exported, again = tmp_path / "exported", tmp_path / "again"
    assert main(["export", str(model), "--format", "huggingface", "--output", str(exported)]) == 0
    assert main(["import", str(exported), "--output", str(again)]) == 0
    texts = [" ".join(TEXTS[0].split()[first:]) for first in range(8)]
    to_bioes = str.maketrans(letters, "IES")
    found = 0
    for tagged in Tag(again)(texts):
        tags = [word.tag[:1].translate(to_bioes) + word.tag[1:] for word in tagged.words]
        expected = [
            (kind, tagged.words[first].start, tagged.words[last].end)
            for kind, first, last in get_entities(tags)
        ]
        assert [(e.type, e.start, e.end) for e in tagged.entities] == expected
        found += len(expected)
    assert found > 5


def test_wrong_arguments_are_refused(model_pair, tag):
    with pytest.raises(UnusableText, match="^text 1 of 2: expected a string, got .* int$"):
        tag(["a", ["b", 3]])
    with pytest.raises(UnusableText, match="^text 1 of 2: expected a string, got .* NoneType$"):
        tag(["a", None])
    for wrong in (None, 5, {"words": ["a"]}):
        with pytest.raises(ValueError, match="expected a string, a tuple of words or a list of th"):
            tag(wrong)
    for wrong in ("abc", None):
        with pytest.raises(ValueError, match="expected a list of sentences, each a string or a l"):
            tag.document(wrong)
    with pytest.raises(
        ValueError, match="does not tag words. It classifies texts: use `bj.Classify`"
    ):
        Tag(model_pair("classification").ours)
