"""Every choice between the values of a config's Literal is exhaustive, read from the source."""

import ast
import importlib
import typing
from collections.abc import Iterator
from pathlib import Path

import pytest

from bert_jax.training.optimizer import OPTIMIZERS, OptimizerName
from bert_jax.training.schedules import SCHEDULES, ScheduleName

REPOSITORY = Path(__file__).resolve().parent.parent
TREES = {
    path: ast.parse(path.read_text(encoding="utf-8"))
    for path in sorted((REPOSITORY / "bert_jax").rglob("*.py"))
}
# What everything but this value has in common: `x == "none"` is a question, not a choice.
ALONE = {"none", "auto", "any", "all", "as_written"}
Values = frozenset[str]


def aliases() -> dict[str, set[Values]]:
    """Return the values of every module-level `Name = Literal[...]`, by name."""
    found: dict[str, set[Values]] = {}
    for path, tree in TREES.items():
        for node in tree.body:
            if not isinstance(node, ast.Assign) or "Literal[" not in ast.unparse(node.value):
                continue
            names = path.relative_to(REPOSITORY).with_suffix("").parts
            module = importlib.import_module(".".join(names))
            for target in map(ast.unparse, node.targets):
                literal = getattr(module, target)
                if typing.get_origin(literal) is typing.Literal:
                    found.setdefault(target, set()).add(frozenset(typing.get_args(literal)))
    return found


def config_fields() -> dict[str, set[Values]]:
    """Return the values of every field of a dataclass that is a Literal, by the field's name."""
    by_alias, found = aliases(), {}
    for tree in TREES.values():
        for kind in (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)):
            if not any("dataclass" in ast.unparse(name) for name in kind.decorator_list):
                continue
            for field in (node for node in kind.body if isinstance(node, ast.AnnAssign)):
                values = by_alias.get(ast.unparse(field.annotation), set())
                if values:
                    found.setdefault(ast.unparse(field.target), set()).update(values)
    return found


# A head is one of many everywhere; what depends on it is listed with the kinds of tasks.
FIELDS = {name: values for name, values in config_fields().items() if name != "head"}


def comparisons(test: ast.AST, refuses: bool) -> Iterator[str]:
    """Yield the comparisons in an expression of a Literal field with some of its values.

    refuses: whether to leave out `!=`, which treats a new value as an unsuitable one.
    """
    for node in ast.walk(test):
        if not isinstance(node, ast.Compare) or not isinstance(node.left, ast.Attribute):
            continue
        if isinstance(node.ops[0], ast.NotEq | ast.NotIn) and refuses:
            continue
        if ast.unparse(node.left.value) == "args":  # argparse has checked it
            continue
        right = node.comparators[0]
        constants = right.elts if isinstance(right, ast.Tuple | ast.Set | ast.List) else [right]
        values = {x.value for x in constants if isinstance(x, ast.Constant)}
        of_field = FIELDS.get(node.left.attr, set())
        if values - ALONE and any(values <= choices for choices in of_field):
            yield ast.unparse(node)


def choices_without_match(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the line and comparison of each branch that takes "every other value" for one value.

    That is a conditional expression, or an `if` that has an `else` or ends in `return`; an `if`
    that raises or only adds something does not choose.
    """
    for node in ast.walk(tree):
        chooses = isinstance(node, ast.IfExp) or (
            isinstance(node, ast.If) and (node.orelse or isinstance(node.body[-1], ast.Return))
        )
        if chooses:
            assert isinstance(node, ast.IfExp | ast.If)
            refuses = isinstance(node, ast.If) and not node.orelse
            yield from ((node.lineno, text) for text in comparisons(node.test, refuses))


def test_the_fields_are_found() -> None:
    assert FIELDS["positions"] == {frozenset({"learned", "sinusoidal"})}
    assert len(FIELDS) >= 15, sorted(FIELDS)
    tree = ast.parse('x = 1 if config.norm == "post" else 2\nif config.norm == "pre":\n  y()')
    assert list(choices_without_match(tree)) == [(1, "config.norm == 'post'")]


@pytest.mark.parametrize("path", TREES, ids=lambda path: path.relative_to(REPOSITORY).as_posix())
def test_no_branch_takes_every_other_value_for_one(path: Path) -> None:
    found = [f"{path}:{line}: {text}" for line, text in choices_without_match(TREES[path])]
    assert not found, "match the values and end in assert_never:\n" + "\n".join(found)


def matched_literals(tree: ast.AST) -> Iterator[ast.Match]:
    """Yield the `match` statements whose subject is a Literal field and whose cases are strings."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Match) and isinstance(node.subject, ast.Attribute):
            if node.subject.attr in FIELDS and ast.unparse(node.subject.value) != "args":
                yield node


@pytest.mark.parametrize("path", TREES, ids=lambda path: path.relative_to(REPOSITORY).as_posix())
def test_every_match_ends_in_assert_never(path: Path) -> None:
    for node in matched_literals(TREES[path]):
        assert "assert_never(" in ast.unparse(node.cases[-1]), f"{path}:{node.lineno}"


@pytest.mark.parametrize(
    ("mapping", "literal"), [(OPTIMIZERS, OptimizerName), (SCHEDULES, ScheduleName)]
)
def test_tables_have_every_value(mapping: dict[str, type], literal: object) -> None:
    assert set(mapping) == set(typing.get_args(literal))
