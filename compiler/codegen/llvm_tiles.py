"""Products of tiles by Intel AMX. A tile is named by a number in each instruction, of which there are eight.

The i × j sums come first; of the factors, those of which there are fewer stay in tiles while the others take
turns in what is left.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...errors import InternalError
from ..ir.loops import Intrinsic
from ..ir.scalar import Const, Load
from .llvm_memory import Memory
from .llvm_values import FunctionText

TILES = 8
LINE = 64  # bytes of a row of a tile, at most
_PALETTE = 1


def emit_tiles(fn: FunctionText, memory: Memory, st: Intrinsic) -> None:
    """`amx_*`, as `ir.loops` says what they mean. InternalError for any other intrinsic."""
    kind = st.name.removeprefix("amx_")
    if kind == "begin":
        _begin(fn, *(_number(e) for e in st.operands))
    elif kind == "end":
        _call(fn, "tilerelease")
    elif kind in ("zero", "store", "dot_u8"):
        sums, *factors = st.operands
        assert isinstance(sums, Load)
        i, j, rows, _ = memory.buffers[sums.tensor].shape
        if kind == "zero":
            for tile in range(i * j):
                _call(fn, "tilezero", f"i8 {tile}")
        elif kind == "store":
            for tile in range(i * j):
                _call(
                    fn,
                    "tilestored64",
                    f"i8 {tile}",
                    _pointer(memory, sums, tile * rows * LINE),
                    f"i64 {LINE}",
                )
        else:
            _dot(fn, memory, (i, j), factors)
    else:
        raise InternalError(f"code generation for a CPU: intrinsic {st.name}")


def _begin(fn: FunctionText, rows: int, words: int, i: int, j: int) -> None:
    """Intel SDM volume 1, table "Memory area layout for TILECONFIG": the palette, bytes of a row, rows."""
    left, right = _factors(i, j)
    shapes = {tile: (rows, LINE) for tile in range(i * j)}
    shapes.update({tile: (rows, 4 * words) for tile in left})
    shapes.update({tile: (words, LINE) for tile in right})
    data = bytearray(LINE)
    data[0] = _PALETTE
    for tile, (height, width) in shapes.items():
        data[16 + 2 * tile] = width
        data[48 + tile] = height
    slot = fn.alloca(f"<{LINE} x i8>", LINE)
    text = ", ".join(f"i8 {n}" for n in data)
    fn.emit(f"store <{LINE} x i8> <{text}>, ptr {slot}, align {LINE}")
    _call(fn, "ldtilecfg", f"ptr {slot}")


def _factors(i: int, j: int) -> tuple[range, range]:
    """Tiles of the left and of the right factors: the fewer ones are all held."""
    first = i * j
    held = range(first, first + min(i, j))
    turning = range(held.stop, min(TILES, held.stop + max(i, j)))
    return (held, turning) if i <= j else (turning, held)


def _dot(fn: FunctionText, memory: Memory, shape: tuple[int, int], operands: Sequence[object]) -> None:
    i, j = shape
    step, *factors = operands
    strides = (4 * _number(step), LINE)
    pointers = [_pointer(memory, f) for f in factors if isinstance(f, Load)]
    sides = (pointers[:i], pointers[i:])
    tiles = _factors(i, j)
    held, turning = (0, 1) if i <= j else (1, 0)

    def load(side: int, n: int) -> int:
        tile = tiles[side][n % len(tiles[side])]
        _call(fn, "tileloadd64", f"i8 {tile}", sides[side][n], f"i64 {strides[side]}")
        return tile

    kept = [load(held, n) for n in range(len(sides[held]))]
    for n in range(len(sides[turning])):
        tile = load(turning, n)
        for m, other in enumerate(kept):
            a, b, place = (other, tile, m * j + n) if held == 0 else (tile, other, n * j + m)
            _call(fn, "tdpbusd", f"i8 {place}", f"i8 {a}", f"i8 {b}")


def _pointer(memory: Memory, e: Load, nbytes: int = 0) -> str:
    buffer = memory.buffers[e.tensor]
    offset, terms, _ = memory.resolve(memory.flat(buffer, e.index))
    return f"ptr {memory.pointer(buffer, offset + nbytes // buffer.dtype.bytes, terms)}"


def _number(e: object) -> int:
    assert isinstance(e, Const)
    return int(e.value)


def _call(fn: FunctionText, name: str, *args: str) -> None:
    fn.emit(fn.intrinsic(f"llvm.x86.{name}", "void", list(args)))
