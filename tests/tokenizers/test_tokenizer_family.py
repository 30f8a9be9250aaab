"""Compare RoBERTa and ALBERT tokenizers with Hugging Face's, and test how they split words."""

import json
import lzma
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
import transformers
from sentencepiece import sentencepiece_model_pb2
from tokenizers import AddedToken, pre_tokenizers

from bert_jax.corpus.packing import tokenize_document
from bert_jax.labeled_data.sentences import SentenceExamples, sentence_features
from bert_jax.labeled_data.span_windows import span_windows
from bert_jax.labeled_data.squad import SpanExample
from bert_jax.tokenizers.special_tokens import Vocabulary
from bert_jax.tokenizers.tokenizer import Tokenizer
from bert_jax.tokenizers.tokenizer_json import continues_word

from .test_tokenizer import assert_same_ids, torture_lines

SENTENCE = "Don't panic: the towels were re-washed, naïvely."


@pytest.fixture(scope="module")
def roberta(shared_data: Path) -> Path:
    return shared_data / "vocab/roberta-base/vocab.json"


@pytest.fixture(scope="module")
def albert(shared_data: Path) -> Path:
    return shared_data / "vocab/albert-30k/spiece.model"


def reference_roberta(file: Path) -> transformers.RobertaTokenizer:
    # As in the release's tokenizer_config.json, the mask token includes the space before it.
    mask = AddedToken("<mask>", lstrip=True, special=True)
    merges = str(file.with_name("merges.txt"))
    return transformers.RobertaTokenizer(vocab=str(file), merges=merges, mask_token=mask)


def reference_albert(file: Path, **settings: bool) -> transformers.AlbertTokenizer:
    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString(file.read_bytes())
    # The scores of pieces such as "2," are lowered as they are in transformers' AlbertConverter,
    # which was used to convert the release to a tokenizer.json.
    scored = [
        (p.piece, p.score - 100 * (p.piece[-1:] == "," and p.piece[-2:-1].isdigit()))
        for p in proto.pieces
    ]
    charsmap = proto.normalizer_spec.precompiled_charsmap
    return transformers.AlbertTokenizer(
        vocab=scored, _spm_precompiled_charsmap=charsmap, **settings
    )


def test_byte_bpe_gives_robertas_ids(roberta):
    tokenizer, reference = Tokenizer.load(roberta), reference_roberta(roberta)
    assert (tokenizer.kind, tokenizer.vocab_size, tokenizer.lowercase) == (
        "byte_bpe",
        50_265,
        False,
    )
    assert tokenizer.special_ids == (1, 3, 0, 2, 50_264)
    assert tokenizer.vocabulary == reference.get_vocab()
    assert_same_ids(tokenizer, reference, torture_lines())
    assert tokenizer.decode(tokenizer.encode_batch([SENTENCE])[0]) == SENTENCE


@pytest.mark.parametrize("form", ["vocab.json", "tokenizer.json"])
def test_add_prefix_space_is_read_from_tokenizer_config(roberta, form, tmp_path):
    """Check that tokenizer_config.json takes precedence over tokenizer.json."""
    if form == "vocab.json":
        for name in ("vocab.json", "merges.txt"):
            (tmp_path / name).write_bytes(roberta.with_name(name).read_bytes())
    else:
        Tokenizer.load(roberta).save(tmp_path)
    config = {"tokenizer_class": "RobertaTokenizer", "add_prefix_space": True}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = Tokenizer.load(tmp_path / form)
    mask = AddedToken("<mask>", lstrip=True, special=True)
    files = dict(vocab=str(roberta), merges=str(roberta.with_name("merges.txt")))
    reference = transformers.RobertaTokenizer(**files, mask_token=mask, add_prefix_space=True)
    assert_same_ids(tokenizer, reference, torture_lines())
    plain = Tokenizer.load(roberta)
    assert tokenizer.encode_batch(["hello"]) == plain.encode_batch([" hello"])
    assert tokenizer.fingerprint != plain.fingerprint
    tokenizer.save(tmp_path / "saved")
    for path in (tmp_path / "saved", tmp_path / "saved/vocab.json"):
        assert Tokenizer.load(path).fingerprint == tokenizer.fingerprint
    reference = transformers.AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert_same_ids(tokenizer, reference, torture_lines())


