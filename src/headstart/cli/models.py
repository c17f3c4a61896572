"""Commands that make, change and describe a model: fit, add, info."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Annotated, Any

import typer

from headstart.adapters.registry import adapter_config
from headstart.backbones.registry import backbone_config
from headstart.cli.options import (
    NAMES_HELP,
    BackboneName,
    Duplicates,
    FeatureColumn,
    Form,
    Metadata,
    MetadataTypes,
    Model,
    Quiet,
    RowColumn,
    TableKind,
    ValueColumn,
    file_text,
    named,
    read_table,
)
from headstart.cli.printing import say, show_facts
from headstart.errors import InputError
from headstart.model import Headstart
from headstart.model.folder import check_place
from headstart.table.readers import read_context


def fit(
    observations: Annotated[Path, typer.Argument(help="CSV or Parquet, long (row, feature, value) or wide.")],
    out: Annotated[Path, typer.Option("--out", help="Folder to save the model to.")],
    metadata: Metadata = None,
    row: RowColumn = "row",
    feature: FeatureColumn = "feature",
    value: ValueColumn = "value",
    kind: TableKind = None,
    form: Form = "auto",
    duplicates: Duplicates = "error",
    metadata_type: MetadataTypes = None,
    backbone: BackboneName = "factorisation",
    adapter: Annotated[str, typer.Option(help="How new features get their heads.")] = "chn-bayes",
    seed: Annotated[int, typer.Option(help="The same seed gives the same model.", min=0)] = 0,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an interrupted fit.")] = False,
    quiet: Quiet = False,
) -> None:
    """Train a model on a table of observations.

    Example: [bold]headstart fit ratings.csv --metadata films.csv --row user --feature film --value stars
    --out films.headstart[/bold]
    """
    # First whatever can be told to be wrong at once; reading and training may take long.
    check_place(out)
    model = Headstart(
        backbone_config(backbone), adapter_config(adapter, seed), random_state=seed, quiet=quiet
    )
    table = read_table(observations, metadata, (row, feature, value), kind, form, duplicates, metadata_type)
    if not quiet:
        say(table.describe())
    place = out.resolve()  # also "." has a name then
    checkpoint = place.with_name(place.name + ".checkpoint")
    _tell_of(checkpoint, resume)
    model.fit(table, checkpoint=checkpoint, resume=resume)
    model.save(out)
    shutil.rmtree(checkpoint)
    say(f"saved {out}: {len(model.features)} features, {len(model.rows)} rows")


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
    known = _json(metadata)
    seen = read_context(observations, row, value) if observations is not None else None
    with Headstart.updating(model) as held:
        held.add_feature(name, metadata=known, observations=seen, kind=kind)
    added = held.feature(name)
    say(f"added {added.name!r} ({added.kind}) with {added.shots} observations")


def observe(
    model: Model,
    name: Annotated[str, typer.Argument(help="Name of the feature.", show_default=False)],
    observations: Annotated[Path, typer.Option(help="CSV or Parquet with the columns row and value.")],
    row: RowColumn = "row",
    value: ValueColumn = "value",
) -> None:
    """Refine a feature by more observations; a row observed before gets its new value.

    Example: [bold]headstart observe films.headstart "Dune 3" --observations new_ratings.csv[/bold]
    """
    seen = read_context(observations, row, value)
    with Headstart.updating(model) as held:
        held.observe(name, seen)
    say(f"{name!r} now rests on {held.feature(name).shots} observations")


def suggest(
    model: Model,
    name: Annotated[str, typer.Argument(help="Name of the feature.", show_default=False)],
    n: Annotated[int, typer.Option("-n", help="How many rows.", min=1)] = 10,
    rows: Annotated[list[str] | None, typer.Option(help=NAMES_HELP)] = None,
) -> None:
    """Say which rows to observe next, because they tell most about a feature; best first.

    Example: [bold]headstart suggest films.headstart "Dune 3" -n 5[/bold]
    """
    held = Headstart.load(model)
    for row in held.suggest(name, named(rows, held.rows, "--rows"), n):
        typer.echo(row)


def info(model: Model) -> None:
    """Say what a saved model holds.

    Example: [bold]headstart info films.headstart[/bold]
    """
    held = Headstart.load(model)
    fitted = held.fitted_
    every = [held.feature(name) for name in held.features]
    added = [feature for feature in every if not feature.in_backbone]
    show_facts(
        [
            ("model", str(model)),
            ("backbone", str(fitted.settings.backbone.name)),
            ("adapter", str(fitted.settings.chosen_adapter.name)),
            ("rows", f"{len(held.rows)}"),
            (
                "features",
                f"{len(every)}: {len(every) - len(added)} in the backbone, {len(added)} by the adapter",
            ),
            ("usual kind", str(fitted.kinds[0])),
            ("metadata", fitted.schema.describe() if fitted.schema else "none"),
            ("latest", ", ".join(f"{feature.name} ({feature.shots} shots)" for feature in added[-3:])),
        ]
    )


def _tell_of(checkpoint: Path, resume: bool) -> None:
    """Say what becomes of an interrupted fit, lest its work be lost unnoticed."""
    there = (checkpoint / "fit.json").exists()
    if there and not resume:
        say(f"note: starting anew; the interrupted fit in {checkpoint} is thrown away", stderr=True)
    if resume and not there:
        say(f"note: starting anew; there is no interrupted fit in {checkpoint}", stderr=True)


def _json(given: str | None) -> dict[str, Any] | None:
    if given is None:
        return None
    text = file_text(given)
    try:
        found = json.loads(given if text is None else text)
    except json.JSONDecodeError as error:
        raise InputError(f"--metadata is neither a file nor JSON: {error}") from None
    if not isinstance(found, dict):
        raise InputError(f'--metadata must be a JSON object such as {{"year": 2026}}; got {found!r}')
    return found
