"""A network as torch would have it: the simplified graph, written with torch's own functions.

The graph is that of Burnish before it fuses anything: constants are folded, batch normalisation is part of
its convolution. torch.fx makes a module of it, straight Python code whose weights are buffers, so that eager
torch has nothing to interpret and torch.compile sees all of it. Products with a bias are `linear`, LSTM
layers that stand behind each other are one `torch.nn.LSTM`, which is cuDNN's on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import onnx

from ...compiler.ir.graph import Graph, Node
from ...compiler.ops.conv import Conv
from ...compiler.ops.elementwise import Binary, Cast, Unary, Where
from ...compiler.ops.indexing import Gather
from ...compiler.ops.matmul import MatMul
from ...compiler.ops.movement import Concat, Identity, Reshape, Slice, Transpose
from ...compiler.ops.normalization import LRN, LayerNormalization
from ...compiler.ops.pool import AveragePool, GlobalAveragePool, MaxPool
from ...compiler.ops.recurrence import SIGMOID, TANH, LstmRecurrence
from ...compiler.ops.reduction import Softmax
from ...compiler.target import get_target
from ...errors import UnsupportedError
from ...frontends.onnx.importer import import_onnx
from ...pipeline import optimise

Value = Any  # a torch.fx.Proxy
_INFINITE = float("inf")


def torch_module(model: onnx.ModelProto, half: bool = False) -> Any:
    """A torch.fx.GraphModule: the model's inputs are its arguments, its result a tuple of the outputs.

    With `half` everything of float32 is float16. UnsupportedError names the node that has no function of
    torch here. Indices must not be negative.
    """
    plain = get_target("cortex-a72")  # without products of bytes, for which torch has no function
    graph = optimise(import_onnx(model), plain, 1, stop_after="fold_again", weights="compact")
    module = _Writer(graph, half).write()
    return module.half() if half else module


class _Writer:
    def __init__(self, graph: Graph, half: bool):
        import torch

        self.half = half
        self.torch, self.f = torch, torch.nn.functional
        self.graph = graph
        self.makers = graph.producers()
        self.readers = graph.consumers()
        self.root = torch.nn.Module()
        self.fx = torch.fx.Graph()
        self.tracer = torch.fx.proxy.GraphAppendingTracer(self.fx)
        self.values: dict[str, Value] = {}

    def write(self) -> Any:
        for n, name in enumerate(self.graph.inputs):
            self.values[name] = self.proxy(self.fx.placeholder(f"x{n}"))
        for node in self.graph.nodes:
            self._write_node(node)
        self.fx.output(tuple(self.value(name).node for name in self.graph.outputs))
        self.root.eval().requires_grad_(False)
        whole = self.torch.fx.GraphModule(self.root, self.fx)
        whole.graph.eliminate_dead_code()
        return self.torch.fx.GraphModule(whole, whole.graph)  # keeps what is referred to

    def proxy(self, node: Any) -> Value:
        return self.torch.fx.Proxy(node, self.tracer)

    def _write_node(self, node: Node) -> None:
        if node.outputs[0] in self.values:
            return
        if any(self.values.get(name, "") is None for name in node.reads):
            self.values.update(dict.fromkeys(node.outputs))  # done by another node's call
            return
        rule = _RULES.get(type(node.op))
        if rule is None:
            raise self.unsupported(node)
        made = rule(self, node, *node.inputs)
        self.values.update(zip(node.outputs, made if isinstance(made, tuple) else (made,)))

    def value(self, name: str | None) -> Value:
        """A value of the graph, written now if it was not before; a constant becomes a buffer."""
        if name is not None and name not in self.values:
            if name in self.graph.constants:
                self.values[name] = self.buffer(self.graph.constants[name])
            else:
                self._write_node(self.makers[name])
        return None if name is None else self.values[name]

    def buffer(self, array: np.ndarray) -> Value:
        name = f"c{len(dict(self.root.named_buffers()))}"
        self.root.register_buffer(name, self.torch.tensor(np.asarray(array, order="C")))
        return self.proxy(self.fx.get_attr(name))

    def shape(self, name: str) -> tuple[int, ...]:
        return self.graph.types[name].dims

    def maker(self, name: str, kind: type) -> Node | None:
        """The node that makes a value, if it is one of a kind and the value has one reader only."""
        node = self.makers.get(name)
        alone = len(self.readers.get(name, ())) == 1 and name not in self.graph.outputs
        return node if alone and node is not None and isinstance(node.op, kind) else None

    def unshaped(self, name: str) -> str:
        """What a value was before it was reshaped for its only reader."""
        node = self.maker(name, Reshape)
        return name if node is None else node.reads[0]

    def unsupported(self, node: Node, what: str = "") -> UnsupportedError:
        how = f" with {what}" if what else ""
        return UnsupportedError(f"node {node.name!r}: {node.op.name}{how} is not written in torch here")


# --- arithmetic ---


def _unary(w: _Writer, node: Node, x: str) -> Value:
    op, value = node.op, w.value(x)
    assert isinstance(op, Unary)
    function = _unary_functions(w.torch).get(op.fn)
    if function is None:
        raise w.unsupported(node, op.fn)
    return function(value, *op.params)


def _unary_functions(torch: Any) -> Mapping[str, Callable[..., Value]]:
    f = torch.nn.functional
    own = "exp log sqrt rsqrt sin cos tanh erf abs neg floor ceil round sigmoid relu reciprocal".split()
    return {
        **{name: getattr(torch, name) for name in own},
        "clip": torch.clamp,
        "leaky_relu": f.leaky_relu,
        "elu": f.elu,
        "softplus": f.softplus,
        "hard_swish": f.hardswish,
        "gelu": f.gelu,
        "gelu_tanh": lambda x: f.gelu(x, approximate="tanh"),
    }


def _binary(w: _Writer, node: Node, a: str, b: str) -> Value:
    op = node.op
    assert isinstance(op, Binary)
    for product, bias in ((a, b), (b, a)) if op.fn == "add" else ():
        if (fused := _linear(w, product, bias)) is not None:
            return fused
    names = {
        **{name: name for name in ("add", "sub", "mul", "pow", "fmod", "eq", "ne", "lt", "le", "gt", "ge")},
        **{"min": "minimum", "max": "maximum", "and": "bitwise_and", "or": "bitwise_or"},
    }
    if op.fn in names:
        return getattr(w.torch, names[op.fn])(w.value(a), w.value(b))
    if op.fn == "div" and w.graph.types[a].dtype.is_float:
        return w.torch.div(w.value(a), w.value(b))
    raise w.unsupported(node, op.fn)


def _linear(w: _Writer, product: str, bias: str) -> Value | None:
    """A product with constant weights, and a bias for each column: one call, as torch.nn.Linear makes it."""
    node = w.maker(product, MatMul)
    array = w.graph.constants.get(bias)
    if node is None or array is None or array.ndim != 1:
        return None
    x, name = node.inputs
    weights = w.graph.constants.get(name or "")
    assert isinstance(node.op, MatMul) and x is not None
    if weights is None or weights.ndim != 2 or node.op.trans_a:
        return None
    rows = weights if node.op.trans_b else weights.T
    if array.shape != rows.shape[:1]:
        return None
    return w.f.linear(w.value(x), w.buffer(rows), w.value(bias))


def _matmul(w: _Writer, node: Node, a: str, b: str) -> Value:
    op = node.op
    assert isinstance(op, MatMul)
    x, y = w.value(a), w.value(b)
    x = x.transpose(-1, -2) if op.trans_a else x
    y = y.transpose(-1, -2) if op.trans_b else y
    if op.in_wide and not w.half:
        x, y = x.float(), y.float()
    return w.torch.matmul(x, y)


def _where(w: _Writer, node: Node, condition: str, x: str, y: str) -> Value:
    return w.torch.where(w.value(condition), w.value(x), w.value(y))


def _cast(w: _Writer, node: Node, x: str) -> Value:
    name = w.graph.types[node.outputs[0]].dtype.name
    kind = name.rstrip("0123456789")
    long = {"f": "float", "bf": "bfloat", "i": "int", "u": "uint"}.get(kind, kind)
    dtype = "float16" if w.half and name == "f32" else name.replace(kind, long)
    return w.value(x).to(getattr(w.torch, dtype))


# --- windows ---


def _symmetric(pads: tuple[int, ...]) -> tuple[int, ...] | None:
    half = len(pads) // 2
    return pads[:half] if pads[:half] == pads[half:] else None


def _padded(w: _Writer, x: Value, pads: tuple[int, ...], value: float = 0.0) -> Value:
    half = len(pads) // 2
    ends = [pad for axis in reversed(range(half)) for pad in (pads[axis], pads[half + axis])]
    return w.f.pad(x, ends, value=value) if any(ends) else x


def _conv(w: _Writer, node: Node, x: str, weights: str, bias: str | None = None) -> Value:
    op, value = node.op, w.value(x)
    assert isinstance(op, Conv)
    pads = _symmetric(op.pads)
    if pads is None:
        value, pads = _padded(w, value, op.pads), (0,) * len(op.strides)
    function = {1: w.f.conv1d, 2: w.f.conv2d, 3: w.f.conv3d}.get(len(op.strides))
    if function is None:
        raise w.unsupported(node, f"{len(op.strides)} spatial axes")
    return function(value, w.value(weights), w.value(bias), op.strides, pads, op.dilations, op.group)


def _pool_pads(w: _Writer, node: Node, x: str) -> tuple[int, ...]:
    """Begins and ends with which the output has its size, rounded up or not."""
    op, rank = node.op, len(node.op.kernel)  # type: ignore[attr-defined]
    assert isinstance(op, MaxPool | AveragePool)
    ends = []
    for axis in range(rank):
        out, size = w.shape(node.outputs[0])[2 + axis], w.shape(x)[2 + axis]
        reach = (out - 1) * op.strides[axis] + op.dilations[axis] * (op.kernel[axis] - 1) + 1
        beyond = reach - size - op.pads[axis] if op.ceil_mode else 0
        ends.append(max(op.pads[rank + axis], beyond))
    return (*op.pads[:rank], *ends)


def _max_pool(w: _Writer, node: Node, x: str) -> Value:
    op, value, pads = node.op, w.value(x), _pool_pads(w, node, x)
    assert isinstance(op, MaxPool)
    rank, even = len(op.kernel), _symmetric(pads)
    if op.indices or rank > 3:
        raise w.unsupported(node, "indices" if op.indices else f"{rank} spatial axes")
    if even is None or any(2 * pad > size for pad, size in zip(even, op.kernel)):
        value, even = _padded(w, value, pads, -_INFINITE), (0,) * rank
    function = (w.f.max_pool1d, w.f.max_pool2d, w.f.max_pool3d)[rank - 1]
    return function(value, op.kernel, op.strides, even, op.dilations)


def _average_pool(w: _Writer, node: Node, x: str) -> Value:
    op = node.op
    assert isinstance(op, AveragePool)
    even = _symmetric(op.pads)
    if len(op.kernel) != 2 or set(op.dilations) != {1} or op.ceil_mode:
        raise w.unsupported(node, "other than two axes, dilations or rounding up")
    if even is not None and all(2 * pad <= size for pad, size in zip(even, op.kernel)):
        return w.f.avg_pool2d(w.value(x), op.kernel, op.strides, even, False, op.count_include_pad)
    sums = w.f.avg_pool2d(_padded(w, w.value(x), op.pads), op.kernel, op.strides, divisor_override=1)
    counts = _counts(op, w.shape(x)[2:], w.shape(node.outputs[0])[2:])
    return sums * w.buffer((1 / counts).astype(w.graph.types[x].dtype.numpy))


def _counts(op: AveragePool, sizes: tuple[int, ...], outs: tuple[int, ...]) -> np.ndarray:
    """How many elements every window averages."""
    if op.count_include_pad:
        return np.full(outs, np.prod(op.kernel))
    axes = []
    for axis, (size, out) in enumerate(zip(sizes, outs)):
        begin = np.arange(out) * op.strides[axis] - op.pads[axis]
        axes.append(np.minimum(begin + op.kernel[axis], size) - np.maximum(begin, 0))
    return axes[0][:, None] * axes[1]


def _global_average_pool(w: _Writer, node: Node, x: str) -> Value:
    return w.value(x).mean(tuple(range(2, len(w.shape(x)))), keepdim=True)


# --- normalisation ---


def _lrn(w: _Writer, node: Node, x: str) -> Value:
    op = node.op
    assert isinstance(op, LRN)
    return w.f.local_response_norm(w.value(x), op.size, op.alpha, op.beta, op.bias)


def _layer_norm(w: _Writer, node: Node, x: str, scale: str, bias: str | None = None) -> Value:
    op, shape = node.op, w.shape(x)
    assert isinstance(op, LayerNormalization)
    if len(node.outputs) > 1 or w.shape(scale) != shape[op.axis :]:
        raise w.unsupported(node, "statistics or a scale of another shape")
    return w.f.layer_norm(w.value(x), shape[op.axis :], w.value(scale), w.value(bias), op.epsilon)


def _softmax(w: _Writer, node: Node, x: str) -> Value:
    op = node.op
    assert isinstance(op, Softmax)
    return (w.f.log_softmax if op.log else w.f.softmax)(w.value(x), op.axis)


# --- movement ---


def _slice(w: _Writer, node: Node, x: str) -> Value:
    op = node.op
    assert isinstance(op, Slice)
    if any(step < 1 for step in op.steps):
        raise w.unsupported(node, "negative steps")
    places = zip(op.starts, op.sizes, op.steps)
    return w.value(x)[tuple(slice(at, at + (size - 1) * step + 1, step) for at, size, step in places)]


def _gather(w: _Writer, node: Node, x: str, index: str) -> Value:
    op, shape = node.op, w.shape(x)
    assert isinstance(op, Gather)
    if op.axis == 0 and len(shape) == 2:
        return w.f.embedding(w.value(index), w.value(x))
    flat = w.torch.index_select(w.value(x), op.axis, w.value(index).reshape(-1))
    return flat.reshape(w.shape(node.outputs[0]))


def _concat(w: _Writer, node: Node, *inputs: str) -> Value:
    return w.torch.cat([w.value(i) for i in inputs], node.op.axis)  # type: ignore[attr-defined]


# --- recurrence ---

_GATES = (0, 2, 3, 1)  # ONNX has input, output, forget, cell; torch has input, forget, cell, output


class _Layer(NamedTuple):
    """An LSTM and the product with its input that stands before it, which belongs to torch's LSTM."""

    node: Node
    x: str
    weights: np.ndarray  # (4 · hidden, inputs)
    bias: np.ndarray


