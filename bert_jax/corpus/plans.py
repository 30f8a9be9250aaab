"""Compare the plan of a preparation with the plan of an existing corpus, finished or not.

A plan contains everything that determines a corpus. Its keys are tokenizer_fingerprint, options and
sources. The sources are a list of dicts with the keys "path" and "num_bytes".
"""

from __future__ import annotations

from typing import Any

from bert_jax.corpus.inputs import SPLIT_KEY
from bert_jax.json_files import parse_json_object, read_json_object
from bert_jax.storage.objects import read_bytes
from bert_jax.storage.urls import Location, ObjectUrl

_MAX_DIFFERENCES = 5
# A preparation accepts a finished corpus even if these entries of the plans differ.
IGNORED_IF_FINISHED = ("libraries.",)
# A preparation resumes an unfinished one even if these entries of the plans differ, since the user
# may have fixed a rejected input. Shards are kept only if their documents are unchanged.
IGNORED_IF_UNFINISHED = ("on_bad_line", "size in bytes of ")


def read_plan(location: Location) -> dict[str, Any]:
    """Return the plan of an unfinished preparation."""
    fix = f"Delete {location.parent} to start over"
    if isinstance(location, ObjectUrl):
        return parse_json_object(read_bytes(location), location, fix)
    return read_json_object(location, fix)


def plan_differences(
    existing: dict[str, Any], requested: dict[str, Any], ignored: tuple[str, ...]
) -> str:
    """Describe the differences between two plans, or return "" if there are none.

    Args:
      existing: the plan of the corpus in the directory.
      requested: the plan of this preparation.
      ignored: the prefixes of names whose values may differ.
    """
    before, now = _flat(existing), _flat(requested)
    names = [name for name in {**before, **now} if not name.startswith(ignored)]
    different = [name for name in names if before.get(name) != now.get(name)]
    descriptions = [
        f"{name} was {before.get(name, 'absent')} and is now {now.get(name, 'absent')}"
        for name in different[:_MAX_DIFFERENCES]
    ]
    if len(different) > len(descriptions):
        descriptions.append(f"and {len(different) - len(descriptions)} more")
    return "; ".join(descriptions)


def _flat(plan: dict[str, Any]) -> dict[str, Any]:
    """Return a plan as a flat dict, with the paths of sources in the keys."""
    options = dict(plan["options"])
    flat = {f"libraries.{name}": version for name, version in options.pop("libraries", {}).items()}
    flat |= options
    flat["tokenizer_fingerprint"] = plan["tokenizer_fingerprint"]
    for number, source in enumerate(plan["sources"], start=1):
        held_out = ", held out" if source.get(SPLIT_KEY) else ""
        flat[f"input {source['path']}"] = f"number {number}{held_out}"
        flat[f"size in bytes of {source['path']}"] = source["num_bytes"]
    return flat


def not_empty(output: Location) -> str:
    """Return the error message for a directory with unrelated content."""
    return (
        f"{output}: this directory is not empty, and does not contain an unfinished preparation. "
        "Choose a new or empty directory."
    )


def finished_meanwhile(output: Location) -> str:
    """Return the error message for a corpus that another preparation has just finished."""
    return (
        f"output={output}: another preparation has just finished this corpus. Run the same command "
        "again to use it."
    )


def different_settings(output: Location, differences: str, work: Location) -> str:
    """Return the error message for an unfinished preparation with a different plan."""
    return (
        f"{output}: contains an unfinished preparation with different settings: {differences}. Use "
        f"the same settings to continue it, choose another output directory, or delete {work} to "
        "start over."
    )
