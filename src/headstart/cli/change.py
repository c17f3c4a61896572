"""Commands that change a saved model: add, observe, remove and rename; and export of its observations."""

from __future__ import annotations

import json
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
    ValueColumn,
    file_text,
    read_names,
    read_rows,
)
from headstart.cli.output import Format, Quiet, destination, notes, say
from headstart.errors import InputError

if TYPE_CHECKING:
    from headstart.model import Headstart


Context = Annotated[
    Path, typer.Argument(help="CSV or Parquet file with the columns row and value.", show_default=False)
]

Feature = Annotated[str, typer.Argument(help="Name of the feature.", show_default=False)]

Row = Annotated[str, typer.Argument(help="Name of the row.", show_default=False)]

NewName = Annotated[str, typer.Argument(help="New name.", show_default=False)]

UPDATE_HELP = "What to update: both, features or rows."


def add_feature(
    model: Model,
    feature: Annotated[str, typer.Argument(help="Name of the new feature.", show_default=False)],
    metadata: Annotated[str | None, typer.Option(help="JSON object, or a file that contains it.")] = None,
    observations: Annotated[
        Path | None, typer.Option(help="CSV or Parquet file with the columns row and value.")
    ] = None,
    kind: Annotated[
        str | None, typer.Option(help="Kind of the feature. By default the most frequent kind of the model.")
    ] = None,
    row: RowColumn = None,
    value: ValueColumn = None,
    separator: Separator = None,
    decimal: Decimal = None,
    encoding: Encoding = None,
    quiet: Quiet = False,
) -> None:
    """Add a new feature to a model, from its metadata and first observations, if there are any.

    Example: [bold]headstart add-feature films.headstart "Dune 3" --metadata '{"genres": ["Sci-Fi"], "year":
    2026}' --observations first_ratings.csv[/bold]
    """
    from headstart.model import Headstart
    from headstart.table.reading import read_context
    from headstart.table.sources import TextFormat

    record = _json(metadata)
    form = TextFormat(separator, decimal, encoding)
    context = read_context(observations, row, value, form) if observations is not None else None
    with Headstart.updating(model) as loaded:
        loaded.add_feature(feature, metadata=record, observations=context, kind=kind)
    added = loaded.feature(feature)
    if not quiet:
        say(f"added {added.name!r} ({added.kind}) with {added.shots} observations")


def observe(
    model: Model,
    observations: Annotated[
        Path,
        typer.Argument(
            help="CSV or Parquet file with the columns row, feature and value.", show_default=False
        ),
    ],
    row: RowColumn = None,
    feature: FeatureColumn = None,
    value: ValueColumn = None,
    time: Annotated[
        str | None,
        typer.Option(
            help="Column that says when an observation was made, if the model has a half-life.",
            show_default="time",
        ),
    ] = None,
    update: Annotated[str, typer.Option(help=UPDATE_HELP)] = "both",
    separator: Separator = None,
    decimal: Decimal = None,
    encoding: Encoding = None,
    quiet: Quiet = False,
) -> None:
    """Add observations of any rows and features. A cell that was observed before gets the new value.

    Example: [bold]headstart observe films.headstart today.csv --row user --feature film --value stars[/bold]
    """
    from headstart.model import Headstart

    with Headstart.updating(model) as loaded, notes():
        observed = loaded.observe(
            observations,
            row=row,
            feature=feature,
            value=value,
            time=time,
            update=update,  # type: ignore[arg-type]  # checked there
            separator=separator,
            decimal=decimal,
            encoding=encoding,
        )
    if not quiet:
        say(str(observed))


Time = Annotated[
    str | None, typer.Option(help="When the observations were made, if the model has a half-life.")
]


def observe_feature(
    model: Model,
    feature: Feature,
    observations: Context,
    row: RowColumn = None,
    value: ValueColumn = None,
    time: Time = None,
    update: Annotated[str, typer.Option(help=UPDATE_HELP)] = "features",
    separator: Separator = None,
    decimal: Decimal = None,
    encoding: Encoding = None,
    quiet: Quiet = False,
) -> None:
    """Add observations of one feature; by default no other prediction changes.

    Example: [bold]headstart observe-feature films.headstart "Dune 3" new_ratings.csv[/bold]
    """
    from headstart.model import Headstart
    from headstart.table.reading import read_context
    from headstart.table.sources import TextFormat

    context = read_context(observations, row, value, TextFormat(separator, decimal, encoding))
    side: Any = update  # checked by observe_feature()
    with Headstart.updating(model) as loaded, notes():
        loaded.observe_feature(feature, context, time=time, update=side)
    if not quiet:
        say(f"{feature!r} now has {loaded.feature(feature).shots} observations")