def _lstm(w: _Writer, node: Node, *inputs: str | None) -> tuple[Value, ...]:
    """This layer and those that read nothing but the one before: one call."""
    layer = _layer(w, node)
    layers: list[_Layer] = []
    while layer is not None:
        layers.append(layer)
        layer = _follower(w, layer)
    if not layers:
        raise w.unsupported(node, "peepholes, lengths, no state, another activation or an input of its own")
    steps, batch, _ = w.shape(node.reads[0])
    name = f"lstm{len(list(w.root.children()))}"
    w.root.add_module(name, _torch_lstm(w, layers))
    states = [[w.value(layer.node.inputs[role]) for layer in layers] for role in (2, 3)]
    h0, c0 = (w.torch.stack(values) for values in states)
    x = w.value(layers[0].x).reshape(steps, batch, -1)
    made = w.proxy(w.fx.call_module(name, (x.node, (h0.node, c0.node))))
    y, h, c = made[0], made[1][0], made[1][1]
    for n, layer in enumerate(layers):
        w.values.update(zip(layer.node.outputs[1:], (h[n], c[n])))
    w.values[layers[-1].node.outputs[0]] = y
    return tuple(w.values.get(name) for name in node.outputs)  # nobody reads what is within the call


def _torch_lstm(w: _Writer, layers: list[_Layer]) -> Any:
    first, hidden = layers[0], w.shape(layers[0].node.reads[2])[1]
    lstm = w.torch.nn.LSTM(first.weights.shape[1], hidden, len(layers))
    for n, layer in enumerate(layers):
        recurrent = w.graph.constants[layer.node.reads[1]]
        arrays = {"weight_ih": layer.weights, "weight_hh": recurrent, "bias_ih": layer.bias}
        for name, array in {**arrays, "bias_hh": 0 * layer.bias}.items():
            gates = array.reshape(4, hidden, *array.shape[1:])[list(_GATES)].reshape(array.shape)
            getattr(lstm, f"{name}_l{n}").data.copy_(w.torch.tensor(gates))
    return lstm


