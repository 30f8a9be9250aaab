"""Where two sets of named values disagree, for people."""

from __future__ import annotations

from typing import Any


def differences(stored: Any, current: Any, path: str = "") -> list[str]:
    """One line for every value in which two nested dicts disagree."""
    if isinstance(stored, dict) and isinstance(current, dict):
        lines = []
        for key in sorted(stored.keys() | current.keys()):
            name = f"{path}.{key}" if path else str(key)
            lines += differences(stored.get(key), current.get(key), name)
        return lines
    return [] if stored == current else [f"{path}: {stored!r} -> {current!r}"]
