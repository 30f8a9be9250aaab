"""Apply all filters that look at one document at a time.

The results depend only on the document and the options, so documents can be filtered on any machine
and in any order.
"""

from __future__ import annotations

from typing import assert_never

from bert_jax.filtering.c4 import check_c4, clean_c4
from bert_jax.filtering.contamination import check_contamination
from bert_jax.filtering.findings import Finding, above, below
from bert_jax.filtering.gopher import check_gopher_quality
from bert_jax.filtering.language import check_language
from bert_jax.filtering.options import FilterOptions, RuleSet
from bert_jax.filtering.repetition import check_gopher_repetition
from bert_jax.filtering.words import Hashes


def clean_document(text: str, options: FilterOptions) -> str:
    """Return a document's text, cleaned by the rules of C4 if they are enabled."""
    return clean_c4(text, options.c4) if "c4" in options.quality_rules else text


def check_document(
    text: str, options: FilterOptions, evaluation: Hashes | None = None
) -> Finding | None:
    """Return the first rule that a document fails, or None if it passes all of them.

    Args:
      text: the document's text, as returned by `clean_document`.
      options: the options.
      evaluation: the sorted hashes of the evaluation data's n-grams, if there are any.
    """
    finding = _check_length(text, options)
    for rules in () if finding else options.quality_rules:
        finding = finding or _check_rules(text, rules, options)
    if finding is None and options.keep_languages:
        finding = check_language(text, options.keep_languages, options.min_language_probability)
    if finding is None and evaluation is not None:
        finding = check_contamination(text, evaluation)
    return finding


def _check_length(text: str, options: FilterOptions) -> Finding | None:
    if options.min_words is None and options.max_words is None:
        return None
    count = len(text.split())
    return below("min_words", count, options.min_words) or above(
        "max_words", count, options.max_words
    )


def _check_rules(text: str, rules: RuleSet, options: FilterOptions) -> Finding | None:
    match rules:
        case "gopher-quality":
            return check_gopher_quality(text, options.gopher_quality)
        case "gopher-repetition":
            return check_gopher_repetition(text, options.gopher_repetition)
        case "c4":
            return check_c4(text, options.c4)
        case _:
            assert_never(rules)
