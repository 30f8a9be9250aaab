"""Add whole words to a WordPiece vocabulary.

WordPiece takes the longest entry that matches the beginning of a word, so a word that is in the
vocabulary is never split. BERT's vocabulary reserves `[unusedN]` entries for this purpose (Devlin
et al. 2019, released code).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import assert_never

import tokenizers

from bert_jax.storage.locations import local_input
from bert_jax.tokenizers.files import add_special_tokens
from bert_jax.tokenizers.tokenizer import Tokenizer
from bert_jax.tokenizers.vocabulary_files import read_text
from bert_jax.tokenizers.wordpiece_files import UNUSED

_MAX_LISTED = 5


@dataclass(frozen=True)
class NewWord:
    """A word that was added to a vocabulary.

    Attributes:
      word: the word as it appears in the vocabulary, normalized by the tokenizer (for example,
        lowercased and without accents).
      token_id: the id of the word.
      replaced: the [unusedN] entry whose id the word took; "" if the id is new.
      pieces: the ids of the tokens that the word was split into before.
    """

    word: str
    token_id: int
    replaced: str
    pieces: tuple[int, ...]


def read_words(file: str | Path) -> list[str]:
    """Read a text file with one word per line; blank lines are skipped.

    Raises:
      ValueError: the file is not UTF-8 text, or has no words.
    """
    words = [line.strip() for line in read_text(local_input(file)).splitlines()]
    if not any(words):
        raise ValueError(f"{file}: contains no words. Write one word per line.")
    return [word for word in words if word]


def with_words(tokenizer: Tokenizer, words: Iterable[str]) -> tuple[Tokenizer, list[NewWord]]:
    """Return a tokenizer that encodes each word as one token, and a list of the added words.

    The words take the ids of the vocabulary's [unusedN] entries, in ascending order, and then new
    ids after the largest one. Words that are already one token are left out. Adding a word also
    changes how longer words that begin with it are split.

    Args:
      tokenizer: the tokenizer; it is not changed.
      words: the words to add.

    Raises:
      ValueError: the tokenizer does not use WordPiece, or cannot keep one of the words together.
    """
    match tokenizer.kind:
        case "wordpiece":
            pass
        case "byte_bpe":
            raise ValueError(
                "words: this tokenizer is a byte-level BPE, which builds its tokens by merging "
                "pieces in order of priority. The merges for a new word would also change how "
                "other words are split. Train with the vocabulary as it is, which has no unknown "
                "words, or train a new tokenizer."
            )
        case "sentencepiece":
            raise ValueError(
                "words: this tokenizer is a SentencePiece model, which chooses the most probable "
                "split according to its pieces' scores. A new word would have no comparable score. "
                "Train with the vocabulary as it is, or train a new tokenizer."
            )
        case _:
            assert_never(tokenizer.kind)
    chosen = _checked(tokenizer, words)
    pieces = tokenizer.encode_batch(chosen)
    state = json.loads(tokenizer._backend.to_str())
    vocabulary: dict[str, int] = state["model"]["vocab"]
    reserved = {token["content"] for token in state["added_tokens"]}
    names = (name for name in tokenizer.vocabulary if UNUSED.fullmatch(name))
    unused = [name for name in names if name in vocabulary and name not in reserved]
    added = []
    for number, (word, before) in enumerate(zip(chosen, pieces, strict=True)):
        replaced = unused[number] if number < len(unused) else ""
        new_id = tokenizer.vocab_size + number - len(unused)
        token_id = vocabulary.pop(replaced) if replaced else new_id
        vocabulary[word] = token_id
        added.append(NewWord(word, token_id, replaced, tuple(before)))
    backend = tokenizers.Tokenizer.from_str(json.dumps(state))
    add_special_tokens(backend)
    larger = Tokenizer(backend)
    for new, ids in zip(added, larger.encode_batch(chosen), strict=True):
        if ids != [new.token_id]:
            raise ValueError(
                f"words: {new.word!r} is still not a single token after it was added, because the "
                "tokenizer's normalizer changes it again. Leave it out."
            )
    return larger, added


def _checked(tokenizer: Tokenizer, words: Iterable[str]) -> list[str]:
    """Return the normalized words that the tokenizer splits, without repetitions.

    Raises:
      ValueError: the tokenizer cannot keep one of the words together.
    """
    originals = {tokenizer.normalize(word).strip(): word for word in words}
    normalized = list(originals)
    longest = json.loads(tokenizer._backend.to_str())["model"]["max_input_chars_per_word"]
    problems = []
    for word, offsets in zip(normalized, tokenizer.word_offsets(normalized), strict=True):
        parts = [word[begin:end] for begin, end in offsets]
        if parts != [word]:
            problems.append(f"{originals[word]!r} (split into {' '.join(parts) or 'nothing'})")
        elif len(word) > longest:
            problems.append(f"{originals[word][:20]!r}... (longer than {longest} characters)")
    if len(problems) > _MAX_LISTED:
        problems[_MAX_LISTED:] = [f"and {len(problems) - _MAX_LISTED} more"]
    if problems:
        raise ValueError(
            "words: the tokenizer splits text at spaces and punctuation before it looks words up, "
            f"so these cannot become one token: {', '.join(problems)}. Leave them out."
        )
    ids = tokenizer.encode_batch(normalized)
    return [
        word
        for word, tokens in zip(normalized, ids, strict=True)
        if len(tokens) > 1 or tokens == [tokenizer.unk_id]
    ]
