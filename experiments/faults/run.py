r"""Test that no fault corrupts data silently, and that no user mistake ends in a traceback.

    python experiments/faults/run.py --work runs/faults

The campaign kills commands at random moments and repeats them, flips bits in their input files,
truncates or removes some of these files, fills disks, and runs commands on hundreds of generated
inputs that are either invalid or unusual but valid. A killed command must resume and end with the
same parameters, bit for bit. Damaged or invalid input must be rejected with a one-sentence message
and exit code 2. Unusual but valid input must be accepted and give the correct result. The campaign
can be killed at any moment and resumed with the same command. It prints the table and writes
results.json to its own folder or, with --fast, --only or --match, to the --work folder.
"""

from __future__ import annotations

import argparse
import hashlib
import signal
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
    """Return a hash of the code on which the results depend: the package and the campaign."""
    digest = hashlib.sha256()
    for folder in (ROOT / "bert_jax", HERE):
        for file in sorted(folder.rglob("*.py")):
            digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def main() -> int:
    """Run the remaining cases, write the results and print the table; return 1 if any failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, required=True, help="folder for all files")
    parser.add_argument("--seed", type=int, default=0, help="seed for all cases (default: 0)")
    parser.add_argument("--only", nargs="+", choices=list(GROUPS), help="groups to run")
    parser.add_argument("--match", default="", help="run only cases whose names contain this text")
    parser.add_argument(
        "--fast", action="store_true", help="run only every eighth case in each group"
    )
    parser.add_argument(
        "--lanes", type=int, default=2, help="number of cases to run in parallel (default: 2)"
    )
    args = parser.parse_args()
    # Exit normally on SIGTERM, so that processes and disks are cleaned up.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
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
