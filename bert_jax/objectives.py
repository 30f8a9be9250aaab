"""Define names for the segment-pair objectives, for use in data pipelines and losses."""

from __future__ import annotations

from typing import Literal

# How the segments of an example are related. "none": there is only one segment. "next_sentence":
# the second segment either follows the first or comes from another document (Devlin et al. 2019,
# section 3.1). "sentence_order": the segments are consecutive, either in order or swapped (Lan et
# al. 2020, section 3.1).
SentencePairs = Literal["none", "next_sentence", "sentence_order"]

# Prefixes for the names of losses and metrics.
PAIR_PREFIX: dict[SentencePairs, str] = {"next_sentence": "nsp", "sentence_order": "sop"}
