"""Commands that ask a saved model: recommend, audience, similar, explain."""

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
from headstart.cli.output import Format, Out, Quiet, destination
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
    asked: Any = rows
    if new_rows is not None:
        asked = read_rows(new_rows, (row, feature, value), (separator, decimal, encoding))
    found = loaded.recommend(
        asked,
        n,
        read_names(features, loaded.features, "--features"),
        not include_observed,
        by,  # type: ignore[arg-type]
        quantile=quantile,
        mixed_kinds=mixed_kinds,
        level=level,
    )
    place.write(_ranked("row", list(found.values())))


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
    wanted = read_names(rows, loaded.rows, "--rows")
    found = loaded.audience(
        feature,
        n,
        wanted,
        not include_observed,
        by,  # type: ignore[arg-type]
        quantile=quantile,
        level=level,
    )
    place.write(_ranked("feature", [found]))


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
    from headstart.model import Headstart
    from headstart.storage import write_bytes

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