def test_a_tokenizer_class_that_splits_text_differently_is_refused(tmp_path):
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n")
    for name in ("BertTokenizer", "DistilBertTokenizerFast", "PreTrainedTokenizerFast", None):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": name}))
        assert Tokenizer.load(tmp_path).vocab_size == 6
    other = {"tokenizer_class": "BertJapaneseTokenizer"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(other))
    with pytest.raises(ValueError, match="tokenizer_class='BertJapaneseTokenizer' .* splits text"):
        Tokenizer.load(tmp_path)


def test_sentencepiece_gives_alberts_ids(albert, tmp_path):
    tokenizer, reference = Tokenizer.load(albert), reference_albert(albert)
    assert (tokenizer.kind, tokenizer.vocab_size, tokenizer.lowercase) == (
        "sentencepiece",
        30_000,
        True,
    )
    assert tokenizer.special_ids == (0, 1, 2, 3, 4)
    assert_same_ids(tokenizer, reference, torture_lines())
    cased = Tokenizer.load(albert, lowercase=False)
    assert not cased.lowercase and cased.fingerprint != tokenizer.fingerprint
    assert_same_ids(cased, reference_albert(albert, do_lower_case=False), torture_lines())
    (tmp_path / "spiece.model").write_bytes(albert.read_bytes())
    config = {"do_lower_case": False, "keep_accents": True}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert_same_ids(Tokenizer.load(tmp_path), reference_albert(albert, **config), torture_lines())


def test_sentencepiece_agrees_with_its_library_on_prose(albert, shared_data):
    """Compare lines without numbers, since ALBERT's code splits "2," and the library does not."""
    processor = sentencepiece.SentencePieceProcessor(model_file=str(albert))
    with lzma.open(shared_data / "wikitext2_eval/valid.txt.xz", "rt") as file:
        lines = file.read().lower().split("\n")
    plain = [line for line in lines if line.isascii() and not set(line) & set("0123456789<")]
    plain = [line.replace("''", '"').replace("``", '"').strip() for line in plain]
    plain = [line for line in plain if line][:400]
    assert len(plain) == 400
    assert Tokenizer.load(albert).encode_batch(plain) == processor.encode(plain)


@pytest.mark.parametrize("name", ["roberta", "albert"])
def test_a_saved_directory_loads_in_transformers_and_in_this_package(name, request, tmp_path):
    tokenizer = Tokenizer.load(request.getfixturevalue(name))
    tokenizer.save(tmp_path)
    reference = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert_same_ids(tokenizer, reference, torture_lines())
    assert (
        reference.pad_token_id, reference.unk_token_id, reference.cls_token_id,
        reference.sep_token_id, reference.mask_token_id,
    ) == tokenizer.special_ids  # fmt: skip
    reloaded = Tokenizer.load(tmp_path)
    assert reloaded.fingerprint == tokenizer.fingerprint
    assert reloaded.encode_batch(torture_lines()) == tokenizer.encode_batch(torture_lines())
    if name == "roberta":
        assert_same_ids(Tokenizer.load(tmp_path / "vocab.json"), reference, torture_lines())


