"""What the code that `loops_interpreter` writes calls while it runs: buffers, checks, lanes, lockstep."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any, NoReturn

import numpy as np

from ...errors import InternalError, RunError
from .numpy_scalar import Array, apply_call


class Memory:
    """The elements of one buffer and which of them are defined; `defined` is None where all are."""

    __slots__ = ("defined", "flat", "name", "shape")

    def __init__(self, name: str, shape: tuple[int, ...], flat: Array, defined: bytearray | None):
        self.name, self.shape, self.flat, self.defined = name, shape, flat, defined

    @staticmethod
    def undefined(name: str, shape: tuple[int, ...], dtype: np.dtype) -> Memory:
        size = math.prod(shape)
        return Memory(name, shape, np.zeros(size, dtype), bytearray(size))

    def fail(self, what: str, flat: int) -> NoReturn:
        place = [int(i) for i in np.unravel_index(flat, self.shape)] if self.shape else []
        raise InternalError(f"{what} {self.name}{place}")

    def unread(self, flat: int) -> NoReturn:
        self.fail("a load of the undefined element", flat)

    def outside(self, axis: int, index: int) -> NoReturn:
        raise InternalError(
            f"{self.name}: index {index} of axis {axis} lies outside of its shape {list(self.shape)}"
        )


# --- lanes of a vector loop -------------------------------------------------------------------------------


def lane_load(memory: Memory, index: Sequence[Any], mask: Array | None) -> Array:
    """The elements at `index` (arrays or scalars that broadcast); lanes outside of `mask` give 0."""
    flat = _lane_offsets(memory, index, mask)
    if mask is not None:
        flat, mask = np.broadcast_arrays(flat, mask)
    if memory.defined is not None:
        known = np.frombuffer(memory.defined, np.uint8)
        asked = flat if mask is None else flat[mask]
        holes = asked[known[asked] == 0]
        if holes.size:
            memory.unread(int(holes.flat[0]))
    if mask is None:
        return memory.flat[flat]
    out = np.zeros(flat.shape, memory.flat.dtype)
    out[mask] = memory.flat[flat[mask]]
    return out


def lane_store(memory: Memory, index: Sequence[Any], value: Any, mask: Array | None, lanes: Array) -> None:
    """One store by all lanes; two lanes may only write the same element when they write the same bits."""
    flat = np.broadcast_to(_lane_offsets(memory, index, mask), lanes.shape)
    value = np.broadcast_to(value, lanes.shape)
    if mask is not None:
        chosen = np.broadcast_to(mask, lanes.shape)
        flat, value = flat[chosen], value[chosen]
    assert memory.defined is not None
    memory.flat[flat] = value
    kept = memory.flat[flat]
    if kept.tobytes() != np.ascontiguousarray(value).tobytes():
        raise InternalError(f"lanes of a vector loop write different values to one element of {memory.name}")
    np.frombuffer(memory.defined, np.uint8)[flat] = 1


def _lane_offsets(memory: Memory, index: Sequence[Any], mask: Array | None) -> Array:
    flat: Any = np.int64(0)
    for axis, (i, extent) in enumerate(zip(index, memory.shape, strict=True)):
        i = np.asarray(i)
        bad = (i < 0) | (i >= extent)
        if bad.any():
            live = bad if mask is None else bad & mask
            if live.any():
                memory.outside(axis, int(np.broadcast_to(i, live.shape)[live].flat[0]))
            i = np.where(bad, 0, i)
        flat = flat * extent + i
    return np.asarray(flat)


def narrow(mask: Array | None, cond: Array) -> Array:
    return np.asarray(cond if mask is None else mask & cond)


# --- threads in step --------------------------------------------------------------------------------------

Thread = Generator["str | None", None, None]


def lockstep(threads: Iterable[Thread]) -> Thread:
    """Runs threads from barrier to barrier, one after another; yields its scope when all stand at one."""
    running = list(threads)
    while True:
        found = {next(thread, None) for thread in running}
        if found <= {None}:
            return
        if len(found) > 1:
            raise InternalError("a barrier that not all threads reach")
        yield found.pop()


def share(begin: int, end: int, worker: int, workers: int) -> range:
    """The part of a parallel loop that one worker of a gang takes."""
    tasks = max(0, end - begin)
    return range(begin + tasks * worker // workers, begin + tasks * (worker + 1) // workers)


def backward(begin: int, end: int) -> Iterable[int]:
    return reversed(range(begin, end))


# --- scalars ----------------------------------------------------------------------------------------------


def floor_div(a: int, b: int) -> int:
    return a // b if b else 0


def floor_mod(a: int, b: int) -> int:
    return a % b if b else 0


def int_div(a: int, b: int) -> int:
    if b == 0:
        return 0
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


def int_rem(a: int, b: int) -> int:
    return a - int_div(a, b) * b if b else 0


def int_pow(a: int, b: int) -> int:
    """Exact up to a factor 2^64, which the caller's wrap-around removes."""
    if b < 0:
        return 1 if a == 1 else (1 if b % 2 == 0 else -1) if a == -1 else 0
    return pow(a, b, 1 << 64)


def shift_left(a: int, b: int, bits: int) -> int:
    return a << b if 0 <= b < bits else 0


def shift_right(a: int, b: int, bits: int) -> int:
    return a >> b if 0 <= b < bits else 0


def saturate(x: Any, low: int, high: int) -> int:
    """float → int as Cast does."""
    v = float(x)
    if v != v:
        return 0
    return high if v >= high else low if v <= low else int(v)


def float_call(op: str) -> Callable[..., Any]:
    """A scalar function of numpy floats that gives a numpy scalar."""
    direct: dict[str, Callable[..., Any]] = {
        "exp": np.exp, "log": np.log, "sqrt": np.sqrt, "tanh": np.tanh, "floor": np.floor, "ceil": np.ceil,
        "trunc": np.trunc, "round": np.rint, "abs": np.abs, "neg": np.negative,
    }  # fmt: skip
    return direct.get(op) or (lambda *args: apply_call(op, list(args), None)[()])


def out_of_range() -> NoReturn:
    raise RunError("index out of range")
