"""Configuration of the documentation; `make docs` builds it into docs/_build."""

import sys
from pathlib import Path
from typing import Any

from docutils import nodes

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from bert_jax.version import __version__  # noqa: E402

project = "bert_jax"
release = version = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3

# Names in single backticks are names of Python, as in the docstrings of the package.
default_role = "py:obj"
add_module_names = False
autoclass_content = "both"
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 80
napoleon_use_rtype = False
# Quotation marks around values stay as they are typed.
smartquotes = False
napoleon_custom_sections = [("Attributes", "params_style")]

html_theme = "furo"
html_title = f"bert_jax {release}"
html_static_path = ["_static"]
html_css_files = ["bert_jax.css"]
html_show_copyright = False
html_show_sphinx = False
html_copy_source = False
html_show_sourcelink = False
html_favicon = "_static/icon.svg"
# Results of a search with an excerpt would be fetched, which browsers refuse for local files.
html_show_search_summary = False
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"


def remove_directives(app: Any, doctree: nodes.document) -> None:
    """Remove the comments for the tests of the pages (see CONTRIBUTING.md) from the HTML."""
    for node in list(doctree.findall(nodes.raw)):
        if node.astext().lstrip().startswith(("<!-- run", "<!-- needs")):
            node.parent.remove(node)


def setup(app: Any) -> None:
    """Connect the handlers of Sphinx's events."""
    app.connect("doctree-read", remove_directives)
