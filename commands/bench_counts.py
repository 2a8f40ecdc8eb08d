"""`burnish bench` without a board: instructions that contestants execute under an emulator.

Every contestant is a process that runs a network some times, on one thread. A run's count is what a process
with more runs executes beyond one with a single run, over the runs more: neither the start nor what a library
does once (packing weights, planning) is in it. Counts are not times: caches do not show, nor what a core does
at once.
"""

from __future__ import annotations

import datetime
import functools
import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import onnx

from ..compiler.target import Target
from ..models.zoo import random_inputs
from ..op_tuner.child import ChildEnded, answer_of
from ..op_tuner.simulated import Emulation
from .flops import nominal_flops
from .outputs import defined_outputs, judged_error, least_tolerance, reason_of, reference_outputs, wrong
from .peers import EmulatedPeer, Network
from .peers.base import Arrays

ENOUGH = 2e9
"""FLOP in the runs of a peer, or instructions where there are none: starting Python differs by some million
instructions between two processes."""
MOST = 10_000
"""Runs of a peer: more runs of smaller models are calls above all, and those of Python are slow there."""
KINDS = ("instructions", "fmla", "arithmetic", "vector_loads", "vector_stores")


@dataclass(frozen=True)
class CountRow:
    """One contestant on one network. `counts` are of one run, by kind; empty on a failed row."""

    contestant: str
    version: str
    subject: bool = False
    counts: Mapping[str, float] = field(default_factory=dict)
    process: int | None = None  # instructions of a whole process with one run
    error: float | None = None  # largest difference from the reference, relative to the output's scale
    reason: str | None = None
    algorithm: str = ""

    @property
    def failed(self) -> bool:
        return self.reason is not None

    @property
    def instructions(self) -> float | None:
        return self.counts.get("instructions")


@dataclass(frozen=True)
class CountGroup:
    network: str
    checked: bool  # against onnxruntime, here, or the operators' definitions where it fails
    rows: tuple[CountRow, ...]

    @property
    def best_peer(self) -> CountRow | None:
        """Of the right peers the one with the fewest instructions."""
        peers = [row for row in self.rows if row.instructions is not None and not row.subject]
        return min(peers, key=lambda row: row.instructions or 0.0, default=None)

    def ratio(self, row: CountRow) -> float | None:
        """The best peer's instructions over the row's: above 1, the row has fewer."""
        best = self.best_peer
        if best is None or row.instructions is None:
            return None
        return (best.instructions or 0.0) / row.instructions


@dataclass(frozen=True)
class CountResult:
    date: str  # ISO 8601, UTC
    target: str
    emulator: str  # what it calls itself
    runs: int  # at least
    seed: int
    groups: tuple[CountGroup, ...] = ()
    complete: bool = True  # not so while there is more to count


def count(
    models: Sequence[tuple[str, onnx.ModelProto]],
    contestants: Sequence[EmulatedPeer],
    target: Target,
    *,
    runs: int = 7,
    seed: int = 0,
    progress: Callable[[str], None] = lambda message: None,
    keep: Callable[[CountResult], None] = lambda found: None,
) -> CountResult:
    """Count what `contestants` execute for each model. One that fails or is wrong is a row that says so.

    runs  the least number after the first one; small models take as many as make ENOUGH work together
    keep  is called behind each model, with what there is so far

    ToolError where there is no emulator that counts.
    """
    date = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    with tempfile.TemporaryDirectory(prefix="burnish-") as name:
        emulation = Emulation(target, Path(name), caches=False)
        result = CountResult(
            date=date, target=target.name, emulator=emulation.version(), runs=runs, seed=seed, complete=False
        )
        for title, model in models:
            group = _group(Network(title, model), contestants, emulation, runs, seed, progress)
            result = replace(result, groups=(*result.groups, group))
            keep(result)
    return replace(result, complete=True)


def _group(
    network: Network,
    contestants: Sequence[EmulatedPeer],
    emulation: Emulation,
    runs: int,
    seed: int,
    progress: Callable[[str], None],
) -> CountGroup:
    inputs = random_inputs(network.model, seed)
    judge = functools.cache(lambda: defined_outputs(network, inputs))
    try:
        expected: Arrays | None = answer_of(lambda tell: reference_outputs(network, inputs))
    except ChildEnded:  # onnxruntime may crash
        expected = None
    if expected is None:
        expected = judge()
    work: float | None = nominal_flops(network.model, inputs)
    rows: list[CountRow] = []
    for peer in contestants:
        progress(f"{network.name}: counting {peer.name}")
        enough = math.ceil(ENOUGH / (work or ENOUGH))
        more = max(runs, min(enough, MOST))
        rows.append(_count(peer, network, inputs, expected, judge, emulation, more))
        work = work or rows[-1].instructions  # the first one is Burnish's, in C
    return CountGroup(network.name, expected is not None, tuple(rows))


def _count(
    peer: EmulatedPeer,
    network: Network,
    inputs: Arrays,
    expected: Arrays | None,
    judge: Callable[[], Arrays | None],
    emulation: Emulation,
    runs: int,
) -> CountRow:
    row = CountRow(peer.name, "", peer.subject)
    try:
        row = replace(row, version=peer.version())
        with tempfile.TemporaryDirectory(dir=emulation.folder) as folder:
            program = peer.prepare(network, inputs, Path(folder))
            one, more = (emulation.count([*program.command, n], program.options) for n in (1, 1 + runs))
            found = program.outputs()
            row = replace(row, algorithm=program.algorithm())
        if expected is not None:
            least = least_tolerance(network.model)
            limit = max(peer.tolerance, least)
            error = judged_error(found, expected, limit, not least, judge)
            row = replace(row, error=error)
            if not error <= limit:
                return replace(row, reason=wrong(found, expected, error, limit))
    except Exception as error:  # whatever another library's way here raises is a row, not the end
        return replace(row, reason=reason_of(error))
    counts = {kind: (more[kind] - one[kind]) / runs for kind in KINDS}
    if counts["instructions"] <= 0:
        return replace(row, reason=f"{runs} runs are too few to tell from a process's start")
    return replace(row, counts=counts, process=one["instructions"])
