"""What an operator is: one frozen dataclass whose fields are its attributes.

An operator gives `infer` and `reference`, and exactly one of
    compute     its tensor expression (most operators)
    loops       a loop program, for what an expression cannot say (TopK, scatter, recurrences)
    decompose   smaller operators that replace it before any other pass
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from ...errors import ModelError
from ..ir.expr import ExprBuilder, Tensor
from ..ir.graph import Node
from ..ir.loops import Program
from ..ir.types import TensorType, dtype_of

OPS: dict[str, type[Op]] = {}
"""Every concrete operator class by name: text forms and the operator contract's test read it."""


@dataclass(frozen=True)
class Op:
    """Base of operators. Inputs that are absent are None."""

    def __init_subclass__(cls, abstract: bool = False, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if not abstract:
            OPS[cls.__name__] = cls

    @property
    def name(self) -> str:
        return type(self).__name__

    def attributes(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def infer(self, *inputs: Any) -> tuple[TensorType, ...]:
        """Types of the outputs (layout None); ModelError when the inputs do not fit."""
        raise NotImplementedError

    def reference(self, *inputs: Any) -> tuple[np.ndarray, ...]:
        """The outputs in numpy, in the dtypes that `infer` says: the definition, never used for speed."""
        raise NotImplementedError

    def compute(self, b: ExprBuilder, *inputs: Any) -> tuple[Tensor, ...]:
        raise NotImplementedError

    def loops(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> Program:
        """A loop program whose params are the present inputs, then the outputs, all plain row-major."""
        raise NotImplementedError

    def decompose(self, g: Decomposer, *inputs: Any) -> tuple[str, ...]:
        """Adds smaller operators to `g` and returns the names of the values that replace the outputs."""
        raise NotImplementedError

    def has(self, method: str) -> bool:
        return getattr(type(self), method) is not getattr(Op, method)


class Decomposer:
    """Appends nodes to a graph under construction; the importer uses it too."""

    def __init__(self, node_name: str, types: dict[str, TensorType], constants: dict[str, np.ndarray]):
        self.node_name = node_name
        self.types = types
        self.constants = constants
        self.nodes: list[Node] = []
        self._count = 0

    def type(self, value: str) -> TensorType:
        return self.types[value]

    def fresh(self, hint: str = "t") -> str:
        self._count += 1
        candidate = f"{self.node_name}.{hint}{self._count}"
        while candidate in self.types:
            self._count += 1
            candidate = f"{self.node_name}.{hint}{self._count}"
        return candidate

    def const(self, array: np.ndarray, hint: str = "const") -> str:
        """A constant value; returns its name."""
        array = np.asarray(array)
        name = self.fresh(hint)
        self.constants[name] = array
        self.types[name] = TensorType(dtype_of(array), array.shape)
        return name

    def emit(self, op: Op, *inputs: str | None, outputs: Sequence[str] | None = None) -> tuple[str, ...]:
        """Appends `op` (decomposed if it is a composite) and returns the names of its outputs."""
        in_types = tuple(None if i is None else self.types[i] for i in inputs)
        try:
            out_types = op.infer(*in_types)
        except ModelError as error:
            raise ModelError(f"node {self.node_name!r} ({op.name}): {error}") from None
        if op.has("decompose"):
            names = op.decompose(self, *inputs)
            return self._renamed(names, outputs) if outputs else names
        names = tuple(outputs) if outputs else tuple(self.fresh(op.name.lower()) for _ in out_types)
        for name, type in zip(names, out_types):
            self.types[name] = type
        padded = names + tuple(self.fresh("unused") for _ in out_types[len(names) :])
        for name, type in zip(padded[len(names) :], out_types[len(names) :]):
            self.types[name] = type
        self.nodes.append(Node(op, tuple(inputs), padded, self.node_name))
        return padded

    def one(self, op: Op, *inputs: str | None) -> str:
        """`emit` for an operator of one output."""
        return self.emit(op, *inputs)[0]

    def _renamed(self, names: tuple[str, ...], outputs: Sequence[str]) -> tuple[str, ...]:
        """Lets the decomposition's last writer produce the requested name, or copies where none does."""
        for have, want in zip(names, outputs):
            self.emit(OPS["Identity"](), have, outputs=(want,))
        return tuple(outputs) + tuple(names[len(outputs) :])
