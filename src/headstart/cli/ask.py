"""Commands that read a saved model: predict, rank, explain, describe, check and evaluate."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headstart.cli.options import (
    NAMES_HELP,
    Decimal,
    Duplicates,
    Encoding,
    FeatureColumn,
    Form,
    Metadata,
    Model,
    Observations,
    RowColumn,
    Separator,
    TableKind,
    ValueColumn,
    read_names,
    read_rows,
    read_table,
    whole_numbers,
)
from headstart.cli.output import (
    MAX_LINES,
    Destination,
    Format,
    Out,
    Quiet,
    destination,
    say,
    show,
    show_facts,
)
from headstart.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa


Number = Annotated[int, typer.Option("-n", help="How many to name.", min=1)]

Feature = Annotated[str, typer.Argument(help="Name of the feature.", show_default=False)]

ByOption = Annotated[
    str, typer.Option("--by", help="mean, upper (a quantile, which prefers the uncertain) or information.")
]

Quantile = Annotated[float, typer.Option(help="The quantile that --by upper takes.")]

Level = Annotated[float, typer.Option(help="Probability that the interval contains the value.")]

Observed = Annotated[bool, typer.Option("--include-observed", help="Name what is observed already, too.")]

MixedKinds = Annotated[
    bool, typer.Option("--mixed-kinds", help="Compare features of different kinds, on a common scale.")
]


def recommend(
    model: Model,
    rows: Annotated[list[str] | None, typer.Argument(help="Names of rows.", show_default=False)] = None,
    n: Number = 10,
    features: Annotated[list[str] | None, typer.Option(help=NAMES_HELP)] = None,
    by: ByOption = "mean",
    quantile: Quantile = 0.9,
    include_observed: Observed = False,
    mixed_kinds: MixedKinds = False,
    level: Level = 0.9,
    new_rows: Annotated[
        Path | None, typer.Option(help="File of observations of rows that are not in the model.")
    ] = None,
    row: RowColumn = None,
    feature: FeatureColumn = None,
    value: ValueColumn = None,
    separator: Separator = None,
    decimal: Decimal = None,
    encoding: Encoding = None,
    form: Format = None,
    out: Out = None,
    quiet: Quiet = False,
) -> None:
    """List the features that suit rows best, best first.

    Example: [bold]headstart recommend films.headstart u17 -n 5[/bold]
    """
    from headstart.model import Headstart

    if bool(rows) == (new_rows is not None):
        raise InputError("name rows, or give --new-rows; one of the two")
    place = destination(out, form, quiet)
    loaded = Headstart.load(model)
    targets: Any = rows
    if new_rows is not None:
        targets = read_rows(new_rows, (row, feature, value), (separator, decimal, encoding))
    rankings = loaded.recommend_many(
        targets,
        n,
        read_names(features, loaded.features, "--features"),
        by=by,  # type: ignore[arg-type]
        exclude_observed=not include_observed,
        quantile=quantile,
        mixed_kinds=mixed_kinds,
        level=level,
    )
    place.write(_ranked("row", list(rankings.values())))


def audience(
    model: Model,
    feature: Feature,
    n: Number = 10,
    rows: Annotated[list[str] | None, typer.Option(help=NAMES_HELP)] = None,
    by: ByOption = "mean",
    quantile: Quantile = 0.9,
    include_observed: Observed = False,
    level: Level = 0.9,
    form: Format = None,
    out: Out = None,
    quiet: Quiet = False,
) -> None:
    """List the rows that a feature suits best, best first.

    Example: [bold]headstart audience films.headstart "Dune 3" -n 20 --by upper[/bold]
    """
    from headstart.model import Headstart

    place = destination(out, form, quiet)
    loaded = Headstart.load(model)
    ranking = loaded.audience(
        feature,
        n,
        read_names(rows, loaded.rows, "--rows"),
        by=by,  # type: ignore[arg-type]
        exclude_observed=not include_observed,
        quantile=quantile,
        level=level,
    )
    place.write(_ranked("feature", [ranking]))


def suggest(
    model: Model,
    feature: Feature,
    n: Number = 10,
    rows: Annotated[list[str] | None, typer.Option(help=NAMES_HELP)] = None,
) -> None:
    """List the rows whose observation would improve a feature's predictions most; best first.

    Example: [bold]headstart suggest films.headstart "Dune 3" -n 5[/bold]
    """
    from headstart.model import Headstart

    loaded = Headstart.load(model)
    for row in loaded.suggest(feature, n, read_names(rows, loaded.rows, "--rows")):
        typer.echo(row)


def similar(
    model: Model, feature: Feature, n: Number = 10, form: Format = None, out: Out = None, quiet: Quiet = False
) -> None:
    """List the features whose predictions are most alike, with their correlation.

    Example: [bold]headstart similar films.headstart "Dune 3"[/bold]
    """
    from headstart.model import Headstart

    place = destination(out, form, quiet)
    place.write(Headstart.load(model).similar(feature, n).to_arrow(), {"similarity": "+.3f"})


def explain(
    model: Model,
    row: Annotated[str, typer.Argument(help="Name of the row.", show_default=False)],
    feature: Feature,
    picture: Annotated[Path | None, typer.Option(help="PNG, SVG or PDF file to draw.")] = None,
    form: Format = None,
    out: Out = None,
    quiet: Quiet = False,
) -> None:
    """Say which observations and which metadata made a prediction, as contributions that add up.

    Example: [bold]headstart explain films.headstart u17 "Dune 3" --picture why.png[/bold]
    """
    from headstart.files import write_bytes
    from headstart.model import Headstart

    place = destination(out, form, quiet)
    if picture is not None and picture.suffix.lower() not in _PICTURES:
        raise InputError(f"--picture must end in .png, .svg or .pdf; got {picture.name!r}")
    explanation = Headstart.load(model).explain(row, feature)
    if place.format == "table":
        typer.echo(str(explanation))
    else:
        place.write(explanation.to_arrow())
    if picture is not None:
        import io

        buffer = io.BytesIO()
        explanation.plot().figure.savefig(buffer, format=picture.suffix.lower().removeprefix("."))
        write_bytes(picture, buffer.getvalue())
        place.say(f"drew {picture}")


_PICTURES = (".png", ".svg", ".pdf")


def _ranked(owner: str, rankings: list[Any]) -> pa.Table:
    """All rankings one after the other, with what each is of and the places in it."""
    import pyarrow as pa

    parts = []
    for ranking in rankings:
        lines = ranking.to_arrow()
        places = pa.array(range(1, len(lines) + 1), pa.int64())
        parts.append(
            lines.add_column(0, "place", places).add_column(0, owner, pa.array([ranking.of] * len(lines)))
        )
    return pa.concat_tables(parts)


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


Search = Annotated[
    str | None, typer.Option("--search", help="Only names that contain this text, in small or large letters.")
]


def info(model: Model) -> None:
    """Describe a saved model.

    Example: [bold]headstart info films.headstart[/bold]
    """
    from headstart.model import Headstart

    found = Headstart.load(model).info
    facts = [("usual kind", found.kind), ("columns", found.columns), ("latest", ", ".join(found.latest))]
    show_facts([("model", str(model)), *found.lines(), *facts])


def check(model: Model) -> None:
    """Read all of a saved model and say whether anything is damaged.

    Example: [bold]headstart check films.headstart[/bold]
    """
    from headstart.model.saving.loading import check_model

    found = check_model(model)
    changes = 0 if found.journal is None else len(found.journal.changes)
    rows, features = len(found.fitted.rows), len(found.fitted.catalogue)
    say(f"{model} is whole: {features} features, {rows} rows, {changes} changes in its journal")


def features(
    model: Model, search: Search = None, form: Format = None, out: Out = None, quiet: Quiet = False
) -> None:
    """List the features of a model: kind, observations, metadata.

    Example: [bold]headstart features films.headstart --search dune[/bold]
    """
    import pyarrow as pa

    from headstart.model import Headstart

    place = destination(out, form, quiet)
    loaded = Headstart.load(model)
    known = [loaded.feature(name) for name in _found(loaded.features, search)]
    columns: dict[str, Any] = {
        "feature": pa.array([each.name for each in known], pa.string()),
        "kind": pa.array([str(each.kind) for each in known], pa.string()),
        "observations": pa.array([each.shots for each in known], pa.int64()),
        "added": pa.array(["" if each.in_backbone else "after fit" for each in known], pa.string()),
    }
    schema = loaded.fitted_.schema
    metadata = [each.metadata for each in known]
    for column in schema.columns if schema else ():
        if column.name not in columns:
            columns[column.name] = pa.array([_text(each.get(column.name)) for each in metadata], pa.string())
    place.write(pa.table(columns))


def rows(
    model: Model, search: Search = None, form: Format = None, out: Out = None, quiet: Quiet = False
) -> None:
    """List the rows of a model, with the number of observations that features hold of each.

    Example: [bold]headstart rows films.headstart --search u1[/bold]
    """
    import numpy as np
    import pyarrow as pa

    from headstart.model import Headstart

    place = destination(out, form, quiet)
    loaded = Headstart.load(model)
    contexts = [feature.rows for feature in loaded.fitted_.catalogue.values()]
    seen = np.concatenate([*contexts, np.zeros(0, np.int64)])
    counts = np.bincount(seen, minlength=len(loaded.rows))
    names = _found(loaded.rows, search)
    own = counts[loaded.rows.positions(names)]
    place.write(pa.table({"row": pa.array(names, pa.string()), "observations": own}))


def evaluate(
    model: Model,
    observations: Observations,
    metadata: Metadata = None,
    shots: Annotated[str, typer.Option(help="Numbers of shots, separated by commas.")] = "0,1,2,4,8,16,32",
    on: Annotated[
        str | None,
        typer.Option("--on", help="features or cells.", show_default="features, if any are new to the model"),
    ] = None,
    seed: Annotated[int, typer.Option(help="Decides which observations are contexts.", min=0)] = 0,
    row: RowColumn = None,
    feature: FeatureColumn = None,
    value: ValueColumn = None,
    kind: TableKind = None,
    table_form: Form = "auto",
    duplicates: Duplicates = "error",
    separator: Separator = None,
    decimal: Decimal = None,
    encoding: Encoding = None,
    form: Format = None,
    out: Out = None,
    quiet: Quiet = False,
) -> None:
    """Measure a saved model on observations that it has not seen: of new features, or cells of its own.

    Example: [bold]headstart evaluate films.headstart later.csv --row user --feature film --value stars[/bold]
    """
    import pyarrow as pa

    from headstart.model import Headstart

    place = destination(out, form, quiet)
    numbers = whole_numbers(shots, "--shots")
    loaded = Headstart.load(model)
    kinds = loaded.fitted_.kinds
    if kind is None and len(kinds) == 1:  # what is held out must not be inferred to be of another kind
        kind = [str(kinds[0])]
    columns, text = (row, feature, value), (separator, decimal, encoding)
    table = read_table(observations, metadata, columns, kind, table_form, duplicates, None, text, quiet=True)
    found = loaded.evaluate(table, numbers, on=on, random_state=seed)  # type: ignore[arg-type]
    lines = [
        {
            "metric": run.metric,
            "shots": run.shots,
            "value": run.value,
            "features": run.features,
            "targets": run.targets,
        }
        for run in sorted(found.runs, key=lambda run: (found.metrics.index(run.metric), run.n_observations))
    ]
    place.write(pa.Table.from_pylist(lines))
    facts = found.data
    place.say(f"on {facts['on']}: {facts['tested']} tested, {facts['left_out']} left out, "
              f"{facts['unknown_rows']} rows that the model does not know")  # fmt: skip


def _found(names: Any, search: str | None) -> list[str]:
    wanted = "" if search is None else search.casefold()
    return [name for name in names if wanted in name.casefold()]


def _text(value: object) -> str | None:
    if value is None:
        return None
    return "|".join(map(str, value)) if isinstance(value, list) else str(value)
