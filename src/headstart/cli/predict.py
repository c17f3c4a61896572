"""``headstart predict``: predictions of a saved model for rows and features."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headstart.cli.options import (
    NAMES_HELP,
    Decimal,
    Encoding,
    FeatureColumn,
    Model,
    RowColumn,
    Separator,
    ValueColumn,
    read_names,
    read_rows,
)
from headstart.cli.output import MAX_LINES, Destination, Format, Out, Quiet, destination
from headstart.cli.printing import show
from headstart.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa


def predict(
    model: Model,
    out: Out = None,
    rows: Annotated[list[str] | None, typer.Option(help=NAMES_HELP)] = None,
    features: Annotated[list[str] | None, typer.Option(help=NAMES_HELP)] = None,
    new_rows: Annotated[
        Path | None, typer.Option(help="File of observations of rows that are not in the model.")
    ] = None,
    level: Annotated[float, typer.Option(help="Probability that the interval contains the value.")] = 0.9,
    row: RowColumn = None,
    feature: FeatureColumn = None,
    value: ValueColumn = None,
    separator: Separator = None,
    decimal: Decimal = None,
    encoding: Encoding = None,
    form: Format = None,
    quiet: Quiet = False,
) -> None:
    """Predict the values of rows at features. By default all rows and features are predicted.

    Without --out the predictions are printed.

    Example: [bold]headstart predict films.headstart --rows u1,u2 --features "Dune 3" --out dune.csv[/bold]
    """
    from headstart.model import Headstart

    if rows is not None and new_rows is not None:
        raise InputError("give either --rows or --new-rows, not both")
    place = destination(out, form, quiet)
    loaded = Headstart.load(model)
    wanted: Any = read_names(rows, loaded.rows, "--rows")
    if new_rows is not None:
        wanted = read_rows(new_rows, (row, feature, value), (separator, decimal, encoding))
    prediction = loaded.predict(wanted, read_names(features, loaded.features, "--features"))
    lines = prediction.to_arrow(level)
    if place.path is None and place.format == "table":
        _show(lines, level, place)
    else:
        place.write(lines)


def _show(table: pa.Table, level: float, place: Destination) -> None:
    lines = [
        (
            line["row"],
            line["feature"],
            f"{line['mean']:.3f}",
            f"{line['std']:.3f}",
            f"{line['low']:.2f} – {line['high']:.2f}",
        )
        for line in table.slice(0, MAX_LINES).to_pylist()
    ]
    show(("row", "feature", "mean", "std", f"{level:.0%} interval"), lines)
    if len(table) > MAX_LINES:
        place.say(f"… and {len(table) - MAX_LINES} more; use --out FILE to write all of them")
