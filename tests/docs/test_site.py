"""Build the documentation as `make docs` does, and check the result."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from ..commands import REPOSITORY

pytestmark = pytest.mark.slow

# The addresses that a browser loads to show a page; links to follow are not among them.
LOADED = re.compile(r"""(?:\bsrc=|<link\b[^>]*\bhref=|url\(|@import\s*)["']?(?:https?:)?//""")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory with the built pages; warnings are errors."""
    directory = tmp_path_factory.mktemp("site")
    words = ["-W", "--keep-going", "-q", "-d", str(directory / "doctrees"), "docs"]
    built = subprocess.run(
        [sys.executable, "-m", "sphinx", *words, str(directory / "html")],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
    )
    assert built.returncode == 0, built.stderr
    return directory / "html"


def test_every_page_is_built(site: Path) -> None:
    for page in REPOSITORY.glob("docs/*.md"):
        assert (site / page.with_suffix(".html").name).is_file()


def test_pages_load_nothing_from_other_hosts(site: Path) -> None:
    for file in (*site.rglob("*.html"), *site.rglob("*.css")):
        found = LOADED.search(file.read_text(encoding="utf-8"))
        assert not found, f"{file}: {found[0] if found else ''}"


def test_pages_do_not_show_the_directives_of_tests(site: Path) -> None:
    for file in site.glob("*.html"):
        assert not re.search(r"<!-- (run|needs)\b", file.read_text(encoding="utf-8")), file
