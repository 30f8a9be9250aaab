"""Words for what is learned, shared by those who make examples and those who make losses."""

from __future__ import annotations

from typing import Literal

# What the two segments of a text are: "none", there is one; "next_sentence", the second follows
# the first or comes from another document (Devlin et al. 2019, section 3.1); "sentence_order", they
# follow each other or stand the other way round (Lan et al. 2020, section 3.1).
SentencePairs = Literal["none", "next_sentence", "sentence_order"]

# What the losses and metrics of pairs are called.
PAIR_PREFIX: dict[SentencePairs, str] = {"next_sentence": "nsp", "sentence_order": "sop"}
