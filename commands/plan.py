"""`burnish plan`: algorithm, layouts and costs of every operator, and what other ways to plan would cost."""

from __future__ import annotations

from pathlib import Path

import click
from rich import box
from rich.table import Table

from ..compiler.target import get_target, workers_of
from ..frontends.onnx.importer import import_onnx
from ..graph_passes.assign_layouts import memory_of_plans
from ..graph_passes.plan_layout import MODES
from ..graph_passes.predict_gpu import predicted_cost
from ..op_tuner.records import default_path
from ..pipeline import measured_cost, optimise, plan_options, records_path
from .files import check_different, check_writable, megabytes, write_file
from .options import (
    ACCURACY,
    MEASURE,
    MEMORY_LIMIT,
    PRECISION,
    RECORDS,
    THREADS,
    compile_line,
    model_options,
)
from .plan_page import page
from .plan_report import SUMMARY_TITLES, Item, Report, microseconds, report, summary
from .progress import show_progress
from .report import NAME, console_of, say, threads_text
from .source import find_source

WIDTH = 170


@click.command("plan")
@click.argument("model")
@click.option("--target", default="host", show_default=True, metavar="NAME", help="See `burnish targets`.")
@model_options
@THREADS
@click.option("--plan", type=click.Choice(MODES), default="global", show_default=True, help="Which to show.")
@ACCURACY
@PRECISION
@MEMORY_LIMIT
@MEASURE
@RECORDS
@click.option("--html", type=click.Path(path_type=Path), metavar="FILE", help="Draw the plan as a page.")
def command(
    model,
    target,
    shapes,
    dims,
    values,
    threads,
    plan,
    accuracy,
    precision,
    memory_limit,
    measure,
    records,
    html,
):
    """Show the chosen algorithm and layouts of every operator of MODEL, its predicted and measured time.

    Costs are from the records, where they know this machine; from measuring, with --measure, which adds to
    them; else from the model that is named. Below stand the three ways to plan: the whole network at once,
    every operator alone, and one layout wherever it fits.
    """
    if html:
        check_writable(html)
    check_different(html, records, Path(model))
    machine = get_target(target)
    workers = workers_of(machine, threads)
    source = find_source(model, dims, only_model=True, values=values)
    graph = import_onnx(source.model, shapes=shapes, dims=dims)
    options = plan_options(machine, plan, accuracy, memory_limit, precision)
    graph = optimise(graph, machine, workers, stop_after="fuse", options=options)
    known = {"measure": measure, "records": records and records_path(records, measure)}
    with show_progress() as progress:
        cost = measured_cost(graph, machine, workers, options, **known, progress=progress)
    memory = memory_of_plans(graph, machine, workers)
    title = f"{source.name}, {machine.name}, {threads_text(workers)}"
    found = report(title, graph, cost, predicted_cost(machine, workers), options, memory)
    console = console_of(WIDTH)
    console.print(_items(found), soft_wrap=True)
    console.print(_modes(found), soft_wrap=True)
    if found.has_measured and not records and not measure and default_path().is_file():
        how = {"shapes": shapes, "dims": dims, "values": values, "target": target, "plan": plan}
        how |= {"accuracy": accuracy, "precision": precision, "memory_limit": memory_limit}
        line = compile_line(model, workers, default_path(), **how)
        say(console, f"measured before; this plan is that of: {line}")
    if cost.given_up:
        said = "measured now" if measure else "measured before"
        say(console, f"{said}; the plan by that is no faster in the network, and given up")
    say(console, f"memory {megabytes(found.memory or 0)}: weights, arena, scratch")
    if html:
        write_file(html, page(found))
        say(console, f"wrote {html}")


def _items(found: Report) -> Table:
    title = f"{found.title}: {found.mode} plan"
    table = Table(title=title, title_justify="left", box=box.SIMPLE, show_footer=True)
    for name in ("node", "operators", "algorithm", "reads", "writes"):
        table.add_column(name, overflow="fold", min_width=NAME if name in ("node", "operators") else 6)
    table.add_column("choices", justify="right")
    for name in ("predicted", "measured"):
        total = microseconds(found.total(name)) if name == "predicted" or found.has_measured else ""
        table.add_column(f"{name} µs", total, justify="right", no_wrap=True)
    table.add_column("cost from", no_wrap=True)
    table.add_column("local planning", overflow="fold")
    for item in found.items:
        if item.kind in ("operator", "conversion"):
            table.add_row(*cells(item), style="yellow" if item.kind == "conversion" else None)
    return table


def cells(item: Item) -> tuple[str, ...]:
    """One for each column."""
    name = f"{item.price.source} {item.price.name}" if item.price else ""
    times = (microseconds(item.predicted), microseconds(item.measured))
    choice = (item.algorithm, item.reads, item.writes)
    return (item.name[:48], item.operators[:40], *choice, str(item.choices), *times, name, item.local)


def _modes(found: Report) -> Table:
    table = Table(box=box.SIMPLE)
    for name in SUMMARY_TITLES:
        table.add_column(name, justify="left" if name == SUMMARY_TITLES[0] else "right")
    for row in summary(found.modes):
        table.add_row(*row)
    return table
