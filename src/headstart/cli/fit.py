"""Commands that train a model: fit and refit, in one process or in several that ``torchrun`` started."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headstart.cli.options import (
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
    read_table,
)
from headstart.cli.output import notes, say
from headstart.distributed import ProcessGroup, is_launched, is_restarted, join_processes, process_group
from headstart.errors import InputError

if TYPE_CHECKING:
    from headstart.model import Headstart
    from headstart.table import Table


@contextmanager
def join_if_launched() -> Iterator[ProcessGroup]:
    """Join the processes that ``torchrun`` started, or yield this process alone."""
    if not is_launched():
        yield process_group()
        return
    with join_processes() as joined:
        yield joined


def require_free(out: Path, model: Headstart, *, force: bool) -> None:
    """Refuse a model that several processes cannot train, and a folder that they would overwrite."""
    from headstart.model.fitting import require_shardable
    from headstart.model.saving.loading import INDEX

    if is_launched():
        require_shardable(model.checked_settings())
        if (out / INDEX).exists() and not force:
            raise InputError(
                f"{out} holds a model already, and under torchrun it is not known what would be lost; name "
                "another folder, or let --force replace it"
            )


def fit_and_save(model: Headstart, table: Table, out: Path, *, resume: bool, force: bool) -> None:
    """Train with a checkpoint beside the model's folder, save, and remove the checkpoint."""
    from headstart.model.fitting import discard_checkpoint, lock_checkpoint
    from headstart.model.saving.folder import require_no_loss

    resume = resume or is_restarted()
    checked = not force and not is_launched()
    if checked:
        require_no_loss(out, table)
    folder = out.resolve()  # gives "." a name
    checkpoint = folder.with_name(folder.name + ".checkpoint")
    with _resumable(checkpoint), lock_checkpoint(checkpoint):
        if process_group().is_main:
            _note_checkpoint(checkpoint, resume)
        model.fit(table, checkpoint=checkpoint, resume=resume)
        if checked:
            require_no_loss(out, table)  # others may have changed it in the meantime
        model.save(out)
        if process_group().is_main:
            discard_checkpoint(checkpoint)


@contextmanager
def _resumable(checkpoint: Path) -> Iterator[None]:
    """Say after Ctrl-C whether the fit can be resumed."""
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
    """Say what happens to the checkpoint of an interrupted fit, because it may be deleted."""
    interrupted = (checkpoint / "fit.json").exists()
    if interrupted and not resume:
        say(f"note: starting from scratch; the interrupted fit in {checkpoint} is deleted", stderr=True)
    if resume and not interrupted:
        say(f"note: starting from scratch; there is no interrupted fit in {checkpoint}", stderr=True)


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
        bool, typer.Option("--force", help="Replace a model even if observations added to it since are lost.")
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


def refit(
    model: Model,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Folder for the new model. By default the old one is replaced."),
    ] = None,
    device: TrainingDevice = None,
    quiet: Quiet = False,
) -> None:
    """Fit a model again on all its observations, with the same settings and names.

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
        with Headstart.updating(model) as loaded, notes():  # other changes wait, so that none is lost
            loaded.set_params(quiet=quiet, device=device)
            loaded.refit()
    if not quiet:
        say(f"fitted {out or model}: {len(loaded.features)} features, {len(loaded.rows)} rows")
