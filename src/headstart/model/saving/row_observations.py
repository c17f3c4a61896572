"""What rows' states rest on, in a saved model: by positions of rows and features there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.core.states import RowStates
from headstart.model.parts.catalogue import Catalogue
from headstart.model.parts.fitted import Fitted
from headstart.model.parts.roster import Roster, RowObservations
from headstart.model.parts.row_cells import RowCells
from headstart.table import Names

if TYPE_CHECKING:
    from headstart.model.saving.format import ModelFacts


def row_observation_tensors(fitted: Fitted) -> dict[str, Tensor]:
    """The observations of rows whose states rest on others than the table's; none if there are no such."""
    rows = fitted.roster.observed_rows
    if not rows:
        return {}
    observations = [fitted.roster.observations(row) for row in rows]
    cells = RowCells.of([each for each in observations if each is not None])
    position = np.full(len(fitted.catalogue.slots_by_number(slice(None))), -1)
    position[[fitted.catalogue.number(name) for name in fitted.catalogue]] = np.arange(len(fitted.catalogue))
    features = position[cells.numbers]
    kept = features >= 0  # of features that are no longer there nothing is left
    lines = np.repeat(np.arange(len(rows)), cells.counts)[kept]
    order = np.lexsort((features[kept], lines))
    aging = {}
    if cells.times is not None:
        now = [each.now for each in observations if each is not None and each.now is not None]
        aging = {
            "row_observations/times": torch.from_numpy(cells.times[kept][order]),
            "row_observations/now": torch.tensor(now, dtype=torch.float64),
        }
    return {
        **aging,
        "row_observations/rows": torch.tensor(rows, dtype=torch.int64),
        "row_observations/counts": torch.from_numpy(np.bincount(lines, minlength=len(rows))),
        "row_observations/features": torch.from_numpy(features[kept][order]),
        "row_observations/values": torch.from_numpy(cells.values[kept][order]),
    }


def roster_from(
    facts: ModelFacts, states: RowStates, observations: dict[str, Tensor] | None, catalogue: Catalogue
) -> Roster:
    """The rows of a saved model."""
    roster = Roster(Names(facts.rows, "row"), states)
    if observations is None:
        return roster
    numbers = np.array([catalogue.number(name) for name in facts.features.names], dtype=np.int64)
    return roster.with_observations(held_observations(observations, numbers))


def held_observations(
    observations: dict[str, Tensor], numbers: NDArray[np.int64]
) -> dict[int, RowObservations]:
    """What rows' states rest on, by row, given the numbers of the features."""
    counts, features = (
        observations["counts"].tolist(),
        torch.split(observations["features"], observations["counts"].tolist()),
    )
    values = torch.split(observations["values"], counts)
    times = torch.split(observations["times"], counts) if "times" in observations else [None] * len(counts)
    now = observations["now"].tolist() if "now" in observations else [None] * len(counts)
    held = {}
    every = zip(observations["rows"].tolist(), features, values, times, now, strict=True)
    for row, own, given, when, at in every:
        mine = numbers[own.numpy()]
        order = np.argsort(mine)
        held[row] = RowObservations(
            mine[order], given.numpy()[order], None if when is None else when.numpy()[order], at
        )
    return held


def are_consistent(observations: dict[str, Tensor], rows: int, features: int) -> bool:
    """Whether rows observed known features, each row and each of its features once, in order."""
    if len(observations["counts"]) != len(observations["rows"]) or bool((observations["counts"] < 0).any()):
        return False
    lines = torch.repeat_interleave(observations["rows"], observations["counts"])
    within = all(
        bool(((observations[name] >= 0) & (observations[name] < limit)).all())
        for name, limit in (("rows", rows), ("features", features))
    )
    if not within or not len(lines) == len(observations["features"]) == len(observations["values"]):
        return False
    if "times" in observations and (
        len(observations["times"]) != len(lines)
        or len(observations.get("now", ())) != len(observations["rows"])
    ):
        return False
    keys = lines * max(1, features) + observations["features"]
    return all(bool((numbers.diff() > 0).all()) for numbers in (observations["rows"], keys))
