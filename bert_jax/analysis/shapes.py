"""Format the shapes of all parameters, with a formula for the size of each part of a model."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import jax

from bert_jax.analysis.counts import parameters_by_part
from bert_jax.models.options import NormKind
from bert_jax.models.parameters import count

Shapes = Mapping[str, jax.ShapeDtypeStruct]
_LAYER = re.compile(r"^encoder\.layers\.(\d+)\.")
# The parameters of a dense layer or norm. Together, their sizes form one term of a formula.
_LEAVES = ("kernel", "scale", "bias")


def shape_table(shapes: Shapes, norm_kind: NormKind = "layer") -> list[str]:
    """Return a table of the parts of a model, with their sizes, formulas and parameter shapes.

    All layers have the same shapes, so only one is listed, with the number of layers that have
    their own parameters.

    Args:
      shapes: the shape of every parameter, keyed by name.
      norm_kind: the kind of norm, for the titles of the norms; see `EncoderConfig`.
    """
    lines = [f"{'parameters and shapes':62s}"]
    for title, part in parameters_by_part(shapes, norm_kind).items():
        owners = {int(found[1]) for name in part if (found := _LAYER.match(name))}
        first = min(owners, default=None)
        one = {
            name: shape
            for name, shape in part.items()
            if first is None or name.startswith(f"encoder.layers.{first}.")
        }
        times = f", each of {len(owners)} layers" if len(owners) > 1 else ""
        lines.append(f"  {title + times:60s}{count(one):16,d} = {_formula(one)}")
        lines += _shape_lines(one)
    return [*lines, f"  {'total':60s}{count(shapes):16,d}"]


def _shape_lines(part: Shapes) -> Iterator[str]:
    for name, shape in part.items():
        short = _LAYER.sub("", name).removeprefix("encoder.").removeprefix("embeddings.")
        yield f"    {short:58s}{_dims(shape.shape):>16s}"


def _formula(part: Shapes) -> str:
    """Return a formula such as "4 × (768 × 768 + 768)"."""
    terms: Counter[str] = Counter()
    for leaves in _by_module(part):
        terms[" + ".join(_dims(shape) for shape in leaves)] += 1
    return " + ".join(_times(number, term, alone=len(terms) == 1) for term, number in terms.items())


def _times(number: int, term: str, *, alone: bool) -> str:
    parts = term.split(" + ")
    if len(parts) == 2 and parts[0] == parts[1]:  # A norm has a scale and a bias of equal size.
        number, term, parts = 2 * number, parts[0], parts[:1]
    if number == 1:
        return term if alone or len(parts) == 1 else f"({term})"
    return f"{number} × {term}" if len(parts) == 1 else f"{number} × ({term})"


def _by_module(part: Shapes) -> Iterator[list[Sequence[int]]]:
    """Yield the parameter shapes of each dense layer, norm or embedding table."""
    modules: dict[str, list[Sequence[int]]] = {}
    # The kernel comes before the bias, as in the usual formula.
    for name, shape in sorted(part.items(), key=lambda item: item[0].endswith(".bias")):
        prefix, _, leaf = name.rpartition(".")
        modules.setdefault(prefix if leaf in _LEAVES else name, []).append(shape.shape)
    yield from modules.values()


def _dims(shape: Sequence[int]) -> str:
    return " × ".join(f"{dim}" for dim in shape)
