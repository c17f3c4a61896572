"""Commands that show what is in a saved model, and how good it is: check, features, rows, evaluate."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from headstart.cli.options import (
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
    read_table,
    whole_numbers,
)
from headstart.cli.output import Format, Out, Quiet, destination
from headstart.cli.printing import say

Search = Annotated[
    str | None, typer.Option("--search", help="Only names that contain this text, in small or large letters.")
]


def check(model: Model) -> None:
    """Read all of a saved model and say whether anything is damaged.

    Example: [bold]headstart check films.headstart[/bold]
    """
    from headstart.model.saving.opening import checked

    found = checked(model)
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
        for run in sorted(found.runs, key=lambda run: (found.metrics.index(run.metric), run.given))
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
