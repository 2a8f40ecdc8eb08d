"""Runs ONNX's node tests and prints what passes, what is a typed error, what is wrong and what crashes.

python -m tests.onnx_backend.run_node_tests [--mode compiled|reference] [--filter TEXT] [--update]
"""

from __future__ import annotations

import argparse
from collections import Counter

from .node_tests import PASSING, PREPARE, Outcome, cases, passing, run_case

KINDS = ("pass", "unsupported", "inexact", "wrong", "crash")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mode", choices=sorted(PREPARE), default="compiled")
    parser.add_argument("--filter", default="", help="only tests whose name contains this")
    parser.add_argument("--verbose", action="store_true", help="also list typed errors and passes")
    parser.add_argument("--update", action="store_true", help="add what passes to passing.txt")
    options = parser.parse_args()
    chosen = [case for name, case in cases().items() if options.filter in name]
    outcomes = [run_case(case, PREPARE[options.mode]) for case in chosen]
    report(outcomes, options.verbose)
    passed = [o.name for o in outcomes if o.kind == "pass"]
    if options.update:
        PASSING.write_text("\n".join(sorted({*passing(), *passed})) + "\n")
    return int(any(o.kind in ("wrong", "crash") for o in outcomes))


def report(outcomes: list[Outcome], verbose: bool) -> None:
    for kind in KINDS if verbose else KINDS[2:]:
        for o in outcomes:
            if o.kind == kind:
                print(f"{kind:12s} {o.name}  {o.detail}")
    counts = Counter(o.kind for o in outcomes)
    print(", ".join(f"{counts[k]} {k}" for k in KINDS), f"of {len(outcomes)}")


if __name__ == "__main__":
    raise SystemExit(main())
