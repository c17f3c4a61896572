"""Observations by names, brought to the rows and features of a live model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headstart.model.parts.feature import Feature
from headstart.model.parts.fitted import Fitted
from headstart.service.live.delta import Cell
from headstart.table import Kinds
from headstart.table.limits import LARGEST


@dataclass(frozen=True)
class Taken:
    """Observations that a model can take, in the order of their arrival.

    Attributes
    ----------
    rows : ndarray of shape (n,)
        The positions of rows.
    places : ndarray of shape (n,)
        The positions of features in ``features``.
    values : ndarray of shape (n,)
        In the data's own units.
    features : list of Feature
        The features in them, as they were before.
    left_out : int
        How many observations could not be taken.
    """

    rows: NDArray[np.int64]
    places: NDArray[np.int64]
    values: NDArray[np.float64]
    features: list[Feature]
    left_out: int

    def by_feature(self) -> list[tuple[Feature, NDArray[np.int64], NDArray[np.float64]]]:
        """Each feature with its rows and values, in the order of their arrival."""
        order = np.argsort(self.places, kind="stable")
        ends = np.cumsum(np.bincount(self.places, minlength=len(self.features)))[:-1]
        rows, values = np.split(self.rows[order], ends), np.split(self.values[order], ends)
        return list(zip(self.features, rows, values, strict=False))  # one empty part of no features


def taken(
    fitted: Fitted, new_rows: Mapping[str, int], new: Mapping[str, Feature], cells: Sequence[Cell]
) -> Taken:
    """Leave out what the model cannot take.

    Parameters
    ----------
    fitted : Fitted
        The model before.
    new_rows : mapping of str to int
        The positions of rows that are about to be added.
    new : mapping of str to Feature
        Features that are about to be added.
    cells : sequence of Cell
        Observations, each cell once.
    """
    catalogue = fitted.catalogue
    known_rows = fitted.rows
    at = {row: new_rows.get(row, -1) for row in {cell.row for cell in cells}}
    at |= {row: known_rows.position(row) for row in at if row in known_rows}

    places: dict[str, int] = {}
    features: list[Feature] = []
    for name in dict.fromkeys(cell.feature for cell in cells):
        found = new.get(name) or (catalogue[name] if name in catalogue else None)  # noqa: SIM401
        places[name] = -1 if found is None else len(features)
        if found is not None:
            features.append(found)
    positions = np.array([at[cell.row] for cell in cells], dtype=np.int64)
    columns = np.array([places[cell.feature] for cell in cells], dtype=np.int64)
    numbers = np.array([cell.value for cell in cells], dtype=np.float64)
    fine = (positions >= 0) & (columns >= 0)
    positions, columns, numbers = positions[fine], columns[fine], numbers[fine]
    if len(numbers):
        kinds = Kinds([feature.kind for feature in features])
        possible = ~kinds.impossible(numbers, columns)
        possible &= np.abs(kinds.scale(numbers, columns)) <= LARGEST
        positions, columns, numbers = positions[possible], columns[possible], numbers[possible]
    left_out = len(cells) - len(numbers)
    return Taken(positions, columns, numbers, features, left_out)
