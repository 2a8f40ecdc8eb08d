"""Small random ONNX models: chains and joins of convolutions, products, movement, reductions, maps.

Values are kept near 1, so that rounding stays small. What jumps (comparisons, ArgMax, casts to integers)
reads only values that are exact: inputs, and what movement makes of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 20
CHANNELS = (1, 2, 3, 5, 8, 16, 17, 32)
SIZES = (1, 2, 3, 4, 5, 7, 8, 9, 13, 16)


@dataclass(frozen=True)
class Tensor:
    name: str
    shape: tuple[int, ...]
    exact: bool = False

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return int(np.prod(self.shape))


class Builder:
    """One model under construction; everything follows from the seed. Its values are of one float type."""

    def __init__(self, seed: int):
        self.rng = np.random.default_rng(seed)
        self.dtype = np.dtype(self.pick([np.float32] * 8 + [np.float64, np.float16]))
        self.onnx_type = helper.np_dtype_to_tensor_dtype(self.dtype)
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.inputs: list[Tensor] = []
        self.values: list[Tensor] = []
        self._count = 0

    # --- parts ------------------------------------------------------------------------------------------

    def fresh(self, hint: str) -> str:
        self._count += 1
        return f"{hint.lower()}{self._count}"

    def pick(self, options: Sequence):
        return options[int(self.rng.integers(len(options)))]

    def chance(self, probability: float) -> bool:
        return bool(self.rng.random() < probability)

    def floats(self, shape: Sequence[int], scale: float = 1.0) -> np.ndarray:
        return np.asarray(self.rng.uniform(-1, 1, shape) * scale, self.dtype)

    def number(self, value: float) -> str:
        return self.const(self.dtype.type(value))

    def const(self, array: np.ndarray) -> str:
        name = self.fresh("const")
        self.initializers.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def ints(self, *values: int) -> str:
        return self.const(np.array(values, np.int64))

    def input(self, shape: tuple[int, ...]) -> Tensor:
        tensor = Tensor(self.fresh("x"), shape, exact=True)
        self.inputs.append(tensor)
        self.values.append(tensor)
        return tensor

    def emit(
        self, op: str, inputs: Sequence[str], shape: Sequence[int], exact: bool = False, **attributes: object
    ) -> Tensor:
        result = Tensor(self.fresh(op), tuple(int(d) for d in shape), exact)
        self.nodes.append(helper.make_node(op, list(inputs), [result.name], **attributes))
        self.values.append(result)
        return result

    # --- operators; each returns None where the value does not suit it ----------------------------------

    def unary(self, x: Tensor) -> Tensor | None:
        op = self.pick(
            [
                "Relu",
                "Sigmoid",
                "Tanh",
                "Neg",
                "Abs",
                "LeakyRelu",
                "Elu",
                "HardSwish",
                "Erf",
                "Gelu",
                "Softplus",
            ]
        )
        return self.emit(op, [x.name], x.shape)

    def clip(self, x: Tensor) -> Tensor | None:
        clipped = self.emit("Clip", [x.name, self.number(-0.5), self.number(0.75)], x.shape)
        return self.emit("Exp", [clipped.name], x.shape) if self.chance(0.5) else clipped

    def binary(self, x: Tensor) -> Tensor | None:
        op = self.pick(["Add", "Sub", "Mul", "Max", "Min"])
        mates = [v for v in self.values if _broadcast(v.shape, x.shape) is not None and v is not x]
        if mates and self.chance(0.7):
            y = self.pick(mates)
            shape = _broadcast(x.shape, y.shape)
            assert shape is not None
            if np.prod(shape) > 20000:
                return None
            names = [x.name, y.name] if self.chance(0.5) else [y.name, x.name]
            return self.emit(op, names, shape)
        keep = int(self.rng.integers(0, x.rank + 1))
        shape = tuple(d if self.chance(0.6) else 1 for d in x.shape[x.rank - keep :])
        return self.emit(op, [x.name, self.const(self.floats(shape))], x.shape)

    def where(self, x: Tensor) -> Tensor | None:
        exact = [v for v in self.values if v.exact and _broadcast(v.shape, x.shape) == x.shape]
        if not exact:
            return None
        condition = Tensor(self.fresh("greater"), self.pick(exact).shape)
        source = next(v for v in exact if v.shape == condition.shape)
        zero = self.number(0.125)
        self.nodes.append(helper.make_node("Greater", [source.name, zero], [condition.name]))
        return self.emit("Where", [condition.name, x.name, zero], x.shape)

    def conv(self, x: Tensor) -> Tensor | None:
        if x.rank not in (3, 4) or 0 in x.shape:
            return None
        spatial = x.rank - 2
        kernel = [int(self.pick([1, 2, 3, 3, 5])) for _ in range(spatial)]
        strides = [int(self.pick([1, 1, 2, 3])) for _ in range(spatial)]
        dilations = [int(self.pick([1, 1, 2])) for _ in range(spatial)]
        pads = [int(self.rng.integers(0, 3)) for _ in range(2 * spatial)]
        out = [
            (d + pads[i] + pads[i + spatial] - dilations[i] * (kernel[i] - 1) - 1) // strides[i] + 1
            for i, d in enumerate(x.shape[2:])
        ]
        if any(d < 1 for d in out):
            return None
        channels = x.shape[1]
        groups = self.pick([1, 1, channels, *(g for g in (2, 4) if channels % g == 0)])
        m = channels * self.pick([1, 2]) if groups == channels else groups * int(self.pick(CHANNELS))
        scale = (1.0 / (channels // groups * np.prod(kernel))) ** 0.5
        weights = self.const(self.floats((m, channels // groups, *kernel), float(2 * scale)))
        inputs = [x.name, weights] + ([self.const(self.floats((m,)))] if self.chance(0.7) else [])
        return self.emit(
            "Conv", inputs, (x.shape[0], m, *out), kernel_shape=kernel, strides=strides,
            dilations=dilations, pads=pads, group=int(groups),
        )  # fmt: skip

    def batch_norm(self, x: Tensor) -> Tensor | None:
        if x.rank < 3 or 0 in x.shape:
            return None
        c = x.shape[1]
        scale, bias, mean = (self.const(self.floats((c,))) for _ in range(3))
        variance = self.const(np.abs(self.floats((c,))) + self.dtype.type(0.5))
        return self.emit("BatchNormalization", [x.name, scale, bias, mean, variance], x.shape)

    def conv_transpose(self, x: Tensor) -> Tensor | None:
        if x.rank != 4 or 0 in x.shape:
            return None
        kernel, strides = (
            [int(self.pick([1, 2, 3])) for _ in range(2)],
            [int(self.pick([1, 2])) for _ in range(2)],
        )
        pads = [int(self.rng.integers(0, k)) for k in kernel]
        m = int(self.pick(CHANNELS))
        out = [(d - 1) * strides[i] + kernel[i] - 2 * pads[i] for i, d in enumerate(x.shape[2:])]
        if any(d < 1 for d in out):
            return None
        scale = 2 * float(x.shape[1] * np.prod(kernel)) ** -0.5
        names = [
            x.name,
            self.const(self.floats((x.shape[1], m, *kernel), scale)),
            self.const(self.floats((m,))),
        ]
        shape = (x.shape[0], m, *out)
        return self.emit("ConvTranspose", names, shape, kernel_shape=kernel, strides=strides, pads=pads * 2)

    def instance_norm(self, x: Tensor) -> Tensor | None:
        if x.rank < 3 or 0 in x.shape or int(np.prod(x.shape[2:])) < 4:
            return None
        scale, bias = (self.const(self.floats((x.shape[1],))) for _ in range(2))
        return self.emit("InstanceNormalization", [x.name, scale, bias], x.shape, epsilon=1e-1)

    def recurrent(self, x: Tensor) -> Tensor | None:
        """(time, batch, features) → the states of all times, directions beside each other."""
        if x.rank != 3 or 0 in x.shape:
            return None
        op, gates = self.pick([("LSTM", 4), ("GRU", 3), ("RNN", 1)])
        hidden, directions = int(self.pick([1, 3, 8, 17])), int(self.pick([1, 2]))
        w = self.floats((directions, gates * hidden, x.shape[2]), 2 * x.shape[2] ** -0.5)
        r = self.floats((directions, gates * hidden, hidden), hidden**-0.5)
        b = self.floats((directions, 2 * gates * hidden))
        shape = (x.shape[0], directions, x.shape[1], hidden)
        extra = {"direction": "bidirectional" if directions == 2 else self.pick(["forward", "reverse"])}
        return self.emit(op, [x.name, *map(self.const, (w, r, b))], shape, hidden_size=hidden, **extra)

    def pool(self, x: Tensor) -> Tensor | None:
        if x.rank != 4 or 0 in x.shape:
            return None
        if self.chance(0.2):
            return self.emit("GlobalAveragePool", [x.name], (*x.shape[:2], 1, 1))
        kernel = [int(self.pick([2, 3])) for _ in range(2)]
        strides = [int(self.pick([1, 2])) for _ in range(2)]
        pads = [int(self.rng.integers(0, 2)) for _ in range(4)]
        out = [(d + pads[i] + pads[i + 2] - kernel[i]) // strides[i] + 1 for i, d in enumerate(x.shape[2:])]
        if any(d < 1 for d in out):
            return None
        op = self.pick(["MaxPool", "AveragePool"])
        extra = {"count_include_pad": int(self.chance(0.5))} if op == "AveragePool" else {}
        shape = (*x.shape[:2], *out)
        return self.emit(op, [x.name], shape, kernel_shape=kernel, strides=strides, pads=pads, **extra)

    def matmul(self, x: Tensor) -> Tensor | None:
        if x.rank < 2:
            return None
        k, n = x.shape[-1], int(self.pick(SIZES + CHANNELS))
        mates = [
            v for v in self.values
            if v.rank >= 2 and v.shape[-2] == k and _broadcast(x.shape[:-2], v.shape[:-2]) is not None
        ]  # fmt: skip
        if mates and self.chance(0.5):
            y = self.pick(mates)
            batch = _broadcast(x.shape[:-2], y.shape[:-2])
            assert batch is not None
            return self.emit("MatMul", [x.name, y.name], (*batch, x.shape[-2], y.shape[-1]))
        weights = self.const(self.floats((k, n), 2 * max(k, 1) ** -0.5))
        return self.emit("MatMul", [x.name, weights], (*x.shape[:-1], n))

    def gemm(self, x: Tensor) -> Tensor | None:
        if x.rank != 2 or 0 in x.shape:  # onnxruntime forgets beta where the sum is empty
            return None
        trans_a, trans_b = int(self.chance(0.3)), int(self.chance(0.5))
        m, k = x.shape[::-1] if trans_a else x.shape
        n = int(self.pick(SIZES))
        weights = self.floats((n, k) if trans_b else (k, n), 2 * max(k, 1) ** -0.5)
        bias = self.floats(self.pick([(n,), (1,), (m, n), (m, 1)]))
        names = [x.name, self.const(weights), self.const(bias)]
        return self.emit("Gemm", names, (m, n), transA=trans_a, transB=trans_b, alpha=0.5, beta=1.5)

    def transpose(self, x: Tensor) -> Tensor | None:
        if x.rank == 0:
            return None
        perm = [int(p) for p in self.rng.permutation(x.rank)]
        return self.emit("Transpose", [x.name], [x.shape[p] for p in perm], x.exact, perm=perm)

    def reshape(self, x: Tensor) -> Tensor | None:
        dims = list(x.shape)
        if len(dims) > 1 and self.chance(0.6):
            at = int(self.rng.integers(len(dims) - 1))
            dims[at : at + 2] = [dims[at] * dims[at + 1]]
        else:
            at = int(self.rng.integers(len(dims) + 1))
            factor = self.pick([f for f in (1, 2, 3, 4) if at < len(dims) and dims[at] % f == 0] or [1])
            dims[at : at + 1] = [factor, dims[at] // factor] if at < len(dims) else [1]
        return self.emit("Reshape", [x.name, self.ints(*dims)], dims, x.exact, allowzero=1)

    def concat(self, x: Tensor) -> Tensor | None:
        if x.rank == 0:
            return None
        axis = int(self.rng.integers(x.rank))
        mates = [
            v for v in self.values
            if v.rank == x.rank and all(a == b for n, (a, b) in enumerate(zip(v.shape, x.shape)) if n != axis)
        ]  # fmt: skip
        parts = [x, *(self.pick(mates) for _ in range(int(self.rng.integers(1, 3))))]
        shape = list(x.shape)
        shape[axis] = sum(p.shape[axis] for p in parts)
        return self.emit("Concat", [p.name for p in parts], shape, all(p.exact for p in parts), axis=axis)

    def slice(self, x: Tensor) -> Tensor | None:
        if x.rank == 0:
            return None
        axis = int(self.rng.integers(x.rank))
        d = x.shape[axis]
        step = int(self.pick([1, 1, 2, -1, -2]))
        start, end = sorted(int(v) for v in self.rng.integers(0, d + 1, 2))
        picked = range(d)[start:end][::step] if step > 0 else range(d)[start:end][::-1][::-step]
        if step < 0:
            start, end = end - 1, start - 1 - (d if start == 0 else 0)
            if not picked:
                return None
        shape = list(x.shape)
        shape[axis] = len(picked)
        names = [x.name, *(self.ints(v) for v in (start, end, axis, step))]
        return self.emit("Slice", names, shape, x.exact)

    def split(self, x: Tensor) -> Tensor | None:
        axes = [n for n, d in enumerate(x.shape) if d > 1]
        if not axes:
            return None
        axis = self.pick(axes)
        first = int(self.rng.integers(1, x.shape[axis]))
        parts = []
        for size in (first, x.shape[axis] - first):
            shape = tuple(size if n == axis else d for n, d in enumerate(x.shape))
            parts.append(Tensor(self.fresh("split"), shape, x.exact))
        sizes = self.ints(*(p.shape[axis] for p in parts))
        self.nodes.append(helper.make_node("Split", [x.name, sizes], [p.name for p in parts], axis=axis))
        self.values += parts
        return parts[1]

    def tile(self, x: Tensor) -> Tensor | None:
        repeats = [int(self.pick([1, 1, 2, 3])) for _ in x.shape]
        shape = [d * n for d, n in zip(x.shape, repeats)]
        if np.prod(shape) > 20000 or not shape:
            return None
        return self.emit("Tile", [x.name, self.ints(*repeats)], shape, x.exact)

    def expand(self, x: Tensor) -> Tensor | None:
        shape = [int(self.pick([2, 3])) if d == 1 and self.chance(0.7) else d for d in x.shape]
        shape = [2, *shape] if x.rank < 4 and self.chance(0.4) else shape
        return self.emit("Expand", [x.name, self.ints(*shape)], shape, x.exact)

    def depth_to_space(self, x: Tensor) -> Tensor | None:
        if x.rank != 4 or x.shape[1] % 4:
            return None
        n, c, h, w = x.shape
        return self.emit("DepthToSpace", [x.name], (n, c // 4, 2 * h, 2 * w), x.exact, blocksize=2)

    def running_sum(self, x: Tensor) -> Tensor | None:
        if x.rank == 0 or 0 in x.shape:
            return None
        axis = int(self.rng.integers(x.rank))
        mean = self.emit("Mul", [x.name, self.number(1 / x.shape[axis])], x.shape)
        flags = {"exclusive": int(self.chance(0.5)), "reverse": int(self.chance(0.5))}
        return self.emit("CumSum", [mean.name, self.const(np.array(axis))], x.shape, **flags)

    def pad(self, x: Tensor) -> Tensor | None:
        if x.rank == 0 or 0 in x.shape:
            return None
        pads = [int(self.rng.integers(0, 3)) for _ in range(2 * x.rank)]
        mode = self.pick(["constant", "edge", "reflect"])
        if mode == "reflect":
            pads = [min(p, x.shape[n % x.rank] - 1) for n, p in enumerate(pads)]
        shape = [d + pads[n] + pads[n + x.rank] for n, d in enumerate(x.shape)]
        if np.prod(shape) > 20000:
            return None
        return self.emit("Pad", [x.name, self.ints(*pads)], shape, x.exact, mode=mode)

    def gather(self, x: Tensor) -> Tensor | None:
        if x.rank == 0 or 0 in x.shape:
            return None
        axis = int(self.rng.integers(x.rank))
        d = x.shape[axis]
        at = self.rng.integers(-d, d, self.pick([(), (2,), (2, 3)]))
        shape = (*x.shape[:axis], *at.shape, *x.shape[axis + 1 :])
        if len(shape) > 5:
            return None
        return self.emit("Gather", [x.name, self.const(at.astype(np.int64))], shape, x.exact, axis=axis)

    def reduce(self, x: Tensor) -> Tensor | None:
        if x.rank == 0 or 0 in x.shape:
            return None
        axes = sorted({int(a) for a in self.rng.integers(0, x.rank, int(self.rng.integers(1, 3)))})
        op = self.pick(["ReduceMean", "ReduceMax", "ReduceMin", "ReduceSum", "ReduceL2", "ReduceLogSumExp"])
        keep = int(self.chance(0.5))
        shape = [1 if n in axes else d for n, d in enumerate(x.shape) if keep or n not in axes]
        return self.emit(op, [x.name, self.ints(*axes)], shape, keepdims=keep)

    def normalise(self, x: Tensor) -> Tensor | None:
        if x.rank == 0 or 0 in x.shape:
            return None
        axis = int(self.rng.integers(-x.rank, x.rank))
        op = self.pick(["Softmax", "LogSoftmax", "LayerNormalization"])
        if op != "LayerNormalization":
            return self.emit(op, [x.name], x.shape, axis=axis)
        shape = x.shape[axis:]
        if int(np.prod(shape)) < 4:
            return None
        scale, bias = self.const(self.floats(shape)), self.const(self.floats(shape))
        return self.emit(op, [x.name, scale, bias], x.shape, axis=axis, epsilon=1e-2)

    def resize(self, x: Tensor) -> Tensor | None:
        if x.rank != 4 or 0 in x.shape or x.size > 4000:
            return None
        shape = (*x.shape[:2], *(int(d * self.pick([1, 2])) for d in x.shape[2:]))
        mode = self.pick(["nearest", "linear"])
        return self.emit("Resize", [x.name, "", "", self.ints(*shape)], shape, mode=mode)

    def index_of_best(self, x: Tensor) -> Tensor | None:
        """ArgMax of an exact value, as floats."""
        exact = [v for v in self.values if v.exact and v.rank and 0 not in v.shape]
        if not exact:
            return None
        source = self.pick(exact)
        axis = int(self.rng.integers(source.rank))
        shape = [1 if n == axis else d for n, d in enumerate(source.shape)]
        best = self.fresh("argmax")
        self.nodes.append(helper.make_node("ArgMax", [source.name], [best], axis=axis, keepdims=1))
        return self.emit("Cast", [best], shape, exact=False, to=self.onnx_type)

    def through_type(self, x: Tensor) -> Tensor | None:
        """An exact value through another type and back."""
        exact = [v for v in self.values if v.exact]
        source = self.pick(exact) if exact else None
        if source is None:
            return None
        to = self.pick([TensorProto.FLOAT16, TensorProto.INT32, TensorProto.INT8, TensorProto.DOUBLE])
        scaled = Tensor(self.fresh("scaled"), source.shape)
        self.nodes.append(helper.make_node("Mul", [source.name, self.number(8)], [scaled.name]))
        narrow = self.fresh("narrow")
        self.nodes.append(helper.make_node("Cast", [scaled.name], [narrow], to=to))
        return self.emit("Cast", [narrow], source.shape, to=self.onnx_type)

    # --- the model --------------------------------------------------------------------------------------

    def model(self, steps: int) -> onnx.ModelProto:
        menu: list[Callable[[Tensor], Tensor | None]] = [
            self.unary, self.unary, self.clip, self.binary, self.binary, self.binary, self.where, self.conv,
            self.conv, self.conv, self.batch_norm, self.pool, self.matmul, self.matmul, self.gemm,
            self.transpose, self.reshape, self.concat, self.slice, self.pad, self.gather, self.reduce,
            self.normalise, self.resize, self.index_of_best, self.through_type, self.conv_transpose,
            self.instance_norm, self.recurrent, self.split, self.tile, self.expand, self.depth_to_space,
            self.running_sum,
        ]  # fmt: skip
        if self.chance(0.3):  # as networks for images are
            menu = [
                self.conv, self.conv, self.batch_norm, self.unary, self.unary, self.binary, self.pool,
                self.concat, self.split, self.clip, self.resize, self.reduce,
            ]  # fmt: skip
        for _ in range(int(self.rng.integers(1, 4))):
            self.input(self.shape())
        while len(self.nodes) < steps:
            recent = self.values[-4:] if self.chance(0.7) else self.values
            x = self.pick(recent)
            result = self.pick(menu)(x)
            if result is not None and (result.size > 20000 or result.rank > 5):
                self.values.remove(result)
        used = {i for node in self.nodes for i in node.input}
        outputs = [v for v in self.values if v.name not in used and v not in self.inputs]
        if self.chance(0.5):
            outputs.append(self.pick([v for v in self.values if v not in self.inputs]))
        outputs = list({v.name: v for v in outputs}.values())
        return self.finish(outputs)

    def shape(self) -> tuple[int, ...]:
        zero = self.chance(0.03)
        if self.chance(0.6):
            shape = [self.pick([1, 1, 2]), self.pick(CHANNELS), self.pick(SIZES), self.pick(SIZES)]
        else:
            shape = [self.pick(SIZES) for _ in range(int(self.rng.integers(0, 4)))]
        if zero and shape:
            shape[int(self.rng.integers(len(shape)))] = 0
        return tuple(int(d) for d in shape)

    def finish(self, outputs: Sequence[Tensor]) -> onnx.ModelProto:
        def info(t: Tensor) -> onnx.ValueInfoProto:
            return helper.make_tensor_value_info(t.name, self.onnx_type, list(t.shape))

        graph = helper.make_graph(
            self.nodes, "random", list(map(info, self.inputs)), list(map(info, outputs)), self.initializers
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=9)
        onnx.checker.check_model(model)
        return model

    def feeds(self) -> dict[str, np.ndarray]:
        return {x.name: self.floats(x.shape, 2.0) for x in self.inputs}


def _broadcast(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...] | None:
    try:
        return np.broadcast_shapes(a, b)
    except ValueError:
        return None


def random_model(seed: int) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A model of 2 to 20 nodes and inputs for it."""
    builder = Builder(seed)
    model = builder.model(steps=int(builder.rng.integers(2, 20)))
    return model, builder.feeds()