@pytest.mark.parametrize("name", ["roberta", "albert"])
def test_words_begin_at_spaces_and_at_punctuation(name, request):
    tokenizer = Tokenizer.load(request.getfixturevalue(name))
    ids = np.array(tokenizer.encode_batch([SENTENCE])[0])
    continues = Vocabulary.of(tokenizer).continues_word()[ids]
    continues[0] = False
    located = tokenizer.encode_with_offsets([SENTENCE])[0]
    starts, ends = located.offsets.T
    bounds = np.append(np.flatnonzero(~continues), len(ids))
    words = [
        SENTENCE[starts[a] : ends[b - 1]].strip()
        for a, b in zip(bounds[:-1], bounds[1:], strict=True)
    ]
    apostrophe = ["Don't"] if name == "roberta" else ["Don", "'t"]
    assert [word for word in words if word] == [
        *apostrophe, "panic", ":", "the", "towels", "were", "re", "-washed", ",", "naïvely", ".",
    ]  # fmt: skip


@pytest.mark.parametrize("kind", ["byte_bpe", "sentencepiece"])
def test_pieces_are_words_in_scripts_without_spaces(kind):
    """Split these scripts as BERT splits ideographs, so that no line becomes a single word."""
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False)

    def continues(text: str) -> bool:
        if kind == "byte_bpe":
            text = "".join(piece for piece, _ in to_bytes.pre_tokenize_str(text))
        return continues_word(text, kind)

    for text in ("\u4e2d\u56fd", "\u306e", "\u30ab\u30bf", "\u0e01\u0e32", "\u1780"):
        assert not continues(text)
    # Hangul has spaces between words, and a Thai vowel sign belongs to its consonant.
    for text in ("\ud55c", "ing", "\u0436", "\u0e35"):
        assert continues(text)


def test_a_part_of_a_character_belongs_to_its_word(roberta):
    tokenizer = Tokenizer.load(roberta)
    ids = tokenizer.encode_batch(["a \u0f40\u0f41\u0f42"])[0]
    continues = Vocabulary.of(tokenizer).continues_word()[ids]
    assert len(ids) > 4 and not continues[1] and continues[2:].all()


def test_random_replacements_exclude_special_and_unused_tokens(roberta, albert):
    tokenizer = Tokenizer.load(roberta)
    drawn = {tokenizer.id_to_token(i) for i in tokenizer.random_ids.tolist()}
    assert not drawn & {*tokenizer.specials.tokens, "madeupword0000", "madeupword0001"}
    assert len(drawn) == 50_265 - 5 - 3
    assert len(Tokenizer.load(albert).random_ids) == 30_000 - 5


def test_the_mask_includes_the_space_before_it(roberta):
    tokenizer = Tokenizer.load(roberta)
    ids = tokenizer.encode_batch(["The <mask> of the sea"])[0]
    assert [tokenizer.id_to_token(i) for i in ids] == ["The", "<mask>", "Ġof", "Ġthe", "Ġsea"]
    assert tokenizer.mask_id not in tokenizer.encode_batch(["<mask>"], specials_as_text=True)[0]


def test_sentences_have_the_same_tokens_as_in_their_document(roberta, shared_data):
    tokenizer = Tokenizer.load(roberta)
    with lzma.open(next((shared_data / "corpus_small").glob("*.xz")), "rt") as file:
        texts = [
            json.loads(line)["text"][:20_000] for line, _ in zip(file, range(10), strict=False)
        ]
    for text in texts:
        ids, starts = tokenize_document(text, tokenizer, "en", np.dtype(np.int32))
        assert ids.tolist() == tokenizer.encode_batch([" ".join(text.split())])[0]
        assert len(starts) > 5
        firsts = [tokenizer.id_to_token(i) for i in ids[starts[1:]].tolist()]
        assert all(token.startswith("Ġ") for token in firsts)


PAIRS = [("Where does Matt live?", "Matt lives in Canada"), ("It rains.", "wet " * 40)]


