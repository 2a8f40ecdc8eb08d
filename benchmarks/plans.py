"""Global, local and fixed plans side by side: what they are planned to cost and what they take.

    python benchmarks/plans.py                  all networks, from predicted and from measured costs
    python benchmarks/plans.py mobilenet_v2 --rounds 15 --no-measure

Everything is compiled first; then all plans of a network run in turns, in rounds that each start with another
one. A time is the median over the rounds, a ratio that of the paired times of each round. Plans that make the
same choices are one module, and so have one time. The output is Markdown.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from burnish import pipeline
from burnish.commands.machine import describe_machine
from burnish.commands.progress import show_progress
from burnish.compiler.target import host
from burnish.frontends.onnx.importer import import_onnx
from burnish.graph_passes.footprint import evicting_bytes
from burnish.graph_passes.plan_layout import MODES, LayoutPlan, PlanOptions, plan_layout
from burnish.graph_passes.task_cost import TaskCost
from burnish.models import zoo
from burnish.module import Module
from burnish.op_tuner.records import default_path, tuned_configs
from burnish.runtime.binding import Context

NETWORKS = ("resnet50", "inception_v1", "inception_v2", "densenet121", "mobilenet_v2")
TURN_SECONDS = 0.15
COLUMNS = (
    "network",
    "costs",
    "plan",
    "planned ms",
    "measured ms",
    "time / global's",
    "conversions",
    "proven",
)
COLUMNS += ("searched", "planning ms")


@dataclass
class Planned:
    """One plan of a network and the times of its runs, one a round."""

    costs: str
    mode: str
    plan: LayoutPlan
    planning: float
    module: Module
    seconds: list[float]


def main(arguments: Sequence[str]) -> int:
    options = parse(arguments)
    print(
        f"{describe_machine().describe()}; {options.threads} thread(s), median of {options.rounds} rounds\n"
    )
    print("| " + " | ".join(COLUMNS) + " |\n|" + " --- |" * 3 + " ---: |" * (len(COLUMNS) - 3))
    dearer = []
    for name in options.networks:
        plans = compile_plans(name, options)
        race(plans, zoo.random_inputs(zoo.build(name)), options)
        for row in rows(name, plans):
            print("| " + " | ".join(row) + " |", flush=True)
        dearer += [
            f"{name} ({p.costs}: {p.mode})" for p in plans if p.plan.cost < best(plans, p.costs) * (1 - 1e-9)
        ]
    print("\nglobal is planned dearer than:", ", ".join(dearer) or "none")
    return bool(dearer)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("networks", nargs="*", default=NETWORKS)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, choices=range(1, 100), metavar="N", default=7)
    parser.add_argument("--records", type=Path, help="where measurements are kept (default: the user's own)")
    parser.add_argument("--no-measure", action="store_true", help="plans from predictions only")
    return parser.parse_args(arguments)


def compile_plans(name: str, options: argparse.Namespace) -> list[Planned]:
    """Three plans for each kind of costs, compiled."""
    target, model = host(), zoo.build(name)
    graph = pipeline.optimise(import_onnx(model), target, options.threads, stop_after="fuse")
    configs = tuned_configs(options.records or default_path(), evicting_bytes(graph, target))
    same: dict[object, Module] = {}
    found = []
    for costs in ("predicted",) if options.no_measure else ("predicted", "measured"):
        measure = costs == "measured"
        with show_progress() as progress:
            known = {"records": options.records, "progress": progress}
            ask = pipeline.measured_cost if measure else pipeline.predict
            cost = ask(graph, target, options.threads, PlanOptions(), **(known if measure else {}))
            refuted = isinstance(cost, TaskCost) and cost.given_up  # by the network: these are predictions
            label = f"{costs}, given up" if refuted else costs
            for mode in MODES:
                start = time.perf_counter()
                plan = plan_layout(graph, target.lanes(4), cost, PlanOptions(mode))
                planning = time.perf_counter() - start
                choices = (tuple(sorted(plan.decisions.items())), plan.conversions)
                key = tuple(map(str, choices))
                if key not in same:
                    given = {"measure": True, **known} if measure else {"progress": progress}
                    same[key] = pipeline.compile(
                        model, threads=options.threads, plan=mode, pick_config=configs, **given
                    )
                found.append(Planned(label, mode, plan, planning, same[key], []))
    return found


def race(plans: list[Planned], feeds: Mapping[str, np.ndarray], options: argparse.Namespace) -> None:
    contexts: dict[int, Context] = {}
    for plan in plans:
        if id(plan.module) not in contexts:
            context = contexts[id(plan.module)] = plan.module.context(options.threads)
            for name, array in feeds.items():
                context.bind_input(name, array)
            context.run()
    racers = list(contexts)
    for turn in range(options.rounds):
        start = turn % len(racers)
        taken = {racer: timed(contexts[racer]) for racer in (*racers[start:], *racers[:start])}
        for plan in plans:
            plan.seconds.append(taken[id(plan.module)])


def timed(context: Context) -> float:
    """Seconds of one run: the median of as many as fill a turn."""
    times: list[float] = []
    end = time.perf_counter() + TURN_SECONDS
    while not times or time.perf_counter() < end:
        start = time.perf_counter()
        context.run()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def best(plans: list[Planned], costs: str) -> float:
    """The planned cost of the global plan."""
    return next(p.plan.cost for p in plans if (p.costs, p.mode) == (costs, "global"))


def rows(name: str, plans: list[Planned]) -> list[tuple[str, ...]]:
    found = []
    for plan in plans:
        base = next(p for p in plans if (p.costs, p.mode) == (plan.costs, "global"))
        ratio = statistics.median(own / other for own, other in zip(plan.seconds, base.seconds))
        proven = ("yes" if plan.plan.optimal else "no") if plan.mode == "global" else ""
        found.append(
            (
                *(name, plan.costs, plan.mode, f"{plan.plan.cost * 1e3:.3f}"),
                *(f"{statistics.median(plan.seconds) * 1e3:.3f}", f"{ratio:.3f}"),
                *(str(len(plan.plan.conversions)), proven, str(plan.plan.searched)),
                f"{plan.planning * 1e3:.0f}",
            )
        )
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
