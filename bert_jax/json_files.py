"""Read JSON files and lines, and report any error as a ValueError that names the file."""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

# The largest tokenizer.json of any published encoder is about 20 MB. Parsing a file takes about ten
# times its size in memory.
MAX_BYTES = 1 << 28
MAX_DEPTH = 100  # The tokenizers library allows 128 levels.


def parse_json(text: str) -> Any:
    """Parse a line of JSON, accepting NaN and Infinity as Python writes them.

    Raises:
      ValueError: the text is not valid JSON, is nested too deeply, repeats a key in an object, or
        contains an integer with more than 4,300 digits.
    """
    return _decode(text, _LINES)


def read_json(file: Path, fix: str = "") -> Any:
    """Read a JSON file and return its value.

    Args:
      file: the file, which may begin with a byte-order mark.
      fix: advice to append to error messages.

    Raises:
      OSError: the file cannot be read.
      ValueError: the file is too large, is not UTF-8 text, is rejected by `parse_json`, contains
        NaN, Infinity or a lone surrogate, or is nested more than 100 levels deep.
    """
    size = file.stat().st_size
    if size > MAX_BYTES:
        raise ValueError(
            f"{file}: {size / 1e6:,.0f} MB is too large for this kind of file; expected at most "
            f"{MAX_BYTES / 1e6:,.0f} MB. Check that it is the right file"
        )
    return _value(file.read_bytes(), file, fix)


def _value(content: bytes, file: str | os.PathLike[str], fix: str) -> Any:
    try:
        text = content.decode("utf-8-sig")
        value = _decode(text, _FILES)
        _check_depth(value)
        if "\\ud" in text.lower():  # In UTF-8, a lone surrogate can occur only as an escape.
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeDecodeError as error:
        raise _file_error(file, f"not UTF-8 text ({error})", fix) from error
    except UnicodeEncodeError as error:
        reason = "a string contains a lone surrogate, which is not a valid Unicode character"
        raise _file_error(file, reason, fix) from error
    except json.JSONDecodeError as error:
        raise _file_error(file, f"not valid JSON: {error}", fix) from error
    except ValueError as error:
        raise _file_error(file, str(error), fix) from error
    return value


def read_json_object(file: Path, fix: str = "") -> dict[str, Any]:
    """Read a JSON file that must contain an object, and return that object.

    Args:
      file: the file.
      fix: advice to append to error messages.

    Raises:
      OSError: the file cannot be read.
      ValueError: `read_json` rejects the file, or its value is not an object.
    """
    return _object(read_json(file, fix), file, fix)


def parse_json_object(
    content: bytes, file: str | os.PathLike[str], fix: str = ""
) -> dict[str, Any]:
    """Parse the content of a JSON file that must contain an object, and return that object.

    Args:
      content: the file's content.
      file: the name of the file, for error messages.
      fix: advice to append to error messages.

    Raises:
      ValueError: `read_json` would reject the file, or its value is not an object.
    """
    return _object(_value(content, file, fix), file, fix)


def _object(value: Any, file: str | os.PathLike[str], fix: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _file_error(file, f"expected a JSON object, got {json_kind(value)}", fix)
    return value


@contextmanager
def expecting_fields(file: Path, fix: str = "") -> Iterator[None]:
    """Convert errors about missing or malformed fields in a `with` block to ValueErrors.

    The message of each ValueError contains the name of the file. If the block itself raises a
    ValueError without the name, the name is prepended.

    Args:
      file: the JSON file whose fields the block uses.
      fix: advice to append to error messages.
    """
    try:
        yield
    except KeyError as error:
        raise _file_error(file, f"damaged: missing key {error.args[0]!r}", fix) from error
    except (TypeError, AttributeError, IndexError, OverflowError) as error:
        raise _file_error(file, f"damaged: a value has the wrong type ({error})", fix) from error
    except ValueError as error:
        if str(file) in str(error):
            raise
        raise _file_error(file, f"damaged: {error}", fix) from error


def check_kinds(content: Mapping[str, Any], **kinds: type) -> None:
    """Raise TypeError if a value has the wrong type; missing keys and nulls are allowed."""
    for name, kind in kinds.items():
        value = content.get(name)
        if value is not None and type(value) is not kind:
            raise TypeError(f"{name} is {json_kind(value)}")


def json_kind(value: Any) -> str:
    """Return the JSON name for a value's type, with an article, such as "an object"."""
    kinds = {bool: "true or false", str: "a string", list: "an array", dict: "an object"}
    return "null" if value is None else kinds.get(type(value), "a number")


def _file_error(file: str | os.PathLike[str], reason: str, fix: str) -> ValueError:
    return ValueError(f"{os.fspath(file)}: {reason}{f'. {fix}' if fix else ''}")


def _decode(text: str, decoder: json.JSONDecoder) -> Any:
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


def _object_without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        key, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise ValueError(f"an object contains the key {key[:80]!r} twice")
    return content


def _reject_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _parse_finite_float(digits: str) -> float:
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


_LINES = json.JSONDecoder(object_pairs_hook=_object_without_duplicates)
_FILES = json.JSONDecoder(
    object_pairs_hook=_object_without_duplicates,
    parse_constant=_reject_constant,
    parse_float=_parse_finite_float,
)
