"""What every code generator makes of a loop program."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Launch:
    """How a GPU starts a kernel: blocks of the grid, and threads of a block, in x, y and z."""

    grid: tuple[int, int, int] = (1, 1, 1)
    block: tuple[int, int, int] = (1, 1, 1)
    shared: int = 0  # bytes of shared memory of a block
    reports: bool = False  # whether it may find an error in its inputs
    together: bool = False  # whether all blocks must run at once, since they wait for each other
    overlaps: bool = False  # whether it may begin before the kernel before it has ended, and waits for it


@dataclass(frozen=True)
class Step:
    """One generated function: its symbol, the size of its task range, and scratch bytes per worker.

    On a GPU the tasks are the blocks of `launch`.
    """

    symbol: str
    tasks: int
    scratch: int
    launch: Launch | None = None


@dataclass(frozen=True)
class KernelCode:
    """A program's code, LLVM IR or C, and the steps to call in order, with params then temps as buffers."""

    name: str
    ir: str
    steps: tuple[Step, ...]
    gang: bool = False
