"""`burnish bench` without a board: instructions that contestants execute under an emulator.

Every contestant is a process that runs a network some times, on one thread. A run's count is what a process
with more runs executes beyond one with a single run, over the runs more: neither the start nor what a library
does once (packing weights, planning) is in it. Counts are not times: caches do not show, nor what a core does
at once.
"""

from __future__ import annotations

import datetime
import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import onnx

from ..compiler.target import Target
from ..models.zoo import random_inputs
from ..op_tuner.simulated import Emulation
from .flops import nominal_flops
from .outputs import least_tolerance, reason_of, reference_outputs, relative_error, wrong
from .peers import EmulatedPeer, Network

ENOUGH = 2e9
"""FLOP in the runs of a peer: starting Python differs by some million instructions between two processes."""
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
    checked: bool  # against onnxruntime, here
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


def count(
    models: Sequence[tuple[str, onnx.ModelProto]],
    contestants: Sequence[EmulatedPeer],
    target: Target,
    *,
    runs: int = 7,
    seed: int = 0,
    progress: Callable[[str], None] = lambda message: None,
) -> CountResult:
    """Count what `contestants` execute for each model. One that fails or is wrong is a row that says so.

    runs  the least number after the first one; small models take as many as make ENOUGH work together

    ToolError where there is no emulator that counts.
    """
    groups = []
    with tempfile.TemporaryDirectory(prefix="burnish-") as name:
        emulation = Emulation(target, Path(name), caches=False)
        for title, model in models:
            network = Network(title, model)
            inputs = random_inputs(model, seed)
            expected = reference_outputs(network, inputs)
            enough = math.ceil(ENOUGH / (nominal_flops(model, inputs) or ENOUGH))
            rows, more = [], max(runs, min(enough, MOST))
            for peer in contestants:
                progress(f"{title}: counting {peer.name}")
                rows.append(_count(peer, network, inputs, expected, emulation, more))
            groups.append(CountGroup(title, expected is not None, tuple(rows)))
        emulator = emulation.version()
    date = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    return CountResult(
        date=date, target=target.name, emulator=emulator, runs=runs, seed=seed, groups=tuple(groups)
    )


def _count(
    peer: EmulatedPeer,
    network: Network,
    inputs: Mapping[str, np.ndarray],
    expected: Mapping[str, np.ndarray] | None,
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
            error = relative_error(found, expected)
            row = replace(row, error=error)
            limit = max(peer.tolerance, least_tolerance(network.model))
            if not error <= limit:
                return replace(row, reason=wrong(found, expected, error, limit))
    except Exception as error:  # whatever another library's way here raises is a row, not the end
        return replace(row, reason=reason_of(error))
    counts = {kind: (more[kind] - one[kind]) / runs for kind in KINDS}
    return replace(row, counts=counts, process=one["instructions"])
