"""`burnish verify`: are the results right, with any number of threads, and the same from a saved module?"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np
import onnx

from ..compiler.ir.graph import Graph, interpret
from ..debug import Log
from ..errors import BurnishError, InputError, ToolError, UnsupportedError
from ..frontends.onnx.importer import import_onnx
from ..frontends.onnx.interface import resolve_inputs
from ..models import zoo
from ..op_tuner.child import ChildEnded, answer_of
from ..pipeline import Module, load
from .compare import Check, compare, same_bits
from .options import PRECISION, SEED, compile_options, thread_counts
from .outputs import least_tolerance
from .peers import Network, OnnxRuntime
from .report import threads_text
from .source import Source, find_source, open_module, random_feeds

Arrays = Mapping[str, np.ndarray]
Oracle = Callable[[onnx.ModelProto, Arrays], Arrays]
Oracles = tuple[Oracle, Oracle | None]
"""Who computes a model's outputs, and who decides where somebody differs."""
Judge = Callable[[], Arrays]
_OTHERWISE = "onnxruntime cannot run this model; compare with --against reference ({})"


@click.command("verify")
@click.argument("source", metavar="MODULE|MODEL")
@click.option("--model", metavar="MODEL", help="What a MODULE was compiled from, to compare it with.")
@click.option(
    "--against",
    type=click.Choice(["onnxruntime", "reference"]),
    help="Who is right: onnxruntime, or the operators' definitions in numpy. Default: onnxruntime where it "
    "is installed, and where it differs the definitions.",
)
@click.option("--layerwise", is_flag=True, help="Also compare every intermediate value that both have.")
@thread_counts("Numbers of threads to run with.")
@click.option("--random-weights", is_flag=True, help="First replace weights by seeded random ones.")
@PRECISION
@compile_options
@SEED
def command(
    *,
    source,
    model,
    against,
    layerwise,
    threads,
    random_weights,
    precision,
    shapes,
    dims,
    values,
    target,
    cache,
    seed,
):
    """Compare the outputs of a module (.so) or a model with those of another implementation.

    Also runs with each number of threads, and saves, loads and runs again, which must give the same bits;
    other bits of other numbers of threads are said.
    Code for another machine (--target) runs under an emulator: `burnish settings` says which.
    Exit code 1 if any value is off by more than 1e-4 of its tensor's largest; by more than 1e-9 in f64,
    1e-2 in f16 and 5e-2 in bf16, which others round after every operator; at all in integers and bools.
    With a --precision, which a module may have been compiled with, by more than 2e-2 (tf32) or 5e-2;
    in networks that quantise to 8 bits, whose values may be whole steps off, by more than 5e-2.
    """
    found = find_source(source, dims, values={} if model else values)
    if found.is_module:
        origin = find_source(model, dims, only_model=True, values=values) if model else None
        if layerwise:
            raise InputError("--layerwise compiles the model again: give the model instead of a module")
        if random_weights or target != "host":
            raise InputError("--random-weights and --target compile: give the model instead of a module")
        if against and not model:
            raise InputError("--against compares with the model that was compiled: give it with --model")
        if shapes or (dims and not model):
            raise InputError("a module has the shapes that it was compiled for: leave out --shape and --dim")
        module = load(found.path or "", verify_digest=True)
        checks = _check_module(found, module, origin, dims, against, threads, precision, seed)
    else:
        if model:
            raise InputError("--model goes with a module; a model is compared with itself")
        proto = found.read()
        if random_weights:
            proto = zoo.random_weights(proto, seed)
        oracles = choose_oracles(against, shapes, dims)
        held = Source(found.name, proto=proto)
        options = {"target": target, "cache": cache, "precision": precision}
        checks = _check_model(held, oracles, shapes, dims, threads, seed, layerwise, options)
    wrong = [check for check in checks if not check.ok]
    if wrong:
        worst = max(wrong, key=lambda check: check.error / (check.limit or 1e-30))
        raise BurnishError(f"{len(wrong)} of {len(checks)} checks failed; worst: {worst.text()}")
    click.echo(f"ok: {len(checks)} checks")


