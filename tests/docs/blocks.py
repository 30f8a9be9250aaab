"""Read the code blocks on a documentation page, and the directives that precede them.

The directives are described in CONTRIBUTING.md, "How documentation is tested".
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

# Tests execute blocks in the first group of languages. All other blocks must be in the second
# group.
CODE = ("bash", "console", "diff", "python")
OTHER = ("csv", "ini", "json", "text", "toml", "yaml")
# Settings that take a value, settings that do not, and the commands to which `args` are added.
WITH_VALUE = ("args", "expect", "file", "replace", "setup")
WITHOUT_VALUE = ("apply", "fails")
TRAINING = re.compile(r"\bbert-jax\s+(pretrain|finetune|sweep)\b")

# MyST directives that show code without using a plain fence.
CODE_DIRECTIVES = ("{code", "{sourcecode", "{parsed-literal", "{literalinclude", "{doctest")

COMMENT = re.compile(r"<!--(.*?)-->", re.DOTALL)
DIRECTIVE = re.compile(r"(run|needs)\b\s*(?::(.*))?", re.DOTALL)


class PageError(ValueError):
    """A mistake on a page. The message begins with the file and line."""


@dataclass
class Block:
    """A fenced code block, with the settings from the directives that precede it."""

    line: int
    language: str
    source: str
    args: str = ""
    file: str = ""
    expect: list[str] = field(default_factory=list)
    apply: bool = False
    fails: bool = False


@dataclass
class Page:
    """A page: its path, the setups that it starts with, and the blocks to execute, in order."""

    path: Path
    setups: list[str]
    blocks: list[Block]


@dataclass
class _Directives:
    """The directives that have been read since the last block."""

    line: int = 0
    run: bool = False
    needs: str = ""
    settings: list[tuple[str, str]] = field(default_factory=list)


def read_page(path: Path) -> Page:
    """Read a page.

    Raises:
      PageError: a block has no directive, or a directive is invalid.
    """
    return parse_page(path.read_text(encoding="utf-8"), path)


def parse_page(text: str, path: Path) -> Page:
    """Parse the text of a page; see `read_page`."""
    setups: list[str] = []
    blocks: list[Block] = []
    directives = _Directives()
    for token, line in _tokens(text, 0):
        where = f"{path}:{line}"
        if token.type == "html_block":
            for comment in COMMENT.findall(token.content):
                _read_comment(comment.strip(), where, directives, setups)
                directives.line = line
        elif token.type == "fence":
            if block := _read_block(token, line, where, directives):
                blocks.append(block)
            directives = _Directives()
        elif token.type == "code_block":
            raise PageError(f"{where}: the code block is indented. Use a fence")
        elif directives.run or directives.needs:
            raise PageError(f"{path}:{directives.line}: a directive must precede a code block")
    if directives.run or directives.needs:
        raise PageError(f"{path}:{directives.line}: a directive must precede a code block")
    return Page(path, setups, blocks)


def _tokens(text: str, start: int) -> Iterator[tuple[Token, int]]:
    """Yield a text's tokens with their line numbers, including tokens inside MyST directives."""
    for token in MarkdownIt("commonmark").parse(text):
        line = start + (token.map[0] if token.map else 0)
        if token.type == "fence" and token.info.startswith(CODE_DIRECTIVES):
            raise PageError(f"line {line + 1}: {token.info} shows code. Use a plain fence")
        if token.type == "fence" and token.info.startswith("{"):
            yield from _tokens(token.content, line + 1)
        else:
            yield token, line + 1


def _read_comment(comment: str, where: str, directives: _Directives, setups: list[str]) -> None:
    match = DIRECTIVE.fullmatch(comment)
    if not match:
        if re.match(r"\w+\s*:|(run|needs)\b", comment):
            raise PageError(f"{where}: unknown directive {comment!r}. Use run or needs")
        return
    name, rest = match[1], (match[2] or "").strip()
    if name == "needs":
        if not rest:
            raise PageError(f"{where}: `needs` must name the requirement")
        directives.needs = rest
        return
    settings = [_read_setting(word, where) for word in shlex.split(rest)]
    for key, value in settings:
        if key == "setup":
            setups += value.split()
    others = [setting for setting in settings if setting[0] != "setup"]
    directives.settings += others
    directives.run |= bool(others) or not settings


def _read_setting(word: str, where: str) -> tuple[str, str]:
    key, equals, value = word.partition("=")
    if key in WITH_VALUE and value or key in WITHOUT_VALUE and not equals:
        return key, value
    with_value = ", ".join(f'{key}="..."' for key in WITH_VALUE)
    raise PageError(
        f"{where}: unknown setting {word!r}. Use {with_value}, {' or '.join(WITHOUT_VALUE)}"
    )


def _read_block(token: Token, line: int, where: str, directives: _Directives) -> Block | None:
    language = token.info.split()[0] if token.info.strip() else ""
    if language not in (*CODE, *OTHER):
        raise PageError(
            f"{where}: unsupported language {language!r}. Use {', '.join(CODE)} for code, "
            f"or {', '.join(OTHER)}"
        )
    if directives.run and directives.needs:
        raise PageError(f"{where}: both `run` and `needs` precede the block. Use only one of them")
    if directives.needs:
        return None
    if not directives.run:
        if language in CODE:
            raise PageError(
                f"{where}: no directive precedes the {language} block. Put <!-- run --> or "
                "<!-- needs: REQUIREMENT --> on the line before it"
            )
        return None
    block = Block(line, language, token.content)
    for key, value in directives.settings:
        _apply_setting(block, key, value, where)
    if block.language in OTHER and not block.file:
        raise PageError(f"{where}: a {language} block can only use the setting `file`")
    if block.fails and not block.expect:
        raise PageError(
            f"{where}: `fails` needs `expect`, because a mistake in the block would also make it "
            "fail"
        )
    if block.apply != (language == "diff"):
        raise PageError(
            f"{where}: <!-- run: apply --> must precede every diff block, and no other block"
        )
    return block


def _apply_setting(block: Block, key: str, value: str, where: str) -> None:
    if key == "replace":
        old, arrow, new = value.partition("=>")
        if not arrow or old not in block.source:
            raise PageError(f"{where}: the block does not contain {old!r}, the text to replace")
        block.source = block.source.replace(old, new)
    elif key == "args":
        if block.language not in ("bash", "console") or not TRAINING.search(block.source):
            raise PageError(
                f"{where}: `args` needs a block that runs bert-jax pretrain, finetune or sweep"
            )
        block.args += f" {value}"
    elif key == "expect":
        block.expect.append(value)
    elif key == "file":
        block.file = value
    elif key == "apply":
        block.apply = True
    else:
        block.fails = True
