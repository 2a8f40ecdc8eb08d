"""Instructions that networks execute on an AArch64 CPU, counted under qemu: no board, no noise.

    python benchmarks/arm_instructions.py c2 resnet18 mobilenet_v1 [--target cortex-a72] [--root FOLDER]

Needs qemu-aarch64 with plugins (Debian: qemu-user) and what compiling for the target needs. With --root,
onnxruntime is counted beside: FOLDER is a root file system for AArch64 with python3.11, and onnxruntime's
wheel in FOLDER/site (docs/performance.md says how). A run's count is that of two runs less that of one.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from burnish import compile as compile_model
from burnish.compiler.target import get_target
from burnish.errors import BurnishError
from burnish.models import zoo
from burnish.op_tuner.simulated import Counts, Emulation

KINDS = ("instructions", "fmla", "arithmetic", "vector_loads", "vector_stores")
PEER = """
import sys, numpy, onnxruntime
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = options.inter_op_num_threads = 1
session = onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
feeds = dict(numpy.load(sys.argv[2]))
for _ in range(int(sys.argv[3])):
    session.run(None, feeds)
"""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("networks", nargs="+", help="names from the zoo")
    parser.add_argument("--target", default="cortex-a72")
    parser.add_argument("--root", type=Path, help="count onnxruntime of this AArch64 system, too")
    options = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory() as name:
            counter = Emulation(get_target(options.target), Path(name), caches=False)
            for network in options.networks:
                measure(network, counter, options.root)
    except BurnishError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def measure(network: str, counter: Emulation, root: Path | None) -> None:
    model = zoo.build(network)
    feeds = zoo.random_inputs(model, 0)
    module = compile_model(model, target=counter.target, threads=1)
    program, given, made = (counter.folder / name for name in ("program", "inputs", "outputs"))
    module.save_program(program)
    given.write_bytes(b"".join(feeds[info.name].tobytes() for info in module.inputs))
    algorithms = ", ".join(sorted({a for a in module.operations if a}))
    show(network, f"burnish ({algorithms})", [counter.count([program, given, made, 1, n]) for n in (1, 2)])
    if root is None:
        return
    onnx_file, arrays, script = (counter.folder / name for name in ("m.onnx", "x.npz", "peer.py"))
    onnx_file.write_bytes(model.SerializeToString())
    np.savez(arrays, **feeds)
    script.write_text(PEER)
    system = ["-L", root, "-E", f"PYTHONPATH={root / 'site'}", "-E", "PYTHONHASHSEED=0"]
    python = [root / "usr/bin/python3.11", script, onnx_file, arrays]
    show(network, "onnxruntime", [counter.count([*python, n], system) for n in (1, 2)])


def show(network: str, what: str, counts: Sequence[Counts]) -> None:
    one, two = counts
    each = ", ".join(f"{kind} {(two[kind] - one[kind]) / 1e6:.2f} M" for kind in KINDS)
    print(f"{network:<14} {what}: {each}; whole process {one['instructions'] / 1e6:.1f} M", flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
