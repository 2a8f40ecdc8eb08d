"""`burnish compile`: a model into a module."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from ..compiler.ir.graph import print_graph
from ..compiler.target import Target, get_target, workers_of
from ..debug import Log
from ..errors import InputError
from ..frontends.onnx.importer import import_onnx
from ..graph_passes.plan_layout import MODES
from ..graph_passes.split_setup import WEIGHT_FORMS
from ..pipeline import Module, optimise, passes, plan_options, require_options
from ..runtime.build import module_symbol
from .files import check_folder, check_header, check_writable, megabytes
from .options import (
    ACCURACY,
    MEASURE,
    MEMORY_LIMIT,
    PRECISION,
    RECORDS,
    STORED,
    THREADS,
    compile_options,
    tuning_of,
    tuning_options,
)
from .source import Source, find_source, open_module
from .tune_first import tune_first


@click.command("compile")
@click.argument("model")
@click.option(
    "output", "-o", type=click.Path(path_type=Path), metavar="MODULE", help="File to write: .so or .a."
)
@compile_options
@THREADS
@click.option(
    "--plan",
    type=click.Choice(MODES),
    default="global",
    show_default=True,
    help="Algorithms and layouts: chosen for the whole network, for each operator alone, or one layout.",
)
@ACCURACY
@PRECISION
@MEMORY_LIMIT
@STORED
@MEASURE
@tuning_options("Tune first")
@RECORDS
@click.option(
    "--stop-after", metavar="PASS", help="Print the graph after this pass (import, fold, …); write nothing."
)
@click.option(
    "--dump",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Write graphs, plan and kernels, on every rung, into a folder.",
)
def command(
    model,
    output,
    shapes,
    dims,
    values,
    target,
    cache,
    threads,
    plan,
    accuracy,
    precision,
    memory_limit,
    weights,
    measure,
    trials,
    budget,
    records,
    stop_after,
    dump,
):
    """Compile MODEL, an .onnx file or a name from the zoo, into a module.

    A .so is one file that `burnish run`, Python and C open; an .a is linked into an application, with the
    .h that is written beside it.
    """
    start = time.perf_counter()
    source = find_source(model, dims, only_model=True, values=values)
    machine = get_target(target)
    tuning = tuning_of(trials, budget)
    sizes = {"shapes": shapes, "dims": dims}
    planning = {"plan": plan, "accuracy": accuracy, "memory_limit": memory_limit, "precision": precision}
    if stop_after:
        if measure or tuning or records or weights != WEIGHT_FORMS[0]:
            raise InputError(
                "--stop-after shows the graph by predicted costs; leave out --measure, --tune, --budget, "
                "--records, --weights"
            )
        workers = workers_of(machine, threads)
        _show_graph(source, machine, workers, stop_after, dump=dump, sizes=sizes, planning=planning)
        return
    if output is None:
        raise InputError("where to? give a file to write with -o, such as -o model.so")
    check_writable(output, (".so", ".a"))
    module_symbol(output, output.suffix[1:])
    if output.suffix == ".a":
        check_header(output.with_suffix(".h"))
    require_options(machine, weights, measure)
    log = Log(check_folder(dump) if dump else None)
    planning["target"] = target
    if tuning:
        if records is not None:
            check_writable(records, (".jsonl",))
        how = {"records": records, "weights": weights, **sizes, **tuning, **planning}
        found = tune_first(source.name, source.model, threads, **how)
        records, threads = found.records, found.threads
    how = {"measure": measure, "records": records, "weights": weights, "cache": cache, "log": log}
    module = open_module(source, threads=threads, **sizes, **how, **planning)
    module.save(output)
    click.echo(f"wrote {output}: {facts(module, output)}, {time.perf_counter() - start:.1f} s")


def _show_graph(
    source: Source,
    machine: Target,
    workers: int,
    stop_after: str,
    *,
    dump: Path | None,
    sizes: Mapping[str, Any],
    planning: Mapping[str, Any],
) -> None:
    """Print the graph after one pass."""
    known = ["import", *passes(machine, workers)]
    if stop_after not in known:
        raise InputError(f"--stop-after {stop_after!r}: expected one of {', '.join(known)}")
    log = Log(check_folder(dump) if dump else None)
    graph = log.step("import", lambda: import_onnx(source.model, **sizes))
    if stop_after != "import":
        graph = optimise(graph, machine, workers, log, stop_after, plan_options(machine, **planning))
    click.echo(print_graph(graph))


def facts(module: Module, output: Path) -> str:
    plan = module.plan
    assert plan is not None
    calls = f"{len(plan.steps)} kernel calls ({len(plan.kernels)} kernels)"
    if module.recorded:
        calls += f", {module.recorded} configs from records"
        if module.origins:
            known = ", ".join(f"{count} of {machine}" for machine, count in module.origins.items())
            calls += f" ({known})"
    memory = f"opened: weights {megabytes(plan.weights_in_use)}, arena {megabytes(plan.arena_size)}"
    memory += f", {megabytes(plan.memory(module.threads))} in all"
    return f"{megabytes(output.stat().st_size)}, {calls}, {memory}, target {plan.target}"
