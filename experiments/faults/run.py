r"""Does bert-jax corrupt anything in silence, or answer a user's mistake with a traceback?

    python experiments/faults/run.py --work runs/faults

Kills commands at random moments and repeats them, flips bits, cuts and removes parts of
checkpoints, fills disks, and gives commands hundreds of generated inputs that are wrong, or odd and
right. Killed commands must resume and end with the same parameters bit for bit; damaged or wrong
inputs must be refused in a sentence with exit code 2; odd and right ones must be accepted with the
right result. Killed at any moment, the same command continues. Writes results.json and prints the
table; with --fast or --only, into the folder --work.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(HERE.parent), str(ROOT)]

import report  # noqa: E402
from assets import Assets, make_assets  # noqa: E402
from cases import Case  # noqa: E402
from groups import GROUPS  # noqa: E402
from lanes import run_cases, warm_up  # noqa: E402


def code_hash() -> str:
    """Return a hash of the package and of the campaign: results are of one state of both."""
    digest = hashlib.sha256()
    for folder in (ROOT / "bert_jax", HERE):
        for file in sorted(folder.rglob("*.py")):
            digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def main() -> int:
    """Run the cases without a result, write and print all results; return 1 after a problem."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, required=True, help="where everything goes")
    parser.add_argument("--seed", type=int, default=0, help="of all that is drawn (default: 0)")
    parser.add_argument("--only", nargs="+", choices=list(GROUPS), help="groups to run")
    parser.add_argument("--match", default="", help="run cases whose name holds this only")
    parser.add_argument("--fast", action="store_true", help="every eighth case of each group")
    parser.add_argument("--lanes", type=int, default=2, help="cases at once (default: 2)")
    args = parser.parse_args()
    work = args.work.resolve()
    warm_up(work / "programs")
    assets = make_assets(work / "assets", args.lanes)
    results = report.Results(work / "results.jsonl", code_hash(), args.seed)

    def wanted() -> Iterator[Case]:
        for name, make in GROUPS.items():
            if args.only and name not in args.only:
                continue
            yield from _missing(make, assets, args, results)

    for number, outcome in enumerate(run_cases(wanted(), work, args.lanes), 1):
        results.add(outcome)
        marks = "".join(f"\n      {problem}" for problem in outcome.problems)
        if marks or sys.stderr.isatty() or number % 50 == 0:
            print(f"{number:5d}  {outcome.case.key}{marks}", file=sys.stderr, flush=True)
    partial = bool(args.fast or args.only or args.match)
    report.write(results, (work if partial else HERE) / "results.json")
    print(report.table(results))
    return 1 if results.problems else 0


def _missing(
    make: Callable[[Assets, int], Iterator[Case]],
    assets: Assets,
    args: argparse.Namespace,
    results: report.Results,
) -> Iterator[Case]:
    for number, case in enumerate(make(assets, args.seed)):
        if args.fast and number % 8:
            continue
        if args.match in case.key and case.key not in results.done:
            yield case


if __name__ == "__main__":
    sys.exit(main())
