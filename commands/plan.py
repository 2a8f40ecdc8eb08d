"""`burnish plan`: the algorithm and the layouts of every operator, and what other ways of planning would
cost.
"""

from __future__ import annotations

import time

import click
from rich import box
from rich.console import Console
from rich.table import Table

from ..compiler.target import get_target, host_threads
from ..frontends.onnx.importer import import_onnx
from ..graph_passes.alternatives import alternatives, decides, fused
from ..graph_passes.plan_layout import MODES, LayoutPlan, PlanOptions, plan_layout
from ..graph_passes.predict import PredictedCost
from ..pipeline import optimise
from .options import ACCURACY, THREADS, model_options
from .source import find_source

WIDTH = 150


@click.command("plan")
@click.argument("model")
@click.option("--target", default="host", show_default=True, metavar="NAME", help="See `burnish targets`.")
@model_options
@THREADS
@ACCURACY
def command(model, target, shapes, dims, threads, accuracy):
    """Show the chosen algorithm and layouts of every operator of MODEL, with predicted costs.

    Costs are in microseconds, at a clock of 3.5 GHz. Below the table stand the costs of the three ways to
    plan: the whole network at once, every operator alone, and one layout wherever it fits.
    """
    machine = get_target(target)
    source = find_source(model, dims, only_model=True)
    graph = import_onnx(source.model, shapes=shapes, dims=dims)
    graph = optimise(graph, machine, threads or host_threads(), stop_after="fuse")
    cost = PredictedCost(machine, threads or host_threads())
    block = machine.lanes(4)
    chosen = plan_layout(graph, block, cost, PlanOptions(accuracy=accuracy))
    table = Table(
        "node", "operators", "algorithm", "reads", "writes", "choices", "µs, predicted", box=box.SIMPLE
    )
    for n, node in enumerate(graph.nodes):
        if not decides(node):
            continue
        d = chosen.decisions[n]
        options = len(alternatives(graph, node, block, accuracy))
        micros = f"{cost.node(graph, node, d) * 1e6:.0f}"
        names = (node.name[:48], fused(graph, node).label[:40], d.algorithm)
        table.add_row(*names, str(d.reads or "plain"), str(d.writes or "plain"), str(options), micros)
    console = Console()
    console.width = max(console.width, WIDTH) if not console.is_terminal else console.width
    console.print(table)
    for mode in MODES:
        start = time.perf_counter()
        plan = plan_layout(graph, block, cost, PlanOptions(mode, accuracy))
        seconds = time.perf_counter() - start
        console.print(_summary(mode, plan, seconds), highlight=False)


def _summary(mode: str, plan: LayoutPlan, seconds: float) -> str:
    proof = f", proven optimal in {seconds * 1e3:.0f} ms" if plan.optimal else ""
    moves = f"{len(plan.conversions)} conversions ({plan.conversion_cost * 1e6:.0f} µs)"
    return f"{mode:6}  cost {plan.cost * 1e6:.0f} µs, {moves}{proof}"
