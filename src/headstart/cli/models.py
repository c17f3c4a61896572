"""Commands that make and use a model: fit, add, predict, info."""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import typer
from rich.console import Console
from rich.table import Table as Grid

from headstart.errors import InputError
from headstart.model import Headstart
from headstart.model.prediction import Prediction
from headstart.table import Table
from headstart.table.readers import read_context

Model = Annotated[Path, typer.Argument(help="Folder of a saved model.", show_default=False)]
RowColumn = Annotated[str, typer.Option("--row", help="Name of the column that names the row.")]
FeatureColumn = Annotated[str, typer.Option("--feature", help="Name of the column that names the feature.")]
ValueColumn = Annotated[str, typer.Option("--value", help="Name of the column that holds the value.")]

_NAMES_HELP = "A name, several with commas between, or a file of one a line; may be repeated."

console = Console()


def fit(
    observations: Annotated[Path, typer.Argument(help="CSV or Parquet, long (row, feature, value) or wide.")],
    out: Annotated[Path, typer.Option("--out", help="Folder to save the model to.")],
    features: Annotated[Path | None, typer.Option("--features", help="Metadata, a line a feature.")] = None,
    row: RowColumn = "row",
    feature: FeatureColumn = "feature",
    value: ValueColumn = "value",
    kind: Annotated[
        str | None, typer.Option(help="Kind of all features, as rating:1:5; else inferred.")
    ] = None,
    backbone: Annotated[str, typer.Option(help="pvae or feedforward.")] = "pvae",
    adapter: Annotated[str, typer.Option(help="How new features get their heads.")] = "chn",
    seed: Annotated[int, typer.Option(help="The same seed gives the same model.")] = 0,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an interrupted fit.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False,
) -> None:
    """Train a model on a table of observations.

    Example: [bold]headstart fit ratings.csv --features films.csv --row user --feature film --value stars
    --out films.headstart[/bold]
    """
    table = Table.read(observations, metadata=features, row=row, feature=feature, value=value, kinds=kind)
    if not quiet:
        console.print(table.describe(), highlight=False, markup=False)
    checkpoint = out.with_name(out.name + ".checkpoint")
    model = Headstart(backbone=backbone, adapter=adapter, random_state=seed, quiet=quiet)
    model.fit(table, checkpoint=checkpoint, resume=resume)
    model.save(out)
    shutil.rmtree(checkpoint)
    console.print(f"saved {out}: {len(model.features)} features, {len(model.rows)} rows", highlight=False)


def add(
    model: Model,
    name: Annotated[str, typer.Argument(help="Name of the new feature.", show_default=False)],
    metadata: Annotated[str | None, typer.Option(help="JSON, or a file that holds it.")] = None,
    observations: Annotated[
        Path | None, typer.Option(help="CSV or Parquet with the columns row and value.")
    ] = None,
    kind: Annotated[str | None, typer.Option(help="Kind of the feature; else the model's usual one.")] = None,
    row: RowColumn = "row",
    value: ValueColumn = "value",
) -> None:
    """Add a new feature to a model, from whatever is known of it.

    Example: [bold]headstart add films.headstart "Dune 3" --metadata '{"genres": ["Sci-Fi"], "year": 2026}'
    --observations first_ratings.csv[/bold]
    """
    held = Headstart.load(model)
    seen = read_context(observations, row, value) if observations is not None else None
    held.add_feature(name, metadata=_json(metadata), observations=seen, kind=kind)
    held.save(model)
    added = held.feature(name)
    console.print(f"added {added.name!r} ({added.kind}) with {added.shots} observations", highlight=False)


