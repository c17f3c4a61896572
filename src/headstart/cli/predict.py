"""``headstart predict``: what a saved model says of rows at features."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import typer

from headstart.cli.options import NAMES_HELP, FeatureColumn, Model, RowColumn, ValueColumn, named
from headstart.cli.printing import say, show
from headstart.errors import InputError
from headstart.model import Headstart
from headstart.table import Table

_SHOWN = 50  # lines printed at most


def predict(
    model: Model,
    out: Annotated[Path | None, typer.Option("--out", help="CSV or Parquet to write; else printed.")] = None,
    rows: Annotated[list[str] | None, typer.Option(help=NAMES_HELP)] = None,
    features: Annotated[list[str] | None, typer.Option(help=NAMES_HELP)] = None,
    new_rows: Annotated[
        Path | None, typer.Option(help="Observations of rows the model has not seen.")
    ] = None,
    level: Annotated[float, typer.Option(help="Probability that low..high holds the value.")] = 0.9,
    row: RowColumn = "row",
    feature: FeatureColumn = "feature",
    value: ValueColumn = "value",
) -> None:
    """Predict rows at features; all of them where none are named.

    Example: [bold]headstart predict films.headstart --rows u1,u2 --features "Dune 3" --out said.csv[/bold]
    """
    if rows is not None and new_rows is not None:
        raise InputError("give either --rows or --new-rows, not both")
    if out is not None:
        _check_file(out)
    held = Headstart.load(model)
    asked: Any = named(rows, held.rows, "--rows")
    if new_rows is not None:
        table = Table.read(new_rows, row=row, feature=feature, value=value, kinds="real", form="long")
        asked = _by_row(table)
    predicted = held.predict(asked, named(features, held.features, "--features"))
    found = predicted.to_arrow(level)
    if out is None:
        _show(found, level)
        return
    _write(found, out)
    say(f"wrote {predicted.mean.size} predictions to {out}")


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
        for line in table.slice(0, _SHOWN).to_pylist()
    ]
    show(("row", "feature", "mean", "std", f"{level:.0%} interval"), lines)
    if len(table) > _SHOWN:
        say(f"… and {len(table) - _SHOWN} more; --out FILE writes them all")


def _check_file(out: Path) -> None:
    if out.suffix.lower() not in (".csv", ".parquet"):
        raise InputError(f"--out must end in .csv or .parquet; got {out.name!r}")
    if not out.parent.is_dir():
        raise InputError(f"--out {out}: the folder {out.parent} does not exist; make it first")
    if out.is_dir():
        raise InputError(f"--out {out} is a folder; name a file in it")


def _write(table: pa.Table, out: Path) -> None:
    if out.suffix.lower() == ".parquet":
        pa.parquet.write_table(table, out)
        return
    plain = table.set_column(0, "row", table["row"].cast(pa.string()))
    pa.csv.write_csv(plain.set_column(1, "feature", plain["feature"].cast(pa.string())), out)
