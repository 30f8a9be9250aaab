"""JSON files and lines, read so that every fault in one is a ValueError that names the file."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

# The largest tokenizer.json of a published encoder is about 20 MB; parsing takes some ten times a
# file's size in memory.
MAX_BYTES = 1 << 28
# The tokenizers library reads no deeper either; its limit is 128.
MAX_DEPTH = 100


def parse_json(text: str) -> Any:
    """Return the value of a line of JSON; NaN and Infinity are numbers, as Python writes them.

    Raises:
      ValueError: the text is not JSON, is nested too deeply, repeats a key of an object, or holds
        an integer of more than 4,300 digits.
    """
    return _parsed(text, _LINES)


def read_json(file: Path, fix: str = "") -> Any:
    """Return the value in a JSON file.

    Args:
      file: may begin with a byte-order mark.
      fix: advice for the error message.

    Raises:
      OSError: the file cannot be read.
      ValueError: it is too large, not UTF-8 text, or faulty as in `parse_json`; or it holds NaN,
        Infinity or a lone surrogate, or is nested more than 100 levels deep. Names the file.
    """
    size = file.stat().st_size
    if size > MAX_BYTES:
        raise ValueError(
            f"{file}: {size / 1e6:,.0f} MB is too large for a file of this kind; at most "
            f"{MAX_BYTES / 1e6:,.0f} MB are read. Check that it is the right file"
        )
    try:
        text = file.read_bytes().decode("utf-8-sig")
        value = _parsed(text, _FILES)
        _check_depth(value)
        if "\\ud" in text.lower():  # only an escape can write a lone surrogate
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeDecodeError as error:
        raise _fault(file, f"not UTF-8 text ({error})", fix) from error
    except UnicodeEncodeError as error:
        reason = "a string holds a lone surrogate, which is not a character of Unicode text"
        raise _fault(file, reason, fix) from error
    except json.JSONDecodeError as error:
        raise _fault(file, f"not valid JSON: {error}", fix) from error
    except ValueError as error:
        raise _fault(file, str(error), fix) from error
    return value


def read_json_object(file: Path, fix: str = "") -> dict[str, Any]:
    """Return the object in a JSON file.

    Raises:
      OSError, ValueError: as `read_json`, or the file holds something else. Names the file.
    """
    value = read_json(file, fix)
    if not isinstance(value, dict):
        raise _fault(file, f"expected a JSON object, got {json_kind(value)}", fix)
    return value


@contextmanager
def expecting_fields(file: Path, fix: str = "") -> Iterator[None]:
    """Turn a missing key or a value of the wrong type, met inside, into a ValueError naming `file`.

    A ValueError raised inside passes if it names the file, and gets its name otherwise.
    """
    try:
        yield
    except KeyError as error:
        raise _fault(file, f"damaged: it lacks {error.args[0]!r}", fix) from error
    except (TypeError, AttributeError, IndexError, OverflowError) as error:
        raise _fault(file, f"damaged: a value has the wrong type ({error})", fix) from error
    except ValueError as error:
        if str(file) in str(error):
            raise
        raise _fault(file, f"damaged: {error}", fix) from error


def check_kinds(content: Mapping[str, Any], **kinds: type) -> None:
    """Raise TypeError for a key with a value of another type; it may be missing or null."""
    for name, kind in kinds.items():
        value = content.get(name)
        if value is not None and type(value) is not kind:
            raise TypeError(f"{name} is {json_kind(value)}")


def json_kind(value: Any) -> str:
    """Return what JSON calls a value, with its article."""
    kinds = {bool: "true or false", str: "a string", list: "an array", dict: "an object"}
    return "null" if value is None else kinds.get(type(value), "a number")


def _fault(file: Path, reason: str, fix: str) -> ValueError:
    return ValueError(f"{file}: {reason}{f'. {fix}' if fix else ''}")


def _parsed(text: str, decoder: json.JSONDecoder) -> Any:
    try:
        return decoder.decode(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except json.JSONDecodeError:
        raise
    except ValueError as error:
        if "integer string conversion" in str(error):
            raise ValueError("an integer has more than 4,300 digits") from None
        raise


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        key, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise ValueError(f"an object has {key[:80]!r} twice")
    return content


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number of JSON")


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"{digits[:80]} is too large a number")
    return value


def _check_depth(value: Any) -> None:
    level, depth = [value], 0
    while level:
        if depth > MAX_DEPTH:
            raise ValueError(f"nested more than {MAX_DEPTH} levels deep")
        containers = [x for x in level if isinstance(x, (dict, list))]
        level = [inner for x in containers for inner in (x.values() if isinstance(x, dict) else x)]
        depth += 1


_LINES = json.JSONDecoder(object_pairs_hook=_object)
_FILES = json.JSONDecoder(
    object_pairs_hook=_object, parse_constant=_refuse_constant, parse_float=_finite
)
