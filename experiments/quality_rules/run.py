"""Compare the rules of Gopher and C4 with those of datatrove, which needs its own environment.

    pip install datatrove nltk
    python experiments/quality_rules/run.py FILE.jsonl.xz ...

Each line of a file has a text in the field "text". In addition to each text, variants of it with
typical faults are compared. datatrove's word and sentence tokenizers need other libraries.
Therefore, datatrove's words are split at white space here, and its sentences are counted with
bert_jax's regular expression.
"""

from __future__ import annotations

import argparse
import json
import lzma
import random
from collections import Counter
from collections.abc import Iterator
from unittest import mock

from datatrove.data import Document
from datatrove.pipeline.filters import c4_filters, gopher_quality_filter, gopher_repetition_filter

from bert_jax.filtering import c4, gopher, repetition

RULES = {
    "gopher_short_doc": "gopher.min_words",
    "gopher_long_doc": "gopher.max_words",
    "gopher_below_avg_threshold": "gopher.min_word_length",
    "gopher_above_avg_threshold": "gopher.max_word_length",
    "gopher_too_many_hashes": "gopher.hash_symbols",
    "gopher_too_many_ellipsis": "gopher.ellipses",
    "gopher_too_many_bullets": "gopher.bullet_lines",
    "gopher_too_many_end_ellipsis": "gopher.ellipsis_lines",
    "gopher_below_alpha_threshold": "gopher.alphabetic_words",
    "gopher_enough_stop_words": "gopher.stop_words",
    "dup_line_frac": "gopher.duplicate_lines",
    "dup_para_frac": "gopher.duplicate_paragraphs",
    "dup_line_char_frac": "gopher.duplicate_line_characters",
    "dup_para_char_frac": "gopher.duplicate_paragraph_characters",
    "lorem_ipsum": "c4.lorem_ipsum",
    "curly_bracket": "c4.curly_bracket",
    "too_few_sentences": "c4.sentences",
}


def variants(text: str, chance: random.Random) -> Iterator[str]:
    """Yield a text and variants with faults that the rules look for."""
    words = text.split()[:300]
    short = " ".join(words)
    yield text
    yield short
    yield " ".join(words[: chance.randint(20, 80)])
    for symbol in ("#", "...", "2024"):
        yield " ".join(f"{word} {symbol}" if chance.random() < 0.15 else word for word in words)
    lines = [" ".join(words[start : start + 10]) for start in range(0, len(words), 10)]
    yield "\n".join(line + "..." if chance.random() < 0.3 else line + "." for line in lines)
    yield "\n".join("- " + line if chance.random() < 0.9 else line for line in lines)
    for share in (0.05, 0.15, 0.3):
        repeated = [chance.choice(lines) if chance.random() < share else line for line in lines]
        yield "\n".join(repeated)
        yield "\n\n".join(line + "." for line in repeated)
        yield " ".join(repeated)
    yield "\n".join(line + chance.choice((".", "", "!", " {", '"', "...")) for line in lines)
    yield "\n".join(
        chance.choice(("Menu", "Read our privacy policy, please, now.", line + "."))
        for line in lines
    )


def named(result: object) -> str:
    """Return the rule by which datatrove removes a text, or "" if it keeps the text."""
    if result is True:
        return ""
    name = result[1]
    for length in range(2, 11):
        name = name.replace(f"top_{length}_gram", f"gopher.top_{length}_gram")
        name = name.replace(f"duplicated_{length}_n_grams", f"gopher.duplicate_{length}_grams")
    return RULES.get(name, name)


def ours(kind: str, text: str) -> tuple[str, str]:
    """Return the name of the rule that a text fails ("" if it is kept), and the cleaned text."""
    if kind == "gopher-quality":
        finding = gopher.check_gopher_quality(text, gopher.GopherQuality())
    elif kind == "gopher-repetition":
        finding = repetition.check_gopher_repetition(text, repetition.GopherRepetition())
    else:
        text = c4.clean_c4(text, c4.C4())
        finding = c4.check_c4(text, c4.C4())
    return ("" if finding is None else finding.rule), text


def main() -> None:
    """Print how often both libraries agree on keeping a text, and the most frequent differences."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+")
    parser.add_argument("--texts", type=int, default=300, help="texts per file")
    args = parser.parse_args()
    filters = {
        "gopher-quality": gopher_quality_filter.GopherQualityFilter(),
        "gopher-repetition": gopher_repetition_filter.GopherRepetitionFilter(),
        "c4": c4_filters.C4QualityFilter(min_num_sentences=3, min_words_per_line=5),
    }
    split = mock.Mock(side_effect=lambda text, language: text.split())
    sentences = mock.Mock(side_effect=lambda text, language: c4._SENTENCE_END.findall(text))
    counts = {kind: Counter() for kind in filters}
    chance = random.Random(0)
    with (
        mock.patch.object(gopher_quality_filter, "split_into_words", split),
        mock.patch.object(gopher_repetition_filter, "split_into_words", split),
        mock.patch.object(c4_filters, "split_into_sentences", sentences),
    ):
        for name in args.files:
            with lzma.open(name, "rt", encoding="utf-8") as file:
                for _, line in zip(range(args.texts), file, strict=False):
                    for text in variants(json.loads(line)["text"], chance):
                        for kind, each in filters.items():
                            document = Document(text=text, id="0")
                            theirs = named(each.filter(document))
                            rule, cleaned = ours(kind, text)
                            same_text = theirs or rule or cleaned == document.text
                            counts[kind][theirs, rule if same_text else "other text"] += 1
    for kind, pairs in counts.items():
        total = sum(pairs.values())
        same = sum(count for (one, other), count in pairs.items() if one == other)
        decision = sum(count for (one, other), count in pairs.items() if bool(one) == bool(other))
        removed = sum(count for (one, _), count in pairs.items() if one)
        print(
            f"{kind}: {total} texts, {removed} removed by datatrove, same decision {decision}, "
            f"same rule {same}"
        )
        for (one, other), count in pairs.most_common():
            if one != other:
                print(f"  {count:6} datatrove {one or 'keeps'}, here {other or 'keeps'}")


if __name__ == "__main__":
    main()
