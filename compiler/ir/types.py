"""Data types, layouts and tensor types: what every representation says about a value.

DType: "f32", "i64", "bool", …, the names used in text forms and task keys
Layout: "abcd", "aBcd16b", the order of a tensor's axes in memory (oneDNN's notation)
TensorType: f32[1,64,56,56]:aBcd16b, that is dtype, logical shape, layout
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property

import ml_dtypes
import numpy as np

from ...errors import InternalError

Dim = int | str
"""A size: an int, or the name of a symbolic dimension that is not yet bound."""


@dataclass(frozen=True)
class DType:
    """An element type. `code` is its number in the module file (runtime/include/burnish.h)."""

    name: str
    code: int
    bits: int
    kind: str  # "float", "int", "uint", "bool"
    numpy: np.dtype = field(compare=False, hash=False)

    def __str__(self) -> str:
        return self.name

    __repr__ = __str__

    def __reduce__(self) -> tuple[object, ...]:  # types are compared by identity
        return _named, (self.name,)

    @property
    def bytes(self) -> int:
        """Size of one element in memory; sub-byte types are held one to a byte."""
        return max(1, self.bits // 8)

    @property
    def is_float(self) -> bool:
        return self.kind == "float"

    @property
    def is_integer(self) -> bool:
        return self.kind in ("int", "uint")


DTYPES: dict[str, DType] = {
    d.name: d
    for d in (
        DType("f32", 1, 32, "float", np.dtype(np.float32)),
        DType("u8", 2, 8, "uint", np.dtype(np.uint8)),
        DType("i8", 3, 8, "int", np.dtype(np.int8)),
        DType("u16", 4, 16, "uint", np.dtype(np.uint16)),
        DType("i16", 5, 16, "int", np.dtype(np.int16)),
        DType("i32", 6, 32, "int", np.dtype(np.int32)),
        DType("i64", 7, 64, "int", np.dtype(np.int64)),
        DType("bool", 9, 8, "bool", np.dtype(np.bool_)),
        DType("f16", 10, 16, "float", np.dtype(np.float16)),
        DType("f64", 11, 64, "float", np.dtype(np.float64)),
        DType("u32", 12, 32, "uint", np.dtype(np.uint32)),
        DType("u64", 13, 64, "uint", np.dtype(np.uint64)),
        DType("bf16", 16, 16, "float", np.dtype(ml_dtypes.bfloat16)),
    )
}
"""By name. The codes are ONNX's TensorProto.DataType numbers."""


def _named(name: str) -> DType:
    return DTYPES[name]


F32, F64, F16, BF16 = DTYPES["f32"], DTYPES["f64"], DTYPES["f16"], DTYPES["bf16"]
I8, I16, I32, I64 = DTYPES["i8"], DTYPES["i16"], DTYPES["i32"], DTYPES["i64"]
U8, U16, U32, U64 = DTYPES["u8"], DTYPES["u16"], DTYPES["u32"], DTYPES["u64"]
BOOL = DTYPES["bool"]
NARROW = (F16, BF16)
"""Floats that arithmetic is done on in f32."""

_BY_NUMPY = {d.numpy: d for d in DTYPES.values()}
_BY_CODE = {d.code: d for d in DTYPES.values()}


def dtype_of(array_or_dtype: object) -> DType:
    """The DType of a numpy array or numpy dtype; KeyError if Burnish has none."""
    return _BY_NUMPY[np.dtype(getattr(array_or_dtype, "dtype", array_or_dtype))]  # type: ignore[call-overload]


def dtype_by_code(code: int) -> DType:
    """The DType with ONNX's number `code`; KeyError if Burnish has none."""
    return _BY_CODE[code]


def wrapped(value: int, dtype: DType) -> int:
    """Modulo 2**bits."""
    low = 1 << (dtype.bits - 1) if dtype.kind == "int" else 0
    return (value + low) % (1 << dtype.bits) - low


