"""Commands that train a model: fit and refit, in one process or in several that ``torchrun`` started."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headstart.cli.options import (
    BackboneName,
    Metadata,
    MetadataTypes,
    MetaShare,
    Model,
    Observations,
    Quiet,
    TableOptions,
)
from headstart.cli.output import print_surprises, say
from headstart.distributed import ProcessGroup, is_launched, is_restarted, join_processes, process_group
from headstart.errors import InputError, did_you_mean

if TYPE_CHECKING:
    from headstart.model import Headstart
    from headstart.table import Table

Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="SECTION.NAME=VALUE",
        help="A setting of the backbone, adapter, pretraining or metatraining, such as "
        "metatraining.epochs=20 or backbone.latent=16. Can be repeated.",
    ),
]

TimeColumn = Annotated[
    str | None,
    typer.Option("--time", help="Column that says when an observation was made: numbers or dates."),
]

RowMetadata = Annotated[
    Path | None, typer.Option("--row-metadata", help="CSV or Parquet file of metadata, one line per row.")
]

TrainingDevice = Annotated[
    str | None,
    typer.Option(
        "--device",
        help="Where training is computed: cpu, cuda, or cuda:1 and so on. The model can be used without it.",
        show_default="cpu",
    ),
]


def fit(
    observations: Observations,
    out: Annotated[Path, typer.Option("--out", help="Folder to save the model to.")],
    *,
    metadata: Metadata = None,
    row_metadata: RowMetadata = None,
    metadata_type: MetadataTypes = None,
    time: TimeColumn = None,
    reading: TableOptions,
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

    with _join_if_launched() as group:
        # Check the options before the table is read, because reading and training can take long.
        group.all_or_none(lambda: check_place(out))
        model = group.all_or_none(
            lambda: _create_model(
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
        group.all_or_none(lambda: _require_free(out, model, force=force))
        table = reading.read(
            observations,
            quiet=quiet or not group.is_main,
            metadata=metadata,
            metadata_types=metadata_type,
            row_metadata=row_metadata,
            time=time,
        )
        description, rows = table.describe(), group.span(len(table.rows))[1]
        if not quiet and group.is_main:
            say(description)
        _fit_and_save(model, table, out, resume=resume, force=force)
        if not quiet and group.is_main:
            say(f"saved {out}: {_sizes(model, rows)}")


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
        with print_surprises():
            loaded.refit().save(out)
    else:
        with Headstart.updating(model) as loaded, print_surprises():  # other changes wait: none is lost
            loaded.set_params(quiet=quiet, device=device)
            loaded.refit()
    if not quiet:
        say(f"fitted {out or model}: {_sizes(loaded, len(loaded.rows))}")


def _sizes(model: Headstart, rows: int) -> str:
    """Return the numbers of features and rows, in the words of the model."""
    from headstart.display import count

    return f"{count(len(model.features), model.words.feature)}, {count(rows, model.words.row)}"


_SECTIONS = ("backbone", "adapter", "pretraining", "metatraining")


def read_settings(texts: list[str] | None) -> dict[str, dict[str, Any]]:
    """Return the settings by section. A value is JSON, or text if it is not valid JSON.

    >>> read_settings(["metatraining.epochs=20", "metatraining.shots=log"])["metatraining"]
    {'epochs': 20, 'shots': 'log'}
    """
    settings: dict[str, dict[str, Any]] = {section: {} for section in _SECTIONS}
    for text in texts or []:
        key, equals, value = text.partition("=")
        section, dot, name = key.strip().partition(".")
        if not (equals and dot and name and value.strip()):
            raise InputError(
                f"--set must be SECTION.NAME=VALUE, such as metatraining.epochs=20; got {text!r}"
            )
        if section not in settings:
            hint = did_you_mean(section, _SECTIONS) or f"; there are {', '.join(_SECTIONS)}"
            raise InputError(f"--set: there is no section {section!r}{hint}")
        if name in settings[section]:
            raise InputError(f"--set gives {section}.{name} twice; keep one")
        try:
            settings[section][name] = json.loads(value)
        except json.JSONDecodeError:
            settings[section][name] = value.strip()
    return settings


def _create_model(
    backbone: str,
    adapter: str,
    settings: list[str] | None,
    meta_share: float | None,
    seed: int,
    *,
    quiet: bool,
    half_life: str | None,
    device: str | None,
) -> Headstart:
    """Check the options of training, and return a model that is not fitted yet."""
    from headstart.adapters.base import adapter_config
    from headstart.backbones.base import backbone_config
    from headstart.core.devices import training_device
    from headstart.model import Headstart
    from headstart.model.state import Settings
    from headstart.table.times import half_life_of
    from headstart.training.meta_training import MetaTrainingConfig
    from headstart.training.pretraining import PretrainingConfig
    from headstart.training.recipe import AUTO

    sections = read_settings(settings)
    training_device(device)
    if adapter == AUTO and sections["adapter"]:
        raise InputError(
            "--set adapter.… goes with an adapter of your choice, as --adapter chn; not with auto"
        )
    checked = Settings(
        backbone=backbone_config(backbone).revised(**sections["backbone"]),
        adapter=AUTO if adapter == AUTO else adapter_config(adapter, seed).revised(**sections["adapter"]),
        pretraining=PretrainingConfig.of(sections["pretraining"]),
        metatraining=MetaTrainingConfig.of(sections["metatraining"]),
        meta_share=meta_share,
        random_state=seed,
        half_life=half_life_of(half_life),
    )
    return Headstart(
        checked.backbone,
        checked.adapter,
        checked.pretraining,
        checked.metatraining,
        meta_share=meta_share,
        random_state=seed,
        quiet=quiet,
        half_life=checked.half_life,
        device=device,
    )


@contextmanager
def _join_if_launched() -> Iterator[ProcessGroup]:
    """Join the processes that ``torchrun`` started, or yield this process alone."""
    if not is_launched():
        yield process_group()
        return
    with join_processes() as joined:
        yield joined


def _require_free(out: Path, model: Headstart, *, force: bool) -> None:
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


def _fit_and_save(model: Headstart, table: Table, out: Path, *, resume: bool, force: bool) -> None:
    """Train with a checkpoint beside the model's folder, save, and remove the checkpoint."""
    from headstart.adapters.base import ADAPTERS
    from headstart.backbones.base import BACKBONES
    from headstart.model.fitting import discard_checkpoint, lock_checkpoint
    from headstart.model.saving.folder import require_no_loss

    # Imported before the fit can be interrupted: pydantic reports Ctrl-C during an import as another error.
    ADAPTERS.parts()
    BACKBONES.parts()
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
