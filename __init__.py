"""Burnish: an end-to-end deep-learning model compiler. See README.md; `pipeline.py` is the table of
contents.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_EXPORTS = {
    "compile": "pipeline",
    "load": "pipeline",
    "tune": "tuning",
    "Module": "pipeline",
    "InferenceSession": "session",
    "BurnishError": "errors",
    "ModelError": "errors",
    "UnsupportedError": "errors",
    "NeedsValueError": "errors",
    "InputError": "errors",
    "InfeasibleError": "errors",
    "ToolError": "errors",
    "RunError": "errors",
    "NoMemoryError": "errors",
    "InternalError": "errors",
}
_MODULES = ("errors", "onnx_backend")

__all__ = [*_EXPORTS, "__version__"]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f".{name}", "burnish")
    if name not in _EXPORTS:
        raise AttributeError(f"module 'burnish' has no attribute {name!r}")
    return getattr(import_module(f".{_EXPORTS[name]}", "burnish"), name)
