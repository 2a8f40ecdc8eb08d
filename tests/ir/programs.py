"""Loop programs that several tests run, print and verify."""

from __future__ import annotations

from burnish.compiler.ir import scalar as s
from burnish.compiler.ir.loops import Alloc, Barrier, Body, Buffer, If, Program, Stmt, Store, loop
from burnish.compiler.ir.scalar import Expr, Load, Var
from burnish.compiler.ir.types import F32

ZERO = s.const(0.0, F32)


def read(buffer: Buffer, *index: Expr | int) -> Load:
    return Load(buffer.name, tuple(s.as_expr(i) for i in index), buffer.dtype)


def write(buffer: Buffer, *index: Expr | int, value: Expr) -> Store:
    return Store(buffer.name, tuple(s.as_expr(i) for i in index), value)


def matrices(m: int, n: int, k: int) -> tuple[Buffer, Buffer, Buffer]:
    return Buffer("A", F32, (m, k)), Buffer("B", F32, (k, n)), Buffer("C", F32, (m, n))


def naive_matmul(m: int = 5, n: int = 7, k: int = 9) -> Program:
    a, b, c = matrices(m, n, k)
    i, j, p = Var("i"), Var("j"), Var("p")
    product = s.call("fma", read(a, i, p), read(b, p, j), read(c, i, j))
    inner = (write(c, i, j, value=ZERO), loop("p", k, write(c, i, j, value=product)))
    return Program("matmul", (a, b, c), (loop("i", m, loop("j", n, *inner), kind="parallel"),))


def register_tiled_matmul(m: int = 6, n: int = 37, k: int = 5, rows: int = 3, lanes: int = 8) -> Program:
    """A tile of rows × 8 lanes in registers; the last vector of a row is guarded."""
    a, b, c = matrices(m, n, k)
    acc = Buffer("acc", F32, (rows, lanes), "register")
    i, j, r, v, p = Var("io") * rows + Var("r"), Var("jo") * lanes + Var("v"), Var("r"), Var("v"), Var("p")
    guarded = s.select(s.lt(j, n), read(b, p, j), ZERO)
    product = s.call("fma", read(a, i, p), guarded, read(acc, r, v))

    def tile(*body):
        return loop("r", rows, loop("v", lanes, *body, kind="vector"), kind="unroll")

    body = Alloc(
        acc,
        (
            tile(write(acc, r, v, value=ZERO)),
            loop("p", k, tile(write(acc, r, v, value=product))),
            tile(If(s.lt(j, n), (write(c, i, j, value=read(acc, r, v)),))),
        ),
    )
    return Program(
        "tiled", (a, b, c), (loop("io", m // rows, loop("jo", -(-n // lanes), body), kind="parallel"),)
    )


def gpu_matmul(size: int = 16, tile: int = 4, barriers: tuple[bool, bool] = (True, True)) -> Program:
    """Tiles of A and B in shared memory, one thread an element; `barriers`: after filling, after use."""
    a, b, c = matrices(size, size, size)
    a_tile, b_tile = (Buffer(n, F32, (tile, tile), "shared") for n in ("a_tile", "b_tile"))
    acc = Buffer("acc", F32, (), "register")
    tx, ty, ko, ki = Var("tx"), Var("ty"), Var("ko"), Var("ki")
    i, j = Var("by") * tile + ty, Var("bx") * tile + tx
    product = s.call("fma", read(a_tile, ty, ki), read(b_tile, ki, tx), read(acc))
    steps: Body = (
        write(a_tile, ty, tx, value=read(a, i, ko * tile + tx)),
        write(b_tile, ty, tx, value=read(b, ko * tile + ty, j)),
        *([Barrier("block")] if barriers[0] else []),
        loop("ki", tile, write(acc, value=product)),
        *([Barrier("block")] if barriers[1] else []),
    )
    body = (
        write(acc, value=ZERO),
        loop("ko", size // tile, *steps),
        write(c, i, j, value=read(acc)),
    )
    thread = Alloc(acc, body)
    threads = loop("ty", tile, loop("tx", tile, thread, kind="thread.x"), kind="thread.y")
    block = Alloc(a_tile, (Alloc(b_tile, (threads,)),))
    blocks = loop("by", size // tile, loop("bx", size // tile, block, kind="block.x"), kind="block.y")
    return Program("gpu_matmul", (a, b, c), (blocks,))


def gang_scan(steps: int = 4, width: int = 10, barrier: bool = True) -> Program:
    """h[t + 1, i] = h[t, width - 1 - i] + x[t, i]: each step reads what other workers wrote before."""
    x, h = Buffer("x", F32, (steps, width)), Buffer("h", F32, (steps + 1, width))
    t, i = Var("t"), Var("i")
    return Program(
        "scan",
        (x, h),
        (
            loop("i", width, write(h, 0, i, value=ZERO), kind="parallel"),
            loop(
                "t",
                steps,
                loop(
                    "i",
                    width,
                    write(h, t + 1, i, value=read(h, t, width - 1 - i) + read(x, t, i)),
                    kind="parallel",
                ),
                *([Barrier("gang")] if barrier else []),
            ),
        ),
        gang=True,
    )


def grid_scan(steps: int = 4, barrier: bool = True) -> Program:
    """The same on a GPU: three blocks of four threads wait for each other."""
    x, h = Buffer("x", F32, (steps, 12)), Buffer("h", F32, (steps + 1, 12))
    t, i = Var("t"), Var("bx") * 4 + Var("tx")

    def kernel(*body: Stmt) -> Stmt:
        return loop("bx", 3, loop("tx", 4, *body, kind="thread.x"), kind="block.x")

    step = write(h, t + 1, i, value=read(h, t, 11 - i) + read(x, t, i))
    scan = loop("t", steps, step, *([Barrier("grid")] if barrier else []))
    return Program("grid_scan", (x, h), (kernel(write(h, 0, i, value=ZERO)), kernel(scan)))


ALL = (naive_matmul(), register_tiled_matmul(), gpu_matmul(), gang_scan(), grid_scan())
