"""Loop program → LLVM IR text → object code.

Every step becomes a function with the kernel signature of runtime/include/burnish.h: a parallel loop at the
top of the program, whose outermost loops are the task range [begin, end), or what one worker runs in a row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import llvmlite.binding as llvm

from ...errors import InternalError
from ..ir import affine, loops
from ..ir import scalar as s
from ..ir.loops import Alloc, Barrier, Body, For, If, Intrinsic, Prefetch, Program, Stmt, Store
from ..ir.types import BOOL, I64
from ..target import Target
from .kernel_code import KernelCode, Step
from .llvm_scalar import Scalars
from .llvm_tiles import emit_tiles
from .llvm_values import FunctionText, Value, memory_type

_CALL_FIELDS = {"buffers": 0, "scratch": 8, "scratch_stride": 16, "next_weights": 24, "barrier": 40}
STACK_LIMIT = 64 * 1024  # bytes of register-scope buffers that may stay on the stack


def generate(program: Program, target: Target) -> KernelCode:
    """LLVM IR of all steps of a lowered program."""
    texts: list[str] = []
    declarations: set[str] = set()
    steps: list[Step] = []
    bodies = _step_bodies(program)
    for n, body in enumerate(bodies):
        symbol = program.name if len(bodies) == 1 else f"{program.name}_s{n}"
        emitter = _StepEmitter(program, target, symbol)
        texts.append(emitter.function(body))
        declarations |= emitter.fn.declarations
        steps.append(Step(symbol, emitter.tasks, emitter.scratch_bytes))
    header = f'target triple = "{target.triple}"\n'
    attributes = _ATTRIBUTES % target.cpu
    ir = header + "\n".join(sorted(declarations)) + "\n\n" + "\n\n".join(texts) + "\n" + attributes
    return KernelCode(program.name, ir, tuple(steps), program.gang)


def _step_bodies(program: Program) -> list[Body]:
    """A parallel loop is a step, and so are others in a row, of one worker; a gang waits after each."""
    bodies: list[Body] = []
    for st in program.body:
        alone = program.gang or _is_parallel(st)
        if alone or not bodies or _is_parallel(bodies[-1][0]):
            bodies.append((st,))
        else:
            bodies[-1] = (*bodies[-1], st)
    return bodies


def _is_parallel(st: Stmt) -> bool:
    return isinstance(st, For) and st.kind == "parallel"


_ATTRIBUTES = (
    'attributes #0 = { nounwind "tune-cpu"="%s" '
    '"prefer-vector-width"="512" "min-legal-vector-width"="512" }\n'
)
"""Code is scheduled for a CPU, but takes no instructions of it that the target does not name: some are
hidden by hypervisors, and modules say which they need."""


class _StepEmitter:
    def __init__(self, program: Program, target: Target, symbol: str):
        self.program = program
        self.target = target
        self.symbol = symbol
        self.fn = FunctionText()
        self.v = Scalars(self.fn, target)
        self.tasks = 1
        self.scratch_bytes = 0
        self._scratch_now = 0
        self._stack_bytes = 0

    # --- the function -----------------------------------------------------------------------------------

    def function(self, body: Body) -> str:
        buffers = (*self.program.params, *self.program.temps)
        for b in buffers:
            self.v.buffers[b.name] = b
            self.v.pointers[b.name] = f"%{_identifier(b.name)}.arg"
        self.top(body)
        self.fn.emit(f"ret i32 {self.result()}")
        if self.v.lane_loads:
            self.v.lane_loads.join()
        written = self.program.written()
        shared = "" if self.program.gang else "noalias "  # what a gang writes its other workers read
        args = [
            f"ptr {shared if b.name in written else 'noalias readonly '}%{_identifier(b.name)}.arg"
            for b in buffers
        ]
        args += ["ptr %call", "ptr noalias %scratch", "i64 %begin", "i64 %end", "i32 %worker"]
        entry = ["entry:", *self.fn.allocas]
        if self.v.error_slot:
            entry.append(f"  store i32 0, ptr {self.v.error_slot}, align 4")
        lines = "\n".join([*entry, *self.fn.lines])
        signature = f"define internal i32 @{self.symbol}.body({', '.join(args)}) noinline #0"
        return f"{self.wrapper(len(buffers))}\n\n{signature} {{\n{lines}\n}}"

    def result(self) -> str:
        if self.v.error_slot is None:
            return "0"
        return self.fn.assign(f"load i32, ptr {self.v.error_slot}, align 4", I64).text

    def wrapper(self, count: int) -> str:
        """Unpacks the burnish_call; the body's arguments are noalias, which a loaded pointer cannot be."""
        lines = [f"define i32 @{self.symbol}(ptr %call, i64 %begin, i64 %end, i32 %worker) #0 {{", "entry:"]
        lines.append("  %buffers = load ptr, ptr %call, align 8")
        args: list[str] = []
        for n in range(count):
            lines.append(f"  %s{n} = getelementptr ptr, ptr %buffers, i64 {n}")
            lines.append(f"  %b{n} = load ptr, ptr %s{n}, align 8")
            args.append(f"ptr %b{n}")
        lines.append(f"  %scratch.slot = getelementptr i8, ptr %call, i64 {_CALL_FIELDS['scratch']}")
        lines.append("  %scratch.base = load ptr, ptr %scratch.slot, align 8")
        lines.append(f"  %stride.slot = getelementptr i8, ptr %call, i64 {_CALL_FIELDS['scratch_stride']}")
        lines.append("  %stride = load i64, ptr %stride.slot, align 8")
        lines.append("  %worker.wide = sext i32 %worker to i64")
        lines.append("  %scratch.offset = mul i64 %stride, %worker.wide")
        lines.append("  %scratch = getelementptr i8, ptr %scratch.base, i64 %scratch.offset")
        args += ["ptr %call", "ptr %scratch", "i64 %begin", "i64 %end", "i32 %worker"]
        lines.append(f"  %code = call i32 @{self.symbol}.body({', '.join(args)})")
        lines += ["  ret i32 %code", "}"]
        return "\n".join(lines)

    def top(self, body: Body) -> None:
        """The outermost parallel loops, flattened into one loop over the task range."""
        chain: list[For] = []
        inner = body
        while (
            len(inner) == 1
            and isinstance(inner[0], For)
            and inner[0].kind == "parallel"
            and inner[0].extent is not None
        ):
            chain.append(inner[0])
            inner = inner[0].body
        if not chain:
            self.tasks = 1
            self.bind_gang()
            self.body(body)
            return
        extents = [f.extent or 0 for f in chain]
        self.tasks = math.prod(extents)
        if self.tasks == 0:
            return
        task = Value("%begin", I64)
        with_range = For("task", s.const(0), s.const(self.tasks), inner)
        self.v.ranges["task"] = (0, self.tasks - 1)

        def unpack(position: Value) -> None:
            rest = position
            for f, extent in zip(reversed(chain), reversed(extents)):
                begin = int(f.begin.value)  # type: ignore[attr-defined]
                self.v.ranges[f.var] = (begin, begin + extent - 1)
                if extent == 1:
                    self.v.bound[f.var] = begin
                    continue
                if f is chain[0]:
                    digit = rest
                else:
                    digit = self.fn.assign(f"urem {rest.typed}, {extent}", I64)
                    rest = self.fn.assign(f"udiv {rest.typed}, {extent}", I64)
                self.v.bound[f.var] = self.fn.assign(f"add {digit.typed}, {begin}", I64) if begin else digit

        self.counted(with_range, task, Value("%end", I64), maybe_empty=True, prepare=unpack)

    def bind_gang(self) -> None:
        """A gang step knows its worker and their number as variables."""
        if self.program.gang:
            self.v.bound["worker"] = self.fn.assign("sext i32 %worker to i64", I64)
            slot = self.fn.fresh("p")
            self.fn.emit(f"{slot} = getelementptr i8, ptr %call, i64 56")
            count = self.fn.assign(f"load i32, ptr {slot}, align 8", I64)
            self.v.bound["workers"] = self.fn.assign(f"sext i32 {count.text} to i64", I64)

    # --- statements -------------------------------------------------------------------------------------

    def body(self, body: Body) -> None:
        for st in body:
            self.statement(st)

    def statement(self, st: Stmt) -> None:
        match st:
            case For():
                self.loop(st)
            case Store():
                self.v.memo = {}
                self.v.store(self.v.buffers[st.buffer], st.index, self.v.expr(st.value))
            case If():
                self.branch(st)
            case Alloc():
                self.alloc(st)
            case Prefetch():
                self.prefetch(st)
            case Barrier(scope="order"):
                self.v.forget_loads()
            case Barrier(scope="gang"):
                slot = self.fn.fresh("p")
                self.fn.emit(f"{slot} = getelementptr i8, ptr %call, i64 {_CALL_FIELDS['barrier']}")
                target = self.fn.fresh("f")
                self.fn.emit(f"{target} = load ptr, ptr {slot}, align 8")
                self.fn.emit(f"call void {target}(ptr %call, i32 %worker)")
                if self.v.lane_loads:
                    self.v.lane_loads.called()
            case Intrinsic():
                self.v.memo = {}
                emit_tiles(self.fn, self.v, st)
            case _:
                raise InternalError(f"code generation for a CPU: {type(st).__name__} {st}")

    def loop(self, st: For) -> None:
        self.v.memo = {}
        begin, end = self.v.expr(st.begin), self.v.expr(st.end)
        constant_bounds = begin.const is not None and end.const is not None
        if constant_bounds:
            first, extent = int(begin.const), max(0, int(end.const) - int(begin.const))  # type: ignore[arg-type]
            if extent == 0:
                return
            if st.kind == "unroll" or extent == 1:
                for n in range(first, first + extent):
                    self.v.bound[st.var] = n
                    self.v.ranges[st.var] = (n, n)
                    self.body(st.body)
                return
            if st.kind == "vector":
                self.vector(st, first, extent)
                return
        elif st.kind in ("vector", "unroll"):
            raise InternalError(
                f"code generation: {st.kind} loop over {st.var} has bounds known only when running"
            )
        lo, hi = affine.bounds(st.begin, self.v.ranges)[0], affine.bounds(st.end, self.v.ranges)[1] - 1
        self.v.ranges[st.var] = (lo, max(lo, hi))
        self.counted(st, begin, end, maybe_empty=not constant_bounds)

    def counted(self, st: For, begin: Value, end: Value, maybe_empty: bool, prepare=None) -> None:
        """A bottom-tested loop."""
        fn, v = self.fn, self.v
        header, done = fn.label("loop"), fn.label("done")
        if maybe_empty:
            some = fn.assign(f"icmp slt {begin.typed}, {end.text}", BOOL)
            fn.emit(f"br i1 {some.text}, label %{header}.pre, label %{done}")
            fn.start(f"{header}.pre")
        before = fn.block
        fn.branch(header)
        fn.start(header)
        counter, following = fn.fresh("i"), fn.fresh("n")
        phi_at = len(fn.lines)
        fn.emit("")
        v.scopes.append({})
        v.bound[st.var] = Value(counter, I64)
        if prepare:
            prepare(Value(counter, I64))
        self.body(st.body)
        v.scopes.pop()
        fn.lines[phi_at] = f"  {counter} = phi i64 [ {begin.text}, %{before} ], [ {following}, %{fn.block} ]"
        fn.emit(f"{following} = add nsw nuw i64 {counter}, 1")
        again = fn.fresh("c")
        fn.emit(f"{again} = icmp slt i64 {following}, {end.text}")
        fn.emit(f"br i1 {again}, label %{header}, label %{done}")
        fn.start(done)
        v.memo = {}
        del v.bound[st.var]

    def vector(self, st: For, first: int, extent: int) -> None:
        if self.v.vector is not None:
            raise InternalError(
                f"code generation: vector loop {st.var} inside vector loop {self.v.vector[0]}"
            )
        body = st.body if first == 0 else loops.substitute(st.body, {st.var: s.Var(st.var) + first})
        self.v.bound.pop(st.var, None)
        self.v.ranges[st.var] = (0, extent - 1)
        self.v.vector = (st.var, extent)
        self.body(body)
        self.v.vector = None

    def branch(self, st: If) -> None:
        v, fn = self.v, self.fn
        v.memo = {}
        cond = v.expr(st.cond)
        if cond.const is not None:
            self.body(st.then if cond.const else st.other)
            return
        if v.vector is not None:
            self.predicated(cond, st)
            return
        then, other, done = fn.label("then"), fn.label("else"), fn.label("endif")
        fn.emit(f"br {cond.typed}, label %{then}, label %{other if st.other else done}")
        for label, part in ((then, st.then), (other, st.other)):
            if label == other and not st.other:
                continue
            fn.start(label)
            v.scopes.append({})
            self.body(part)
            v.scopes.pop()
            fn.branch(done)
        fn.start(done)
        v.memo = {}

    def predicated(self, cond: Value, st: If) -> None:
        """Inside a vector loop: stores write only the lanes for which the condition holds."""
        v = self.v
        outer = v.mask
        for holds, body in ((cond, st.then), (v.negation(cond), st.other)):
            mask = v.conjunction(outer, holds)
            v.mask = None if mask.const else mask
            if body and mask.const is not False:
                self.body(body)
        v.mask = outer
        v.memo = {}

    def alloc(self, st: Alloc) -> None:
        b = st.buffer
        before = self._scratch_now
        nbytes = max(b.nbytes, 1)
        if b.scope == "register" and self._stack_bytes + nbytes <= STACK_LIMIT:
            self._stack_bytes += nbytes
            pointer = self.fn.alloca(f"[{max(b.size, 1)} x {memory_type(b.dtype)}]", 64)
        else:
            pointer = self.fn.fresh("scr")
            offset = self._scratch_now
            self.fn.emit(f"{pointer} = getelementptr i8, ptr %scratch, i64 {offset}")
            self._scratch_now += -(-nbytes // 64) * 64
            self.scratch_bytes = max(self.scratch_bytes, self._scratch_now)
        self.v.buffers[b.name] = b if b.scope == "register" else replace(b, scope="scratch")
        self.v.pointers[b.name] = pointer
        self.v.scopes.append({})
        self.body(st.body)
        self.v.scopes.pop()
        self._scratch_now = before

    def prefetch(self, st: Prefetch) -> None:
        self.v.memo = {}
        buffer = self.v.buffers[st.buffer]
        offset, terms, _ = self.v.resolve(self.v.flat(buffer, st.index))
        pointer = self.v.pointer(buffer, offset, terms)
        hint = ["i32 0", f"i32 {0 if st.once else 3}", "i32 1"]  # to read, how long it stays, data
        self.fn.emit(self.fn.intrinsic("llvm.prefetch.p0", "void", [f"ptr {pointer}", *hint]))


def _identifier(name: str) -> str:
    return "".join(c if c.isalnum() or c == "_" else "_" for c in name)


# --- machine code ---------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def _initialize() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()


@lru_cache(maxsize=16)
def target_machine(target: Target) -> llvm.TargetMachine:
    return _new_machine(target, "default")


def _new_machine(target: Target, codemodel: str) -> llvm.TargetMachine:
    _initialize()
    triple = llvm.Target.from_triple(target.triple)
    return triple.create_target_machine(
        cpu=target.least_cpu, features=target.llvm_features, opt=3, reloc="pic", codemodel=codemodel
    )


def optimise(ir: str, target: Target) -> llvm.ModuleRef:
    """Parsed and optimised. Loops are already unrolled and vectorised as the schedule says, so LLVM does
    neither.
    """
    machine = target_machine(target)
    module = llvm.parse_assembly(ir)
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    options.loop_vectorization = False
    options.slp_vectorization = False
    options.loop_unrolling = False
    options.loop_interleaving = False
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    return module


def object_code(code: KernelCode, target: Target) -> bytes:
    """A relocatable object file."""
    return target_machine(target).emit_object(optimise(code.ir, target))


def assembly(code: KernelCode, target: Target) -> str:
    return target_machine(target).emit_assembly(optimise(code.ir, target))


class LoadedCode:
    """Object files in this process's memory; addresses stay valid while this lives."""

    def __init__(self, objects: Sequence[bytes], target: Target):
        _initialize()
        empty = llvm.parse_assembly(f'target triple = "{target.triple}"')
        self._engine = llvm.create_mcjit_compiler(empty, _new_machine(target, "jitdefault"))
        for data in objects:
            self._engine.add_object_file(llvm.ObjectFileRef.from_data(data))
        self._engine.finalize_object()

    def address(self, symbol: str) -> int:
        address = self._engine.get_function_address(symbol)
        if not address:
            raise InternalError(f"generated code has no symbol {symbol}")
        return address
