"""Modules for CPUs that this machine is not: described here, run as a static program under an emulator."""

from __future__ import annotations

import re
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from ..errors import InputError, RunError
from .arrays import TensorInfo, as_array, check_names, check_outputs
from .binding import Context, StepInfo, StepTime, raise_code, thread_count
from .toolchain import find_emulator


def join_inputs(infos: Sequence[TensorInfo], arrays: Mapping[str, np.ndarray]) -> bytes:
    """The file of inputs that src/runner.c reads."""
    return b"".join(arrays[info.name].tobytes() for info in infos)


def split_outputs(infos: Sequence[TensorInfo], data: bytes) -> dict[str, np.ndarray]:
    """The arrays in the file of outputs that src/runner.c writes."""
    outputs, at = {}, 0
    for info in infos:
        array = np.frombuffer(data, np.uint8, info.nbytes, at).copy()
        outputs[info.name] = array.view(info.dtype).reshape(info.shape)
        at += info.nbytes
    return outputs


class EmulatedModule:
    """The interface of `binding.Module` as far as an emulator can serve it. Slow: some 10⁸ instructions/s.

    `link` writes the module as a program (src/runner.c); that happens once, for the first run.
    """

    def __init__(
        self,
        name: str,
        arch: str,
        cpu: str,
        inputs: Sequence[TensorInfo],
        outputs: Sequence[TensorInfo],
        steps: Sequence[StepInfo],
        link: Callable[[Path], None],
    ):
        self.name, self.target = name, cpu
        self.arch = arch
        self.inputs, self.outputs, self.steps = tuple(inputs), tuple(outputs), tuple(steps)
        self._link = link
        self._linked: tempfile.TemporaryDirectory | None = None
        self._linking = threading.Lock()

    @property
    def _folder(self) -> tempfile.TemporaryDirectory:
        with self._linking:
            if self._linked is None or not Path(self._linked.name, "program").is_file():
                folder = tempfile.TemporaryDirectory(prefix="burnish-")
                self._link(Path(folder.name, "program"))
                self._linked = folder
        return self._linked

    def run(
        self, feeds: Mapping[str, Any], threads: int = 1, out: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Outputs by name for inputs by name, as `binding.Module.run`. ToolError if there is no emulator."""
        command, out = find_emulator(self.arch, self.target), {} if out is None else out
        check_names(self.name, self.inputs, feeds)
        check_outputs(self.name, self.outputs, out)
        arrays = {i.name: as_array("input", i, feeds[i.name]) for i in self.inputs}
        given_out = {i.name: as_array("output", i, out[i.name]) for i in self.outputs if i.name in out}
        try:
            outputs = split_outputs(self.outputs, self._outputs_of(command, arrays, thread_count(threads)))
        except OSError as error:
            what = error.filename or "the program"
            raise RunError(f"cannot run {self.name} under an emulator: {what}: {error.strerror}") from error
        for wanted, array in given_out.items():
            array[...] = outputs[wanted]
        return {**outputs, **out}

    def _outputs_of(self, command: Sequence[str], arrays: Mapping[str, np.ndarray], threads: int) -> bytes:
        folder = self._folder.name
        with tempfile.TemporaryDirectory(dir=folder) as name:
            given, made = Path(name, "inputs"), Path(name, "outputs")
            given.write_bytes(join_inputs(self.inputs, arrays))
            arguments = [*command, str(Path(folder, "program")), str(given), str(made), str(threads), "1"]
            done = subprocess.run(arguments, capture_output=True, text=True, errors="replace")
            if done.returncode:
                _raise(done.returncode, done.stderr)
            return made.read_bytes()

    def context(self, threads: int = 1) -> Context:
        raise InputError(
            f"{self.name}: is for {self.target}, which this machine is not; `run` works under an emulator"
        )

    def run_profiled(self, feeds: Mapping[str, Any], threads: int = 1) -> list[StepTime]:
        raise InputError(f"{self.name}: is for {self.target}, which this machine is not, so it has no times")


def _raise(status: int, text: str) -> NoReturn:
    """From what runner.c says, or the emulator where that was killed."""
    match = re.fullmatch(r"(-?\d+) (.*)\n", text)
    if match is None or status != 1:
        detail = (text.strip().splitlines() or [f"exit code {status}"])[-1]
        raise RunError(f"the emulated program failed: {detail}")
    raise_code(int(match[1]), match[2])
