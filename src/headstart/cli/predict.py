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
    read_table,
)
from headstart.cli.printing import say, show
from headstart.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

    from headstart.table import Table

_MAX_LINES = 50  # more are not printed


def predict(
    model: Model,
    out: Annotated[Path | None, typer.Option("--out", help="CSV or Parquet file to write.")] = None,
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
) -> None:
    """Predict the values of rows at features. By default all rows and features are predicted.

    Without --out the predictions are printed.

    Example: [bold]headstart predict films.headstart --rows u1,u2 --features "Dune 3" --out dune.csv[/bold]
    """
    from headstart.model import Headstart

    if rows is not None and new_rows is not None:
        raise InputError("give either --rows or --new-rows, not both")
    if out is not None:
        check_file(out)
    loaded = Headstart.load(model)
    wanted: Any = read_names(rows, loaded.rows, "--rows")
    if new_rows is not None:
        columns, text = (row, feature, value), (separator, decimal, encoding)
        table = read_table(new_rows, None, columns, ["real"], "long", "error", None, text, quiet=True)
        wanted = _by_row(table)
    prediction = loaded.predict(wanted, read_names(features, loaded.features, "--features"))
    lines = prediction.to_arrow(level)
    if out is None:
        _show(lines, level)
        return
    _write(lines, out)
    say(f"wrote {len(lines)} predictions to {out}")


def _by_row(table: Table) -> dict[str, dict[str, float]]:
    rows: dict[str, dict[str, float]] = {name: {} for name in table.rows}
    for row, feature, value in zip(table.row_index, table.feature_index, table.values.tolist(), strict=True):
        rows[table.rows[row]][table.features[feature]] = value
    return rows


def _show(table: pa.Table, level: float) -> None:
    lines = [
        (
            line["row"],
            line["feature"],
            f"{line['mean']:.3f}",
            f"{line['std']:.3f}",
            f"{line['low']:.2f} – {line['high']:.2f}",
        )
        for line in table.slice(0, _MAX_LINES).to_pylist()
    ]
    show(("row", "feature", "mean", "std", f"{level:.0%} interval"), lines)
    if len(table) > _MAX_LINES:
        say(f"… and {len(table) - _MAX_LINES} more; use --out FILE to write all of them")


def check_file(out: Path, option: str = "--out") -> None:
    """Refuse a place to which no CSV or Parquet file can be written."""
    if out.suffix.lower() not in (".csv", ".parquet"):
        raise InputError(f"{option} must end in .csv or .parquet; got {out.name!r}")
    if not out.parent.is_dir():
        raise InputError(f"{option} {out}: the folder {out.parent} does not exist; create it first")
    if out.is_dir():
        raise InputError(f"{option} {out} is a folder; name a file in it")


def _write(table: pa.Table, out: Path) -> None:
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet

    from headstart.storage import partial_file

    with partial_file(out.resolve()) as partial:  # a link stays a link
        if out.suffix.lower() == ".parquet":
            pa.parquet.write_table(table, partial)
            return
        plain = table.set_column(0, "row", table["row"].cast(pa.string()))
        pa.csv.write_csv(plain.set_column(1, "feature", plain["feature"].cast(pa.string())), partial)
