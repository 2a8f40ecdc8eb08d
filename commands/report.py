"""Tables between lines of text, for a terminal and as Markdown."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console, JustifyMethod
from rich.table import Table

WIDTH = 150  # where there is no terminal
NARROWEST = 110  # on a terminal: below it, names would vanish; it wraps lines instead
HEIGHT = 25  # lines, which nothing depends on; without it a dumb terminal's width would stand
NAME = 16  # characters of a name's column, at least


def say(console: Console, text: str) -> None:
    """Print text as it stands: nothing in it is markup or a number to colour, and no line is broken."""
    console.print(text, highlight=False, soft_wrap=True, markup=False)


def threads_text(count: int) -> str:
    return f"{count} thread{'s' * (count > 1)}"


def console_of(width: int) -> Console:
    """Standard output: as wide as the terminal, or as given where there is none. Text is no markup."""
    terminal = Console()
    if terminal.is_terminal:
        width = max(terminal.width, NARROWEST)
    return Console(width=width, height=HEIGHT, markup=False, emoji=False)


@dataclass(frozen=True)
class Section:
    """A table; each row has a cell per column, and a style for terminals."""

    title: str
    rows: Sequence[tuple[tuple[str, ...], str | None]]


@dataclass(frozen=True)
class Report:
    """`numbers` are those of the columns that hold numbers, which end at the right."""

    header: Sequence[str]
    columns: Sequence[str]
    numbers: Sequence[str]
    sections: Sequence[Section]
    summary: Sequence[str]

    def show(self, console: Console | None = None) -> None:
        """Print it; in colours where `console` is a terminal."""
        console = console or console_of(WIDTH)
        for line in self.header:
            say(console, line)
        for section in self.sections:
            table = Table(title=section.title, title_justify="left", box=box.SIMPLE, title_style="bold")
            for column in self.columns:
                justify: JustifyMethod = "right" if column in self.numbers else "left"
                table.add_column(column, justify=justify, overflow="fold")
            for row, style in section.rows:
                table.add_row(*row, style=style)
            console.print(table, soft_wrap=True)
        for line in self.summary:
            say(console, line)

    def to_text(self) -> str:
        """What `show` prints where there is no terminal."""
        console = Console(width=WIDTH, color_system=None, force_terminal=False, markup=False, emoji=False)
        with console.capture() as captured:
            self.show(console)
        return "\n".join(line.rstrip() for line in captured.get().splitlines()) + "\n"

    def to_html(self) -> str:
        """A page of it, in the terminal's colours, that needs nothing else."""
        width = max([WIDTH, *(len(line) for line in (*self.header, *self.summary))])
        console = Console(
            width=width,
            height=HEIGHT,
            record=True,
            file=io.StringIO(),
            force_terminal=True,
            color_system="truecolor",
            markup=False,
            emoji=False,
        )
        self.show(console)
        return console.export_html(inline_styles=True)

    def to_markdown(self) -> str:
        """The same for a page of documentation."""
        lines = [*(f"- {as_text(line)}" for line in self.header), ""]
        rule = "|" + "|".join(" ---: " if c in self.numbers else " --- " for c in self.columns) + "|"
        for section in self.sections:
            lines += [f"**{as_text(section.title)}**", "", f"| {' | '.join(self.columns)} |", rule]
            for row, _ in section.rows:
                lines.append("| " + " | ".join(as_text(cell) for cell in row) + " |")
            lines.append("")
        lines += [f"- {as_text(line)}" for line in self.summary]
        return "\n".join(lines) + "\n"


def as_text(said: str) -> str:
    """In a line of Markdown, where no name or message may be HTML or end a cell."""
    said = " ".join(said.split()).replace("&", "&amp;").replace("<", "&lt;")
    return said.replace("|", "\\|")
