"""Printing of the commands. Names are printed unchanged: square brackets in a name are not markup."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.table import Column
from rich.table import Table as Grid
from rich.text import Text

from headstart.errors import SurpriseWarning


def say(message: str | Text, stderr: bool = False) -> None:
    """Print a message; long lines are left to the terminal to wrap."""
    text = Text(message) if isinstance(message, str) else message
    Console(stderr=stderr).print(text, soft_wrap=True, highlight=False)


@contextmanager
def notes() -> Iterator[None]:
    """Print the warnings about surprising observations inside the block as notes."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", SurpriseWarning)
        yield
    for warning in caught:
        if issubclass(warning.category, SurpriseWarning):
            say(f"note: {warning.message}", stderr=True)
        else:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)


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
