"""The command line. A command's module is loaded when the command runs, so that `burnish --help` is fast."""

from __future__ import annotations

import io
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import click

from . import __version__
from .errors import BurnishError, ModelWarning
from .settings import debug_level

COMMANDS = {
    "compile": ("compile", "Compile a model into a module: one .so file, or an .a with its .h."),
    "run": ("run", "Run a module or a model on given or random inputs."),
    "bench": ("bench_command", "Compare speed with other libraries, side by side in one run."),
    "profile": ("profile", "Time every kernel of a module or a model."),
    "verify": ("verify", "Compare a module's or a model's results with another implementation."),
    "plan": ("plan", "Show the algorithms and layouts chosen for the whole network."),
    "tune": ("tune", "Measure which configs of a model's kernels are fastest on this machine."),
    "pretrain": ("pretrain", "Fit the cost model that searches begin with to many networks."),
    "worker": ("worker", "Offer this machine to `burnish tune --workers` elsewhere."),
    "trace": ("trace", "Show one operator on every rung from ONNX to assembly."),
    "zoo": ("zoo", "List the built-in networks, or write one as an .onnx file."),
    "targets": ("targets", "List the machines that code can be generated for."),
    "records": ("records", "Look at measured times; merge, export and import them."),
    "cache": ("cache", "Show or clear what earlier compilations left on disk."),
    "settings": ("settings", "List the environment variables that Burnish reads."),
}
"""Name → (module in commands/, what it does)."""


class Cli(click.Group):
    """Loads commands late, and prints every error as one line."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        return import_module(f".commands.{COMMANDS[name][0]}", __package__).command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])

    def main(  # type: ignore[override]
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Exit codes: 0 done, 1 an error or a mismatch, 2 what click refuses, 130 interrupted."""
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
        try:
            with _warnings_as_lines():
                result = super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
            sys.exit(result if isinstance(result, int) else 0)
        except (click.Abort, KeyboardInterrupt):
            _fail("interrupted", 130)
        except click.ClickException as error:
            _usage(error)
        except BurnishError as error:
            _fail(str(error), 1)
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            _fail(f"{where}{error.strerror or error}", 1)
        except MemoryError:
            _fail("out of memory; compile with smaller shapes, or on a machine with more memory", 1)
        except Exception as error:
            _internal(error)


@contextmanager
def _warnings_as_lines() -> Iterator[None]:
    """Those of models, each once, however often a command reads its model."""
    with warnings.catch_warnings():
        usual = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
            if issubclass(category, ModelWarning):
                click.echo(f"burnish: warning: {' '.join(str(message).split())}", err=True)
            else:
                usual(message, category, *where, **more)

        warnings.showwarning = show
        warnings.simplefilter("once", ModelWarning)
        yield


def _fail(message: str, code: int) -> None:
    click.echo(f"burnish: error: {' '.join(message.split())}", err=True)
    sys.exit(code)


def _usage(error: click.ClickException) -> None:
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        error.show()
        sys.exit(2)
    context = getattr(error, "ctx", None)
    path = context.command_path if context else "burnish"
    _fail(f"{error.format_message()} See: {path} --help", 2)


def _internal(error: Exception) -> None:
    try:
        show = debug_level() >= 1
    except BurnishError:
        show = True
    if show:
        traceback.print_exception(error)
    hint = "" if show else "; BURNISH_DEBUG=1 shows where"
    _fail(
        f"internal error: {type(error).__name__}: {error}{hint}; please report it with the model",
        1,
    )


@click.command(cls=Cli, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="burnish", message="%(prog)s %(version)s")
def cli() -> None:
    """Burnish compiles a trained neural network (ONNX) to one small fast module that runs without Python."""


def main() -> None:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # what the encoding lacks is a question mark, not an error
            stream.reconfigure(errors="replace")
    cli.main(prog_name="burnish")
