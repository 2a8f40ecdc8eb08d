"""What something costs, and where that is known from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Price:
    """`seconds` are infinite for what fails. `name` is the record's id, or the model's name with its version.

    source  "measured" now, "record" of this machine, "sibling" record of a similar one, "predicted" by a
            model, "scaled": predicted in proportion to what was measured of another choice
    default seconds with the template's default config, where that is known; `seconds` are the best config's
    spread  (upper - lower quartile) / median of the measured runs
    """

    seconds: float
    source: str
    name: str
    spread: float = 0.0
    default: float | None = None

    @property
    def is_measured(self) -> bool:
        return self.source in ("measured", "record", "sibling")
