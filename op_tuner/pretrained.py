"""A cost model that was fitted beforehand, in a file: what searches begin with instead of knowing nothing.

    {"format": 1, "features": VERSION, "columns": N, "arch": "x86_64", "samples": N, "tasks": N, "cpus": […]}
    behind the end of that line: the trees as xgboost's UBJ, compressed

Made by `burnish pretrain`.
"""

from __future__ import annotations

import json
import math
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from ..compiler.kernel_task import KernelTask
from ..compiler.target import Target
from ..errors import InputError
from ..runtime.whole_file import write_whole
from . import features
from .learner import Learner
from .model import CostModel, relative_speeds
from .space import Point

FORMAT = 1
FOLDER = Path(__file__).parent / "data"
"""The models that ship, one for each architecture and width of vectors: x86_64-256.model."""
DEPTH, ROUNDS = 6, 300
"""Of the trees; many tasks have more to tell than one, for which `model` has fewer and smaller ones."""


@dataclass(frozen=True)
class About:
    """What a model was fitted to."""

    features: int
    columns: int
    arch: str
    samples: int
    tasks: int
    cpus: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.samples} measurements of {self.tasks} tasks on {', '.join(self.cpus)}"


@dataclass(frozen=True)
class Samples:
    """Rows of features and seconds (None: failed) of one task; tasks of one operator have one `origin`."""

    name: str
    origin: str
    rows: np.ndarray  # (n, columns)
    seconds: tuple[float | None, ...]


def read_samples(task: KernelTask, name: str, times: dict[Point, float | None]) -> Samples:
    """Of the configs that can still be lowered."""
    own = Learner().task(task)
    for point, seconds in times.items():
        own.tell(point, seconds)
    found = own.samples()
    rows = np.stack([row for row, _ in found]) if found else np.zeros((0, len(features.NAMES)), np.float32)
    return Samples(name, origin_of(task), rows, tuple(seconds for _, seconds in found))


def origin_of(task: KernelTask) -> str:
    """What it computes, by whatever algorithm and in whatever layouts."""
    what = task.key.partition("\n")[2].partition("\nlayouts")[0]
    return re.sub(r"^(param \w+: \w+\[[^]]*\]):\w+$", r"\1", what, flags=re.MULTILINE)


def spread(times: Mapping[Point, float | None], most: int) -> list[Point]:
    """So many configs of a task at most, evenly from the fastest to the slowest and those that fail."""
    ordered = sorted(times, key=lambda point: (times[point] is None, times[point]))
    if len(ordered) <= most:
        return ordered
    return [ordered[n] for n in np.linspace(0, len(ordered) - 1, most).round().astype(int)]


def fit(samples: Sequence[Samples], *, seed: int = 0, threads: int = 1) -> CostModel:
    """InputError if there is nothing to learn."""
    model = CostModel("rank", seed=seed, threads=threads, depth=DEPTH, rounds=ROUNDS)
    if samples:
        names = [f"{n}" for n, s in enumerate(samples) for _ in s.seconds]
        model.fit(np.concatenate([s.rows for s in samples]), [t for s in samples for t in s.seconds], names)
    if not model.trained:
        raise InputError("there are no measurements to learn from; expected several configs of some task")
    return model


def save(path: Path, model: CostModel, about: About) -> int:
    """Returns the number of bytes."""
    head = json.dumps({"format": FORMAT, **asdict(about)}, ensure_ascii=False)
    data = head.encode() + b"\n" + zlib.compress(model.to_bytes(), 9)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, lambda file: file.write(data))
    return len(data)


def load(path: Path) -> tuple[CostModel, About]:
    """InputError if the file is no such model, or one for other features; ToolError if xgboost is missing."""
    about, trees = _parse(path)
    if (about.features, about.columns) != (features.FEATURES, len(features.NAMES)):
        raise InputError(
            f"{path}: the model is for features of version {about.features}, this Burnish has version "
            f"{features.FEATURES}; make one with `burnish pretrain`"
        )
    try:
        return CostModel.from_bytes(zlib.decompress(trees), "rank"), about
    except zlib.error:
        raise InputError(f"{path}: the file is damaged; make one with `burnish pretrain`") from None


