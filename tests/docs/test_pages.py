"""Execute the code blocks on every documentation page, in order, at a small size."""

import re
from pathlib import Path

import pytest

from ..commands import REPOSITORY
from .blocks import read_page
from .conftest import SETUPS, Pages

PAGES = [REPOSITORY / "README.md", *sorted(REPOSITORY.glob("docs/*.md"))]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_every_block_has_a_directive(path: Path) -> None:
    page = read_page(path)
    assert set(page.setups) <= set(SETUPS)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_tables_have_one_line_per_row_and_as_many_cells_in_each(path: Path) -> None:
    text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    for rule in re.finditer(r"^.*\|-{3,}.*$", text, re.MULTILINE):
        above = text[: rule.start()].rstrip("\n").rpartition("\n")[2]
        below = re.match(r"(\n *\|.*)+", text[rule.end() :])
        assert re.fullmatch(r" *(\|:?-{3,}:?)+\|", rule[0]) and below is not None, rule[0]
        cells = {
            len(re.findall(r"(?<!\\)\|", re.sub(r"`[^`]*`", "", row)))
            for row in [above, rule[0], *below[0].splitlines()[1:]]
        }
        assert len(cells) == 1, above


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_named_files_exist(path: Path) -> None:
    names = re.findall(
        r"`((?:configs|examples|experiments|launch|tests)/[\w./-]+)`", path.read_text()
    )
    missing = [name for name in names if not (REPOSITORY / name).exists()]
    assert not missing


@pytest.mark.slow
@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_the_blocks_of_a_page_do_what_it_says(path: Path, pages: Pages) -> None:
    pages.run(read_page(path))
