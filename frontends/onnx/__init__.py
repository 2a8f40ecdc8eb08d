"""The ONNX importer. Importing this package registers every rule."""

from importlib import import_module as _import
from pathlib import Path as _Path

for _rules in sorted(_Path(__file__).parent.glob("rules_*.py")):
    _import(f"{__name__}.{_rules.stem}")