def _check_module(
    found: Source,
    module: Module,
    origin: Source | None,
    dims: Mapping[str, int],
    against: str | None,
    threads: Sequence[int],
    precision: str,
    seed: int,
) -> list[Check]:
    """A module from a file: its digest is right already. Its shapes are those of the model that it is of."""
    shapes = {info.name: info.shape for info in module.inputs}
    if origin is not None:
        _check_origin(found, module, origin, shapes, dims)
    feeds = random_feeds(origin or found, module.inputs, seed)
    expected, judge = None, None
    if origin is None:
        click.echo("digest right; outputs are compared among numbers of threads only: give --model MODEL")
    else:
        oracles = choose_oracles(against, shapes, {})
        expected, judge = _asked(oracles, origin.read(), feeds)
    least = 0.0 if origin is None else least_tolerance(origin.read())
    return check_threads(module, feeds, expected, threads, precision, least, judge)


def _check_origin(
    found: Source,
    module: Module,
    origin: Source,
    shapes: Mapping[str, tuple[int, ...]],
    dims: Mapping[str, int],
) -> None:
    """InputError for a model that the module cannot be of. Inputs may have become constants."""
    graph = origin.read().graph
    inputs, outputs = ({info.name for info in infos} for infos in (graph.input, graph.output))
    other = [i.name for i in module.inputs if i.name not in inputs]
    other += [o.name for o in module.outputs if o.name not in outputs]
    if other:
        raise InputError(f"{found.path} was not compiled from {origin.name}, which has no {other[0]!r}")
    constants = {tensor.name for tensor in graph.initializer}
    fixed = [name for name in inputs if name not in constants and name not in shapes]
    if fixed:
        raise InputError(f"{found.path} has a constant for {fixed[0]!r}: give it with --value {fixed[0]}=…")
    resolve_inputs([info for info in graph.input if info.name in shapes], shapes, dims, {}, {})


def _check_model(
    source: Source,
    oracles: Oracles,
    shapes: Mapping[str, tuple[int, ...]],
    dims: Mapping[str, int],
    threads: Sequence[int],
    seed: int,
    layerwise: bool,
    options: Mapping[str, Any],
) -> list[Check]:
    log = Log(keep=layerwise)
    module = open_module(source, shapes, dims, max(threads), log=log, **options)
    feeds = random_feeds(source, module.inputs, seed)
    assert source.proto is not None
    least = least_tolerance(source.proto)
    proto, names = source.proto, [output.name for output in source.proto.graph.output]
    precision, checks = options["precision"], list[Check]()
    if layerwise and log.graphs:
        (_, imported), *_, (_, graph) = log.graphs
        log.graphs.clear()
        watched = [value for value in shared_values(graph, proto) if value in imported.types]
        proto = with_outputs(proto, imported, watched)
        del imported
        nodes = {output: node.name for node in graph.nodes for output in node.outputs}
        del graph  # its weights are not needed any more
        click.echo(f"{len(watched)} intermediate values:")
        expected, judge = _asked(oracles, proto, feeds)
        layers = open_module(Source(source.name, proto=proto), shapes, dims, max(threads), **options)
        results = layers.run(feeds, threads[0])
        found = [compare(v, nodes[v], results[v], expected[v], precision, least) for v in watched]
        checks = worst_of_nodes(judged(found, results, judge, precision, least))
        _show(checks)
    else:
        expected, judge = _asked(oracles, proto, feeds)
    expected = {name: expected[name] for name in names}
    checks += check_threads(module, feeds, expected, threads, precision, least, judge)
    if module.foreign or module.emulated:
        how = "run under an emulator; " if module.emulated else ""
        click.echo(f"{how}not loaded from a file, which only the target can")
        return checks
    try:
        return [*checks, check_saved(module, feeds, threads[0])]
    except UnsupportedError as error:  # too large for one file
        click.echo(f"not loaded from a file: {error}")
        return checks


def check_threads(
    module: Module,
    feeds: Arrays,
    expected: Arrays | None,
    threads: Sequence[int],
    precision: str,
    least: float = 0.0,
    judge: Judge | None = None,
) -> list[Check]:
    """`expected`: if None, what the first number of threads gives; `least`: as of `compare`; `judge`: as of
    `judged`."""
    checks = []
    results: list[Arrays] = []
    for count in threads:
        results.append(module.run(feeds, count))
        if expected is None:
            expected = results[0]
            continue
        label = threads_text(count)
        found = [
            compare(name, label, results[-1][name], array, precision, least)
            for name, array in expected.items()
        ]
        found = judged(found, results[-1], judge, precision, least)
        _show(found)
        checks += found
    if len(results) > 1:
        equal = all(same_bits(results[0], other) for other in results[1:])
        click.echo(f"{'same' if equal else 'other'} bits with {' and '.join(map(str, threads))} threads")
    return checks


