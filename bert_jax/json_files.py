"""Read JSON files and lines, and turn every fault into a ValueError that names the file."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

# The largest tokenizer.json of a published encoder is about 20 MB; parsing takes about ten times
# the file's size in memory.
MAX_BYTES = 1 << 28
# The tokenizers library's limit is 128.
MAX_DEPTH = 100


def parse_json(text: str) -> Any:
    """Return the value of a JSON line, accepting NaN and Infinity as Python writes them.

    Raises:
      ValueError: the text is not JSON, is nested too deeply, repeats a key of an object, or
        contains an integer of more than 4,300 digits.
    """
    return _parsed(text, _LINES)


def read_json(file: Path, fix: str = "") -> Any:
    """Return the value in a JSON file.

    Args:
      file: the file, which may begin with a byte-order mark.
      fix: advice for the error message.

    Raises:
      OSError: the file cannot be read.
      ValueError: the file is too large, is not UTF-8 text, is refused by `parse_json`, contains
        NaN, Infinity or a lone surrogate, or is nested more than 100 levels deep; names the file.
    """
    size = file.stat().st_size
    if size > MAX_BYTES:
        raise ValueError(
            f"{file}: {size / 1e6:,.0f} MB is too large for a file of this kind; expected at most "
            f"{MAX_BYTES / 1e6:,.0f} MB. Check that it is the right file"
        )
    try:
        text = file.read_bytes().decode("utf-8-sig")
        value = _parsed(text, _FILES)
        _check_depth(value)
        if "\\ud" in text.lower():  # UTF-8 can represent a lone surrogate only as an escape
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeDecodeError as error:
        raise _fault(file, f"not UTF-8 text ({error})", fix) from error
    except UnicodeEncodeError as error:
        reason = "a string contains a lone surrogate, which is not a valid Unicode character"
        raise _fault(file, reason, fix) from error
    except json.JSONDecodeError as error:
        raise _fault(file, f"not valid JSON: {error}", fix) from error
    except ValueError as error:
        raise _fault(file, str(error), fix) from error
    return value


def read_json_object(file: Path, fix: str = "") -> dict[str, Any]:
    """Return the object in a JSON file.

    Raises:
      OSError, ValueError: see `read_json`; also if the file's value is not an object.
    """
    value = read_json(file, fix)
    if not isinstance(value, dict):
        raise _fault(file, f"expected a JSON object, got {json_kind(value)}", fix)
    return value


@contextmanager
def expecting_fields(file: Path, fix: str = "") -> Iterator[None]:
    """Turn a KeyError or TypeError in the block into a ValueError that names `file`.

    A ValueError raised in the block is extended by the file's name unless it contains it already.
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
    """Raise TypeError if a key's value is neither missing, null nor of the given type."""
    for name, kind in kinds.items():
        value = content.get(name)
        if value is not None and type(value) is not kind:
            raise TypeError(f"{name} is {json_kind(value)}")


def json_kind(value: Any) -> str:
    """Return JSON's name for a value's type, with an article."""
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
    raise ValueError(f"{name} is not a JSON number")


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"the number {digits[:80]} is too large")
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
