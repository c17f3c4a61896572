"""Parts of a table."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headstart.errors import InputError, listed
from headstart.table.compact import taken
from headstart.table.numbers import TableNumbers
from headstart.table.sorting import sort_observations


class TableSlices(TableNumbers):
    """A table from which others are taken."""

    def with_features(self, features: Iterable[object]) -> Self:
        """Return a table of some features only. All rows stay.

        Parameters
        ----------
        features : iterable of names or ndarray
            The names of the features, or an array of positions (integers), or a mask (booleans).

        Returns
        -------
        Table
            The table of these features in this order.

        Raises
        ------
        InputError
            If a feature is unknown or listed twice.

        Examples
        --------
        >>> import pyarrow as pa
        >>> from headstart.table import Table
        >>> table = Table.read(pa.table({"row": ["a", "b"], "feature": ["x", "y"], "value": [1, 5]}))
        >>> table.with_features(["y"]).shape
        (2, 1)
        """
        positions = self._positions(features)
        if np.array_equal(positions, np.arange(len(self.features))):
            return self  # a table never changes, so that nothing needs to be copied
        new_positions = np.full(len(self.features), -1, np.int32)
        new_positions[positions] = np.arange(len(positions), dtype=np.int32)
        unique, counts = np.unique(positions, return_counts=True)
        if len(unique) < len(positions):
            repeated = self.features.take(unique[counts > 1])
            raise InputError(f"features listed twice: {listed(repeated)}; list each feature once")
        moved = taken(new_positions, self.feature_index)
        kept = moved >= 0
        shape = len(self.rows), len(positions)
        times, weights = (None if part is None else part[kept] for part in (self.times, self.weights))
        ordered = sort_observations(
            self.row_index[kept], moved[kept], self.values[kept], shape, times, weights
        )
        table = replace(
            self,
            features=self.features.take(positions),
            kinds=self.kinds.take(positions),
            **ordered._asdict(),
            metadata=None if self.metadata is None else self.metadata.take(pa.array(positions)),
        )
        if "_vectors" in self.__dict__:
            table.__dict__["_vectors"] = {name: array[positions] for name, array in self._vectors.items()}
        return table

    def without_features(self, features: Iterable[object]) -> Self:
        """Return a table without some features. All rows stay.

        Parameters
        ----------
        features : iterable of names or ndarray
            The features to remove, as in ``with_features``.

        Returns
        -------
        Table
            The table of all other features, in their order.

        Raises
        ------
        InputError
            If a feature is unknown.

        Examples
        --------
        >>> import pyarrow as pa
        >>> from headstart.table import Table
        >>> table = Table.read(pa.table({"row": ["a", "b"], "feature": ["x", "y"], "value": [1, 5]}))
        >>> list(table.without_features(["y"]).features)
        ['x']
        """
        mask = np.full(len(self.features), True)
        mask[self._positions(features)] = False
        return self.with_features(mask)

    def observations_of(self, feature: object) -> dict[str, float]:
        """Return the observations of one feature.

        Parameters
        ----------
        feature : str or int
            The name of the feature.

        Returns
        -------
        dict of str to float
            The observed values as {row: value}, in the data's own units.

        Raises
        ------
        UnknownNameError
            If there is no such feature.

        Examples
        --------
        >>> import pyarrow as pa
        >>> from headstart.table import Table
        >>> table = Table.read(pa.table({"row": ["a", "b"], "feature": ["x", "y"], "value": [1, 5]}))
        >>> table.observations_of("y")
        {'b': 5.0}
        """
        positions = np.flatnonzero(self.feature_index == self.features.position(feature))
        names = (self.rows[i] for i in self.row_index[positions])
        return dict(zip(names, self.values[positions].tolist(), strict=True))

    def _positions(self, features: Iterable[object]) -> NDArray[np.int64]:
        if isinstance(features, str):
            raise InputError(f"features must be a list of names; got the text {features!r}")
        if not isinstance(features, np.ndarray) or features.dtype.kind not in "biu":
            return self.features.positions(features)
        try:
            return np.arange(len(self.features))[features]
        except IndexError as error:
            raise InputError(
                f"positions do not fit a table of {len(self.features)} features: {error}"
            ) from None
