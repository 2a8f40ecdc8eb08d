"""What runs on an NVIDIA GPU, under compute-sanitizer: stray accesses, races, memory that was never written,
barriers that not all threads reach.

python -m tests.gpu.sanitizer [TOOL…] [FILE…] [NETWORK…]   the tests in which kernels run on a device, and
                                                           networks of the zoo (minutes each)
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence

from burnish.models import zoo

from .device import cuda_targets
from .oclgrind import FILES, ON_A_DEVICE

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
TESTS = (*FILES, "tensor_cores")
FOUND = 86
"""The exit code where it has found something."""


def report(program: str, tool: str, *command: object) -> str:
    """What the tool says, and what else goes wrong, while this Python runs the command; "" if all is well."""
    full = [program, "--tool", tool, "--error-exitcode", str(FOUND), sys.executable, *map(str, command)]
    done = subprocess.run(full, capture_output=True, text=True)
    return done.stdout + done.stderr if done.returncode else ""


def commands(names: Iterable[str], target: str) -> Iterator[tuple[str, Sequence[str]]]:
    """(name, what Python is to run) of tests and networks."""
    for name in names:
        if name in TESTS:
            wanted = f"({ON_A_DEVICE} or kernels_compute) and {target}"
            yield name, ("-m", "pytest", "-q", f"tests/gpu/test_{name}.py", "-k", wanted)
        else:
            yield name, ("-m", "burnish", "run", name, "--target", target)


def main() -> int:
    program, targets, wrong = shutil.which("compute-sanitizer"), cuda_targets(), 0
    if program is None or not targets:
        sys.exit("compute-sanitizer is not installed" if targets else "there is no NVIDIA GPU")
    tools = [word for word in sys.argv[1:] if word in TOOLS] or TOOLS
    names = [word for word in sys.argv[1:] if word not in TOOLS] or [*TESTS, *zoo.names()]
    for tool in tools:
        for name, command in commands(names, targets[0]):
            found = report(program, tool, *command)
            print(f"{tool}, {name}: {found or 'clean'}", flush=True)
            wrong += bool(found)
    return int(wrong > 0)


if __name__ == "__main__":
    raise SystemExit(main())
