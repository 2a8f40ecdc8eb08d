"""The unit of compiling, tuning, caching, naming and reporting: one fused operator with every choice
around it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Protocol, TypeVar

from .ir.expr import TensorExpr, print_expr
from .ir.loops import Program, print_program
from .ir.types import Layout, TensorType
from .ops.base import Op
from .target import Target

T = TypeVar("T")


@dataclass(frozen=True)
class KernelTask:
    """What is computed (`expr`, or `program` where an expression cannot say it), on which layouts, for
    which target.

    `layouts` names the layout of every param and output that is not plain. `constants` are the params
    whose values are
    known when compiling (weights). `algorithm` names a template, or what one of them offers (winograd4).
    """

    name: str  # describes the operators: conv2d_add_relu
    expr: TensorExpr | None
    layouts: tuple[tuple[str, Layout], ...]
    constants: frozenset[str]
    algorithm: str
    target: Target
    threads: int
    program: Program | None = None  # the naive loop program of `op`
    op: Op | None = None  # with its operand types, for templates that build from the operator itself
    types: tuple[TensorType | None, ...] = ()
    output_types: tuple[TensorType, ...] = ()

    @property
    def transformed(self) -> str:
        """The algorithm that was decided on, and that the weights are packed for; "" where any may do."""
        return getattr(self.op, "algorithm", "")

    @property
    def asks(self) -> bool:
        """Whether a template builds it, which asks questions; else its loop program is taken as it is."""
        return self.algorithm != "loops"

    def layout(self, name: str) -> Layout | None:
        return dict(self.layouts).get(name)

    @cached_property
    def key(self) -> str:
        """Stable text: equal keys mean equal code for equal configs."""
        what = print_expr(self.expr) if self.expr else print_program(self.program) if self.program else ""
        layouts = " ".join(f"{name}:{layout}" for name, layout in sorted(self.layouts))
        consts = " ".join(sorted(self.constants))
        machine = f"{self.target.name}/{self.target.cpu}"
        if self.algorithm == "cells" and self.target.gpu and self.target.gpu.together:
            machine += "+together"  # whose blocks may run all steps in one kernel: other configs, other times
        return (
            f"{self.name} {self.algorithm} {machine} threads={self.threads}\n{what}\n"
            f"layouts {layouts}\nconstants {consts}\ntransformed {self.transformed}"
        )

    @cached_property
    def digest(self) -> str:
        return hashlib.sha256(self.key.encode()).hexdigest()[:16]


class RejectedConfig(Exception):
    """The answers so far contradict each other or the target; a tuner draws again."""


class Config(Protocol):
    """Answers a template's questions. A record, the default rule, a random draw or the tuner stands behind
    it.
    """

    def choose(self, knob: str, options: Sequence[T], default: T) -> T:
        """One of `options`; `default` is what the template's analytic rule would take."""

    def require(self, condition: bool, reason: str = "") -> None:
        """Raises RejectedConfig unless the condition holds."""


class DefaultConfig:
    """The analytic rule: every question gets the template's own default. Remembers what was chosen.

    `keyed`: whether the choices follow from `answers` alone, so that kernels can be kept by them. A subclass
    has to say so itself.
    """

    keyed: ClassVar[bool] = True

    def __init_subclass__(cls) -> None:
        cls.keyed = cls.__dict__.get("keyed", False)

    def __init__(self) -> None:
        self.answers: dict[str, object] = {}  # that were given, in place of defaults
        self.chosen: dict[str, object] = {}

    def choose(self, knob: str, options: Sequence[T], default: T) -> T:
        self.chosen[knob] = default
        return default

    def require(self, condition: bool, reason: str = "") -> None:
        if not condition:
            raise RejectedConfig(reason)


class FixedConfig(DefaultConfig):
    """Given answers by name (a record); questions it does not know get the default."""

    keyed = True

    def __init__(self, answers: dict[str, object]):
        super().__init__()
        self.answers = answers

    def choose(self, knob: str, options: Sequence[T], default: T) -> T:
        value = self.answers.get(knob, default)
        if value not in options:
            raise RejectedConfig(f"{knob}={value!r} is none of {list(options)}")
        self.chosen[knob] = value
        return value  # type: ignore[return-value]
