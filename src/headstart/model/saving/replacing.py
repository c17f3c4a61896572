"""What is lost if a model is replaced by one fitted anew."""

from __future__ import annotations

from pathlib import Path

import torch

from headstart.errors import InputError, ModelFileError, listed
from headstart.model.saving import opening
from headstart.model.saving.exporting import table_of
from headstart.table import Table


def require_no_loss(path: Path, table: Table) -> None:
    """Refuse to replace a saved model that has been given more since its fit than ``table`` has.

    Raises
    ------
    InputError
        If features, rows or observations would be lost, or if the model there cannot be read; the message
        says which.
    """
    if not (path / opening.INDEX).exists():
        return
    try:
        lost = lost_without(path, table)
    except ModelFileError as error:
        raise InputError(
            f"{path} holds a model that cannot be read, so it is not known what would be lost: {error}; "
            "--force replaces it"
        ) from None
    if lost:
        raise InputError(
            f"{path} holds a model that has been given since its fit what is not in this table: "
            f"{' and '.join(lost)}; name another folder, add them to the table, or let --force drop them"
        )


def lost_without(path: Path, table: Table) -> list[str]:
    """What a saved model has been given since its fit that is not in a table, in words."""
    fitted = opening.load(path)
    known, lost = set(fitted.backbone_features), []
    features = [name for name in fitted.catalogue if name not in known and name not in table.features]
    if features:
        lost.append(f"{len(features)} features ({listed(features, 3)})")
    added = list(fitted.rows)[len(fitted.knowledge.cells) :]
    rows = [name for name in added if name not in table.rows]
    if rows:
        lost.append(f"{len(rows)} rows ({listed(rows, 3)})")
    fitted_on = torch.bincount(fitted.knowledge.cells.index, minlength=len(known)).tolist()
    held = table_of(fitted, metadata=False)  # what rows observed, too
    held_counts, counts = held.counts, table.counts
    observations = 0
    for name, count in zip(fitted.backbone_features, fitted_on, strict=True):
        if name in fitted.catalogue:
            has = int(held_counts[held.features.position(name)])
            there = int(counts[table.features.position(name)]) if name in table.features else 0
            observations += max(0, has - max(count, there))
    if observations:
        lost.append(f"{observations} observations")
    return lost
