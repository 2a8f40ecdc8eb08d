"""Options that several commands share."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Mapping
from pathlib import Path
from shlex import quote
from typing import Any, TypeVar

import click

from ..errors import InputError
from ..graph_passes import alternatives
from ..graph_passes.plan_layout import DEFAULT_PLAN, PRECISIONS
from ..graph_passes.split_setup import WEIGHT_FORMS
from ..runtime.binding import MOST_THREADS

F = TypeVar("F", bound=Callable[..., Any])


MOST_DIGITS = 18  # of a number: 63 bits
MOST_COUNT = {"--threads": MOST_THREADS}
LARGEST = 1 << 31  # of other counts


def _is_number(text: str) -> bool:
    return text.isdecimal() and len(text) <= MOST_DIGITS


def _once(option: str, name: str, found: Container[str]) -> str:
    if name in found:
        raise InputError(f"{option} gives {name!r} twice")
    return name


def parse_shapes(ctx: click.Context, option: click.Parameter, texts: tuple[str, ...]) -> dict[str, Any]:
    """x:1x3x224x224 → {"x": (1, 3, 224, 224)}; nothing after the colon is a scalar."""
    shapes: dict[str, Any] = {}
    for text in texts:
        name, colon, sizes = text.rpartition(":")
        parts = [part.strip() for part in sizes.split("x")] if sizes.strip() else []
        if not colon or not name or not all(map(_is_number, parts)):
            raise InputError(f"--shape {text!r}: expected NAME:SIZExSIZE…, such as x:1x3x224x224")
        shapes[_once("--shape", name, shapes)] = tuple(map(int, parts))
    return shapes


def parse_dims(ctx: click.Context, option: click.Parameter, texts: tuple[str, ...]) -> dict[str, int]:
    """batch=8 → {"batch": 8}"""
    dims: dict[str, int] = {}
    for text in texts:
        name, equals, size = text.rpartition("=")
        if not equals or not name or not _is_number(size.strip()):
            raise InputError(f"--dim {text!r}: expected NAME=SIZE, such as batch=8")
        dims[_once("--dim", name, dims)] = int(size)
    return dims


def compile_line(
    model: str,
    threads: int,
    records: Path,
    *,
    shapes: Mapping[str, tuple[int, ...]],
    dims: Mapping[str, int],
    values: Mapping[str, str],
    target: str,
    plan: str,
    accuracy: float,
    precision: str,
    memory_limit: int | None,
    weights: str = WEIGHT_FORMS[0],
) -> str:
    """The command that compiles a model with these options and records."""
    given = [f"--target {target}"] if target != "host" else []
    given += [f"--shape {quote(name)}:{'x'.join(map(str, shape))}" for name, shape in shapes.items()]
    given += [f"--dim {quote(name)}={size}" for name, size in dims.items()]
    given += [f"--value {quote(f'{name}={value}')}" for name, value in values.items()]
    given += [f"--plan {plan}"] if plan != DEFAULT_PLAN.mode else []
    given += [f"--accuracy {accuracy:g}"] if accuracy != DEFAULT_PLAN.accuracy else []
    given += [f"--precision {precision}"] if precision != DEFAULT_PLAN.precision else []
    given += [f"--memory-limit {memory_limit}"] if memory_limit is not None else []
    given += [f"--weights {weights}"] if weights != WEIGHT_FORMS[0] else []
    given += [f"--threads {threads} --records {quote(str(records))}"]
    return " ".join([f"burnish compile {quote(model)}", *given, "-o MODULE"])


def _named(option: str, texts: tuple[str, ...], expected: str) -> dict[str, str]:
    """NAME=TEXT → {"NAME": "TEXT"}"""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name or not value:
            raise InputError(f"{option} {text!r}: expected {expected}")
        found[_once(option, name, found)] = value
    return found


def parse_values(ctx: click.Context, option: click.Parameter, texts: tuple[str, ...]) -> dict[str, str]:
    """rate=16000 → {"rate": "16000"}; `source.fixed` reads the texts."""
    expected = "NAME=VALUE, such as rate=16000, sizes=[1,2] or x=x.npy"
    return _named("--value", tuple(text.strip() for text in texts), expected)


def parse_files(ctx: click.Context, option: click.Parameter, texts: tuple[str, ...]) -> dict[str, Path]:
    """x=x.npy → {"x": Path("x.npy")}"""
    found = _named(option.opts[0], texts, "NAME=FILE")
    return {name: Path(path) for name, path in found.items()}


def parse_precisions(ctx: click.Context, option: click.Parameter, text: str) -> tuple[str, ...]:
    """f32,tf32 → ("f32", "tf32")"""
    parts = [part.strip() for part in text.split(",")]
    unknown = [part for part in parts if part not in PRECISIONS]
    if unknown:
        raise InputError(f"--precision {text!r}: expected some of {', '.join(PRECISIONS)}, such as f32,tf32")
    return tuple(dict.fromkeys(parts))


def parse_counts(ctx: click.Context, option: click.Parameter, text: str) -> tuple[int, ...]:
    """1,2 → (1, 2)"""
    parts = [part.strip() for part in text.split(",")]
    most = MOST_COUNT.get(option.opts[0], LARGEST)
    if not all(_is_number(part) and 0 < int(part) <= most for part in parts):
        raise InputError(f"{option.opts[0]} {text!r}: expected numbers from 1 to {most}, such as 1,2")
    return tuple(dict.fromkeys(map(int, parts)))


def parse_optional_counts(
    ctx: click.Context, option: click.Parameter, text: str | None
) -> tuple[int, ...] | None:
    return None if text is None else parse_counts(ctx, option, text)


UNITS = {"": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def parse_size(ctx: click.Context | None, option: click.Parameter | None, text: str | None) -> int | None:
    """64MB → 64000000, 1.5GiB → 1610612736; a number alone is bytes."""
    if text is None:
        return None
    match = re.fullmatch(rf"(\d{{1,{MOST_DIGITS}}}(?:\.\d+)?) ?([A-Za-z]*)", text.strip())
    unit = UNITS.get(match[2]) if match else None
    if not match or unit is None or float(match[1]) * unit < 1:
        raise InputError(f"--memory-limit {text!r}: expected a size such as 64MB or 1.5GiB")
    return int(float(match[1]) * unit)


_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600}


def parse_duration(
    ctx: click.Context | None, option: click.Parameter | None, text: str | None
) -> float | None:
    """10m → 600.0, 1.5h → 5400.0; a number alone is seconds."""
    if text is None:
        return None
    match = re.fullmatch(rf"(\d{{1,{MOST_DIGITS}}}(?:\.\d+)?) ?([a-z]*)", text.strip())
    unit = _SECONDS.get(match[2]) if match else None
    if not match or unit is None or not float(match[1]):
        raise InputError(f"--budget {text!r}: expected a time such as 90s, 10m or 1.5h")
    return float(match[1]) * unit


def model_options(function: F) -> F:
    """--shape and --dim, which fix a model's open sizes, and --value, which makes constants of inputs."""
    function = click.option(
        "values",
        "--value",
        multiple=True,
        callback=parse_values,
        metavar="NAME=VALUE",
        help="An input that is a constant from now on: rate=16000, sizes=[1,2], x=x.npy.",
    )(function)
    function = click.option(
        "dims", "--dim", multiple=True, callback=parse_dims, metavar="NAME=SIZE", help="Size of a named dim."
    )(function)
    return click.option(
        "shapes",
        "--shape",
        multiple=True,
        callback=parse_shapes,
        metavar="NAME:1x3x224x224",
        help="Shape of an input.",
    )(function)


