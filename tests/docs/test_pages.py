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
