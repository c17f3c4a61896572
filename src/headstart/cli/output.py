"""Print the answers of commands as a table, JSON or CSV, or write them to a file."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer
from rich.console import Console
from rich.table import Column
from rich.table import Table as Grid
from rich.text import Text

from headstart.cli.options import Quiet
from headstart.display import count
from headstart.errors import InputError, MetadataWarning, ModelFileWarning, SurpriseWarning, did_you_mean

if TYPE_CHECKING:
    import pyarrow as pa

    from headstart.evaluate.results import Results


def say(message: str | Text, stderr: bool = False) -> None:
    """Print a message; long lines are left to the terminal to wrap."""
    text = Text(message) if isinstance(message, str) else message
    Console(stderr=stderr).print(text, soft_wrap=True, highlight=False)


@contextmanager
def print_surprises() -> Iterator[None]:
    """Print the warnings of Headstart in the ``with`` block as notes, without Python's format of warnings."""
    with warnings.catch_warnings(record=True) as caught:
        for category in (SurpriseWarning, MetadataWarning):
            warnings.simplefilter("always", category)
        yield
    for warning in caught:
        if issubclass(warning.category, (SurpriseWarning, MetadataWarning)):
            say(f"note: {warning.message}", stderr=True)
        else:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)


@contextmanager
def print_damage() -> Iterator[None]:
    """Print each ``ModelFileWarning`` of the ``with`` block as a note at once: an error may follow."""
    with warnings.catch_warnings():
        show_other = warnings.showwarning

        def show_warning(
            message: Warning | str,
            category: type[Warning],
            filename: str,
            lineno: int,
            file: TextIO | None = None,
            line: str | None = None,
        ) -> None:
            if issubclass(category, ModelFileWarning):
                say(f"note: {message}", stderr=True)
            else:
                show_other(message, category, filename, lineno, file, line)

        warnings.showwarning = show_warning
        yield


def show(header: Sequence[str], lines: Iterable[Sequence[str | Text]], title: str | None = None) -> None:
    """Print a table; a cell with a style is passed as ``Text``."""
    lines = list(lines)
    columns = [
        Column(Text(name), no_wrap=all(_is_number(str(line[number])) for line in lines))
        for number, name in enumerate(header)
    ]
    grid = Grid(*columns, title=None if title is None else Text(title), title_style="bold")
    for line in lines:
        grid.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in line))
    Console().print(grid)


def _is_number(text: str) -> bool:
    try:
        float(text or "nan")
    except ValueError:
        return False
    return True


def show_results(results: Results) -> None:
    """Print the main metrics of each test: one line per method, one column per number of observations.

    The best of each column is green.
    """
    from headstart.evaluate.metrics import MAIN_METRICS
    from headstart.evaluate.results import TESTS, metric_table

    for test, metric in product(TESTS, MAIN_METRICS):
        if metric not in results.metrics_of(test):
            continue
        table = metric_table(results, metric, test)
        lines: list[list[str | Text]] = []
        for method, texts in table.cells.items():
            cells = zip(table.shots, texts, strict=True)
            styled = [Text(text, "green" if table.best.get(shots) == method else "") for shots, text in cells]
            lines.append([method, *styled])
        show((table.corner, *map(str, table.shots)), lines, title=table.title)


def show_facts(facts: Iterable[tuple[str, str]]) -> None:
    """Print labelled facts, one per line."""
    grid = Grid(show_header=False, box=None, pad_edge=False)
    for label, fact in facts:
        grid.add_row(Text(label, style="bold"), Text(fact))
    Console().print(grid)


FORMATS = ("table", "json", "csv")

MAX_LINES = 50  # of a printed table

Format = Annotated[
    str | None,
    typer.Option("--format", help="table, json or csv.", show_default="table, or by the ending of --out"),
]

Out = Annotated[
    str | None, typer.Option("--out", help="CSV, Parquet or JSON file to write, or - for standard output.")
]


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """Where and how to write the answer of a command."""

    format: Format = None
    out: Out = None
    quiet: Quiet = False

    def destination(self) -> Destination:
        """Check the options, and return the destination."""
        return check_destination(self.out, self.format, self.quiet)


@dataclass(frozen=True)
class Destination:
    """A file or standard output, and the format to write to it."""

    path: Path | None  # None: standard output
    format: str  # table, json, csv or parquet
    quiet: bool = False

    def write(
        self, lines: pa.Table, shown: Mapping[str, str] | None = None, title: str | None = None
    ) -> None:
        """Write lines. In a printed table, ``shown`` gives the number format of each column."""
        if self.path is None and self.format == "table":
            self._show(lines, shown or {}, title)
        elif self.path is None:
            typer.echo(self._content(lines).decode(), nl=False)
        else:
            from headstart.files import partial_file

            with partial_file(self.path.resolve()) as partial:  # a link stays a link
                partial.write_bytes(self._content(lines))
            self.say(f"wrote {count(len(lines), 'line')} to {self.path}")

    def say(self, message: str) -> None:
        """Print a message unless ``quiet``; to stderr if the answer goes to standard output."""
        if not self.quiet:
            say(message, stderr=self.path is None and self.format != "table")

    def _show(self, lines: pa.Table, shown: Mapping[str, str], title: str | None) -> None:
        def text(name: str, value: Any) -> str:
            if value is None:
                return ""
            if not isinstance(value, float):
                return str(value)
            return format(value, shown.get(name, ".3g" if abs(value) < 100 else ".4g"))

        first_lines = lines.slice(0, MAX_LINES).to_pylist()
        names = lines.column_names
        show(names, [[text(name, line[name]) for name in names] for line in first_lines], title)
        if len(lines) > MAX_LINES:
            self.say(f"… and {len(lines) - MAX_LINES} more; use --out FILE to write all of them")

    def _content(self, lines: pa.Table) -> bytes:
        import io

        import pyarrow as pa
        import pyarrow.csv
        import pyarrow.parquet

        if self.format == "json":
            records = ",\n".join(
                json.dumps(line, ensure_ascii=False, default=str) for line in lines.to_pylist()
            )
            return f"[{records}]\n".encode()
        buffer = io.BytesIO()
        if self.format == "parquet":
            pa.parquet.write_table(lines, buffer)
        else:
            fields = [
                field.with_type(pa.string()) if pa.types.is_dictionary(field.type) else field
                for field in lines.schema
            ]
            pa.csv.write_csv(lines.cast(pa.schema(fields)), buffer)
        return buffer.getvalue()


def check_destination(out: str | None, form: str | None, quiet: bool, option: str = "--out") -> Destination:
    """Check the path ``out`` of ``option`` and the format ``form``, and return the destination.

    Commands call this before any work.
    """
    if form is not None and form not in FORMATS:
        raise InputError(f"--format must be table, json or csv; got {form!r}{did_you_mean(form, FORMATS)}")
    if out is None or out == "-":
        return Destination(None, form or ("table" if out is None else "csv"), quiet)
    path = Path(out)
    suffix = path.suffix.lower().removeprefix(".")
    if form == "table":
        raise InputError("--format table is for the screen; write csv, json or a .parquet file")
    if form is None and suffix not in ("csv", "parquet", "json"):
        raise InputError(f"{option} must end in .csv or .parquet; got {path.name!r} (.json and - serve too)")
    if not path.parent.is_dir():
        raise InputError(f"{option} {path}: the folder {path.parent} does not exist; create it first")
    if path.is_dir():
        raise InputError(f"{option} {path} is a folder; name a file in it")
    return Destination(path, form or suffix, quiet)