def compile_options(function: F) -> F:
    """--shape, --dim, --value, --target, --no-cache."""
    function = click.option(
        "cache",
        "--no-cache",
        is_flag=True,
        callback=lambda context, option, given: not given,
        help="Compile every kernel anew.",
    )(function)
    function = click.option(
        "--target", default="host", show_default=True, metavar="NAME", help="See `burnish targets`."
    )(function)
    return model_options(function)


def tuning_options(what: str, each: str = "") -> Callable[[F], F]:
    """--tune (`trials`) and --budget: how long a command tunes first."""

    def add(function: F) -> F:
        said = f"The same by time{each}: 90s, 15m, 1.5h."
        function = click.option("--budget", callback=parse_duration, metavar="TIME", help=said)(function)
        said, trials = f"{what}: so many configs{each}.", click.IntRange(min=1)
        return click.option("--tune", "trials", type=trials, metavar="N", help=said)(function)

    return add


def tuning_of(trials: int | None, budget: float | None) -> dict[str, Any]:
    """These options as `tune` takes them; empty where nothing is to be tuned."""
    return {} if trials is None and budget is None else {"trials": trials, "budget": budget}


ACCURACY = click.option(
    "--accuracy",
    type=click.FloatRange(min=0),
    default=alternatives.ACCURACY,
    show_default=True,
    metavar="BOUND",
    help="Largest error of an algorithm that a plan may choose, over its largest output; what --precision "
    "allows is not bounded by it.",
)
STORED = click.option(
    "--weights",
    type=click.Choice(WEIGHT_FORMS),
    default=WEIGHT_FORMS[0],
    show_default=True,
    help="Stored as kernels read them, or smaller, to be transformed when the module is opened (CPUs alone).",
)
PRECISION = click.option(
    "--precision",
    type=click.Choice(PRECISIONS),
    default="f32",
    show_default=True,
    help="What a GPU's tensor cores may round factors of products to; sums stay in f32.",
)
MEASURE = click.option(
    "--measure", is_flag=True, help="Measure the plan's choices, once, instead of predicting."
)
RECORDS = click.option(
    "--records",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Where measurements are kept (default: the user's own, `burnish records path`), and tuned configs "
    "taken from (default: those that ship; where something is measured first, the user's own).",
)
MEMORY_LIMIT = click.option(
    "--memory-limit",
    callback=parse_size,
    metavar="SIZE",
    help="Most memory that weights, arena and scratch memory of a run take: 64MB, 1.5GiB (needs scipy; "
    "for the whole network alone).",
)
THREADS = click.option(
    "--threads",
    type=click.IntRange(1, MOST_THREADS),
    metavar="N",
    help="Number of threads, which code is laid out and tuned for; any number may run it (default: this "
    "machine's cores; GPUs take one, simulations too).",
)


def thread_counts(what: str) -> Callable[[F], F]:
    """--threads of commands that take several numbers of them."""
    return click.option(
        "--threads", default="1,2", show_default=True, callback=parse_counts, metavar="N,…", help=what
    )


SEARCH_SEED = click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, metavar="N", help="Of the search."
)
SEED = click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    metavar="N",
    help="Of the random inputs.",
)
