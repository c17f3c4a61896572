"""Fit a model, alone or as one of several processes that ``torchrun`` started."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headstart.cli.options import (
    NAMES_HELP,
    BackboneName,
    Decimal,
    Duplicates,
    Encoding,
    FeatureColumn,
    Form,
    Metadata,
    MetadataTypes,
    MetaShare,
    Model,
    Observations,
    Quiet,
    RowColumn,
    RowMetadata,
    Separator,
    Set,
    TableKind,
    TimeColumn,
    TrainingDevice,
    ValueColumn,
    configured_model,
    file_text,
    read_names,
    read_table,
)
from headstart.cli.output import say, show_facts
from headstart.distributed import ProcessGroup, is_launched, is_restarted, join_processes, process_group
from headstart.errors import InputError

if TYPE_CHECKING:
    from headstart.model import Headstart
    from headstart.table import Table


@contextmanager
def join_if_launched() -> Iterator[ProcessGroup]:
    """The processes of this command: those that ``torchrun`` started, or this one alone."""
    if not is_launched():
        yield process_group()
        return
    with join_processes() as joined:
        yield joined


def require_free(out: Path, model: Headstart, *, force: bool) -> None:
    """Refuse, before anything is read, what several processes cannot train or would overwrite."""
    from headstart.model.fitting import require_shareable
    from headstart.model.saving.loading import INDEX

    if is_launched():
        require_shareable(model.checked_settings())
        if (out / INDEX).exists() and not force:
            raise InputError(
                f"{out} holds a model already, and under torchrun it is not known what would be lost; name "
                "another folder, or let --force replace it"
            )


def fit_and_save(model: Headstart, table: Table, out: Path, *, resume: bool, force: bool) -> None:
    """Train with a checkpoint beside the model's folder, save, and remove the checkpoint."""
    from headstart.model.fitting import discard, working_in
    from headstart.model.saving.folder import require_no_loss

    resume = resume or is_restarted()
    checked = not force and not is_launched()
    if checked:
        require_no_loss(out, table)
    place = out.resolve()  # gives "." a name
    checkpoint = place.with_name(place.name + ".checkpoint")
    with _resumable(checkpoint), working_in(checkpoint):
        if process_group().is_main:
            _note_checkpoint(checkpoint, resume)
        model.fit(table, checkpoint=checkpoint, resume=resume)
        if checked:
            require_no_loss(out, table)  # others may have changed it in the meantime
        model.save(out)
        if process_group().is_main:
            discard(checkpoint)


@contextmanager
def _resumable(checkpoint: Path) -> Iterator[None]:
    """Say after Ctrl-C whether there is anything to continue with."""
    try:
        yield
    except KeyboardInterrupt:
        from headstart.model.fitting import is_resumable

        if is_resumable(checkpoint):
            raise KeyboardInterrupt("interrupted; run the same command with --resume to continue") from None
        raise KeyboardInterrupt(
            "interrupted before any progress was kept; run the same command again to start anew"
        ) from None


def _note_checkpoint(checkpoint: Path, resume: bool) -> None:
    """Say what happens to the checkpoint of an interrupted fit, so that none is deleted unnoticed."""
    interrupted = (checkpoint / "fit.json").exists()
    if interrupted and not resume:
        say(f"note: starting from scratch; the interrupted fit in {checkpoint} is deleted", stderr=True)
    if resume and not interrupted:
        say(f"note: starting from scratch; there is no interrupted fit in {checkpoint}", stderr=True)


Context = typer.Option(help="CSV or Parquet file with the columns row and value.")


