"""Build the documentation the way `make docs` does, and check the result."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ..commands import REPOSITORY

pytestmark = pytest.mark.slow

# URLs on other hosts that a browser would fetch to display a page, as opposed to ordinary links.
LOADED = re.compile(r"""(?:\bsrc=|<link\b[^>]*\bhref=|url\(|@import\s*)["']?(?:https?:)?//""")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the pages, treating warnings as errors, and return their directory."""
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


# Pages are opened from disk, just as a reader opens them after `make docs`.
@pytest.mark.parametrize(
    ("scheme", "width"), [("light", 1280), ("dark", 390)], ids=["light-desktop", "dark-phone"]
)
def test_pages_work_in_a_browser(site: Path, browser: Any, scheme: str, width: int) -> None:
    problems: list[str] = []

    def report_request(request: Any) -> None:
        if not request.url.startswith((site.as_uri(), "data:")):
            problems.append(f"{tab.url}: requests {request.url}")

    def report_failure(request: Any) -> None:
        # A request is aborted if the next page is opened in the meantime.
        if request.failure != "net::ERR_ABORTED":
            problems.append(f"{tab.url}: {request.url} {request.failure}")

    context = browser.new_context(
        color_scheme=scheme, viewport={"width": width, "height": 900}, offline=True
    )
    tab = context.new_page()
    tab.set_default_timeout(120_000)
    tab.on("request", report_request)
    tab.on("requestfailed", report_failure)
    tab.on("console", lambda message: problems.append(f"{tab.url}: {message.text}"))
    tab.on("pageerror", lambda error: problems.append(f"{tab.url}: {error}"))
    for page in sorted(site.glob("*.html")):
        tab.goto(page.as_uri())
        wide = tab.evaluate("document.documentElement.scrollWidth - innerWidth")
        if wide > 0:
            problems.append(f"{page.name}: {wide} pixels wider than the window of {width}")
    tab.goto(f"{(site / 'search.html').as_uri()}?q=tokenizer")
    # The browser displays the search results one after the other.
    tab.locator("#search-results li a").get_by_text("Tokenizers", exact=True).wait_for()
    context.close()
    assert not problems, "\n".join(problems)
