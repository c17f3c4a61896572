"""Change a saved model: observe, add and remove rows, export, refit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headstart.cli.options import (
    Decimal,
    Encoding,
    FeatureColumn,
    Model,
    RowColumn,
    Separator,
    TrainingDevice,
    ValueColumn,
    read_names,
    read_rows,
)
from headstart.cli.output import Format, Quiet, destination, notes, say
from headstart.errors import InputError

if TYPE_CHECKING:
    from headstart.model import Headstart


def observe(
    model: Model,
    observations: Annotated[
        Path,
        typer.Option(help="CSV or Parquet file with the columns row and value, and feature without NAME."),
    ],
    name: Annotated[
        str | None,
        typer.Argument(help="Name of the feature. Without it the file says the feature of each line."),
    ] = None,
    row: RowColumn = None,
    feature: FeatureColumn = None,
    value: ValueColumn = None,
    time: Annotated[
        str | None,
        typer.Option(
            help="If the model has a half-life: the column that says when an observation was made; with NAME "
            "the time of all of them.",
            show_default="time",
        ),
    ] = None,
    update: Annotated[
        str | None,
        typer.Option(
            help="What to update: both, features or rows.", show_default="features with NAME, otherwise both"
        ),
    ] = None,
    separator: Separator = None,
    decimal: Decimal = None,
    encoding: Encoding = None,
    quiet: Quiet = False,
) -> None:
    """Add observations of a feature, or of any rows and features. What was observed before is replaced.

    With NAME only this feature is refined; without it the rows in the file are updated, too.

    Example: [bold]headstart observe films.headstart "Dune 3" --observations new_ratings.csv[/bold]
    """
    from headstart.model import Headstart
    from headstart.table.reading import read_context
    from headstart.table.sources import TextFormat

    text = TextFormat(separator, decimal, encoding)
    side: Any = update  # checked by observe()
    if name is None:
        with Headstart.updating(model) as loaded, notes():
            columns = {"row": row, "feature": feature, "value": value, "time": time}
            said = loaded.observe(observations, **columns, update=side, text=text)
        if not quiet:
            say(str(said))
        return
    if feature is not None:
        raise InputError(f"--feature names a column; leave it out, because all observations are of {name!r}")
    context = read_context(observations, row, value, text)
    with Headstart.updating(model) as loaded, notes():
        loaded.observe(name, context, update=side, time=time)
    if not quiet:
        say(f"{name!r} now has {loaded.feature(name).shots} observations")


def add_rows(
    model: Model,
    observations: Annotated[
        Path, typer.Argument(help="CSV or Parquet file with the columns row, feature and value.")
    ],
    metadata: Annotated[
        Path | None, typer.Option(help="CSV or Parquet file of the new rows' metadata, one line per row.")
    ] = None,
    update: Annotated[
        str, typer.Option(help="rows: only describe the new rows. both: also refine the features.")
    ] = "rows",
    row: RowColumn = None,
    feature: FeatureColumn = None,
    value: ValueColumn = None,
    separator: Separator = None,
    decimal: Decimal = None,
    encoding: Encoding = None,
    quiet: Quiet = False,
) -> None:
    """Add new rows to a model, with what they observed. A line without a value adds a row that is empty.

    Example: [bold]headstart add-rows films.headstart new.csv --row user --feature film --value stars[/bold]
    """
    from headstart.model import Headstart

    given = read_rows(observations, (row, feature, value), (separator, decimal, encoding))
    lines = None
    if metadata is not None:
        from headstart.table.metadata import read_metadata
        from headstart.table.sources import TextFormat, open_source

        source = open_source(metadata, (row or "row",), TextFormat(separator, decimal, encoding))
        names, described = read_metadata(source, row or "row", "row")
        lines = dict(zip(names, described.to_pylist(), strict=True))
    with Headstart.updating(model) as loaded:
        loaded.add_rows(given, lines, update=update)  # type: ignore[arg-type]  # checked there
    if not quiet:
        say(f"added {len(given)} rows; the model has {len(loaded.rows)}")


def remove(
    model: Model,
    features: Annotated[
        list[str] | None, typer.Option("--features", help="Features to remove, as in predict.")
    ] = None,
    rows: Annotated[
        list[str] | None,
        typer.Option("--rows", help="Rows to remove, with all that they observed."),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Remove features or rows. What a row observed leaves the features, too.

    Example: [bold]headstart remove films.headstart --rows u17[/bold]
    """
    from headstart.model import Headstart

    if features is None and rows is None:
        raise InputError("name what to remove: --features or --rows")
    with Headstart.updating(model) as loaded:
        gone_features = read_names(features, loaded.features, "--features") or []
        gone_rows = read_names(rows, loaded.rows, "--rows") or []
        for name in gone_features:
            loaded.remove_feature(name)
        for name in gone_rows:
            loaded.remove_row(name)
    if not quiet:
        say(f"removed {len(gone_features)} features and {len(gone_rows)} rows")


