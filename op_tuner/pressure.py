"""Cycles that a block of machine code takes when it is repeated, by llvm-mca: its instructions wait for units
of the core (port pressure) and for each other's results, as LLVM's model of the core has it. All data is in
the first-level cache.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field

from ..compiler.target import Target

REPEATED = 32  # times: what the first ones wait for less than the others no longer matters
SUCCESSORS = {"cortex-a53": "cortex-a55"}
"""By LLVM's model of the former no load ends before the sums that began earlier, so that only its units are
taken from it; how long results take is the latter's.
"""
VERSIONS = range(30, 13, -1)  # of LLVM; newer ones know cores better. Older ones know no cores in order


@dataclass(frozen=True)
class Pressure:
    """llvm-mca and the disassembler of the same version, for one target."""

    target: Target
    mca: str
    disassembler: str
    _known: dict[bytes, float | None] = field(default_factory=dict, compare=False)

    @staticmethod
    def find(target: Target) -> Pressure | None:
        """None where there is no llvm-mca, or none that runs."""
        for suffix in _suffixes():
            tools = shutil.which(f"llvm-mca{suffix}"), shutil.which(f"llvm-mc{suffix}")
            if tools[0] and tools[1]:
                found = Pressure(target, tools[0], tools[1])
                return found if found.version else None
        return None

    @property
    def version(self) -> str:
        found = re.search(r"LLVM version (\S+)", _run([self.mca, "--version"], "") or "")
        return found.group(1) if found else ""

    def cycles(self, code: bytes) -> float | None:
        """Of one repetition. None if LLVM's model of the core lacks one of its instructions."""
        if code not in self._known:
            self._known[code] = self._cycles(code)
        return self._known[code]

    def _cycles(self, code: bytes) -> float | None:
        words = " ".join(f"0x{byte:02x}" for byte in code)
        features = ",".join(f"+{name}" for name in self.target.features)
        triple, cpu = self.target.triple, self.target.cpu
        disassemble = [self.disassembler, "--disassemble", f"--triple={triple}", f"--mcpu={cpu}"]
        text = _run([*disassemble, f"--mattr={features}"], words)
        if text is None or text.count("\n") - 1 != len(code) // 4:  # a directive, then line by line
            return None
        ports = self._reported("Block RThroughput", cpu, text)
        waits = self._reported("Total Cycles", SUCCESSORS.get(cpu, cpu), text)
        return None if ports is None or waits is None else max(ports, waits / REPEATED)

    def _reported(self, what: str, cpu: str, text: str) -> float | None:
        how = ["--all-views=false", "--summary-view", f"--iterations={REPEATED}"]
        report = _run([self.mca, f"--mtriple={self.target.triple}", f"--mcpu={cpu}", *how], text)
        found = re.search(rf"{what}:\s+([\d.]+)", report or "")
        return float(found.group(1)) if found else None


def _suffixes() -> Iterator[str]:
    yield from (f"-{version}" for version in VERSIONS)
    yield ""


def _run(command: list[str], given: str) -> str | None:
    done = subprocess.run(command, input=given, capture_output=True, text=True, errors="replace")
    return None if done.returncode else done.stdout
