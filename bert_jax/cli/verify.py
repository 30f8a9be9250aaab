"""Run two models on the same input and say how far apart they are, output by output.

    bert-jax verify runs/mine exported/mine
    bert-jax verify bert-base-uncased/ models/base

Each is a work directory, a Hugging Face directory (run by transformers itself), a TensorFlow
checkpoint of Google's BERT (read as `import` reads it), an ONNX file or a StableHLO artefact. The
input is random tokens over all positions and segments, and sentences of different lengths in pairs
with padding. Everything is computed in float32, on the CPU unless JAX_PLATFORMS says otherwise. The
printed differences are the largest absolute one and the relative one, divided by the root mean
square of the second model's values: float32 rounding makes two frameworks differ, and more so in a
model with large values. The exit code is 0 if no relative difference exceeds the tolerance (with
--tolerance 0, if all outputs are bitwise equal), the tokenizers, if both have one, read the
sentences alike, a Hugging Face directory's tokenizer as transformers does, and the
sentence-embedding settings, if both have them (as sentence-transformers models do), are equal; else
1.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from bert_jax.interop.comparison import (
    SENTENCES,
    Difference,
    Side,
    Sizes,
    differences,
    misshapen,
    only_one_gives,
    random_probe,
    sentence_probe,
    unequal,
)
from bert_jax.interop.huggingface.side import HuggingFaceSide
from bert_jax.interop.sides import open_side, open_tokenizer, unlike_vectors
from bert_jax.tokenizers.tokenizer import Tokenizer
from bert_jax.validation import check_seed

TITLES = {
    "hidden_0": "embeddings",
    "hidden": "last layer",
    "pooled": "pooled output",
    "token_logits": "masked-LM logits",
    "next_sentence_logits": "sentence-pair logits",
    "logits": "logits",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `verify`."""
    parser.add_argument("first", metavar="A", help="a model")
    parser.add_argument("second", metavar="B", help="the model to compare it with")
    parser.add_argument(
        "--tolerance",
        type=float,
        default=1e-4,
        metavar="X",
        help="largest relative difference that passes; 0 requires bitwise equal outputs "
        "(default: 1e-4)",
    )
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="of the random input (default: 0)"
    )


def run(args: argparse.Namespace) -> int:
    """Print the table; 0 if the two agree, 1 if not."""
    if not 0 <= args.tolerance < math.inf:
        raise ValueError(
            f"--tolerance={args.tolerance}: expected 0 (bitwise equality) or a positive number"
        )
    check_seed(args.seed, "--seed")
    sides = [open_side(Path(path)) for path in (args.first, args.second)]
    vectors = unlike_vectors(Path(args.first), Path(args.second))
    sizes = smallest(sides)
    for letter, side in zip("AB", sides, strict=True):
        print(f"{letter}  {side.title}")
    known = [side.sizes for side in sides if side.sizes is not None]
    if len(set(known)) > 1:
        print(
            f"NOTE  compared is what both take: {sizes.vocab_size:,} tokens, {sizes.num_segments} "
            f"segments, {sizes.max_positions:,} positions"
        )
    if all(side.labels for side in sides) and sides[0].labels != sides[1].labels:
        names = (", ".join(side.labels) for side in sides)
        print("NOTE  the scores have other names: {} in A, {} in B".format(*names))
    tokenizers = [open_tokenizer(Path(path)) for path in (args.first, args.second)]
    words = [tokenizer for tokenizer in tokenizers if tokenizer is not None]
    alike, read_alike = len(words) < 2 or same_ids(*words), True
    for letter, side, tokenizer in zip("AB", sides, tokenizers, strict=True):
        if isinstance(side, HuggingFaceSide) and tokenizer is not None:
            problem = read_otherwise(side, tokenizer)
            read_alike = read_alike and not (side.tokenizer_is_told and problem.startswith("ids"))
            if problem:
                print(f"NOTE  {letter}'s own tokenizer reads texts otherwise than here: {problem}")
    limits = (sizes.vocab_size, sizes.num_segments, sizes.max_positions)
    pad_id = words[0].pad_id if words else 0
    probes = [random_probe(*limits, args.seed, pad_id=pad_id)]
    if words and words[0].vocab_size > sizes.vocab_size:
        print("NOTE  no sentences: the tokenizer has more entries than a token table has rows")
    elif words:
        probes.append(sentence_probe(words[0], sizes.num_segments, sizes.max_positions))
    found, unequal_outputs = {}, set()
    for probe in probes:
        rows, length = probe.token_ids.shape
        print(f"{probe.name}: {rows} x {length} positions, {probe.tokens:,} of them tokens")
        first, second = (side.outputs(probe) for side in sides)
        found[probe.name] = differences(first, second, probe)
        unequal_outputs.update(unequal(first, second, probe))
        if not found[probe.name]:
            raise ValueError(
                "A and B have no output in common. Compare models with the same head, or export "
                "with --hidden-states"
            )
        unpaired, odd = only_one_gives(first, second), misshapen(first, second)
    print("\n" + "\n".join(table(found)))
    if unpaired:
        print(f"not compared, since only one of them gives it: {', '.join(map(title, unpaired))}")
    for line in odd:
        print(f"not the same kind of output: {line}")
    if not alike:
        print("FAIL: A and B have different tokenizers: the same text has other ids")
        return 1
    if not read_alike:
        print("FAIL: transformers reads the same text as other ids than are compared here")
        return 1
    if vectors:
        print("FAIL: A and B pool differently (A -> B):\n  " + "\n  ".join(vectors))
        return 1
    passed, verdict = verdict_on(found, unequal_outputs, args.tolerance)
    print(f"{'PASS' if passed else 'FAIL'}: {verdict}")
    return 0 if passed else 1


