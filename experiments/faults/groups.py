"""List the campaign's groups, each of which makes its cases from the assets and a seed."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from assets import Assets
from cases import Case
from disks import disk_cases
from flips import flip_cases, part_cases
from kills import kill_cases
from model_inputs import model_cases
from name_inputs import name_cases
from setting_inputs import setting_cases
from table_inputs import table_cases
from text_inputs import text_cases
from tokenizer_inputs import tokenizer_cases

GROUPS: dict[str, Callable[[Assets, int], Iterator[Case]]] = {
    "tokenizers": tokenizer_cases,
    "models": model_cases,
    "texts": text_cases,
    "tables": table_cases,
    "settings": setting_cases,
    "names": name_cases,
    "flips": flip_cases,
    "parts": part_cases,
    "kills": kill_cases,
    "disks": disk_cases,
}
