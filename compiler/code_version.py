"""What may change generated code: the sources of the compiler."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path


@lru_cache(maxsize=1)
def compiler_version() -> str:
    """A SHA-256 over the compiler's sources, as they stood when this was imported."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


compiler_version()  # before they are edited or upgraded beneath a process that has the old ones