def verdict_on(
    differences_by_probe: Mapping[str, Mapping[str, Difference]],
    unequal_outputs: Collection[str],
    tolerance: float,
) -> tuple[bool, str]:
    """Return whether two models agree, and a sentence on how far apart they are.

    Args:
      differences_by_probe: differences by probe and output.
      unequal_outputs: outputs that are not bitwise equal with some probe.
      tolerance: the largest relative difference that passes; 0 requires bitwise equality.
    """
    differences = [row for rows in differences_by_probe.values() for row in rows.values()]
    relative = max(difference.relative for difference in differences)
    absolute = max(difference.largest for difference in differences)
    if tolerance:
        passed = relative <= tolerance
        comparison = "within" if passed else "NOT within"
        verdict = f"{relative:.2g} is {comparison} {tolerance:.2g}"
    elif passed := not unequal_outputs and relative == 0:
        return passed, "A and B are bitwise equal"
    else:
        where = ", ".join(map(title, sorted(unequal_outputs))) or "some values are not finite"
        verdict = f"NOT bitwise equal: {where}"
    return passed, f"{verdict}; the largest absolute difference is {absolute:.2g}"


def same_ids(first: Tokenizer, second: Tokenizer) -> bool:
    """Whether two tokenizers read the sentences alike."""
    texts = [text for pair in SENTENCES for text in pair]
    return first.encode_batch(texts) == second.encode_batch(texts)


def read_otherwise(side: HuggingFaceSide, tokenizer: Tokenizer) -> str:
    """How transformers reads the sentences of `tokenizer`'s directory differently; "" if alike.

    It begins with "ids" where those differ, and with "segments" where these do alone.
    """
    assert side.sizes is not None
    num_segments = side.sizes.num_segments
    try:
        theirs = side.read(SENTENCES)
    except ValueError as error:
        return f"it cannot be loaded ({error})"
    probe = sentence_probe(tokenizer, num_segments, max(len(row.token_ids) for row in theirs) + 1)
    for number, (pair, row) in enumerate(zip(SENTENCES, theirs, strict=True)):
        length = int(probe.attention_mask[number].sum())
        ours = probe.token_ids[number, :length].tolist()
        if ours != row.token_ids:
            return f"ids {row.token_ids} for {ours} of {pair}"
        segments = probe.segment_ids[number, :length].tolist()
        if row.segment_ids is not None and num_segments > 1 and segments != row.segment_ids:
            return f"segments {row.segment_ids} for {segments} of {pair}"
    return ""


def smallest(sides: Sequence[Side]) -> Sizes:
    """The sizes that every side takes.

    Raises:
      ValueError: none of them tells its own.
    """
    known = [side.sizes for side in sides if side.sizes is not None]
    if not known:
        raise ValueError(
            "neither A nor B records its vocabulary size. Compare each with the work directory it "
            "was exported from"
        )
    return Sizes(
        min(sizes.vocab_size for sizes in known),
        min(sizes.num_segments for sizes in known),
        min(sizes.max_positions for sizes in known),
    )


def table(found: dict[str, dict[str, Difference]]) -> list[str]:
    """A line an output, a pair of columns a probe."""
    lines = [f"{'':22}" + "".join(f"{name:>26}" for name in found)]
    lines.append(f"{'':22}" + f"{'largest':>14}{'relative':>12}" * len(found))
    for name in next(iter(found.values())):
        cells = [
            f"{rows[name].largest:14.2e}{rows[name].relative:12.2e}" for rows in found.values()
        ]
        lines.append(f"{title(name):22}" + "".join(cells))
    return lines


def title(name: str) -> str:
    """What a person calls an output."""
    return TITLES.get(name) or f"layer {name.removeprefix('hidden_')}"