def judged(
    checks: Sequence[Check], found: Arrays, judge: Judge | None, precision: str, least: float
) -> list[Check]:
    """What differs from onnxruntime is compared with what `judge` gives, and is right if that agrees."""
    if judge is None or all(check.ok for check in checks):
        return list(checks)
    right = judge()
    result = []
    for check in checks:
        again = check
        if not check.ok:
            name = check.value
            again = compare(name, check.where, found[name], right[name], precision, least)
            again = replace(again, note=f"by the operators' definitions, onnxruntime has {check.error:.1e}")
        result.append(again if again.ok else check)
    return result


def check_saved(module: Module, feeds: Arrays, threads: int) -> Check:
    """Saved, loaded and run again: the same bits."""
    before = module.run(feeds, threads)
    with tempfile.TemporaryDirectory(prefix="burnish-") as folder:
        path = Path(folder) / "module.so"
        module.save(path)
        after = load(path, verify_digest=True).run(feeds, threads)
    equal = same_bits(before, after)
    click.echo(f"{'same' if equal else 'OTHER'} bits when saved, loaded and run again")
    error = 0.0 if equal else np.inf
    return Check("all outputs", "saved and loaded", type="", error=error, limit=0.0, detail="other bits")


def shared_values(graph: Graph, model: onnx.ModelProto) -> list[str]:
    """Values between operators that exist in the optimised graph and in the model, in order."""
    named = {output for node in model.graph.node for output in node.output}
    named -= {output.name for output in model.graph.output}
    return [value for node in graph.nodes for value in node.outputs if value in named]


def with_outputs(model: onnx.ModelProto, graph: Graph, values: Sequence[str]) -> onnx.ModelProto:
    """A copy with more outputs, of their types in `graph`, as imported: passes may keep them as other bytes.
    They exist in memory anyway, so that fusion stays as it is."""
    result = onnx.ModelProto()
    result.CopyFrom(model)
    for value in values:
        type = graph.types[value]
        result.graph.output.append(onnx.helper.make_tensor_value_info(value, type.dtype.code, type.dims))
    return result


def _asked(oracles: Oracles, model: onnx.ModelProto, feeds: Arrays) -> tuple[Arrays, Judge | None]:
    """A model's outputs, and those by whoever decides, computed when they are asked for."""
    oracle, judge = oracles
    return oracle(model, feeds), functools.cache(lambda: judge(model, feeds)) if judge else None


def choose_oracles(
    against: str | None, shapes: Mapping[str, tuple[int, ...]], dims: Mapping[str, int]
) -> Oracles:
    """If nothing else is asked for, onnxruntime where it is installed, and the operators' definitions in
    numpy where somebody differs from it: it takes shortcuts, too.
    """

    def reference(model: onnx.ModelProto, feeds: Arrays) -> Arrays:
        return interpret(import_onnx(model, shapes=shapes, dims=dims), feeds)

    missing = OnnxRuntime().available()
    if against == "onnxruntime" and missing:
        raise ToolError(f"onnxruntime is {missing}; or compare with --against reference")
    if against == "reference" or missing:
        return reference, None
    return run_onnxruntime, None if against else reference


def run_onnxruntime(model: onnx.ModelProto, feeds: Arrays) -> Arrays:
    """Outputs by onnxruntime without its graph optimisations, in a child process: it may crash."""

    def outputs(_: object) -> Arrays:
        try:
            session: Any = OnnxRuntime().reference(Network("model", model))
            return dict(zip(session.names, session.session.run(list(session.names), dict(feeds))))
        except Exception as error:
            raise ToolError(_OTHERWISE.format(" ".join(str(error).split())[:300])) from None

    try:
        return answer_of(outputs)
    except ChildEnded as ending:
        raise ToolError(_OTHERWISE.format(ending)) from None


def worst_of_nodes(checks: Sequence[Check]) -> list[Check]:
    """For each node its worst value."""
    worst: dict[str, Check] = {}
    for check in checks:
        if check.where not in worst or not check.error <= worst[check.where].error:
            worst[check.where] = check
    return list(worst.values())


def _show(checks: Sequence[Check]) -> None:
    for check in checks:
        click.echo(check.text())