def _layer(w: _Writer, node: Node) -> _Layer | None:
    """None if torch has no such LSTM, or its product is not made just for it."""
    xw, r, h0, c0, *more = node.inputs
    if node.op != LstmRecurrence((SIGMOID, TANH, TANH)) or any(more) or not (xw and r and h0 and c0):
        return None
    add = w.maker(w.unshaped(xw), Binary)
    for product, bias in (add.reads, add.reads[::-1]) if add and add.op == Binary("add") else ():
        made = w.maker(product, MatMul)
        if made is None or not {r, bias, made.reads[1]} <= w.graph.constants.keys():
            continue
        weights = w.graph.constants[made.reads[1]]
        if isinstance(made.op, MatMul) and not made.op.trans_a and weights.ndim == 2:
            rows = weights if made.op.trans_b else weights.T
            return _Layer(node, made.reads[0], rows, w.graph.constants[bias])
    return None


def _follower(w: _Writer, layer: _Layer) -> _Layer | None:
    """The layer that alone reads this one's y."""
    y, state = layer.node.outputs[0], w.shape(layer.node.reads[2])
    for node in w.graph.nodes:
        if not isinstance(node.op, LstmRecurrence) or w.maker(y, LstmRecurrence) is None:
            continue
        found = _layer(w, node)
        if found and w.unshaped(found.x) == y and w.shape(node.reads[2]) == state:
            return found
    return None


_RULES: dict[type, Callable[..., Value]] = {
    Unary: _unary,
    Binary: _binary,
    MatMul: _matmul,
    Where: _where,
    Cast: _cast,
    Conv: _conv,
    MaxPool: _max_pool,
    AveragePool: _average_pool,
    GlobalAveragePool: _global_average_pool,
    LRN: _lrn,
    LayerNormalization: _layer_norm,
    Softmax: _softmax,
    Identity: lambda w, node, x: w.value(x),
    Reshape: lambda w, node, x: w.value(x).reshape(w.shape(node.outputs[0])),
    Transpose: lambda w, node, x: w.value(x).permute(node.op.perm),
    Concat: _concat,
    Slice: _slice,
    Gather: _gather,
    LstmRecurrence: _lstm,
}
