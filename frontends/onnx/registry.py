"""Import rules: one function per ONNX operator, found by name and opset.

    @onnx("Softmax", since=13)
    def softmax(c, x):
        return c.emit(Softmax(axis=c.attr("axis", -1)), x)

A rule gets the names of the node's inputs (None for absent ones) and returns the names of its outputs (None
for one that is not supported). The newest rule whose `since` is not above the model's opset is taken.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx as onnx_package

from ...compiler.ir.types import TensorType
from ...compiler.ops.base import Op
from ...errors import ModelError, NeedsValueError, UnsupportedError
from .builder import GraphBuilder
from .read_model import node_label

Rule = Callable[..., "tuple[str | None, ...] | str"]
RULES: dict[tuple[str, str], list[tuple[int, Rule]]] = {}
"""(domain, operator) → [(since, rule)], oldest first."""


ATTRIBUTES = {
    bool: onnx_package.AttributeProto.INT,
    int: onnx_package.AttributeProto.INT,
    float: onnx_package.AttributeProto.FLOAT,
    str: onnx_package.AttributeProto.STRING,
}
"""Python's types, and ONNX's."""


def onnx(name: str, since: int = 1, domain: str = "") -> Callable[[Rule], Rule]:
    """Registers the import rule of an ONNX operator from opset `since` on."""

    def register(rule: Rule) -> Rule:
        entries = RULES.setdefault((domain, name), [])
        entries.append((since, rule))
        entries.sort(key=lambda entry: entry[0])
        return rule

    return register


def find_rule(name: str, opset: int, domain: str = "") -> Rule | None:
    fitting = [rule for since, rule in RULES.get((domain, name), ()) if since <= opset]
    return fitting[-1] if fitting else None


@dataclass
class NodeContext:
    """What a rule may ask about its node, and how it adds operators to the graph."""

    g: GraphBuilder
    node: onnx_package.NodeProto
    opset: int
    inputs: tuple[str | None, ...]
    value_sources: Callable[[str], tuple[str, ...]]  # value → the graph inputs that it is computed from
    computed: Callable[[str], np.ndarray | None]  # one that is computed from constants alone, if that works

    @property
    def label(self) -> str:
        """How messages call the node: its name and operator."""
        return node_label(self.node)

    @property
    def output_count(self) -> int:
        return len(self.node.output)

    def wants(self, output: int) -> bool:
        """Whether the model names this output at all."""
        return output < len(self.node.output) and self.node.output[output] != ""

    def type(self, value: str) -> TensorType:
        return self.g.type(value)

    def dims(self, value: str, rank: int) -> tuple[int, ...]:
        """The shape of an input that must have so many axes."""
        type = self.type(value)
        if type.rank != rank:
            raise ModelError(f"{self.label}: an input is {type}, expected {rank} axes")
        return type.dims

    def attr(self, name: str, default: Any = None) -> Any:
        """An attribute's Python value (strings as str, ints, floats, lists; tensors as arrays). A default
        that is a float is rounded to float32, as it is where a model states it.

        ModelError if a default that is a number or a string is of another type.
        """
        for a in self.node.attribute:
            if a.name == name:
                types = onnx_package.AttributeProto.AttributeType
                expected = ATTRIBUTES.get(type(default), a.type)
                if a.type != expected:
                    found, wanted = types.Name(a.type), types.Name(expected)
                    raise ModelError(f"{self.label}: attribute {name!r} is of type {found}, not {wanted}")
                value = onnx_package.helper.get_attribute_value(a)
                if a.type == onnx_package.AttributeProto.STRING:
                    return value.decode()
                if a.type == onnx_package.AttributeProto.STRINGS:
                    return [v.decode() for v in value]
                if a.type == onnx_package.AttributeProto.TENSOR:
                    return onnx_package.numpy_helper.to_array(value)
                return list(value) if isinstance(value, (list, tuple)) or hasattr(value, "append") else value
        return float(np.float32(default)) if isinstance(default, float) else default

    def choice(self, name: str, default: str, *others: str) -> str:
        """An attribute that is one of these words; UnsupportedError of others."""
        value: str = self.attr(name, default)
        if value not in (default, *others):
            raise self.unsupported(f"{name}={value!r}", f"expected one of {', '.join((default, *others))}")
        return value

    def required(self, name: str) -> Any:
        value = self.attr(name)
        if value is None:
            raise ModelError(f"{self.label}: attribute {name!r} is missing")
        return value

    def value(self, value: str | None, what: str) -> np.ndarray:
        """The constant that an input holds; NeedsValueError, naming the inputs to fix, if it is computed."""
        if value is None:
            raise ModelError(f"{self.label}: the input for its {what} is missing")
        if value in self.g.constants:
            return self.g.constants[value]
        decides = f"{self.label}: its {what} decides shapes, so it must be known when compiling, but"
        sources = self.value_sources(value)
        if sources:
            names = ", ".join(map(repr, sources))
            how = f"give its value: --value {sources[0]}=…"
            raise NeedsValueError(f"{decides} it is computed from {names}; {how}", sources)
        array = self.computed(value)
        if array is None:
            raise UnsupportedError(
                f"{decides} it cannot be computed then: its constants are too large, it takes too long or an "
                "operator fails; simplify the model (onnxsim) or store the value in it"
            )
        return array

    def ints(self, value: str | None, what: str) -> tuple[int, ...]:
        array = np.asarray(self.value(value, what))
        if array.dtype.kind not in "iu":
            raise ModelError(f"{self.label}: its {what} is of {array.dtype}, expected integers")
        return tuple(int(v) for v in array.ravel())

    def int_(self, value: str | None, what: str, whole: bool = True) -> int:
        """`whole`: floats are refused, otherwise truncated."""
        array = np.asarray(self.value(value, what))
        if array.size != 1:
            raise ModelError(f"{self.label}: its {what} has {array.size} elements, expected one")
        if not whole and array.dtype.kind == "f" and np.isfinite(array).all():
            return int(array.reshape(()))
        return self.ints(value, what)[0]

    def const(self, array: np.ndarray, small_type: str = "") -> str:
        """`small_type`: of `stored_array`."""
        return self.g.const(array, small_type=small_type)

    def emit(self, op: Op, *inputs: str | None) -> tuple[str, ...]:
        return self.g.emit(op, *inputs)

    def one(self, op: Op, *inputs: str | None) -> str:
        return self.g.one(op, *inputs)

    def unsupported(self, what: str, instead: str = "") -> UnsupportedError:
        return UnsupportedError(f"{self.label}: {what} is not supported{'; ' + instead if instead else ''}")
