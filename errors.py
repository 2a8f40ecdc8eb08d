"""Every error that Burnish raises on purpose.

A message is one line that says what was found, what was expected and what to do.
"""

from __future__ import annotations


class _OneLine(Exception):
    """Names in messages may have line breaks."""

    def __str__(self) -> str:
        return " ".join(line.strip() for line in super().__str__().splitlines())


class BurnishError(_OneLine):
    """Base of all errors meant for the user; `burnish` prints it as one line and exits with 1."""


class ModelError(BurnishError):
    """The model file is broken, hostile, or contradicts itself."""


class ModelWarning(_OneLine, UserWarning):
    """The model says what cannot be, and is clear all the same; `burnish` prints it as one line."""


class UnsupportedError(BurnishError):
    """The model is valid, but asks for an operator, attribute, dtype or feature that Burnish lacks."""


class NeedsValueError(UnsupportedError):
    """A shape depends on the value of a graph input, which must be given when compiling.

    `inputs` names the graph inputs whose values decide shapes.
    """

    def __init__(self, message: str, inputs: tuple[str, ...] = ()):
        super().__init__(message)
        self.inputs = inputs


class InputError(BurnishError):
    """A wrong name, shape, dtype or value was passed to a module, a function or the command line."""


class InfeasibleError(BurnishError):
    """No plan meets every constraint, such as a memory limit: relax one of them."""


class ToolError(BurnishError):
    """A tool that Burnish calls (C compiler, linker, driver) is missing or failed."""


class RunError(BurnishError):
    """A compiled module reported an error while running, such as an index out of range."""


class NoMemoryError(RunError, MemoryError):
    """A module, or a run of it, needs more memory than the machine or its GPU gives."""


class InternalError(BurnishError):
    """A verifier found an inconsistency in Burnish itself: please report it with the model."""
