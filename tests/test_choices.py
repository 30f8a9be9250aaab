"""Check in the source code that every choice between a Literal field's values is exhaustive."""

import ast
import importlib
import typing
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from bert_jax.training.optimizer import OPTIMIZERS, OptimizerName
from bert_jax.training.schedules import SCHEDULES, ScheduleName

REPOSITORY = Path(__file__).resolve().parent.parent
# A comparison with one of these values, such as `x == "none"`, is a yes-or-no question, since all
# other values have something in common.
EXCEPTIONAL_VALUES = {"none", "auto", "any", "all", "as_written"}
Values = frozenset[str]


@cache
def syntax_trees() -> dict[Path, ast.Module]:
    """Parse the package's source files."""
    return {
        path: ast.parse(path.read_text(encoding="utf-8"))
        for path in sorted((REPOSITORY / "bert_jax").rglob("*.py"))
    }


def aliases() -> dict[str, set[Values]]:
    """Collect the values in module-level definitions `Name = Literal[...]`, keyed by name."""
    values_by_name: dict[str, set[Values]] = {}
    for path, tree in syntax_trees().items():
        for node in tree.body:
            if not isinstance(node, ast.Assign) or "Literal[" not in ast.unparse(node.value):
                continue
            names = path.relative_to(REPOSITORY).with_suffix("").parts
            module = importlib.import_module(".".join(names))
            for target in map(ast.unparse, node.targets):
                literal = getattr(module, target)
                if typing.get_origin(literal) is typing.Literal:
                    values = frozenset(typing.get_args(literal))
                    values_by_name.setdefault(target, set()).add(values)
    return values_by_name


@cache
def config_fields() -> dict[str, set[Values]]:
    """Collect the values of every Literal field in a dataclass, keyed by field name.

    Heads are left out, since code that depends on the head belongs in a task's own module.
    """
    values_by_alias, values_by_field = aliases(), {}
    for tree in syntax_trees().values():
        for kind in (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)):
            if not any("dataclass" in ast.unparse(name) for name in kind.decorator_list):
                continue
            for field in (node for node in kind.body if isinstance(node, ast.AnnAssign)):
                values = values_by_alias.get(ast.unparse(field.annotation), set())
                if values and ast.unparse(field.target) != "head":
                    values_by_field.setdefault(ast.unparse(field.target), set()).update(values)
    return values_by_field


def comparisons(test: ast.AST, skip_not_equal: bool) -> Iterator[str]:
    """Yield an expression's comparisons between a Literal field and its possible values.

    skip_not_equal: whether to skip `!=`. Such a comparison treats a new value as unsuitable.
    """
    for node in ast.walk(test):
        if not isinstance(node, ast.Compare) or not isinstance(node.left, ast.Attribute):
            continue
        if isinstance(node.ops[0], ast.NotEq | ast.NotIn) and skip_not_equal:
            continue
        if ast.unparse(node.left.value) == "args":  # argparse checks these choices.
            continue
        right = node.comparators[0]
        constants = right.elts if isinstance(right, ast.Tuple | ast.Set | ast.List) else [right]
        values = {x.value for x in constants if isinstance(x, ast.Constant)}
        field_values = config_fields().get(node.left.attr, set())
        if values - EXCEPTIONAL_VALUES and any(values <= choices for choices in field_values):
            yield ast.unparse(node)


def choices_without_match(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield (line, comparison) for each branch that treats all other values alike.

    Such a branch is a conditional expression, or an `if` that has an `else` or ends in `return`. An
    `if` that raises an exception, or that only adds something, is not a choice.
    """
    for node in ast.walk(tree):
        is_choice = isinstance(node, ast.IfExp) or (
            isinstance(node, ast.If) and (node.orelse or isinstance(node.body[-1], ast.Return))
        )
        if is_choice:
            assert isinstance(node, ast.IfExp | ast.If)
            skip_not_equal = isinstance(node, ast.If) and not node.orelse
            yield from ((node.lineno, text) for text in comparisons(node.test, skip_not_equal))


def test_literal_fields_and_choices_are_detected() -> None:
    fields = config_fields()
    assert fields["positions"] == {frozenset({"learned", "sinusoidal", "rotary"})}
    assert len(fields) >= 15, sorted(fields)
    tree = ast.parse('x = 1 if config.norm == "post" else 2\nif config.norm == "pre":\n  y()')
    assert list(choices_without_match(tree)) == [(1, "config.norm == 'post'")]


def test_choices_use_match() -> None:
    branches = [
        f"{path}:{line}: {text}"
        for path, tree in syntax_trees().items()
        for line, text in choices_without_match(tree)
    ]
    assert not branches, "use match and end with assert_never:\n" + "\n".join(branches)


def matched_literals(tree: ast.AST) -> Iterator[ast.Match]:
    """Yield the `match` statements that match a Literal field against strings."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Match) and isinstance(node.subject, ast.Attribute):
            if node.subject.attr in config_fields() and ast.unparse(node.subject.value) != "args":
                yield node


def test_every_match_ends_with_assert_never() -> None:
    incomplete = [
        f"{path}:{node.lineno}"
        for path, tree in syntax_trees().items()
        for node in matched_literals(tree)
        if "assert_never(" not in ast.unparse(node.cases[-1])
    ]
    assert not incomplete


@pytest.mark.parametrize(
    ("mapping", "literal"), [(OPTIMIZERS, OptimizerName), (SCHEDULES, ScheduleName)]
)
def test_mappings_have_a_class_for_each_value(mapping: dict[str, type], literal: object) -> None:
    assert set(mapping) == set(typing.get_args(literal))
