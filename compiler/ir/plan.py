"""Plan: what the runtime executes. Kernel calls in order over one arena, packed weights and user memory.

    plan   ::= header line* (setup step)* step*
    header ::= plan "NAME" target "TARGET" features "F,F" arena N weights N prepared N
    line   ::= input "NAME" TYPE  |  output "NAME" TYPE                 plain row-major types
    step   ::= call SYMBOL "NODE" (ref, …) writes N,… tasks N scratch N flops N bytes N [gang]
             | copy "NODE" ref -> ref
    ref    ::= in<i>[begin:end] | out<i>[begin:end] | arena[begin:end] | weights[begin:end]
             | prepared[begin:end], then ["%VALUE"]

The setup steps run once, when the module is opened: they read weights as they are stored and write `prepared`
memory, which the other steps only read. Each of the two parts has an arena of its own, of the same size.
Steps run one after another. A call deals the tasks [0, tasks) of its kernel to the threads in any order and
any cut; a gang call enters its kernel once on every worker w of W, with [w·tasks/W, (w+1)·tasks/W), all at
the same time, so that they may wait for each other. Step kinds 2 (if) and 3 (loop) are kept for control flow.
Offsets and sizes are bytes; offsets in arena and weights are multiples of 64. docs/module-format.md says what
`encode` writes.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from ...errors import InternalError, RunError
from .types import TensorType

ALIGNMENT = 64
FORMAT_VERSION = 2
KIND_CALL, KIND_COPY = 0, 1
SPACES = ("in", "out", "arena", "weights", "prepared")


@dataclass(frozen=True)
class BufferRef:
    """`nbytes` bytes at `offset` of a space; `index` says which input or output.

    `value` optionally names the value held there: `verify` then proves that a reader finds what it expects.
    """

    space: str  # one of SPACES
    index: int
    offset: int
    nbytes: int
    value: str = ""

    @staticmethod
    def input(index: int, nbytes: int, offset: int = 0, value: str = "") -> BufferRef:
        return BufferRef("in", index, offset, nbytes, value)

    @staticmethod
    def output(index: int, nbytes: int, offset: int = 0, value: str = "") -> BufferRef:
        return BufferRef("out", index, offset, nbytes, value)

    @staticmethod
    def arena(offset: int, nbytes: int, value: str = "") -> BufferRef:
        return BufferRef("arena", 0, offset, nbytes, value)

    @staticmethod
    def weights(offset: int, nbytes: int, value: str = "") -> BufferRef:
        return BufferRef("weights", 0, offset, nbytes, value)

    @staticmethod
    def prepared(offset: int, nbytes: int, value: str = "") -> BufferRef:
        return BufferRef("prepared", 0, offset, nbytes, value)

    @property
    def end(self) -> int:
        return self.offset + self.nbytes

    @property
    def place(self) -> tuple[str, int, int, int]:
        return self.space, self.index, self.offset, self.nbytes

    def overlaps(self, other: BufferRef) -> bool:
        same = (self.space, self.index) == (other.space, other.index)
        return same and self.offset < other.end and other.offset < self.end

    def __str__(self) -> str:
        number = str(self.index) if self.space in ("in", "out") else ""
        value = json.dumps("%" + self.value) if self.value else ""
        return f"{self.space}{number}[{self.offset}:{self.end}]{value}"


@dataclass(frozen=True)
class PlanIO:
    """An input or output of the model; its memory is plain row-major."""

    name: str
    type: TensorType


@dataclass(frozen=True)
class KernelCall:
    """One kernel over its whole task range.

    `writes` are the positions in `args` that the kernel writes, fully or in part; the others it only reads.
    `scratch` is bytes per worker; `flops` and `bytes` serve reports.
    """

    kernel: str  # symbol
    node: str  # names of the ONNX nodes, for messages
    args: tuple[BufferRef, ...]
    writes: tuple[int, ...]
    tasks: int = 1
    gang: bool = False
    scratch: int = 0
    flops: int = 0
    bytes: int = 0

    @property
    def reads(self) -> tuple[BufferRef, ...]:
        return tuple(a for i, a in enumerate(self.args) if i not in self.writes)

    @property
    def written(self) -> tuple[BufferRef, ...]:
        return tuple(self.args[i] for i in self.writes)

    def __str__(self) -> str:
        return (
            f"call {self.kernel} {json.dumps(self.node)} ({', '.join(map(str, self.args))}) "
            f"writes {','.join(map(str, self.writes)) or '-'} tasks {self.tasks} scratch {self.scratch} "
            f"flops {self.flops} bytes {self.bytes}" + (" gang" if self.gang else "")
        )


@dataclass(frozen=True)
class Copy:
    """Copies bytes, e.g. where an input is an output."""

    source: BufferRef
    target: BufferRef
    node: str = ""

    @property
    def reads(self) -> tuple[BufferRef, ...]:
        return (self.source,)

    @property
    def written(self) -> tuple[BufferRef, ...]:
        return (self.target,)

    def __str__(self) -> str:
        return f"copy {json.dumps(self.node)} {self.source} -> {self.target}"


Step = KernelCall | Copy


@dataclass(frozen=True)
class Plan:
    """A whole model, ready to run. Sizes are bytes; `features` are LLVM's names of CPU features."""

    name: str
    target: str
    features: tuple[str, ...]
    inputs: tuple[PlanIO, ...]
    outputs: tuple[PlanIO, ...]
    arena_size: int
    weights_size: int
    steps: tuple[Step, ...]
    prepared_size: int = 0
    setup: tuple[Step, ...] = ()

    @property
    def all_steps(self) -> tuple[Step, ...]:
        return self.steps + self.setup

    @property
    def weights_in_use(self) -> int:
        """Bytes of the weights that runs read: of the stored ones the front, and the prepared ones."""
        refs = [ref for step in self.steps for ref in step.reads if ref.space == "weights"]
        return max((ref.end for ref in refs), default=0) + self.prepared_size

    def memory(self, threads: int) -> int:
        """Bytes that an opened module and one context take: weights, arena and scratch memory."""
        arena, scratch = (-(-n // 128) * 128 for n in (self.arena_size, self.scratch_size))
        return self.weights_in_use + arena + scratch * threads

    @property
    def kernels(self) -> tuple[str, ...]:
        """Kernel symbols in the order of the module's kernel table."""
        return tuple(dict.fromkeys(s.kernel for s in self.all_steps if isinstance(s, KernelCall)))

    @property
    def scratch_size(self) -> int:
        """Bytes of scratch memory per worker."""
        return max((s.scratch for s in self.all_steps if isinstance(s, KernelCall)), default=0)

    def __str__(self) -> str:
        lines = [
            f"plan {json.dumps(self.name)} target {json.dumps(self.target)} "
            f"features {json.dumps(','.join(self.features))} "
            f"arena {self.arena_size} weights {self.weights_size} prepared {self.prepared_size}"
        ]
        lines += [f"input {json.dumps(io.name)} {io.type}" for io in self.inputs]
        lines += [f"output {json.dumps(io.name)} {io.type}" for io in self.outputs]
        lines += [f"setup {s}" for s in self.setup]
        return "\n".join(lines + [str(s) for s in self.steps]) + "\n"


_TEXT = r'"(?:[^"\\]|\\.)*"'
_REF = rf"(?:in\d+|out\d+|arena|weights|prepared)\[\d+:\d+\](?:{_TEXT})?"
_HEADER = re.compile(
    rf"plan ({_TEXT}) target ({_TEXT}) features ({_TEXT}) arena (\d+) weights (\d+) prepared (\d+)"
)
_IO = re.compile(rf"(input|output) ({_TEXT}) (\S+)")
_CALL = re.compile(
    rf"call (\S+) ({_TEXT}) \((.*)\) writes (\S+) tasks (\d+) scratch (\d+) flops (\d+) bytes (\d+)( gang)?"
)
_COPY = re.compile(rf"copy ({_TEXT}) ({_REF}) -> ({_REF})")
_REF_PARTS = re.compile(rf"(in|out|arena|weights|prepared)(\d*)\[(\d+):(\d+)\]({_TEXT})?")


def _parse_ref(text: str) -> BufferRef:
    match = _REF_PARTS.fullmatch(text)
    if not match:
        raise InternalError(f"plan text: expected a buffer such as arena[0:64], found {text!r}")
    begin, end = int(match[3]), int(match[4])
    value = json.loads(match[5])[1:] if match[5] else ""
    return BufferRef(match[1], int(match[2] or 0), begin, end - begin, value)


def parse(text: str) -> Plan:
    """The plan that prints as `text`; InternalError names the first line that does not parse."""
    lines = [line for line in text.splitlines() if line.strip()]
    header = _HEADER.fullmatch(lines[0]) if lines else None
    if not header:
        raise InternalError('plan text: expected a first line such as: plan "model" target "host" …')
    ios: dict[str, list[PlanIO]] = {"input": [], "output": []}
    parts: dict[bool, list[Step]] = {False: [], True: []}  # by whether it is setup
    for line in lines[1:]:
        steps = parts[line.startswith("setup ")]
        line = line.removeprefix("setup ")
        if match := _IO.fullmatch(line):
            ios[match[1]].append(PlanIO(json.loads(match[2]), TensorType.parse(match[3])))
        elif match := _CALL.fullmatch(line):
            args = tuple(_parse_ref(ref) for ref in re.findall(_REF, match[3]))
            writes = () if match[4] == "-" else tuple(map(int, match[4].split(",")))
            tasks, scratch, flops, size = (int(match[i]) for i in (5, 6, 7, 8))
            node = json.loads(match[2])
            steps.append(
                KernelCall(match[1], node, args, writes, tasks, bool(match[9]), scratch, flops, size)
            )
        elif match := _COPY.fullmatch(line):
            steps.append(Copy(_parse_ref(match[2]), _parse_ref(match[3]), json.loads(match[1])))
        else:
            raise InternalError(f"plan text: cannot read the line {line!r}")
    features = tuple(f for f in json.loads(header[3]).split(",") if f)
    name, target = json.loads(header[1]), json.loads(header[2])
    inputs, outputs = tuple(ios["input"]), tuple(ios["output"])
    arena, weights, prepared = (int(header[i]) for i in (4, 5, 6))
    run, setup = tuple(parts[False]), tuple(parts[True])
    return Plan(name, target, features, inputs, outputs, arena, weights, run, prepared, setup)


def _limit(plan: Plan, ref: BufferRef) -> int:
    if ref.space in ("in", "out"):
        ios = plan.inputs if ref.space == "in" else plan.outputs
        return ios[ref.index].type.nbytes if 0 <= ref.index < len(ios) else -1
    sizes = {"arena": plan.arena_size, "weights": plan.weights_size, "prepared": plan.prepared_size}
    return sizes.get(ref.space, -1)


def _check_ref(plan: Plan, where: str, ref: BufferRef) -> None:
    if ref.space not in SPACES or ref.offset < 0 or ref.nbytes < 0 or ref.end > _limit(plan, ref):
        raise InternalError(f"{where}: {ref} lies outside of its space of {_limit(plan, ref)} bytes")
    if ref.space in ("arena", "weights", "prepared") and ref.offset % ALIGNMENT:
        raise InternalError(f"{where}: {ref} is not aligned to {ALIGNMENT} bytes")


class _Written:
    """Which bytes of arena, outputs and prepared weights hold which value: sorted, disjoint (begin, end,
    value) per space.
    """

    def __init__(self) -> None:
        self.spans: dict[tuple[str, int], list[tuple[int, int, str]]] = {}

    def forget(self, space: str) -> None:
        self.spans = {key: spans for key, spans in self.spans.items() if key[0] != space}

    def write(self, ref: BufferRef) -> None:
        key = (ref.space, ref.index)
        kept: list[tuple[int, int, str]] = []
        for begin, end, value in self.spans.get(key, []):
            if begin < ref.offset:
                kept.append((begin, min(end, ref.offset), value))
            if end > ref.end:
                kept.append((max(begin, ref.end), end, value))
        if ref.nbytes:
            kept.append((ref.offset, ref.end, ref.value))
        self.spans[key] = sorted(kept)

    def check(self, where: str, ref: BufferRef) -> None:
        at = ref.offset
        for begin, end, value in self.spans.get((ref.space, ref.index), []):
            if end <= at or begin >= ref.end:
                continue
            if begin > at:
                break
            if value and ref.value and value != ref.value:
                raise InternalError(
                    f"{where}: {ref} was overwritten by the value {value!r} while still needed"
                )
            at = end
        if at < ref.end:
            raise InternalError(f"{where}: {ref} is read, but byte {at} was never written")


def verify(plan: Plan) -> None:
    """Raises InternalError unless every access is inside its space, aligned, of bytes that were written, and
    finds the value that it names; and unless all outputs are written in full."""
    for io in plan.inputs + plan.outputs:
        if io.type.layout is not None and not io.type.layout.is_plain:
            raise InternalError(f"plan {plan.name}: {io.name!r} must have a plain layout, found {io.type}")
    made = max((ref.end for s in plan.setup for ref in s.written if ref.space == "prepared"), default=0)
    if plan.prepared_size != -(-made // ALIGNMENT) * ALIGNMENT:
        raise InternalError(f"plan {plan.name}: prepared {plan.prepared_size}, but the setup makes {made}")
    written = _Written()
    for part, steps, spaces in (("setup ", plan.setup, _SETUP_SPACES), ("", plan.steps, _RUN_SPACES)):
        written.forget("arena")
        for number, step in enumerate(steps):
            name = step.kernel if isinstance(step, KernelCall) else "copy"
            where = f"plan {plan.name}, {part}step {number} ({name}, node {step.node!r})"
            _verify_step(plan, where, step, written, spaces)
    for index, io in enumerate(plan.outputs):
        written.check(f"plan {plan.name}, output {io.name!r}", BufferRef.output(index, io.type.nbytes))


_SETUP_SPACES = (frozenset({"weights", "prepared", "arena"}), frozenset({"prepared", "arena"}))
_RUN_SPACES = (frozenset(SPACES), frozenset({"out", "arena"}))
"""(Spaces that steps of this part read, spaces that they write.)"""


def _verify_step(
    plan: Plan,
    where: str,
    step: Step,
    written: _Written,
    spaces: tuple[frozenset[str], frozenset[str]],
) -> None:
    if isinstance(step, KernelCall):
        if step.tasks < 0 or min(step.scratch, step.flops, step.bytes) < 0:
            raise InternalError(f"{where}: tasks, scratch, flops and bytes must not be negative")
        if not all(0 <= i < len(step.args) for i in step.writes):
            raise InternalError(f"{where}: writes {step.writes} of {len(step.args)} arguments")
    elif step.source.nbytes != step.target.nbytes:
        raise InternalError(f"{where}: {step.source} and {step.target} differ in size")
    for ref in step.reads:
        _check_ref(plan, where, ref)
        if ref.space not in spaces[0]:
            raise InternalError(f"{where}: reads {ref}, which is not there yet")
        if ref.space in ("arena", "out", "prepared"):
            written.check(where, ref)
    for ref in step.written:
        _check_ref(plan, where, ref)
        if ref.space not in spaces[1]:
            raise InternalError(f"{where}: writes to {ref}, which is read-only")
        for other in step.reads:
            if ref.overlaps(other) and ref.place != other.place:
                raise InternalError(f"{where}: writes {ref} while it reads {other}")
    targets = step.written
    for i, ref in enumerate(targets):
        if any(ref.overlaps(other) for other in targets[i + 1 :]):
            raise InternalError(f"{where}: two of its outputs overlap at {ref}")
        written.write(ref)


Kernel = Callable[..., "int | None"]


def interpret(
    plan: Plan,
    kernels: Mapping[str, Kernel],
    inputs: Mapping[str, np.ndarray],
    weights: np.ndarray | bytes = b"",
) -> dict[str, np.ndarray]:
    """The meaning of a plan. A kernel is `k(buffers, begin, end, worker) -> int | None`, buffers being uint8
    views; a result other than None or 0 raises RunError. The arena starts as garbage."""
    spaces: dict[tuple[str, int], np.ndarray] = {
        ("arena", 0): np.full(plan.arena_size, 0xCD, np.uint8),
        ("prepared", 0): np.full(plan.prepared_size, 0xCD, np.uint8),
        ("weights", 0): np.frombuffer(weights, np.uint8) if len(weights) else np.zeros(0, np.uint8),
    }
    for i, io in enumerate(plan.inputs):
        array = np.ascontiguousarray(inputs[io.name], io.type.dtype.numpy).reshape(-1)
        spaces["in", i] = array.view(np.uint8)
    for i, io in enumerate(plan.outputs):
        spaces["out", i] = np.zeros(io.type.nbytes, np.uint8)

    def view(ref: BufferRef) -> np.ndarray:
        return spaces[ref.space, ref.index][ref.offset : ref.end]

    for step in plan.setup + plan.steps:
        if isinstance(step, Copy):
            view(step.target)[:] = view(step.source)
            continue
        code = kernels[step.kernel]([view(a) for a in step.args], 0, step.tasks, 0)
        if code:
            raise RunError(f"node {step.node}: kernel {step.kernel} returned the error code {code}")
    return {
        io.name: spaces["out", i].view(io.type.dtype.numpy).reshape(io.type.dims)
        for i, io in enumerate(plan.outputs)
    }


_HEADER_FORMAT = struct.Struct("<8sII5Q12I")
_IO_FORMAT = struct.Struct("<4IQ")
_STEP_FORMAT = struct.Struct("<6I4Q")
_ARG_FORMAT = struct.Struct("<IIQQ")


class _Strings:
    """Null-terminated UTF-8 strings, each stored once."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.offsets: dict[str, int] = {}

    def add(self, text: str) -> int:
        if text not in self.offsets:
            self.offsets[text] = len(self.data)
            self.data += text.replace("\0", "?").encode("utf-8", "replace") + b"\0"
        return self.offsets[text]


def encode(plan: Plan) -> bytes:
    """The little-endian bytes that the C runtime reads, laid out as docs/module-format.md says."""
    strings = _Strings()
    strings.add("")
    kernels = {name: i for i, name in enumerate(plan.kernels)}
    ios, steps, args, dims = bytearray(), bytearray(), bytearray(), bytearray()
    for io in plan.inputs + plan.outputs:
        shape = io.type.dims
        first = len(dims) // 8
        ios += _IO_FORMAT.pack(strings.add(io.name), io.type.dtype.code, len(shape), first, io.type.nbytes)
        dims += struct.pack(f"<{len(shape)}q", *shape)
    argument_count = 0
    for step in plan.all_steps:
        if isinstance(step, KernelCall):
            refs, head = step.args, (KIND_CALL, kernels[step.kernel])
            tail = (int(step.gang), step.tasks, step.scratch, step.flops, step.bytes)
        else:
            refs, head = (step.source, step.target), (KIND_COPY, 0)
            tail = (0, 1, 0, 0, 2 * step.source.nbytes)
        steps += _STEP_FORMAT.pack(*head, strings.add(step.node), argument_count, len(refs), *tail)
        for ref in refs:
            args += _ARG_FORMAT.pack(SPACES.index(ref.space), ref.index, ref.offset, ref.nbytes)
        argument_count += len(refs)
    names = [strings.add(k) for k in plan.kernels] + [strings.add(f) for f in plan.features]
    label, target = strings.add(plan.name), strings.add(plan.target)
    body = ios + steps + args + dims + struct.pack(f"<{len(names)}I", *names) + strings.data
    header = _HEADER_FORMAT.pack(
        b"BURNPLAN",
        FORMAT_VERSION,
        _HEADER_FORMAT.size,
        _HEADER_FORMAT.size + len(body),
        plan.arena_size,
        plan.weights_size,
        plan.prepared_size,
        plan.scratch_size,
        *(len(plan.inputs), len(plan.outputs), len(kernels), len(plan.features)),
        *(len(plan.steps), len(plan.setup), argument_count, len(dims) // 8, len(strings.data)),
        *(label, target, 0),
    )
    return bytes(header + body)
