"""Recurrent cells, LSTM, GRU and RNN: a kernel a step, or one for all steps where all weights fit into
registers and blocks may wait for each other. `cell_kernels` has both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

from ...ir.loops import Program
from ...kernel_task import Config, KernelTask
from ...ops.packed_recurrence import PACKED
from ...target import Gpu
from .cell_kernels import Params, Resident, Sizes, Stepwise
from .lanes import WARP, can_exchange

THREADS = 256
MOST_RESIDENT = 512  # threads of a block that holds weights
FEW = 8  # terms of a sum that are worth a thread of their own
MOST_EXCHANGED = 16  # sums of a thread; more are added up sooner through shared memory
ROWS = (1, 2, 4, 8)  # of the batch that share one reading of the weights
SHARES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
UNITS = (1, 2, 4, 8, 16, 32, 64)
OTHERS = 8  # more registers of a kernel that holds weights


def matches(task: KernelTask) -> bool:
    return type(task.op) in PACKED and all(t is None or t.size for t in (*task.types, *task.output_types))


def sizes(task: KernelTask) -> Sizes:
    y, r = task.output_types[0], task.types[1]
    assert r is not None
    steps, batch, hidden = y.dims
    return Sizes(steps, batch, hidden, r.dims[0] // hidden, y.dtype.bytes)


Way = tuple[int, int, int, int]
"""(lane, rows, shares, units), as `Params` has them."""


def params(task: KernelTask, cfg: Config) -> Params:
    gpu, n = task.target.gpu, sizes(task)
    assert gpu is not None
    ways = _resident(n, gpu)
    resident = bool(ways)
    if ways:
        resident = cfg.choose("resident", [False, True], True)
    lane, rows, split, units = _chosen(ways, n, gpu, cfg) if resident else _stepwise(n, gpu, cfg)
    exchange = can_exchange(gpu, task.output_types[0].dtype) and n.gates * rows <= MOST_EXCHANGED
    return Params(units, split, rows, lane, exchange, resident)


def _stepwise(n: Sizes, gpu: Gpu, cfg: Config) -> Way:
    lanes = _lanes(n)
    lane = cfg.choose("lane", lanes, lanes[-1] if gpu.warp < 32 else 1)
    needed = [m for m in ROWS if m < 2 * n.batch and _registers(n, m, lane) <= gpu.registers] or [1]
    rows = cfg.choose("rows", needed, needed[-1])
    most = min(gpu.block_threads, THREADS)
    shares = [m for m in SHARES if m <= most and _fits(n, 1, m, rows, gpu)]
    split = cfg.choose("shares", shares, _wanted(shares, n, lane, gpu))
    units = [m for m in UNITS if m * split <= most and _fits(n, m, split, rows, gpu)]
    blocks = [m for m in units if -(-n.hidden // m) * -(-n.batch // rows) >= gpu.units]
    return lane, rows, split, cfg.choose("units", units, max(blocks, default=1))


@lru_cache(maxsize=16)
def _resident(n: Sizes, gpu: Gpu) -> tuple[Way, ...]:
    """All with all weights in registers, of blocks that run at once, one a unit of the GPU."""
    return tuple(sorted(set(_all_resident(n, gpu)))) if gpu.together and n.steps > 1 else ()


def _all_resident(n: Sizes, gpu: Gpu) -> Iterator[Way]:
    for lane in _lanes(n):
        for rows in (m for m in ROWS if m < 2 * n.batch):
            at_once = gpu.units // -(-n.batch // rows)
            if not at_once:
                continue
            least = -(-n.hidden // at_once)
            for shares in SHARES:
                terms = -(-n.hidden // (shares * lane))
                held = n.gates * terms * lane * -(-n.bytes // 4)
                if held + _registers(n, rows, lane) + OTHERS > gpu.registers:
                    continue
                for units in {least, *(m for m in UNITS if least < m < 2 * n.hidden)}:
                    threads = units * shares
                    whole = threads < WARP or threads % WARP == 0
                    most = min(gpu.block_threads, MOST_RESIDENT)
                    if whole and threads <= most and _fits(n, units, shares, rows, gpu):
                        yield lane, rows, shares, units


def _chosen(ways: Sequence[Way], n: Sizes, gpu: Gpu, cfg: Config) -> Way:
    """One number after the other, of those that are left."""

    def ask(knob: str, place: int, default: int | None = None) -> int:
        nonlocal ways
        options = sorted({way[place] for way in ways})
        answer = cfg.choose(knob, options, options[0] if default is None else default)
        ways = [way for way in ways if way[place] == answer]
        return answer

    lane = ask("lane", 0)
    rows = ask("rows", 1, max(way[1] for way in ways))
    split = ask("shares", 2, _wanted(sorted({way[2] for way in ways}), n, lane, gpu))
    return lane, rows, split, ask("units", 3)


def _lanes(n: Sizes) -> list[int]:
    return [w for w in (1, 2, 4) if n.hidden % w == 0]


def _wanted(shares: Sequence[int], n: Sizes, lane: int, gpu: Gpu) -> int:
    """As many threads for a sum as have enough to do, and no more than it has terms."""
    wanted = [m for m in shares if m == 1 or m <= gpu.warp or m * lane * FEW <= n.hidden]
    return max((m for m in wanted if m == 1 or m * lane < 2 * n.hidden), default=shares[0])


def _registers(n: Sizes, rows: int, lane: int) -> int:
    return (n.gates * rows + (n.gates + rows) * lane) * -(-n.bytes // 4) + 16


def _fits(n: Sizes, units: int, shares: int, rows: int, gpu: Gpu) -> bool:
    """Whether the sums of all shares, two phases' too, and what warps meet by fit into a block's memory."""
    sums = n.gates * units * rows
    words = shares * ((sums | 1) + 1 + units) + sums
    return words * n.bytes <= (gpu.shared or 16 * 1024)


def schedule(task: KernelTask, p: Params) -> Program:
    builder = (Resident if p.resident else Stepwise)(task, p, sizes(task))
    return Program(task.name, builder.params, builder.body(), builder.temps)