@pytest.mark.parametrize("name", ["roberta", "albert"])
def test_pairs_match_hugging_face(name, request):
    file = request.getfixturevalue(name)
    tokenizer = Tokenizer.load(file)
    reference = reference_roberta(file) if name == "roberta" else reference_albert(file)
    examples = SentenceExamples(
        firsts=[first for first, _ in PAIRS],
        seconds=[second for _, second in PAIRS],
        labels=None,
        ids=["0", "1"],
        locations=["a:1", "a:2"],
    )
    batch = sentence_features(examples, tokenizer, 24, ()).batch(np.arange(2), 24)
    expected = reference(*zip(*PAIRS, strict=True), truncation=True, max_length=24, padding=True)
    expected = [
        [token for token, attended in zip(row, mask, strict=True) if attended]
        for row, mask in zip(expected["input_ids"], expected["attention_mask"], strict=True)
    ]
    for row, mask, ids in zip(batch["token_ids"], batch["attention_mask"], expected, strict=True):
        assert row[mask == 1].tolist() == ids


def test_questions_and_passages_match_hugging_face(roberta):
    tokenizer, reference = Tokenizer.load(roberta), reference_roberta(roberta)
    question, passage = (
        "Where does Matt live?",
        "Matt lives in Canada and Sinan in California. " * 9,
    )
    example = SpanExample("q", question, passage, "title")
    windows = span_windows(
        [example], tokenizer, max_length=48, doc_stride=16, max_query_length=16, labeled=False
    )
    passage_length = 48 - 4 - len(tokenizer.encode_batch([question])[0])
    expected = reference(
        question, passage, truncation="only_second", max_length=48, stride=passage_length - 16,
        return_overflowing_tokens=True, return_offsets_mapping=True,
    )  # fmt: skip
    starts = windows.features.sequences.starts
    rows = [
        windows.features.sequences.token_ids[a:b].tolist()
        for a, b in zip(starts[:-1], starts[1:], strict=True)
    ]
    assert len(rows) > 3 and rows == expected["input_ids"]
    for number, offsets in enumerate(expected["offset_mapping"]):
        in_passage = [part == 1 for part in expected.sequence_ids(number)]
        window_offsets = windows.character_offsets[starts[number] : starts[number + 1]]
        assert window_offsets[in_passage].tolist() == [
            list(pair) for pair, inside in zip(offsets, in_passage, strict=True) if inside
        ]


def test_separate_words_match_hugging_face(roberta, albert):
    words = ["Don't", "panic", ",", "Zaphod", "Beeblebrox"]
    spaced = transformers.RobertaTokenizer(
        vocab=str(roberta), merges=str(roberta.with_name("merges.txt")), add_prefix_space=True
    )
    for tokenizer, reference in (
        (Tokenizer.load(roberta), spaced),
        (Tokenizer.load(albert), reference_albert(albert)),
    ):
        expected = reference(words, is_split_into_words=True, add_special_tokens=False)["input_ids"]
        assert [i for ids in tokenizer.encode_words(words) for i in ids] == expected


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"vocab.json": "{", "merges.txt": ""}, "vocab.json: not valid JSON"),
        ({"vocab.json": "[]", "merges.txt": ""}, "expected a JSON object that maps pieces"),
        ({"vocab.json": '{"a": 0}', "merges.txt": ""}, "not RoBERTa's vocabulary: it lacks <pad>"),
        (
            {"vocab.json": None, "merges.txt": "a b c\n"},
            "merges.txt:1: 'a b c': expected two pieces",
        ),
        ({"vocab.json": None, "merges.txt": "#version: 0.2\nx y\n"}, "merges.txt: does not match"),
    ],
)
def test_errors_explain_damage_in_byte_bpe_files(files, message, tmp_path):
    pieces = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", "a", "b", "ab"]
    plain = json.dumps({piece: number for number, piece in enumerate(pieces)})
    for name, content in files.items():
        (tmp_path / name).write_text(plain if content is None else content)
    with pytest.raises(ValueError, match=message):
        Tokenizer.load(tmp_path)


def test_byte_bpe_keeps_the_case(roberta):
    with pytest.raises(ValueError, match="byte-level BPE is always cased"):
        Tokenizer.load(roberta, lowercase=True)
