"""Build tiny models of Hugging Face families other than BERT, with random weights."""

from __future__ import annotations

import json
from pathlib import Path

import torch
import transformers
from tokenizers.pre_tokenizers import ByteLevel

from .conftest import LABELS, WORDS

SIZES = dict(
    vocab_size=len(WORDS),
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=48,
    max_position_embeddings=40,
    initializer_range=0.1,
)
BYTES = ["<s>", "<pad>", "</s>", "<unk>", *sorted(ByteLevel.alphabet()), "<mask>"]
# For each of our heads, the suffix of the Hugging Face class name.
HEADS = {
    "encoder": "Model",
    "masked_lm": "ForMaskedLM",
    "classification": "ForSequenceClassification",
    "multiple_choice": "ForMultipleChoice",
    "tagging": "ForTokenClassification",
    "span": "ForQuestionAnswering",
}
CONFIGS = {
    "Roberta": transformers.RobertaConfig(
        **SIZES | dict(vocab_size=len(BYTES), max_position_embeddings=82, type_vocab_size=1),
        layer_norm_eps=1e-5,
        pad_token_id=1,
    ),
    "Albert": transformers.AlbertConfig(**SIZES, embedding_size=16, num_hidden_groups=2),
    "DistilBert": transformers.DistilBertConfig(
        vocab_size=len(WORDS),
        dim=32,
        n_layers=2,
        n_heads=4,
        hidden_dim=48,
        max_position_embeddings=40,
        initializer_range=0.1,
    ),
    "Electra": transformers.ElectraConfig(**SIZES, embedding_size=16),
    "ModernBert": transformers.ModernBertConfig(
        **SIZES,
        pad_token_id=0,
        local_attention=8,
        global_attn_every_n_layers=2,
        classifier_pooling="mean",
    ),
}
# The heads of the classes called `ForPreTraining`: ALBERT's has both pretraining heads, and
# ELECTRA's is the discriminator.
PRETRAINING = [("Albert", "pretraining"), ("Electra", "replaced_token")]
# All (family, head) pairs.
CASES = [(family, head) for family in CONFIGS for head in HEADS] + PRETRAINING


def class_of(family: str, head: str) -> type[transformers.PreTrainedModel]:
    """Return the Hugging Face class for a family and a head."""
    return getattr(transformers, family + HEADS.get(head, "ForPreTraining"))


def build(family: str, head: str, **changes: object) -> transformers.PreTrainedModel:
    """Return a model whose parameters are all random, including biases and norms."""
    labels = LABELS.get(head, ["LABEL_0", "LABEL_1"])
    names = dict(enumerate(labels))
    more = {"id2label": names, "label2id": {v: k for k, v in names.items()}, **changes}
    torch.manual_seed(0)
    config = type(CONFIGS[family])(**{**CONFIGS[family].to_dict(), **more})
    model = class_of(family, head)(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return model


def make(
    directory: Path, family: str, head: str, **changes: object
) -> transformers.PreTrainedModel:
    """Save a model with the kind of vocabulary that its family uses."""
    model = build(family, head, **changes)
    model.save_pretrained(directory)
    if family == "Roberta":
        vocabulary = {piece: number for number, piece in enumerate(BYTES)}
        (directory / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
        (directory / "merges.txt").write_text("#version: 0.2\n")
    elif family == "ModernBert":  # ModernBERT has no tokenizer class of its own.
        vocabulary = {word: number for number, word in enumerate(WORDS)}
        transformers.BertTokenizer(vocab=vocabulary).save_pretrained(directory)
    else:
        (directory / "vocab.txt").write_text("".join(f"{w}\n" for w in WORDS), encoding="utf-8")
    return model


# The special pieces at the beginning of the XLM-RoBERTa and CamemBERT vocabularies.
_FIRST = {
    "XLMRoberta": ["<s>", "<pad>", "</s>", "<unk>"],
    "Camembert": ["<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>", "<unk>NOTUSED", "<s>", "</s>"],
}
_ENDS = {"bos": "<s>", "eos": "</s>"}


def make_other_roberta(directory: Path, name: str, head: str) -> None:
    """Save an XLM-RoBERTa or CamemBERT model, whose architecture is the same as RoBERTa's."""
    pieces = [*_FIRST[name], "▁", "▁it", "▁rain", "s", "▁so", "▁wet", *"abcdefghé.?", "<mask>"]
    vocabulary = [(piece, -float(number)) for number, piece in enumerate(pieces)]
    tokenizer = getattr(transformers, f"{name}Tokenizer")(vocab=vocabulary)
    assert len(tokenizer) == len(pieces)
    tokenizer.save_pretrained(directory)
    sizes = SIZES | dict(vocab_size=len(pieces), max_position_embeddings=82, type_vocab_size=1)
    ids = {f"{end}_token_id": pieces.index(end_token) for end, end_token in _ENDS.items()}
    labels = {"id2label": dict(enumerate(LABELS.get(head, ["LABEL_0", "LABEL_1"])))}
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(
        **sizes, layer_norm_eps=1e-5, pad_token_id=1, **ids, **labels
    )
    getattr(transformers, name + HEADS[head])(config).save_pretrained(directory)
