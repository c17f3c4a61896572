"""Commands that change a saved model: add, observe, remove and rename; and export of its observations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from headstart.cli.options import (
    ColumnOptions,
    Feature,
    FeatureColumn,
    LongObservations,
    Model,
    Quiet,
    Row,
    RowColumn,
    TextOptions,
    ValueColumn,
    read_names,
    read_rows,
    read_text,
)
from headstart.cli.output import Format, check_destination, print_surprises, say
from headstart.display import count
from headstart.errors import InputError, join_names

if TYPE_CHECKING:
    from headstart.model import Headstart


NewFeature = Annotated[str, typer.Argument(help="Name of the new feature.", show_default=False)]

NewRow = Annotated[str, typer.Argument(help="Name of the new row.", show_default=False)]

NewName = Annotated[str, typer.Argument(help="New name.", show_default=False)]

MetadataRecord = Annotated[
    str | None,
    typer.Option(
        "--metadata",
        help="JSON object, a file that contains it, or a CSV or Parquet file with a line of this name.",
    ),
]

OfFeature = Annotated[
    Path, typer.Argument(help="CSV or Parquet file with the columns row and value.", show_default=False)
]

OfRow = Annotated[
    Path, typer.Argument(help="CSV or Parquet file with the columns feature and value.", show_default=False)
]

FirstOfFeature = Annotated[
    Path | None,
    typer.Option("--observations", help="CSV or Parquet file with the columns row and value."),
]

FirstOfRow = Annotated[
    Path | None,
    typer.Option("--observations", help="CSV or Parquet file with the columns feature and value."),
]

Time = Annotated[
    str | None, typer.Option(help="When the observations were made, if the model has a half-life.")
]

Weight = Annotated[float | None, typer.Option(help="How much each of the observations counts.")]

Update = Annotated[str, typer.Option("--update", help="What to update: both, features or rows.")]

Unknown = Annotated[
    str,
    typer.Option(
        "--unknown",
        help="What to do with rows and features that are not in the model: error, add them without metadata, "
        "or skip their observations.",
    ),
]

UnknownRows = Annotated[
    str,
    typer.Option(
        "--unknown",
        help="What to do with rows that are not in the model: error, add them without metadata, or skip "
        "their observations.",
    ),
]

UpdateOfNew = Annotated[
    str,
    typer.Option(
        "--update", help="rows: only the new rows. both: also the features that have observations of them."
    ),
]


def add_feature(
    model: Model,
    feature: NewFeature,
    *,
    metadata: MetadataRecord = None,
    observations: FirstOfFeature = None,
    kind: Annotated[
        str | None, typer.Option(help="Kind of the feature. By default the most frequent kind of the model.")
    ] = None,
    weight: Weight = None,
    row: RowColumn = None,
    value: ValueColumn = None,
    text: TextOptions,
    quiet: Quiet = False,
) -> None:
    """Add a new feature to a model, from its metadata and first observations, if there are any.

    Example: [bold]headstart add-feature films.headstart "Dune 3" --metadata '{"genres": ["Sci-Fi"], "year":
    2026}' --observations first_ratings.csv[/bold]
    """
    from headstart.model import Headstart
    from headstart.table.reading import read_context

    record = _read_record(metadata, feature, "feature", text)
    context = None if observations is None else read_context(observations, row, value, text.format)
    with Headstart.updating(model) as loaded, print_surprises():
        loaded.add_feature(feature, metadata=record, observations=context, kind=kind, weight=weight)
    added = loaded.feature(feature)
    if not quiet:
        say(f"added {added.name!r} ({added.kind}) with {count(added.shots, 'observation')}")


def add_features(
    model: Model,
    features: Annotated[
        Path,
        typer.Argument(
            help="CSV or Parquet file with one line per new feature: its name and its metadata.",
            show_default=False,
        ),
    ],
    *,
    observations: Annotated[
        Path | None,
        typer.Option(
            "--observations",
            help="CSV or Parquet file with the columns row, feature and value. Only observations of the new "
            "features are read.",
        ),
    ] = None,
    kind: Annotated[
        str | None, typer.Option(help="Kind of the features. By default the most frequent kind of the model.")
    ] = None,
    skip_existing: Annotated[
        bool, typer.Option("--skip-existing", help="Leave out lines of features that are in the model.")
    ] = False,
    unknown: UnknownRows = "error",
    columns: ColumnOptions,
    text: TextOptions,
    quiet: Quiet = False,
) -> None:
    """Add all features of a file to a model, from their metadata and first observations, if there are any.

    Example: [bold]headstart add-features films.headstart new_films.csv --observations ratings.csv --row user
    --feature film --value stars[/bold]
    """
    from headstart.model import Headstart
    from headstart.table.reading import read_contexts

    _require_choice(unknown)
    _, records = _read_records(features, columns.feature, "feature", text)
    with Headstart.updating(model) as loaded, print_surprises():
        existing = set(records) & set(loaded.features)
        if existing and not skip_existing:
            raise InputError(
                f"features of {features} are in the model already: {join_names(sorted(existing))}; "
                "--skip-existing leaves them out"
            )
        new = {name: {"metadata": record, "kind": kind} for name, record in records.items()}
        new = {name: parts for name, parts in new.items() if name not in existing}
        contexts = {}
        if observations is not None:
            contexts = read_contexts(observations, new, columns.names, text.format)
        unknown_rows = {row for context in contexts.values() for row in context if row not in loaded.rows}
        if unknown == "add":
            loaded.add_rows({row: {} for row in sorted(unknown_rows)})
        skipped = unknown_rows if unknown == "skip" else ()
        for name, context in contexts.items():
            new[name]["observations"] = {row: context[row] for row in context if row not in skipped}
        loaded.add_features(new)
    if not quiet:
        shots = sum(loaded.feature(name).shots for name in new)
        message = f"added {count(len(new), 'feature')} with {count(shots, 'observation')}"
        if unknown_rows:
            done = "added" if unknown == "add" else "left out"
            message += f"; {done} {count(len(unknown_rows), 'unknown row')}"
        if existing:
            were = "was" if len(existing) == 1 else "were"
            message += f"; {count(len(existing), 'feature')} {were} in the model already"
        say(message)


def add_row(
    model: Model,
    row: NewRow,
    *,
    metadata: MetadataRecord = None,
    observations: FirstOfRow = None,
    update: UpdateOfNew = "rows",
    feature: FeatureColumn = None,
    value: ValueColumn = None,
    text: TextOptions,
    quiet: Quiet = False,
) -> None:
    """Add a new row to a model, from its metadata and first observations, if there are any.

    Example: [bold]headstart add-row films.headstart Ann --observations ratings_of_ann.csv[/bold]
    """
    from headstart.model import Headstart
    from headstart.table.reading import read_row

    record = _read_record(metadata, row, "row", text)
    first = None if observations is None else read_row(observations, feature, value, text.format)
    with Headstart.updating(model) as loaded, print_surprises():
        loaded.add_row(row, record, first, update=update)  # type: ignore[arg-type]  # add_row() checks it
    if not quiet:
        observed = count(len(first or {}), "observation")
        say(f"added {row!r} with {observed}; the model has {count(len(loaded.rows), 'row')}")


def add_rows(
    model: Model,
    observations: LongObservations,
    *,
    metadata: Annotated[
        Path | None, typer.Option(help="CSV or Parquet file of the new rows' metadata, one line per row.")
    ] = None,
    update: UpdateOfNew = "rows",
    columns: ColumnOptions,
    text: TextOptions,
    quiet: Quiet = False,
) -> None:
    """Add new rows to a model with their observations. A line without a value adds a row without any.

    Example: [bold]headstart add-rows films.headstart new.csv --row user --feature film --value stars[/bold]
    """
    from headstart.model import Headstart

    rows = read_rows(observations, columns, text)
    records = None
    if metadata is not None:
        _, records = _read_records(metadata, columns.row or "row", "row", text)
    with Headstart.updating(model) as loaded, print_surprises():
        loaded.add_rows(rows, records, update=update)  # type: ignore[arg-type]  # add_rows() checks it
    if not quiet:
        say(f"added {count(len(rows), 'row')}; the model has {len(loaded.rows)}")


def observe(
    model: Model,
    observations: LongObservations,
    *,
    columns: ColumnOptions,
    time: Annotated[
        str | None,
        typer.Option(
            help="Column that says when an observation was made, if the model has a half-life.",
            show_default="time",
        ),
    ] = None,
    weight: Annotated[
        str | None, typer.Option(help="Column of weights, numbers above 0: how much an observation counts.")
    ] = None,
    update: Update = "both",
    unknown: Unknown = "error",
    text: TextOptions,
    quiet: Quiet = False,
) -> None:
    """Add observations of any rows and features. A cell that was observed before gets the new value.

    Example: [bold]headstart observe films.headstart today.csv --row user --feature film --value stars
    --unknown add[/bold]
    """
    from headstart.model import Headstart

    with Headstart.updating(model) as loaded, print_surprises():
        observed = loaded.observe(
            observations,
            row=columns.row,
            feature=columns.feature,
            value=columns.value,
            time=time,
            weight=weight,
            update=update,  # type: ignore[arg-type]  # observe() checks it
            unknown=unknown,  # type: ignore[arg-type]  # observe() checks it
            separator=text.separator,
            decimal=text.decimal,
            encoding=text.encoding,
            missing=text.missing_codes,
        )
    if not quiet:
        say(str(observed))


def observe_feature(
    model: Model,
    feature: Feature,
    observations: OfFeature,
    *,
    row: RowColumn = None,
    value: ValueColumn = None,
    time: Time = None,
    weight: Weight = None,
    update: Update = "features",
    text: TextOptions,
    quiet: Quiet = False,
) -> None:
    """Add observations of one feature; by default no other prediction changes.

    Example: [bold]headstart observe-feature films.headstart "Dune 3" new_ratings.csv[/bold]
    """
    from headstart.model import Headstart
    from headstart.table.reading import read_context

    context = read_context(observations, row, value, text.format)
    with Headstart.updating(model) as loaded, print_surprises():
        loaded.observe_feature(
            feature,
            context,
            time=time,
            weight=weight,
            update=update,  # type: ignore[arg-type]  # observe_feature() checks it
        )
    if not quiet:
        say(f"{feature!r} now has {count(loaded.feature(feature).shots, 'observation')}")


def observe_row(
    model: Model,
    row: Row,
    observations: OfRow,
    *,
    feature: FeatureColumn = None,
    value: ValueColumn = None,
    time: Time = None,
    weight: Weight = None,
    update: Update = "rows",
    text: TextOptions,
    quiet: Quiet = False,
) -> None:
    """Add observations of one row; by default no other prediction changes.

    Example: [bold]headstart observe-row films.headstart u17 ratings_of_u17.csv[/bold]
    """
    from headstart.model import Headstart
    from headstart.table.reading import read_row

    values = read_row(observations, feature, value, text.format)
    with Headstart.updating(model) as loaded, print_surprises():
        loaded.observe_row(
            row,
            values,
            time=time,
            weight=weight,
            update=update,  # type: ignore[arg-type]  # observe_row() checks it
        )
    if not quiet:
        say(f"{row!r} now has {count(len(loaded.row(row).observations), 'observation')}")


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
        say(f"removed {count(len(feature_names), 'feature')} and {count(len(row_names), 'row')}")


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
    from headstart.table.kinds import feature_kinds

    destination = check_destination(out, form, quiet)
    metadata_destination = (
        None if metadata_out is None else check_destination(metadata_out, None, quiet, "--metadata-out")
    )
    if model is None:
        if store is None:
            raise InputError("name a model, or a store with --store")
        from headstart.cli.serve import export_store

        observations, metadata = export_store(store)
        if metadata_destination is not None:
            metadata_destination.write(metadata)
        destination.write(observations)
        return
    table = _load_with_store(model, store).table(metadata=metadata_destination is not None)
    if metadata_destination is not None:
        if table.metadata is None:
            raise InputError("the model has no metadata; leave out --metadata-out")
        metadata_destination.write(metadata_lines(table))
    destination.write(long_form(table))
    kinds = {str(kind) for kind in feature_kinds(table.features, table.kinds)}
    hint = f"; fit it with --kind {kinds.pop()}" if len(kinds) == 1 else ""
    rows, features = table.shape
    destination.say(
        f"these are the observations of {count(rows, 'row')} and {count(features, 'feature')}{hint}"
    )


def _require_choice(unknown: str) -> None:
    if unknown not in ("error", "add", "skip"):
        raise InputError(f"--unknown must be 'error', 'add' or 'skip'; got {unknown!r}")


def _load_with_store(model: Path, store: str | None) -> Headstart:
    """Load a saved model, together with the store of a service if there is one."""
    if store is not None:
        from headstart.cli.serve import load_with_store

        return load_with_store(model, store)
    from headstart.model import Headstart

    return Headstart.load(model)


def _read_record(
    metadata: str | None, name: str, axis: Literal["feature", "row"], text: TextOptions
) -> dict[str, Any] | None:
    """Return the metadata of the feature or row ``name``.

    ``metadata`` is a JSON object, a file that contains it, or a table with one line per feature or row.
    """
    if metadata is None:
        return None
    from headstart.table.sources import TABLES

    if metadata.lower().endswith(TABLES):
        return _read_line(metadata, name, axis, text)
    content = read_text(metadata)
    try:
        record = json.loads(metadata if content is None else content)
    except json.JSONDecodeError as error:
        where = "is neither a file nor JSON" if content is None else f"{metadata} is a file without JSON"
        raise InputError(f"--metadata {where}: {error}") from None
    if not isinstance(record, dict):
        raise InputError(f'--metadata must be a JSON object such as {{"year": 2026}}; got {record!r}')
    return record


def _read_line(path: str, name: str, axis: Literal["feature", "row"], text: TextOptions) -> dict[str, Any]:
    """Return the line of the feature or row ``name`` in a table of metadata.

    The names are in the column ``axis``, or in the first column if there is no such column.
    """
    from headstart.table.names import as_name

    column, records = _read_records(path, None, axis, text)
    record = records.get(as_name(name, axis))
    if record is None:
        raise InputError(
            f"{path} has no line of {axis} {name!r} in column {column!r}; add one, or give the metadata as"
            " JSON"
        )
    return record


def _read_records(
    path: str | Path, column: str | None, axis: Literal["feature", "row"], text: TextOptions
) -> tuple[str, dict[str, dict[str, Any]]]:
    """Read a table of metadata with one line per feature or row.

    The names are in ``column``; by default in the column ``axis``, or in the first one if there is none such.
    Returns the column of the names, and ``{name: {column: value}}``.
    """
    from headstart.table.metadata import read_metadata
    from headstart.table.sources import open_source

    source = open_source(path, (column or axis,), text.format)
    if column is None:
        column = axis if axis in source.columns else source.columns[0]
    names, lines = read_metadata(source, column, axis)
    records = zip(names, lines.to_pylist(), strict=True)
    return column, {name: {k: v for k, v in record.items() if v is not None} for name, record in records}