def predict(
    model: Model,
    out: Annotated[Path | None, typer.Option("--out", help="CSV or Parquet to write; else printed.")] = None,
    rows: Annotated[list[str] | None, typer.Option(help=_NAMES_HELP)] = None,
    features: Annotated[list[str] | None, typer.Option(help=_NAMES_HELP)] = None,
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
    held = Headstart.load(model)
    if rows is not None and new_rows is not None:
        raise InputError("give either --rows or --new-rows, not both")
    asked: Any = _names(rows, held.rows)
    if new_rows is not None:
        table = Table.read(new_rows, row=row, feature=feature, value=value, kinds="real", form="long")
        asked = _by_row(table)
    predicted = held.predict(asked, _names(features, held.features))
    if out is None:
        _show(predicted, level)
        return
    _write(predicted.to_arrow(level), out)
    console.print(f"wrote {predicted.mean.size} predictions to {out}", highlight=False)


def info(model: Model) -> None:
    """Say what a saved model holds.

    Example: [bold]headstart info films.headstart[/bold]
    """
    held = Headstart.load(model)
    fitted = held.fitted_
    every = [held.feature(name) for name in held.features]
    added = [feature for feature in every if not feature.trained]
    grid = Grid(show_header=False, box=None, pad_edge=False)
    for label, text in (
        ("model", str(model)),
        ("backbone", str(fitted.settings.backbone["name"])),
        ("adapter", str(fitted.settings.adapter["name"])),
        ("rows", f"{len(held.rows)}"),
        ("features", f"{len(every)}: {len(every) - len(added)} in the backbone, {len(added)} by the adapter"),
        ("usual kind", str(fitted.kinds[0])),
        ("metadata", fitted.schema.describe() if fitted.schema else "none"),
        ("latest", ", ".join(f"{feature.name} ({feature.shots} shots)" for feature in added[-3:])),
    ):
        grid.add_row(f"[bold]{label}[/bold]", text)
    console.print(grid)


def _by_row(table: Table) -> dict[str, dict[str, float]]:
    rows: dict[str, dict[str, float]] = {name: {} for name in table.rows}
    for row, feature, value in zip(table.row_index, table.feature_index, table.values.tolist(), strict=True):
        rows[table.rows[row]][table.features[feature]] = value
    return rows


def _json(given: str | None) -> dict[str, Any] | None:
    if given is None:
        return None
    try:
        text = Path(given).read_text(encoding="utf-8") if Path(given).is_file() else given
    except OSError:
        text = given  # too long for a file name: it is the JSON itself
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"--metadata is neither a file nor JSON: {error}") from None
    if not isinstance(found, dict):
        raise InputError(f'--metadata must be a JSON object such as {{"year": 2026}}; got {found!r}')
    return found


def _names(given: list[str] | None, known: Collection[str]) -> list[str] | None:
    if given is None:
        return None
    names: list[str] = []
    for text in given:
        if text in known:  # first, because a name may hold commas itself
            names.append(text)
        else:
            lines = Path(text).read_text("utf-8").splitlines() if Path(text).is_file() else text.split(",")
            names += [line.strip() for line in lines if line.strip()]
    return names


def _show(predicted: Prediction, level: float) -> None:
    table = predicted.to_arrow(level)
    grid = Grid("row", "feature", "mean", "std", f"{level:.0%} interval")
    for line in table.slice(0, 50).to_pylist():
        grid.add_row(
            line["row"], line["feature"], f"{line['mean']:.3f}", f"{line['std']:.3f}",
            f"{line['low']:.2f} – {line['high']:.2f}",
        )  # fmt: skip
    console.print(grid)
    if len(table) > 50:
        console.print(f"… and {len(table) - 50} more; --out FILE writes them all")


def _write(table: pa.Table, out: Path) -> None:
    if out.suffix == ".parquet":
        pa.parquet.write_table(table, out)
    elif out.suffix == ".csv":
        plain = table.set_column(0, "row", table["row"].cast(pa.string()))
        pa.csv.write_csv(plain.set_column(1, "feature", plain["feature"].cast(pa.string())), out)
    else:
        raise InputError(f"--out must end in .csv or .parquet; got {out.name!r}")
