"""Words of four bytes that lie side by side in memory: loads of whole words, where lanes allow."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from itertools import pairwise

from ..ir.loops import Buffer
from ..ir.scalar import Call, Expr, Load, Select, const, substitute, variables
from ..ir.types import I32
from ..ops.byte_products import BYTES
from .llvm_dots import lanes_of, shuffled
from .llvm_memory import Memory, Terms
from .llvm_values import Value, broadcast, memory_type


@dataclass(frozen=True)
class _Word:
    """Where the bytes of one lane's word begin, the condition under which they are there (None: always), and
    whether they are in the buffer whatever it says.
    """

    buffer: Buffer
    offset: int
    terms: Terms
    guard: Expr | None
    inside: bool

    def follows(self, other: _Word) -> bool:
        """Whether it stands behind the other one, and is there where that is."""
        near = (self.offset, self.terms) == (other.offset + BYTES, other.terms)
        return near and (self.guard, self.inside) == (other.guard, other.inside)


class Words(Memory):
    @abstractmethod
    def conjunction(self, a: Value | None, b: Value) -> Value:
        """Of masks."""

    def words(self, e: Call) -> Value | None:
        """Lanes whose words follow each other are loaded together. None where bytes do not lie side by side,
        or where a lane alone is guarded.
        """
        lanes = self.vector[1] if self.vector and self.vector[0] in variables(e) else 1
        found = [w for n in range(lanes) if (w := self.word_in_lane(e, n))]
        if len(found) < lanes:
            return None
        breaks = [n for n in range(1, lanes) if not found[n].follows(found[n - 1])]
        runs = list(pairwise((0, *breaks, lanes)))
        masks = [self.mask_of(found[begin]) for begin, _ in runs]
        if any(mask is not None and end - begin == 1 for mask, (begin, end) in zip(masks, runs)):
            return None
        result: Value | None = None
        for mask, (begin, end) in zip(masks, runs):
            part = lanes_of(self.fn, self.run_of_words(found[begin], begin, end, mask), 0, lanes)
            order = [n if n < begin else lanes + n - begin for n in range(lanes)]
            result = part if result is None else shuffled(self.fn, result, part, order)
        return result

    def word_in_lane(self, e: Call, lane: int) -> _Word | None:
        at: dict[str, Expr] = {self.vector[0]: const(lane)} if self.vector else {}
        bytes = [substitute(x, at) for x in e.args]
        guard = None
        if isinstance(bytes[0], Select):
            guard, zero = bytes[0].cond, const(0, bytes[0].dtype)
            if not all(isinstance(x, Select) and (x.cond, x.other) == (guard, zero) for x in bytes):
                return None
            bytes = [x.then for x in bytes if isinstance(x, Select)]
        loads = [x for x in bytes if isinstance(x, Load)]
        if len(loads) < BYTES or len({x.tensor for x in loads}) > 1:
            return None
        buffer = self.buffers[loads[0].tensor]
        places = [self.resolve(self.flat(buffer, x.index)) for x in loads]
        offset, terms, _ = places[0]
        if buffer.size == 0 or places != [(offset + n, terms, 0) for n in range(BYTES)]:
            return None
        return _Word(buffer, offset, terms, guard, all(self.inside(buffer, x.index) for x in loads))

    def mask_of(self, word: _Word) -> Value | None:
        outer = None if word.inside else self.mask
        return outer if word.guard is None else self.conjunction(outer, self.expr(word.guard))

    def run_of_words(self, first: _Word, begin: int, end: int, mask: Value | None) -> Value:
        """Words of the lanes [begin, end), zero where the mask is false."""
        count, type = end - begin, memory_type(I32, end - begin)
        pointer = self.pointer(first.buffer, first.offset, first.terms)
        if mask is None:
            return self.fn.assign(f"load {type}, ptr {pointer}, align 1", I32, count)
        own = broadcast(self.fn, mask, count) if mask.lanes == 1 else lanes_of(self.fn, mask, begin, count)
        args = [f"ptr align 1 {pointer}", own.typed, f"{type} zeroinitializer"]
        return self.fn.assign(self.fn.intrinsic(f"llvm.masked.load.v{count}i32.p0", type, args), I32, count)
