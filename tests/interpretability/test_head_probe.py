"""Compare the probe with the method of Clark et al. 2019 applied to Hugging Face's attention."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
import transformers

from bert_jax.interpretability.head_probe import DIRECTIONS, OFFSETS, probe_heads
from bert_jax.labeled_data.treebank import ParsedSentence, Treebank, read_treebank

SENTENCES = [
    (("the", "dog", "'s", "tail", "is", "wet"), (1, 3, 1, 5, 5, -1)),
    (("it", "rains", "on", "wet", "roads"), (1, -1, 4, 4, 1)),
    (("rain", "falls"), (1, -1)),
]
RELATIONS = [
    ("det", "nmod:poss", "case", "nsubj", "cop", "root"),
    ("nsubj", "root", "case", "amod", "obl"),
    ("nsubj", "root"),
]


@pytest.fixture(scope="module")
def treebank(tmp_path_factory) -> Treebank:
    sentences = [
        ParsedSentence(words, np.array(heads), relations, ("X",) * len(words))
        for (words, heads), relations in zip(SENTENCES, RELATIONS, strict=True)
    ]
    return Treebank(tmp_path_factory.mktemp("treebank"), sentences, 0, 0)


def word_attention(directory, words):
    """Compute Hugging Face's attention between words [layers, heads, words, words] using loops."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    model = transformers.AutoModel.from_pretrained(directory, attn_implementation="eager")
    inputs = tokenizer(list(words), is_split_into_words=True, return_tensors="pt")
    with torch.no_grad():
        attention = torch.stack(model(**inputs, output_attentions=True).attentions)[:, 0].numpy()
    tokens = [[] for _ in words]
    for token, word in enumerate(inputs.word_ids()):
        if word is not None:
            tokens[word].append(token)
    result = np.zeros((*attention.shape[:2], len(words), len(words)))
    for source, rows in enumerate(tokens):
        for target, columns in enumerate(tokens):
            block = attention[:, :, rows][:, :, :, columns]
            result[:, :, source, target] = block.sum(axis=3).mean(axis=2)
    return result


def test_accuracies_equal_the_procedure_of_clark_et_al(import_pair, treebank):
    source, work_dir = import_pair("Bert", "encoder")
    probe = probe_heads(work_dir, treebank)
    correct = {name: np.zeros((2, 2, 4)) for name in probe.relations}
    offsets = {name: np.zeros(len(OFFSETS)) for name in probe.relations}
    counts = dict.fromkeys(probe.relations, 0)
    for sentence in treebank.sentences:
        attention = word_attention(source, sentence.words)
        for number, (head, relation) in enumerate(
            zip(sentence.heads, sentence.relations, strict=True)
        ):
            predictor = number
            if relation == "nmod:poss" and sentence.words[number + 1] == "'s":
                predictor = number + 1  # This follows section 4.2 of the paper.
            for name in ("all", relation):
                counts[name] += 1
                for layer, index in np.ndindex(2, 4):
                    for direction in range(2):
                        weights = attention[layer, index]
                        weights = weights[predictor] if direction == 0 else weights[:, predictor]
                        others = [w if i != predictor else -1 for i, w in enumerate(weights)]
                        correct[name][direction, layer, index] += np.argmax(others) == head
                if head >= 0:
                    offsets[name] += np.array(OFFSETS) == head - number
    for number, name in enumerate(probe.relations):
        assert probe.counts[number] == counts[name]
        np.testing.assert_allclose(probe.accuracies[:, number], correct[name] / counts[name])
        np.testing.assert_allclose(probe.offset_accuracies[number], offsets[name] / counts[name])


def test_the_best_head_has_the_highest_accuracy(import_pair, treebank, tmp_path):
    probe = probe_heads(import_pair("Bert", "encoder")[1], treebank)
    assert "root" not in {best.relation for best in probe.best(1)}
    for best in probe.best(1):
        number = probe.relations.index(best.relation)
        assert best.accuracy == probe.accuracies[:, number].max()
        direction = DIRECTIONS.index(best.direction)
        assert probe.accuracies[direction, number, best.layer, best.head] == best.accuracy
    assert [best.relation for best in probe.best(3)] == ["all", "nsubj"]
    probe.save(tmp_path / "probe.json")
    saved = json.loads((tmp_path / "probe.json").read_text(encoding="utf-8"))
    assert saved["relations"]["nsubj"]["count"] == 3
    found = np.array(saved["relations"]["det"]["dependent to head"])
    expected = probe.accuracies[0, probe.relations.index("det")]
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_sentences_that_cannot_be_used_are_counted(import_pair, treebank):
    work_dir = import_pair("Bert", "encoder")[1]
    long = ParsedSentence(("rain",) * 50, np.zeros(50, int), ("dep",) * 50, ("X",) * 50)
    dropped = ParsedSentence(("a", "\u200b"), np.array([-1, 0]), ("root", "dep"), ("X", "X"))
    both = Treebank(treebank.path, [*treebank.sentences, long, dropped], 0, 0)
    probe = probe_heads(work_dir, both)
    assert probe.num_sentences == 3
    assert probe.skipped == {
        "longer than the model's 40 tokens": 1,
        "with a word for which the tokenizer has no token": 1,
    }
    with pytest.raises(
        ValueError, match="none of the sentences can be used; .*longer than the model's 40"
    ):
        probe_heads(work_dir, Treebank(treebank.path, [long], 0, 0))


def test_the_command_prints_the_best_heads(bert_jax_here, import_pair, tmp_path):
    file, output = tmp_path / "x.conllu", tmp_path / "probe.json"
    rows = ["1\tit\t_\tPRON\t_\t_\t2\tnsubj\t_\t_", "2\train\t_\tVERB\t_\t_\t0\troot\t_\t_", ""]
    file.write_text("\n".join(rows * 2) + "\n", encoding="utf-8")
    work_dir = import_pair("Bert", "encoder")[1]
    words = ["--treebank", file, "--min-count", "2", "--output", output]
    printed = bert_jax_here("probe", work_dir, *words)
    assert printed.code == 0, printed.errors
    probe = probe_heads(work_dir, read_treebank(file))
    assert printed.output == "\n".join(probe.lines(2)) + "\n"
    assert output.is_file()
