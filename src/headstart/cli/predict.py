"""``headstart predict``: predictions of a saved model for rows and features."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headstart.cli.asking import ByOption, Level, MixedKinds, Observed
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
from headstart.cli.printing import say, show
from headstart.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

Engine = Annotated[
    str | None,
    typer.Option(
        help="local or ray (several processes or machines): write a folder of Parquet files, part by part."
    ),
]
Pairs = Annotated[
    Path | None,
    typer.Option(help="CSV or Parquet file, or folder of Parquet files, of the cells to predict."),
]
Top = Annotated[int | None, typer.Option(help="Only so many features of each row, the best.", min=1)]
Workers = Annotated[int | None, typer.Option(help="How many workers Ray is asked for.", min=1)]
Device = Annotated[str | None, typer.Option(help="cpu or cuda: where cells are computed.")]
PartitionSize = Annotated[int | None, typer.Option(help="Most records (rows or cells) of one file.", min=1)]


def predict(
    model: Model,
    out: Out = None,
    rows: Annotated[
        list[str] | None,
        typer.Option(help=f"{NAMES_HELP} With --engine also a table with a column of names."),
    ] = None,
    features: Annotated[list[str] | None, typer.Option(help=NAMES_HELP)] = None,
    new_rows: Annotated[
        Path | None, typer.Option(help="File of observations of rows that are not in the model.")
    ] = None,
    level: Level = 0.9,
    engine: Engine = None,
    pairs: Pairs = None,
    top: Top = None,
    by: ByOption = "mean",
    include_observed: Observed = False,
    mixed_kinds: MixedKinds = False,
    workers: Workers = None,
    partition_size: PartitionSize = None,
    device: Device = None,
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

    Without --out the predictions are printed. For very many, --engine writes a folder of Parquet files, part
    by part; after an interruption, the same command goes on.

    Example: [bold]headstart predict films.headstart --rows u1,u2 --features "Dune 3" --out dune.csv[/bold]

    Example: [bold]headstart predict films.headstart --engine ray --top 10 --out best[/bold]
    """
    if engine is not None:
        if new_rows is not None or form is not None:
            raise InputError(f"--engine takes no {'--format' if new_rows is None else '--new-rows'}")
        if decimal is not None:
            raise InputError("--decimal has no meaning for names of rows and features; leave it out")
        ranking = {"by": by, "exclude_observed": not include_observed, "mixed_kinds": mixed_kinds}
        records = {"pairs": pairs, "row": row, "feature": feature}
        text = {"separator": separator, "encoding": encoding}
        how = {"engine": engine, "workers": workers, "partition_size": partition_size, "device": device}
        settings = {"top": top, "level": level, **ranking, **records, **text, **how}
        _score(model, out, rows, features, quiet, settings)
        return
    used: dict[str, object] = {"--pairs": pairs, "--top": top, "--workers": workers, "--device": device}
    used |= {"--partition-size": partition_size, "--by": by != "mean"}
    used |= {"--include-observed": include_observed, "--mixed-kinds": mixed_kinds}
    for option in (option for option, given in used.items() if given):
        raise InputError(f"{option} needs --engine local or --engine ray, which write a folder of files")
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


def _score(
    model: Path,
    out: str | None,
    rows: list[str] | None,
    features: list[str] | None,
    quiet: bool,
    settings: dict[str, Any],
) -> None:
    """Predict part by part into a folder."""
    from headstart.model import Headstart
    from headstart.scoring import score

    if out is None or out == "-":
        raise InputError("--engine writes a folder of Parquet files; name it with --out")
    loaded = Headstart.load(model, verify=False)
    records = Path(rows[0]) if rows is not None and len(rows) == 1 and _is_records(rows[0]) else None
    wanted = read_names(rows, loaded.rows, "--rows") if records is None else records
    names = read_names(features, loaded.features, "--features")
    done = score(model, out, rows=wanted, features=names, quiet=quiet, **settings)
    if not quiet:
        say(str(done))


def _is_records(text: str) -> bool:
    """Whether a text is the path of a table or a folder, and not of a list of names."""
    path = Path(text)
    endings = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".parquet", ".pq")
    return path.is_dir() or (path.is_file() and path.name.lower().endswith(endings))


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