def add_rows(
    model: Model,
    observations: Annotated[
        Path, typer.Argument(help="CSV or Parquet file with the columns row, feature and value.")
    ],
    metadata: Annotated[
        Path | None, typer.Option(help="CSV or Parquet file of the new rows' metadata, one line per row.")
    ] = None,
    update: Annotated[
        str, typer.Option(help="rows: only the new rows. both: also the features that they observed.")
    ] = "rows",
    row: RowColumn = None,
    feature: FeatureColumn = None,
    value: ValueColumn = None,
    separator: Separator = None,
    decimal: Decimal = None,
    encoding: Encoding = None,
    quiet: Quiet = False,
) -> None:
    """Add new rows to a model with their observations. A line without a value adds a row without any.

    Example: [bold]headstart add-rows films.headstart new.csv --row user --feature film --value stars[/bold]
    """
    from headstart.model import Headstart

    rows = read_rows(observations, (row, feature, value), (separator, decimal, encoding))
    records = None
    if metadata is not None:
        from headstart.table.metadata import read_metadata
        from headstart.table.sources import TextFormat, open_source

        source = open_source(metadata, (row or "row",), TextFormat(separator, decimal, encoding))
        names, described = read_metadata(source, row or "row", "row")
        records = dict(zip(names, described.to_pylist(), strict=True))
    with Headstart.updating(model) as loaded:
        loaded.add_rows(rows, records, update=update)  # type: ignore[arg-type]  # checked there
    if not quiet:
        say(f"added {len(rows)} rows; the model has {len(loaded.rows)}")


def remove(
    model: Model,
    features: Annotated[
        list[str] | None, typer.Option("--features", help="Features to remove, as in predict.")
    ] = None,
    rows: Annotated[
        list[str] | None,
        typer.Option("--rows", help="Rows to remove, with all their observations."),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Remove features or rows. The observations of a removed row leave the features, too.

    Example: [bold]headstart remove films.headstart --rows u17[/bold]
    """
    from headstart.model import Headstart

    if features is None and rows is None:
        raise InputError("name what to remove: --features or --rows")
    with Headstart.updating(model) as loaded:
        feature_names = read_names(features, loaded.features, "--features") or []
        row_names = read_names(rows, loaded.rows, "--rows") or []
        for name in feature_names:
            loaded.remove_feature(name)
        for name in row_names:
            loaded.remove_row(name)
    if not quiet:
        say(f"removed {len(feature_names)} features and {len(row_names)} rows")


def rename_feature(model: Model, feature: Feature, to: NewName, quiet: Quiet = False) -> None:
    """Rename a feature; no prediction changes.

    Example: [bold]headstart rename-feature films.headstart "Dune 3" "Dune: Part Three"[/bold]
    """
    from headstart.model import Headstart

    with Headstart.updating(model) as loaded:
        loaded.rename_feature(feature, to)
    if not quiet:
        say(f"feature {feature!r} is now {to!r}")


def rename_row(model: Model, row: Row, to: NewName, quiet: Quiet = False) -> None:
    """Rename a row; no prediction changes.

    Example: [bold]headstart rename-row films.headstart u17 Ann[/bold]
    """
    from headstart.model import Headstart

    with Headstart.updating(model) as loaded:
        loaded.rename_row(row, to)
    if not quiet:
        say(f"row {row!r} is now {to!r}")


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
            help="URL of the store of a service. With a model, the observations of both are written; without "
            "one, only those of the store.",
        ),
    ] = None,
    form: Format = None,
    quiet: Quiet = False,
) -> None:
    """Write all observations of a model to a file, in the long form, for the next fit.

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
    table = _load_with_store(model, store).table(metadata=further is not None)
    if further is not None:
        if table.metadata is None:
            raise InputError("the model has no metadata; leave out --metadata-out")
        further.write(metadata_lines(table))
    place.write(long_form(table))
    kinds = {str(kind) for kind in table.kinds}
    hint = f"; fit it with --kind {kinds.pop()}" if len(kinds) == 1 else ""
    rows, features = len(table.rows), len(table.features)
    place.say(f"these are the observations of {rows} rows and {features} features{hint}")


def _load_with_store(model: Path, store: str | None) -> Headstart:
    """Load a saved model, together with the store of a service if there is one."""
    if store is not None:
        from headstart.cli.serve import join_url

        return join_url(model, store)
    from headstart.model import Headstart

    return Headstart.load(model)


def _json(given: str | None) -> dict[str, Any] | None:
    if given is None:
        return None
    text = file_text(given)
    try:
        metadata = json.loads(given if text is None else text)
    except json.JSONDecodeError as error:
        raise InputError(f"--metadata is neither a file nor JSON: {error}") from None
    if not isinstance(metadata, dict):
        raise InputError(f'--metadata must be a JSON object such as {{"year": 2026}}; got {metadata!r}')
    return metadata