def _parse(path: Path) -> tuple[About, bytes]:
    try:
        head, _, trees = path.read_bytes().partition(b"\n")
        data = json.loads(head)
        if data.pop("format") != FORMAT:
            raise ValueError
        return About(**{**data, "cpus": tuple(data["cpus"])}), trees
    except FileNotFoundError:
        raise InputError(f"there is no pre-trained model {str(path)!r}") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise InputError(f"{path}: expected a model of `burnish pretrain`, format {FORMAT}") from None


def path_for(target: Target) -> Path:
    """Where a model of the target's own vectors is."""
    return FOLDER / f"{target.triple.partition('-')[0]}-{target.vector_bits}.model"


def nearest(target: Target) -> Path:
    """The model of the target's own vectors, or else of those of its architecture that are next to them."""
    own = path_for(target)

    def apart(path: Path) -> int:
        return abs(int(path.stem.rpartition("-")[2]) - target.vector_bits)

    there = sorted(own.parent.glob(f"{own.stem.rpartition('-')[0]}-*.model"))
    return min(there, key=apart, default=own)


@lru_cache(maxsize=4)
def shipped(target: Target) -> tuple[CostModel | None, str]:
    """The model to begin with on a target, and a line about it, or about why there is none."""
    if target.gpu:
        return None, "searched without a pre-trained model: there is none for GPUs"
    try:
        model, about = load(nearest(target))
    except InputError as error:
        return None, f"searched without a pre-trained model: {error}"
    return model, f"searched from a model of {about}"


# --- how well it ranks what it has not seen --------------------------------------------------------------


@dataclass(frozen=True)
class Quality:
    """Of scores for one task. Speeds are relative to the best that was measured of it."""

    name: str
    samples: int
    pairs: float  # share of pairs that are in the right order; half are by chance
    first: float  # speed of the config with the highest score
    eighth: float  # the best speed among the eight highest
    default: float  # speed of the template's own rule; nan if it was not measured
    ahead: float  # of the default's score, the highest one


def chosen(q: Quality, margin: float) -> float:
    """Speed of what a compiler would take that leaves the default config where another one's score is higher
    by more than `margin`."""
    return q.first if q.ahead > margin else q.default


def quality(samples: Samples, scores: np.ndarray, default: int | None = None) -> Quality:
    speeds = relative_speeds(samples.seconds, [samples.name] * len(samples.seconds))
    order = np.argsort(-scores, kind="stable")
    ahead = np.sign(speeds[:, None] - speeds)
    told = np.sign(scores[:, None] - scores)
    different = ahead > 0
    right = np.sum(different & (told > 0)) + np.sum(different & (told == 0)) / 2
    return Quality(
        samples.name,
        len(speeds),
        float(right / max(1, np.sum(different))),
        float(speeds[order[0]]),
        float(speeds[order[:8]].max()),
        math.nan if default is None else float(speeds[default]),
        math.nan if default is None else float(scores.max() - scores[default]),
    )


def hold_out(
    samples: Sequence[Samples], folds: int, *, seed: int = 0, threads: int = 1
) -> list[tuple[Samples, np.ndarray]]:
    """Each task with the scores of a model that has seen no task of its operator, whatever the algorithm.

    Operators are dealt into `folds` groups; as many models are fitted, each to all groups but one. Of a
    single operator nothing can be said.
    """
    origins = list(dict.fromkeys(s.origin for s in samples))
    if len(origins) < 2:
        return []
    np.random.default_rng(seed).shuffle(origins)
    fold = {origin: n % folds for n, origin in enumerate(origins)}
    found = []
    for n in range(min(folds, len(origins))):
        rest = [s for s in samples if fold[s.origin] != n]
        model = fit(rest, seed=seed, threads=threads)
        found += [(s, model.predict(s.rows)) for s in samples if fold[s.origin] == n]
    return found
