"""What the records of one task say: which config to take, and how long it takes."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .hardware import Hardware
from .record import Record, made_by

CONFIRMED = 3  # measurements of a config that say how fast it is
WRONG = frozenset({"wrong", "run"})  # errors of a config that are its own, however seldom they show
LEAST_DOUBT = 0.01  # share of the default config's time that a gain inside of a network must exceed


def fastest_nearby(
    worked: Sequence[Record], inside: Sequence[Record], machine: Hardware, wanted: int | None = None
) -> Record:
    """The config to take among records of one task that worked: on the hardware that is nearest to `machine`,
    of the `wanted` kind of measurement (`evict`) or that there is most of. `inside` are those of networks."""
    near = min(machine.distance(r.hardware) for r in worked)
    there = [r for r in worked if machine.distance(r.hardware) == near]
    kinds = Counter(r.evict for r in there)
    evict = max(kinds, key=lambda kind: (kind == wanted, kinds[kind], kind))
    return taken([r for r in (*there, *inside) if machine.distance(r.hardware) == near and r.evict == evict])


def taken(records: Sequence[Record]) -> Record:
    """The config to take, of records of one task and machine, some of them of the kernel alone that worked:
    what is `confirmed` in a network, else the fastest alone that no network has refuted."""
    alone = config_records(r for r in records if not r.network and r.seconds is not None)
    makers = {r.made_by for r in alone.values()}
    inside = [r for r in records if r.network and r.made_by in makers]
    if found := confirmed(inside):
        return alone.get(found.config, found.record)
    return fastest(alone, inside)


def sound(records: Iterable[Record]) -> list[Record]:
    """Of one task's records those that worked alone, and those of networks, which do not look whether results
    are right; but none of a config that the same compiler and machine found to be wrong another time."""
    records = list(records)
    wrong = {_made(r) for r in records if r.error in WRONG and not r.network}
    return [r for r in records if _made(r) not in wrong and (r.network or r.seconds is not None)]


def _made(record: Record) -> tuple[object, ...]:
    return record.made_by, record.hardware, tuple(record.config.items())


def refuted(inside: Iterable[Record]) -> set[tuple[tuple[str, Any], ...]]:
    """Configs that failed in every network which had them, of records inside of networks."""
    worked: dict[tuple[tuple[str, Any], ...], bool] = {}
    for r in inside:
        config = tuple(r.config.items())
        worked[config] = worked.get(config, False) or r.seconds is not None
    return {config for config, once in worked.items() if not once}


@dataclass(frozen=True)
class Confirmed:
    """What a task's config takes inside of networks: `share` of the time of the default config."""

    config: tuple[tuple[str, Any], ...]
    share: float
    record: Record


def confirmed(records: Iterable[Record]) -> Confirmed | None:
    """The fastest config inside of networks; the default one, at a share of 1, unless another one is faster
    by more than what chance may do. None where nothing was measured there."""
    turns: dict[tuple[tuple[str, Any], ...], list[Record]] = {}
    for r in records:
        if r.network and r.against:
            turns.setdefault(tuple(r.config.items()), []).append(r)
    found = []
    for config, own in turns.items():
        share = statistics.median(_share(r) for r in own)
        least = max(LEAST_DOUBT, statistics.median(r.doubt for r in own))
        if share < 1 - least or all(r.seconds == r.against for r in own):
            found.append(Confirmed(config, share, min(own, key=lambda r: abs(_share(r) - share))))
    return min(found, key=lambda c: c.share, default=None)


def _share(record: Record) -> float:
    return (record.seconds or 0.0) / (record.against or 1.0)


def config_records(worked: Iterable[Record]) -> dict[tuple[tuple[str, Any], ...], Record]:
    """By config, of records that worked: the one that stands for its time, see `typical`.

    Records of this compiler count alone where there are any: what an older one made of a config may differ.
    So do a config's sure ones.
    """
    found: dict[tuple[tuple[str, Any], ...], list[Record]] = {}
    records = list(worked)
    here = [r for r in records if r.made_by == made_by()]
    for r in here or records:
        found.setdefault(tuple(r.config.items()), []).append(r)
    return {config: _typical([r for r in rs if r.sure] or rs) for config, rs in found.items()}


def fastest(records: Mapping[tuple[tuple[str, Any], ...], Record], inside: Iterable[Record] = ()) -> Record:
    """By config; one that records `inside` of networks have `refuted` only where there is no other, and so
    what is not sure."""
    wrong = refuted(inside)
    fit = [r for config, r in records.items() if config not in wrong] or records.values()
    return min(fit, key=lambda r: (not r.sure, r.seconds or 0.0))


def _typical(records: Sequence[Record]) -> Record:
    seconds = typical([r.seconds or 0.0 for r in records])
    return next(r for r in records if (r.seconds or 0.0) == seconds)


def typical(times: Sequence[float]) -> float:
    """A config's time by its measurements: their median, the lower of two in the middle, so that neither one
    lucky run nor one that was disturbed decides where there are three or two."""
    return statistics.median_low(times)
