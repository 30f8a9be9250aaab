"""Test that every public name in `bert_jax` can be imported and has documentation and types."""

import ast
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import bert_jax

REPOSITORY = Path(__file__).resolve().parent.parent
NAMES = sorted(set(bert_jax.__all__) - {"__version__"})


@pytest.mark.parametrize("name", NAMES)
def test_public_names_resolve_and_are_documented(name: str) -> None:
    value = getattr(bert_jax, name)
    assert value.__name__ == name
    assert value.__module__ == f"bert_jax.{bert_jax._MODULES[name]}"
    documented = inspect.getdoc(value)
    assert documented and not documented.startswith(f"{name}("), "a dataclass's default docstring"


def test_type_checkers_see_the_same_names() -> None:
    tree = ast.parse(Path(bert_jax.__file__).read_text(encoding="utf-8"))
    (typed,) = (
        node
        for node in tree.body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    )
    imported = {
        alias.name: node.module
        for node in typed.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    modules = {name: f"bert_jax.{module}" for name, module in bert_jax._MODULES.items()}
    assert imported == modules
    assert sorted(imported) == NAMES
    assert set(NAMES) <= set(dir(bert_jax))
    with pytest.raises(AttributeError, match="has no attribute 'FilMask'"):
        bert_jax.FilMask  # noqa: B018


def test_the_api_page_documents_all_names() -> None:
    text = (REPOSITORY / "docs/api.md").read_text(encoding="utf-8")
    entries = re.findall(r"^\.\. auto(?:function|class):: bert_jax\.(\w+)$", text, re.MULTILINE)
    assert sorted(entries) == NAMES
    rows = [row for row in text.splitlines() if row.startswith("| [")]
    assert sorted(name for row in rows for name in re.findall(r"`(\w+)`", row)) == NAMES


def documented_names(value: object) -> set[str]:
    """Return the names of the parameters and attributes that a docstring describes."""
    text = inspect.getdoc(value) or ""
    sections = re.findall(r"^(?:Args|Attributes):\n((?:  .*\n?|\n)+)", text, re.MULTILINE)
    return set(re.findall(r"^  (\w+): ", "".join(sections), re.MULTILINE))


def functions_of(value: Any) -> list[Any]:
    """Return the public methods that a class defines or, given a function, just that function."""
    if not inspect.isclass(value):
        return [value]
    return [
        member
        for name, member in vars(value).items()
        if inspect.isfunction(member) and (name == "__call__" or not name.startswith("_"))
    ]


@pytest.mark.parametrize("name", NAMES)
def test_all_parameters_are_documented(name: str) -> None:
    value = getattr(bert_jax, name)
    if inspect.isclass(value):
        documented = documented_names(value) | documented_names(value.__init__)
        missing = set(inspect.signature(value.__init__).parameters) - {"self", "args", "kwargs"}
        assert missing <= documented, f"{name}: {sorted(missing - documented)}"
    for function in functions_of(value):
        text = inspect.getdoc(function)
        # Other methods have one-sentence docstrings that mention the parameters.
        if "Args:" in text or function is value or function.__name__ == "__call__":
            missing = set(inspect.signature(function).parameters) - {"self"}
            missing -= documented_names(function)
            assert not missing, f"{name}.{function.__name__}: {sorted(missing)}"
