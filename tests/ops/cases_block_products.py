"""Cases of the operators on weights in blocks."""

import numpy as np
from burnish.compiler.ops.block_products import BlockMatMul, UnpackBlocks

from .case import Case


def some(*shape: int) -> np.ndarray:
    """Bytes, all of which may come."""
    return np.random.default_rng(len(shape)).integers(0, 256, shape).astype(np.uint8)


def factors(bits: int, *shape: int) -> tuple[np.ndarray, np.ndarray]:
    """Scales and shifts that make weights between -1 and 1."""
    scale, shift = np.random.default_rng(bits).uniform(0.5, 1.0, (2, *shape)).astype(np.float32)
    return scale / 2 ** (bits - 1), -shift


def product(rows: tuple[int, ...], columns: int, blocks: int, bytes: int, bits: int) -> Case:
    terms = blocks * bytes * 8 // bits
    data = f"f32[{','.join(map(str, (*rows, terms)))}]"
    inputs = (data, some(columns, blocks, bytes), *factors(bits, columns, blocks))
    return Case(BlockMatMul(bits), inputs, "sums of many terms", widen=max(terms / 4, 4.0))


CASES = [
    *(product((1,), 33, 2, 4 * bits, bits) for bits in (2, 4, 8)),
    product((2, 3), 17, 3, 8, 4),
    product((19,), 130, 1, 16, 4),
    product((1,), 1, 1, 8, 4),
    product((7,), 32, 5, 3, 4),
    Case(BlockMatMul(4, 8), ("f32[5,32]", some(35, 2, 8), factors(4, 35, 2)[0]), "no shifts", widen=8.0),
    product((0,), 5, 1, 16, 8),
    *(Case(UnpackBlocks(bits), (some(3, 2, 5), *factors(bits, 3, 2))) for bits in (2, 4, 8)),
    Case(UnpackBlocks(4), (some(2, 3, 4, 16), *factors(4, 2, 3, 4))),
    Case(UnpackBlocks(4, 8), (some(3, 2, 8), factors(4, 3, 2)[0])),
    Case(UnpackBlocks(4), (some(0, 2, 4), "f32[0,2]", "f32[0,2]")),
]