@dataclass(frozen=True)
class Layout:
    """The order of a tensor's axes in memory, outermost first, then blocks of some axes, innermost last.

    "aBcd16b": axes a, b/16, c, d, then 16 neighbours of b. A capital letter marks a blocked axis. The last
    block of an axis whose size is no multiple is padded; padding may hold any finite value.
    """

    order: tuple[int, ...]
    blocks: tuple[tuple[int, int], ...] = ()  # (axis, factor), outermost first

    @staticmethod
    def plain(rank: int) -> Layout:
        return Layout(tuple(range(rank)))

    @staticmethod
    def channel_blocked(rank: int, block: int) -> Layout:
        """NCHW[block]c for a tensor (batch, channels, spatial…)."""
        return Layout(tuple(range(rank)), ((1, block),))

    @staticmethod
    def parse(text: str) -> Layout:
        match = re.fullmatch(r"([a-zA-Z]*)((?:\d+[a-z])*)", text)
        if not match:
            raise InternalError(f"layout {text!r}: expected letters and blocks such as aBcd16b")
        order = tuple(ord(letter.lower()) - ord("a") for letter in match[1])
        blocks = tuple((ord(a) - ord("a"), int(n)) for n, a in re.findall(r"(\d+)([a-z])", match[2]))
        return Layout(order, blocks)

    def __str__(self) -> str:
        blocked = {axis for axis, _ in self.blocks}
        letters = (chr(ord("A" if axis in blocked else "a") + axis) for axis in self.order)
        return "".join(letters) + "".join(f"{n}{chr(ord('a') + axis)}" for axis, n in self.blocks)

    __repr__ = __str__

    @property
    def rank(self) -> int:
        return len(self.order)

    @property
    def is_plain(self) -> bool:
        return not self.blocks and self.order == tuple(range(self.rank))

    def block_of(self, axis: int) -> int:
        """Product of the block factors of one axis."""
        product = 1
        for a, n in self.blocks:
            product *= n if a == axis else 1
        return product

    def physical_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Sizes in memory order; the product is the number of elements to allocate."""
        outer = tuple(-(-shape[axis] // self.block_of(axis)) for axis in self.order)
        return outer + tuple(n for _, n in self.blocks)

    def pack(self, array: np.ndarray) -> np.ndarray:
        """A logical array → its physical one, zeros in the padding."""
        widths = [(0, -array.shape[a] % self.block_of(a)) for a in range(self.rank)]
        padded = np.pad(array, widths) if any(w for _, w in widths) else array
        split: list[int] = []
        place: dict[tuple[int, int], int] = {}  # (axis, block; 0 is the outer part) → position in `split`
        for axis in range(self.rank):
            factors = [n for a, n in self.blocks if a == axis]
            outer = padded.shape[axis]
            for n in factors:
                outer //= n
            for level, n in enumerate([outer, *factors]):
                place[axis, level] = len(split)
                split.append(n)
        seen = dict.fromkeys(range(self.rank), 0)
        perm = [place[axis, 0] for axis in self.order]
        for axis, _ in self.blocks:
            seen[axis] += 1
            perm.append(place[axis, seen[axis]])
        return np.ascontiguousarray(padded.reshape(split).transpose(perm))

    def unpack(self, physical: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        """The inverse of `pack`: a logical array of `shape`."""
        index = np.arange(int(np.prod(shape, dtype=np.int64))).reshape(shape)
        packed_index = self.pack(index + 1).ravel()
        out = np.empty(index.size, physical.dtype)
        valid = packed_index > 0
        out[packed_index[valid] - 1] = physical.ravel()[valid]
        return out.reshape(shape)


@dataclass(frozen=True)
class TensorType:
    """dtype, logical shape and layout of a value. Sizes are counted in elements."""

    dtype: DType
    shape: tuple[Dim, ...]
    layout: Layout | None = None  # None: plain row-major

    def __str__(self) -> str:
        text = f"{self.dtype}[{','.join(str(d) for d in self.shape)}]"
        return text if self.layout is None or self.layout.is_plain else f"{text}:{self.layout}"

    __repr__ = __str__

    @staticmethod
    def parse(text: str) -> TensorType:
        match = re.fullmatch(r"(\w+)\[([^\]]*)\](?::(\w+))?", text.strip())
        if not match or match[1] not in DTYPES:
            raise InternalError(f"tensor type {text!r}: expected something like f32[1,64,56,56]:aBcd16b")
        dims = [d.strip() for d in match[2].split(",") if d.strip()]
        shape = tuple(int(d) if d.lstrip("-").isdigit() else d for d in dims)
        return TensorType(DTYPES[match[1]], shape, Layout.parse(match[3]) if match[3] else None)

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def is_static(self) -> bool:
        return all(isinstance(d, int) for d in self.shape)

    @cached_property
    def dims(self) -> tuple[int, ...]:
        """The shape as ints; a symbolic dim is an internal error here."""
        if not self.is_static:
            raise InternalError(f"type {self} still has symbolic dims")
        return tuple(int(d) for d in self.shape)

    @property
    def size(self) -> int:
        """Number of logical elements."""
        size = 1
        for d in self.dims:
            size *= d
        return size

    @property
    def physical_shape(self) -> tuple[int, ...]:
        return self.dims if self.layout is None else self.layout.physical_shape(self.dims)

    @property
    def nbytes(self) -> int:
        """Bytes in memory, block padding included."""
        size = self.dtype.bytes
        for d in self.physical_shape:
            size *= d
        return size

    @property
    def is_whole_blocks(self) -> bool:
        """Whether it is (n, c, 1, 1) in full blocks of channels: the same bytes as in plain layout."""
        if self.layout is None or self.rank < 3 or any(d != 1 for d in self.dims[2:]):
            return False
        block = self.layout.block_of(1)
        return self.layout == Layout.channel_blocked(self.rank, block) and self.dims[1] % block == 0

    def with_layout(self, layout: Layout | None) -> TensorType:
        return TensorType(self.dtype, self.shape, None if layout and layout.is_plain else layout)
