"""Printing of the commands. Names are printed unchanged: square brackets in a name are not markup."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Column
from rich.table import Table as Grid
from rich.text import Text


def say(message: str | Text, stderr: bool = False) -> None:
    """Print a message; long lines are left to the terminal to wrap."""
    text = Text(message) if isinstance(message, str) else message
    Console(stderr=stderr).print(text, soft_wrap=True, highlight=False)


def show(header: Sequence[str], lines: Iterable[Sequence[str | Text]], title: str | None = None) -> None:
    """Print a table; a cell with a style is passed as ``Text``."""
    columns = [Column(Text(name)) for name in header]
    grid = Grid(*columns, title=None if title is None else Text(title), title_style="bold")
    for line in lines:
        grid.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in line))
    Console().print(grid)


def show_facts(facts: Iterable[tuple[str, str]]) -> None:
    """Print labelled facts, one per line."""
    grid = Grid(show_header=False, box=None, pad_edge=False)
    for label, fact in facts:
        grid.add_row(Text(label, style="bold"), Text(fact))
    Console().print(grid)
