"""Cells whose feature does not apply to their row, such as the age of a child of someone without children.

Such a cell has no value, as one that is only missing. The difference: its value is never predicted.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from headstart.table.missing_values import MissingCodes
from headstart.table.names import Names, as_name
from headstart.table.sources import Source


class NotApplicable:
    """An immutable set of cells. A category is one feature here.

    Parameters
    ----------
    cells : iterable of tuple
        Pairs (row, feature) of names.

    Examples
    --------
    >>> cells = NotApplicable([("ann", "child"), ("bob", "child"), ("ann", "job")])
    >>> cells.mask(["ann", "bob"], ["job", "child"])
    array([[ True,  True],
           [False,  True]])
    >>> len(cells.without([("ann", "child")])), len(cells.without_row("ann"))
    (2, 1)
    """

    def __init__(self, cells: Iterable[tuple[str, str]] = ()) -> None:
        rows: dict[str, set[str]] = {}
        for row, feature in cells:
            rows.setdefault(feature, set()).add(row)
        self._rows: Mapping[str, set[str]] = rows  # by feature

    def __len__(self) -> int:
        return sum(map(len, self._rows.values()))

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return ((row, feature) for feature, rows in self._rows.items() for row in sorted(rows))

    def __contains__(self, cell: tuple[str, str]) -> bool:
        return cell[0] in self._rows.get(cell[1], ())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NotApplicable) and self._rows == other._rows

    def __hash__(self) -> int:
        return hash(len(self))

    def rows_of(self, feature: str) -> set[str]:
        """Return the rows to which a feature does not apply."""
        return set(self._rows.get(feature, ()))

    def features_of(self, row: str) -> list[str]:
        """Return the features that do not apply to a row."""
        return [feature for feature, rows in self._rows.items() if row in rows]

    def mask(self, rows: Sequence[str], features: Sequence[str]) -> NDArray[np.bool_]:
        """Return which of these cells are in the set: (rows, features)."""
        mask = np.zeros((len(rows), len(features)), dtype=bool)
        for position, feature in enumerate(features):
            if (own := self._rows.get(feature)) is not None:
                mask[:, position] = [row in own for row in rows]
        return mask

    def without(self, cells: Iterable[tuple[str, str]]) -> NotApplicable:
        """Return the set without some ``cells``, for example because they were observed."""
        removed = NotApplicable(cell for cell in cells if cell in self)._rows
        if not removed:
            return self
        result = NotApplicable()
        left = {feature: rows - removed.get(feature, set()) for feature, rows in self._rows.items()}
        result._rows = {feature: rows for feature, rows in left.items() if rows}
        return result

    def without_row(self, row: str) -> NotApplicable:
        """Return the set without a row."""
        return self.without([(row, feature) for feature in self.features_of(row)])

    def without_feature(self, feature: str) -> NotApplicable:
        """Return the set without a feature."""
        return self.without([(row, feature) for row in self.rows_of(feature)])

    def within(self, rows: Container[str], features: Container[str]) -> NotApplicable:
        """Return the cells of these ``rows`` and ``features``."""
        return self.without([cell for cell in self if cell[0] not in rows or cell[1] not in features])

    def renamed(self, rows: Mapping[str, str], features: Mapping[str, str]) -> NotApplicable:
        """Return the set in which some ``rows`` and ``features`` have new names, given as {old: new}."""
        return NotApplicable((rows.get(row, row), features.get(name, name)) for row, name in self)

    def index(self, rows: Names, features: Names) -> NDArray[np.int32]:
        """Return the positions of the cells in ``rows`` and ``features``: (n, 2)."""
        pairs = [(rows.position(row), features.position(feature)) for row, feature in self]
        return np.array(sorted(pairs), dtype=np.int32).reshape(-1, 2)


NO_CELLS = NotApplicable()


def find_cells(
    source: Source, codes: MissingCodes, row: str, columns: Sequence[str], *, long: bool
) -> NotApplicable:
    """Return the cells of a source with one of the ``codes``.

    Parameters
    ----------
    source : Source
        The source, which is read once more; it has no missing names.
    codes : MissingCodes
        The codes that mean "not applicable".
    row : str
        The column with the names of rows.
    columns : sequence of str
        In the long form the columns of features and values, in the wide form the features.
    long : bool
        Whether the source has the long form.
    """
    cells: list[tuple[str, str]] = []
    for batch in source.batches([row, *columns], []):
        names = batch.column(0)
        for column in columns[1:] if long else columns:
            values = batch.column(column)
            is_coded = pc.and_(codes.to_null(values).is_null(), values.is_valid())
            lines = pa.array(np.flatnonzero(is_coded.to_numpy(zero_copy_only=False)))
            features = batch.column(columns[0]).take(lines).to_pylist() if long else [column] * len(lines)
            cells += [
                (as_name(name, "row"), as_name(feature, "feature"))
                for name, feature in zip(names.take(lines).to_pylist(), features, strict=True)
            ]
    return NotApplicable(cells)
