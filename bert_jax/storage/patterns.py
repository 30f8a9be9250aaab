"""Find the objects that match a pattern, by the rules of Python's `glob.glob`."""

from __future__ import annotations

import fnmatch
import glob
from collections.abc import Sequence

from bert_jax.storage.objects import list_objects
from bert_jax.storage.store import ObjectInfo
from bert_jax.storage.urls import ObjectUrl


def matching_objects(pattern: ObjectUrl) -> list[ObjectInfo]:
    """Return the objects whose keys match the pattern in `pattern.key`, in the order of their keys.

    `*`, `?` and `[...]` match within one component of a key, and `**` matches any number of
    components. As in `glob.glob`, wildcards do not match a component that begins with ".".
    """
    parts = pattern.key.split("/")
    fixed = next(number for number, part in enumerate(parts) if glob.has_magic(part))
    base = ObjectUrl(pattern.scheme, pattern.bucket, "/".join(parts[:fixed]))
    return [
        info
        for info in list_objects(base)
        if _matches(base.relative(info.url).split("/"), parts[fixed:])
    ]


def _matches(names: Sequence[str], parts: Sequence[str]) -> bool:
    if not parts or not names:
        return not names and all(part == "**" for part in parts)
    if parts[0] == "**":
        rest = parts[1:]
        # A final "**" matches files at any depth.
        if not rest:
            return not any(name.startswith(".") for name in names)
        if _matches(names, rest):
            return True
        return not names[0].startswith(".") and _matches(names[1:], parts)
    hidden = names[0].startswith(".") and not parts[0].startswith(".")
    return not hidden and fnmatch.fnmatchcase(names[0], parts[0]) and _matches(names[1:], parts[1:])
