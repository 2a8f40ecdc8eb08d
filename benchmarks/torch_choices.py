"""torch.compile's max-autotune chooses on an NVIDIA GPU, many processes side by side.

    export TORCHINDUCTOR_CACHE_DIR=choices
    python benchmarks/torch_choices.py resnet50 mobilenet_v2:16 --precision f32,tf32
    burnish bench resnet50 --target cuda --against torch-max-autotune

In one process inductor compiles what it chooses among one after the other: over seven minutes for resnet50 in
f32. What it chooses for a product goes by the shapes and strides of its operands alone, and is kept in its
folder. So here each product of the networks is compiled as a graph of its own, in a process of its own, then
each network whole, which finds what was chosen. `burnish bench` with the same folder loads that.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from burnish.commands.peers import Network
from burnish.commands.peers.torch_cuda_peer import TorchCuda, set_precision
from burnish.commands.peers.torch_graph import torch_module
from burnish.compiler.target import host_threads
from burnish.errors import BurnishError
from burnish.models import zoo

PRODUCTS = ("conv2d", "linear", "matmul")
PRECISIONS = ("f32", "tf32")
FOLDER, THREADS = "TORCHINDUCTOR_CACHE_DIR", "TORCHINDUCTOR_COMPILE_THREADS"

Piece = tuple[Any, list[tuple[int, ...]]]
"""A torch.fx.GraphModule of one product, and the shapes of its inputs."""


def products(module: Any, given: Sequence[Any]) -> dict[str, Piece]:
    """Of a torch.fx.GraphModule with its inputs: those that differ in more than values, by what they are
    called with."""
    from torch.fx.passes.shape_prop import ShapeProp

    ShapeProp(module).propagate(*given)
    found: dict[str, Piece] = {}
    for node in module.graph.nodes:
        if node.op == "call_function" and node.target.__name__ in PRODUCTS:
            found.setdefault(_called_with(node), _alone(module, node))
    return found


def _called_with(node: Any) -> str:
    """Its function, and for operands whether they are constants and which shapes they have."""
    import torch

    def said(operand: Any) -> tuple[bool, tuple[int, ...]]:
        return operand.op == "get_attr", tuple(operand.meta["tensor_meta"].shape)

    return str((node.target.__name__, torch.fx.node.map_arg((node.args, node.kwargs), said)))


def _alone(module: Any, node: Any) -> Piece:
    import torch

    root, graph = torch.nn.Module(), torch.fx.Graph()
    shapes: list[tuple[int, ...]] = []

    def operand(maker: Any) -> Any:
        if maker.op == "get_attr":
            root.register_buffer(maker.name, module.get_buffer(maker.target))
            return graph.get_attr(maker.name)
        shapes.append(tuple(maker.meta["tensor_meta"].shape))
        return graph.placeholder(maker.name)

    graph.output((graph.node_copy(node, operand),))
    return torch.fx.GraphModule(root, graph), shapes


def choose(piece: Piece, precision: str, device: str) -> float:
    """Compiles a product; seconds."""
    import torch

    start = time.perf_counter()
    module, shapes = piece
    set_precision(precision)
    inputs = [torch.randn(shape, device=device) for shape in shapes]
    with torch.inference_mode():
        torch.compile(module.to(device), mode="max-autotune-no-cudagraphs")(*inputs)
    return time.perf_counter() - start


def _write_together() -> None:
    """Inductor reads its file of choices before it measures, and writes it whole afterwards: without what
    other processes have written since."""
    from filelock import FileLock
    from torch._inductor.codecache import CacheBase

    write = CacheBase.update_local_cache

    def merge(self: Any, choices: dict[str, Any]) -> None:
        with FileLock(Path(os.environ[FOLDER]) / "choices.lock"):
            write(self, merged(self.get_local_cache(), choices))

    CacheBase.update_local_cache = merge


def merged(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Both, folder by folder; of two values under one key the other's."""
    both = {**one, **other}
    for key in one.keys() & other.keys():
        if isinstance(one[key], dict) and isinstance(other[key], dict):
            both[key] = merged(one[key], other[key])
    return both


def load(network: Network, precision: str, device: str) -> float:
    """Compiles a network with what was chosen; seconds."""
    start = time.perf_counter()
    runner = TorchCuda("max-autotune", precision, device).prepare(network, 1)
    runner.run(zoo.random_inputs(network.model, 0))
    return time.perf_counter() - start


def side_by_side(what: str, jobs: Mapping[str, Any], processes: int) -> Iterator[str]:
    """Runs each in a process of its own, so that a kernel that fails spoils no other's context; the names of
    those that failed."""
    start = time.perf_counter()
    os.environ[THREADS] = str(max(1, processes // len(jobs)))  # what compiles in each of them
    with ProcessPoolExecutor(
        processes, mp_context=get_context("spawn"), initializer=_write_together, max_tasks_per_child=1
    ) as pool:
        running = {pool.submit(job): name for name, job in jobs.items()}
        for done in as_completed(running):
            name, error = running[done], done.exception()
            said = f"{done.result():.1f} s" if error is None else f"{type(error).__name__}: {error}"
            print(f"{name}: {said}", flush=True)
            if error is not None:
                yield name
    print(f"{len(jobs)} {what}: {time.perf_counter() - start:.1f} s, {processes} side by side", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("networks", nargs="+", metavar="NAME[:BATCH]")
    parser.add_argument("--precision", default="f32", help="f32, tf32, or both, separated by commas")
    parser.add_argument("--processes", type=int, default=host_threads(), help="at a time")
    parser.add_argument("--device", default="cuda", help="torch's name of it")
    options = parser.parse_args(arguments)
    if FOLDER not in os.environ:
        parser.error(f"{FOLDER} has to name the folder that inductor keeps its choices in")
    precisions = options.precision.split(",")
    if unknown := set(precisions).difference(PRECISIONS):
        parser.error(f"--precision {unknown.pop()!r}: expected of {', '.join(PRECISIONS)}")

    import torch

    networks, found = {}, {}
    for name in options.networks:
        model, _, batch = name.partition(":")
        network = Network(name, zoo.build(model, batch=int(batch or 1)))
        inputs = zoo.random_inputs(network.model, 0)
        given = [torch.from_numpy(np.ascontiguousarray(inputs[x])) for x in network.input_names]
        found |= products(torch_module(network.model), given)
        networks[name] = network
    device = options.device
    choices = {f"{p} {n}": partial(choose, x, p, device) for p in precisions for n, x in found.items()}
    wholes = {f"{p} {n}": partial(load, x, p, device) for p in precisions for n, x in networks.items()}
    failed = [
        *side_by_side("products", choices, options.processes),
        *side_by_side("networks", wholes, options.processes),
    ]
    return int(bool(failed))


if __name__ == "__main__":
    try:
        raise SystemExit(main())
    except BurnishError as error:
        sys.exit(f"torch_choices: {error}")
