"""Cases of matrix products. The tolerance covers sums of K products in any order."""

from burnish.compiler.ops.matmul import Einsum, MatMul
from burnish.compiler.ops.quarter_sums import QuarterSums

from .case import Case

CASES = [
    Case(MatMul(), ("f32[3,5]", "f32[5,7]"), widen=10),
    Case(MatMul(), ("f32[1,1]", "f32[1,1]")),
    Case(MatMul(), ("f32[17,33]", "f32[33,19]"), widen=40),
    Case(MatMul(), ("f32[1,64]", "f32[64,31]"), "row vector", widen=60),
    Case(MatMul(), ("f32[31,64]", "f32[64,1]"), "column vector", widen=60),
    Case(MatMul(), ("f32[2,3,4,5]", "f32[2,3,5,6]"), "batches", widen=10),
    Case(MatMul(), ("f32[3,1,4,5]", "f32[2,5,6]"), "broadcast batches", widen=10),
    Case(MatMul(), ("f32[4,5]", "f32[2,5,1]"), widen=10),
    Case(MatMul(), ("f32[2,0,5]", "f32[5,6]")),
    Case(MatMul(), ("f32[3,0]", "f32[0,4]"), "nothing to sum"),
    Case(MatMul(trans_a=True), ("f32[5,3]", "f32[5,7]"), widen=10),
    Case(MatMul(trans_b=True), ("f32[3,5]", "f32[7,5]"), widen=10),
    Case(MatMul(True, True), ("f32[2,5,3]", "f32[7,5]"), widen=10),
    Case(MatMul(), ("f64[3,5]", "f64[5,7]"), widen=100),
    Case(MatMul(), ("f16[3,5]", "f16[5,7]")),
    Case(MatMul(), ("bf16[3,19]", "bf16[19,4]")),
    Case(MatMul(), ("i32[3,5]", "i32[5,7]"), low=-1000, high=1000),
    Case(MatMul(), ("i64[2,3]", "i64[3,2]"), low=-(2**40), high=2**40),
    Case(MatMul(), ("u8[2,3]", "u8[3,2]"), "wraps around", low=0, high=255),
    Case(Einsum("ij,jk->ik"), ("f32[3,5]", "f32[5,4]"), widen=10),
    Case(Einsum("bhqd,bhkd->bhqk"), ("f32[2,3,5,7]", "f32[2,3,4,7]"), widen=10),
    Case(Einsum("ij->ji"), ("f32[3,5]",)),
    Case(Einsum("ij->"), ("f32[3,5]",), widen=10),
    Case(Einsum("ii->i"), ("f32[4,4]",)),
    Case(Einsum("bii->b"), ("f64[2,3,3]",), widen=10),
    Case(Einsum("i,j->ij"), ("f16[3]", "f16[4]")),
    Case(Einsum("ab,bc,cd->ad"), ("f32[2,3]", "f32[3,4]", "f32[4,5]"), widen=40),
    Case(Einsum("ij,ij->ij"), ("i32[3,4]", "i32[3,4]")),
    Case(Einsum(",i->i"), ("f32[]", "f32[3]")),
    Case(Einsum("ij,jk->ik"), ("f32[3,0]", "f32[0,4]"), "nothing to sum"),
    Case(Einsum("bi,bj->bij"), ("f32[1,3]", "f32[2,4]"), "broadcast"),
    Case(QuarterSums(8), ("f32[6,32]",)),
    Case(QuarterSums(4), ("f32[10,21]",), "columns that fill no panel"),
    Case(QuarterSums(16, True), ("f32[40,34,1,1]",), "a convolution's"),
]