def export(
    model: Annotated[
        Path | None,
        typer.Argument(help="Folder of a saved model. Not needed with --store.", show_default=False),
    ] = None,
    *,
    out: Annotated[str, typer.Option("--out", help="CSV, Parquet or JSON file for the observations, or -.")],
    metadata_out: Annotated[
        str | None,
        typer.Option("--metadata-out", help="CSV, Parquet or JSON file for the features' metadata."),
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(
            "--store",
            help="URL of the store of a service. With a model, all that both hold is written; without one, "
            "only what arrived.",
        ),
    ] = None,
    form: Format = None,
    quiet: Quiet = False,
) -> None:
    """Write all observations that a model holds to a file, in the long form, ready for the next fit.

    Example: [bold]headstart export films.headstart --out ratings.parquet --metadata-out films.parquet[/bold]
    """
    from headstart.model.saving.export import long_form, metadata_lines

    place = destination(out, form, quiet)
    further = None if metadata_out is None else destination(metadata_out, None, quiet, "--metadata-out")
    if model is None:
        if store is None:
            raise InputError("name a model, or a store with --store")
        from headstart.cli.serve import export_store

        lines, described = export_store(store)
        if further is not None:
            further.write(described)
        place.write(lines)
        return
    table = _whole(model, store).table(metadata=further is not None)
    if further is not None:
        if table.metadata is None:
            raise InputError("the model has no metadata; leave out --metadata-out")
        further.write(metadata_lines(table))
    place.write(long_form(table))
    kinds = {str(kind) for kind in table.kinds}
    hint = f"; fit it with --kind {kinds.pop()}" if len(kinds) == 1 else ""
    rows, features = len(table.rows), len(table.features)
    place.say(f"these are the observations of {rows} rows and {features} features{hint}")


def _whole(model: Path, store: str | None) -> Headstart:
    """A saved model, with what arrived at a service that serves it."""
    if store is not None:
        from headstart.cli.serve import join_url

        return join_url(model, store)
    from headstart.model import Headstart

    return Headstart.load(model)


def refit(
    model: Model,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Folder for the new model. By default the old one is replaced."),
    ] = None,
    device: TrainingDevice = None,
    quiet: Quiet = False,
) -> None:
    """Fit a model anew on everything it holds, with the same settings and names.

    Example: [bold]headstart refit films.headstart[/bold]
    """
    from headstart.core.devices import training_device
    from headstart.model import Headstart
    from headstart.model.saving.folder import check_place

    training_device(device)
    if out is not None:
        check_place(out)
        loaded = Headstart.load(model)
        loaded.set_params(quiet=quiet, device=device)
        with notes():
            loaded.refit().save(out)
    else:
        with Headstart.updating(model) as loaded, notes():  # so that no change meanwhile is lost
            loaded.set_params(quiet=quiet, device=device)
            loaded.refit()
    if not quiet:
        say(f"fitted {out or model}: {len(loaded.features)} features, {len(loaded.rows)} rows")
