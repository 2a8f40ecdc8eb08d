"""Runs ONNX's node tests and prints what passes, what is a typed error, what is wrong and what crashes.

    python -m tests.onnx_backend.run_node_tests [--mode compiled|reference] [--filter TEXT] [--update]
    python -m tests.onnx_backend.run_node_tests --target cortex-a72 --listed     # what must pass, emulated
    python -m tests.onnx_backend.run_node_tests --target opencl --listed         # on an OpenCL device

They run in a child process, so that one that kills it, or never ends, costs no others.
"""

from __future__ import annotations

import argparse
import multiprocessing
from collections import Counter
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection

from .node_tests import MODES, PASSING, SECONDS, Outcome, Prepare, cases, passing, preparing, run_case

KINDS = ("pass", "unsupported", "inexact", "wrong", "crash")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mode", choices=MODES, default="compiled")
    parser.add_argument("--target", default="host")
    parser.add_argument(
        "--listed", action="store_true", help="only tests of passing.txt, all of which must pass"
    )
    parser.add_argument("--filter", default="", help="only tests whose name contains this")
    parser.add_argument("--verbose", action="store_true", help="also list typed errors and passes")
    parser.add_argument("--update", action="store_true", help="add what passes to passing.txt")
    options = parser.parse_args()
    names = [name for name in (passing() if options.listed else cases()) if options.filter in name]
    outcomes = list(run_isolated(names, preparing(options.mode, options.target)))
    report(outcomes, options.verbose)
    passed = [o.name for o in outcomes if o.kind == "pass"]
    if options.update:
        PASSING.write_text("\n".join(sorted({*passing(), *passed})) + "\n")
    right = {"pass"} if options.listed else {"pass", "unsupported", "inexact"}
    return int(any(o.kind not in right for o in outcomes))


def run_isolated(names: Sequence[str], prepare: Prepare) -> Iterator[Outcome]:
    context = multiprocessing.get_context("fork")
    done = 0
    while done < len(names):
        receiver, sender = context.Pipe(duplex=False)
        child = context.Process(target=_run_all, args=(names[done:], prepare, sender))
        child.start()
        sender.close()
        while done < len(names):
            try:
                if not receiver.poll(SECONDS + 10):
                    child.kill()
                yield receiver.recv()
            except EOFError:
                child.join()
                yield Outcome(names[done], "crash", f"the process ended with {child.exitcode}")
                done += 1
                break
            done += 1
        child.join()


def _run_all(names: Sequence[str], prepare: Prepare, sender: Connection) -> None:
    for name in names:
        sender.send(run_case(cases()[name], prepare))


def report(outcomes: list[Outcome], verbose: bool) -> None:
    for kind in KINDS if verbose else KINDS[2:]:
        for o in outcomes:
            if o.kind == kind:
                print(f"{kind:12s} {o.name}  {o.detail}")
    counts = Counter(o.kind for o in outcomes)
    print(", ".join(f"{counts[k]} {k}" for k in KINDS), f"of {len(outcomes)}")


if __name__ == "__main__":
    raise SystemExit(main())