def fit(
    observations: Observations,
    out: Annotated[Path, typer.Option("--out", help="Folder to save the model to.")],
    metadata: Metadata = None,
    row_metadata: RowMetadata = None,
    row: RowColumn = None,
    feature: FeatureColumn = None,
    value: ValueColumn = None,
    time: TimeColumn = None,
    kind: TableKind = None,
    form: Form = "auto",
    duplicates: Duplicates = "error",
    metadata_type: MetadataTypes = None,
    separator: Separator = None,
    decimal: Decimal = None,
    encoding: Encoding = None,
    backbone: BackboneName = "factorisation",
    adapter: Annotated[str, typer.Option(help="Method that makes the heads of new features.")] = "auto",
    meta_share: MetaShare = None,
    half_life: Annotated[
        str | None,
        typer.Option(
            help="Age at which an observation counts half: '180 days', or a number in the unit of --time.",
            show_default="never",
        ),
    ] = None,
    settings: Set = None,
    device: TrainingDevice = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same model.", min=0)] = 0,
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted fit.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Replace a model even if what was added to it since is lost.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Train a model on a table of observations.

    Example: [bold]headstart fit ratings.csv --metadata films.csv --row user --feature film --value stars
    --out films.headstart[/bold]

    Several processes train one model together, from a folder of Parquet files:
    [bold]torchrun --nproc-per-node 2 -m headstart fit ratings/ --out films.headstart[/bold]
    """
    from headstart.model.saving.folder import check_place

    with join_if_launched() as process_group:
        # Check the options before the table is read, because reading and training can take long.
        process_group.all_or_none(lambda: check_place(out))
        model = process_group.all_or_none(
            lambda: configured_model(
                backbone,
                adapter,
                settings,
                meta_share,
                seed,
                quiet=quiet,
                half_life=half_life,
                device=device,
            )
        )
        process_group.all_or_none(lambda: require_free(out, model, force=force))
        table = read_table(
            observations,
            metadata,
            (row, feature, value),
            kind,
            form,
            duplicates,
            metadata_type,
            (separator, decimal, encoding),
            quiet=quiet or not process_group.is_main,
            row_metadata=row_metadata,
            time=time,
        )
        described, rows = table.describe(), process_group.span(len(table.rows))[1]
        if not quiet and process_group.is_main:
            say(described)
        fit_and_save(model, table, out, resume=resume, force=force)
        if not quiet and process_group.is_main:
            say(f"saved {out}: {len(model.features)} features, {rows} rows")


def add(
    model: Model,
    name: Annotated[str, typer.Argument(help="Name of the new feature.", show_default=False)],
    metadata: Annotated[str | None, typer.Option(help="JSON object, or a file that contains it.")] = None,
    observations: Annotated[Path | None, Context] = None,
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

    Example: [bold]headstart add films.headstart "Dune 3" --metadata '{"genres": ["Sci-Fi"], "year": 2026}'
    --observations first_ratings.csv[/bold]
    """
    from headstart.model import Headstart
    from headstart.table.reading import read_context
    from headstart.table.sources import TextFormat

    description = _json(metadata)
    form = TextFormat(separator, decimal, encoding)
    context = read_context(observations, row, value, form) if observations is not None else None
    with Headstart.updating(model) as loaded:
        loaded.add_feature(name, metadata=description, observations=context, kind=kind)
    added = loaded.feature(name)
    if not quiet:
        say(f"added {added.name!r} ({added.kind}) with {added.shots} observations")


def suggest(
    model: Model,
    name: Annotated[str, typer.Argument(help="Name of the feature.", show_default=False)],
    n: Annotated[int, typer.Option("-n", help="Number of rows.", min=1)] = 10,
    rows: Annotated[list[str] | None, typer.Option(help=NAMES_HELP)] = None,
) -> None:
    """List the rows whose observation would improve a feature's predictions most; best first.

    Example: [bold]headstart suggest films.headstart "Dune 3" -n 5[/bold]
    """
    from headstart.model import Headstart

    loaded = Headstart.load(model)
    for row in loaded.suggest(name, read_names(rows, loaded.rows, "--rows"), n):
        typer.echo(row)


def info(model: Model) -> None:
    """Describe a saved model.

    Example: [bold]headstart info films.headstart[/bold]
    """
    from headstart.model import Headstart

    loaded = Headstart.load(model)
    fitted = loaded.fitted_
    added = [feature for feature in fitted.catalogue.values() if not feature.in_backbone]
    show_facts(
        [
            ("model", str(model)),
            *loaded.info.lines(),
            ("usual kind", str(fitted.kinds[0])),
            ("columns", fitted.schema.describe() if fitted.schema else "no metadata"),
            ("latest", ", ".join(f"{feature.name} ({feature.shots} shots)" for feature in added[-3:])),
        ]
    )


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
