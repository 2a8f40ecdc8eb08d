"""`burnish trace`: one operator on every rung from ONNX to assembly."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import click
import onnx

from ..compiler.explain import RUNGS, rungs
from ..compiler.ir.graph import Graph, Node, print_graph
from ..compiler.kernel_task import Config, KernelTask
from ..compiler.ops.fused import FusedOp
from ..compiler.target import Target, get_target, workers_of
from ..debug import Log
from ..errors import InputError
from ..frontends.onnx.importer import import_onnx
from ..frontends.onnx.read_model import read_model
from ..graph_passes.footprint import evicting_bytes
from ..graph_passes.make_tasks import task_of
from ..graph_passes.views import is_view
from ..op_tuner.records import tuned_configs
from ..pipeline import optimise, passes
from .options import THREADS, model_options
from .source import Source, find_source
from .trace_samples import SAMPLES, sample

Rung = tuple[str, str, str]  # name, title, text


@click.command("trace")
@click.argument("model", required=False)
@click.option("--op", metavar="NAME", help=f"A sample in place of a model: {', '.join(SAMPLES)}.")
@click.option("--node", metavar="NAME", help="The ONNX node, by its name or one of its outputs.")
@click.option(
    "--stop-after",
    metavar="RUNG",
    help=f"onnx, import, a graph pass, fused (where operators are), or one of: {', '.join(RUNGS)}",
)
@click.option("--target", default="host", show_default=True, metavar="NAME", help="See `burnish targets`.")
@model_options
@THREADS
def command(model, op, node, stop_after, target, shapes, dims, values, threads):
    """Show one operator of MODEL on every rung: ONNX node, graph after each pass, fused operator, tensor
    expression, kernel task with its config, loop program (naive, scheduled, lowered), LLVM IR, assembly.

    Without --node it is the first operator of the model.
    """
    if (model is None) == (op is None):
        raise InputError("give either a model to trace, or --op with the name of a sample")
    if op and (shapes or dims or values):
        raise InputError("--op has its own sizes: leave out --shape, --dim and --value")
    machine = get_target(target)
    workers = workers_of(machine, threads)
    known = ["onnx", "import", *passes(machine, workers), "fused", *RUNGS]
    if stop_after is not None and stop_after not in known:
        raise InputError(f"--stop-after {stop_after!r}: expected one of {', '.join(known)}")
    source = Source(op, proto=sample(op)) if op else find_source(model, dims, only_model=True, values=values)
    proto = source.proto or read_model(source.path or "").proto
    chosen = find_node(proto, node)
    load: Callable[[], Graph] = lambda: import_onnx(source.model, shapes=shapes, dims=dims)  # noqa: E731
    for name, title, text in ladder(chosen, load, machine, workers):
        click.secho(f"── {title} ──", bold=True)
        click.echo(text.strip("\n") + "\n")
        if name == stop_after:
            return


def find_node(model: onnx.ModelProto, name: str | None) -> onnx.NodeProto:
    """The node of that name or with that output; the first one but constants where there is no name."""
    nodes = [node for node in model.graph.node if node.op_type != "Constant"]
    if not nodes:
        raise InputError("the model has no operators to trace")
    if name is None:
        return nodes[0]
    for node in nodes:
        if name == node.name or name in node.output:
            return node
    some = ", ".join(repr(node.name or node.output[0]) for node in nodes[:8])
    raise InputError(f"--node {name!r}: the model has no such node; it has {some}{' …' * (len(nodes) > 8)}")


def ladder(wanted: onnx.NodeProto, load: Callable[[], Graph], target: Target, threads: int) -> Iterator[Rung]:
    """The rungs in order; each is made when it is asked for."""
    yield "onnx", f"ONNX node ({wanted.op_type})", onnx.printer.to_text(wanted)
    log = Log(keep=True)
    graph = log.step("import", load)
    optimise(graph, target, threads, log)
    label = wanted.name or f"{wanted.op_type}:{wanted.output[0]}"
    before = ""
    evict = 0
    for name, graph in log.graphs or ():
        if name == "fuse":
            evict = evicting_bytes(graph, target)
        found = nodes_of(graph, label, wanted)
        text = print_part(graph, found)
        title = "graph after import" if name == "import" else f"graph after the pass {name}"
        yield name, title, "(unchanged)" if text == before else text
        before = text
    for node in nodes_of(graph, label, wanted):
        yield from kernel_rungs(graph, node, target, threads, tuned_configs(None, evict))


def nodes_of(graph: Graph, label: str, wanted: onnx.NodeProto) -> list[Node]:
    """The graph's nodes that stand for an ONNX node, alone, in part, or together with others."""
    inner = f"{label}/"
    found = [
        node
        for node in graph.nodes
        if any(part == label or part.startswith(inner) for part in node.name.split("+"))
        or any(output in wanted.output for output in node.outputs)
    ]
    return found


def print_part(graph: Graph, nodes: list[Node]) -> str:
    """The lines of the graph's text that define these nodes and their constants."""
    if not nodes:
        return "(nothing is left of it: it was computed when compiling, or became part of a weight)"
    made = {output for node in nodes for output in node.outputs}
    reads = [value for node in nodes for value in node.reads if value not in made]
    part = Graph(
        graph.name,
        inputs=tuple(value for value in dict.fromkeys(reads) if value not in graph.constants),
        outputs=tuple(output for node in nodes for output in node.outputs),
        nodes=tuple(nodes),
        types=graph.types,
        constants={value: graph.constants[value] for value in reads if value in graph.constants},
    )
    return print_graph(part)


def kernel_rungs(
    graph: Graph, node: Node, target: Target, threads: int, pick_config: Callable[[KernelTask], Config]
) -> Iterator[Rung]:
    """From a fused operator down to assembly."""
    if isinstance(node.op, FusedOp):
        yield "fused", f"fused operator {node.name}", print_graph(node.op.graph)
    if is_view(graph, node):
        title = f"node {node.name}"
        yield "task", title, "a view: its output is its input's memory under another shape; no kernel"
        return
    task = task_of(graph, node, target, threads)
    yield from rungs(task, pick_config(task), f"{task.name}_{task.digest[:8]}")
