"""Configure Sphinx, which `make docs` uses to build the documentation in docs/_build."""

import sys
from pathlib import Path
from typing import Any

from docutils import nodes

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from bert_jax.version import __version__  # noqa: E402

project = "bert_jax"
release = version = __version__

# myst_nb reads both the Markdown pages (using myst_parser) and the notebooks of the course.
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build", "course/work", "**/.ipynb_checkpoints"]
nb_execution_mode = "off"  # Do not execute the notebooks, since their outputs are stored in them.
nb_merge_streams = True
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3

# Docstrings in this package use single backticks for Python names.
default_role = "py:obj"
add_module_names = False
autoclass_content = "both"
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 80
napoleon_use_rtype = False
# Keep straight quotation marks, since many of them are part of config values.
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
# To show excerpts, the search would have to fetch pages, but browsers do not allow this for
# file:// URLs.
html_show_search_summary = False
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"


def remove_directives(app: Any, doctree: nodes.document) -> None:
    """Strip the comments that control documentation tests (see CONTRIBUTING.md) from the HTML."""
    for node in list(doctree.findall(nodes.raw)):
        if node.astext().lstrip().startswith(("<!-- run", "<!-- needs")):
            node.parent.remove(node)


def setup(app: Any) -> None:
    """Register the event handlers with Sphinx."""
    app.connect("doctree-read", remove_directives)
