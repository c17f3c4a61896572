"""What rows' states rest on, in a saved model: by positions of rows and features there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from headstart.core.states import RowStates
from headstart.model.catalogue import Catalogue
from headstart.model.fitted import Fitted
from headstart.model.roster import Roster, Told
from headstart.model.row_cells import RowCells
from headstart.table import Names

if TYPE_CHECKING:
    from headstart.model.format import ModelFacts


def told_tensors(fitted: Fitted) -> dict[str, Tensor]:
    """The observations of rows whose states rest on others than the table's; none if there are no such."""
    rows = fitted.roster.told_rows
    if not rows:
        return {}
    told = [fitted.roster.told(row) for row in rows]
    cells = RowCells.of([each for each in told if each is not None])
    position = np.full(len(fitted.catalogue.slots_by_number(slice(None))), -1)
    position[[fitted.catalogue.number(name) for name in fitted.catalogue]] = np.arange(len(fitted.catalogue))
    features = position[cells.numbers]
    kept = features >= 0  # of features that are no longer there nothing is left
    lines = np.repeat(np.arange(len(rows)), cells.counts)[kept]
    order = np.lexsort((features[kept], lines))
    return {
        "told/rows": torch.tensor(rows, dtype=torch.int64),
        "told/counts": torch.from_numpy(np.bincount(lines, minlength=len(rows))),
        "told/features": torch.from_numpy(features[kept][order]),
        "told/values": torch.from_numpy(cells.values[kept][order]),
    }


def roster_from(
    facts: ModelFacts, states: RowStates, told: dict[str, Tensor] | None, catalogue: Catalogue
) -> Roster:
    """The rows of a saved model."""
    roster = Roster(Names(facts.rows, "row"), states)
    if told is None:
        return roster
    numbers = np.array([catalogue.number(name) for name in facts.features.names], dtype=np.int64)
    counts, features = told["counts"].tolist(), torch.split(told["features"], told["counts"].tolist())
    values = torch.split(told["values"], counts)
    held = {}
    for row, own, given in zip(told["rows"].tolist(), features, values, strict=True):
        mine = numbers[own.numpy()]
        order = np.argsort(mine)
        held[row] = Told(mine[order], given.numpy()[order])
    return roster.told_anew(held)


def tells(told: dict[str, Tensor], rows: int, features: int) -> bool:
    """Whether rows are told of known features, each row and each of its features once, in order."""
    if len(told["counts"]) != len(told["rows"]) or bool((told["counts"] < 0).any()):
        return False
    lines = torch.repeat_interleave(told["rows"], told["counts"])
    within = all(
        bool(((told[name] >= 0) & (told[name] < limit)).all())
        for name, limit in (("rows", rows), ("features", features))
    )
    if not within or not len(lines) == len(told["features"]) == len(told["values"]):
        return False
    keys = lines * max(1, features) + told["features"]
    return all(bool((numbers.diff() > 0).all()) for numbers in (told["rows"], keys))
