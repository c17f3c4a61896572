"""How ``headstart fit`` runs: by itself, or as one of several processes that ``torchrun`` started."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from headstart.cli.printing import say
from headstart.crew import Crew, crew
from headstart.errors import InputError
from headstart.launching import is_launched, is_restarted, working_together

if TYPE_CHECKING:
    from headstart.model import Headstart
    from headstart.table import Table


@contextmanager
def joined_crew() -> Iterator[Crew]:
    """The processes of this command: those that ``torchrun`` started, or this one alone."""
    if not is_launched():
        yield crew()
        return
    with working_together() as joined:
        yield joined


def require_free(out: Path, model: Headstart, *, force: bool) -> None:
    """Refuse, before anything is read, what several processes cannot train or would overwrite."""
    from headstart.model.saving.opening import INDEX
    from headstart.model.sharing import require_shareable

    if is_launched():
        require_shareable(model.checked_settings())
        if (out / INDEX).exists() and not force:
            raise InputError(
                f"{out} holds a model already, and under torchrun it is not known what would be lost; name "
                "another folder, or let --force replace it"
            )


def fit_and_save(model: Headstart, table: Table, out: Path, *, resume: bool, force: bool) -> None:
    """Train with a checkpoint beside the model's folder, save, and remove the checkpoint."""
    from headstart.model.checkpoint import discard, working_in
    from headstart.model.saving.replacing import require_no_loss

    resume = resume or is_restarted()
    checked = not force and not is_launched()
    if checked:
        require_no_loss(out, table)
    place = out.resolve()  # gives "." a name
    checkpoint = place.with_name(place.name + ".checkpoint")
    with _resumable(checkpoint), working_in(checkpoint):
        if crew().leads:
            _note_checkpoint(checkpoint, resume)
        model.fit(table, checkpoint=checkpoint, resume=resume)
        if checked:
            require_no_loss(out, table)  # others may have changed it in the meantime
        model.save(out)
        if crew().leads:
            discard(checkpoint)


@contextmanager
def _resumable(checkpoint: Path) -> Iterator[None]:
    """Say after Ctrl-C whether there is anything to continue with."""
    try:
        yield
    except KeyboardInterrupt:
        from headstart.model.checkpoint import is_resumable

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
