"""A table as numbers that models read."""

from __future__ import annotations

from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.table.cells import Cells
from headstart.table.compact import Positions, parts_of
from headstart.table.data import TableData
from headstart.table.limits import require_carried

Number = TypeVar("Number", bound=np.floating[Any])


class TableNumbers(TableData):
    """A table whose observations and metadata are read as numbers."""

    def cells(self) -> Cells:
        """Return the observations as sparse tensors, the input of models.

        Returns
        -------
        Cells
            One line per row, with positions of features and values on the models' scale.

        Raises
        ------
        InputError
            If a value is too large to compute with.

        Examples
        --------
        >>> import pyarrow as pa
        >>> from headstart.table import Table
        >>> table = Table.read(pa.table({"row": ["a", "b"], "feature": ["x", "y"], "value": [1, 5]}))
        >>> table.cells().values
        tensor([0., 1.])
        """
        values = np.empty(len(self), np.float32)
        for part in parts_of(len(self)):  # in between, numbers are in double precision
            scaled = self.kinds.scale(self.values[part], self.feature_index[part])
            require_carried(self.values[part], scaled, lambda i, start=part.start: self._where(start + i))  # type: ignore[misc]
            with np.errstate(over="ignore"):
                values[part] = scaled
        weights = None if self.weights is None else torch.from_numpy(self.weights).float()
        return Cells(
            torch.from_numpy(self.starts),
            _shared(self.feature_index),
            torch.from_numpy(values),
            len(self.features),
            weights,
        )

    @property
    def starts(self) -> NDArray[np.int64]:
        """Where the observations of each row begin, and the last ones end: (rows + 1,)."""
        every = np.arange(len(self.rows) + 1, dtype=np.int32)  # of another type, all positions were copied
        return np.searchsorted(self.row_index, every).astype(np.int64)

    def by_feature(self, numbers: NDArray[Number]) -> tuple[Positions, NDArray[Number]]:
        """Return the rows of the observations, and numbers of them (n,), sorted by (feature, row)."""
        from scipy.sparse import csr_array  # imported here: few uses of the package need SciPy

        columns = csr_array((numbers, self.feature_index, self.starts), shape=self.shape).tocsc()
        return columns.indices, columns.data

    def _where(self, observation: int) -> str:
        row, feature = self.row_index[observation], self.feature_index[observation]
        return f"row {self.rows[row]!r}, feature {self.features[feature]!r}"

    def encoded_metadata(self) -> NDArray[np.float32]:
        """Return each feature's metadata as numbers: (features, width); width 0 without metadata."""
        if self.metadata is None or self.schema is None:
            return np.zeros((len(self.features), 0), np.float32)
        return self.schema.encode_table(self.metadata, self.encoders, self._vectors)

    def encoded_row_metadata(self) -> NDArray[np.float32]:
        """Return each row's metadata as numbers: (rows, width); width 0 without row metadata."""
        if self.row_metadata is None or self.row_schema is None:
            return np.zeros((len(self.rows), 0), np.float32)
        return self.row_schema.encode_table(self.row_metadata)

    @cached_property
    def _vectors(self) -> dict[str, NDArray[np.float32]]:
        """The metadata columns that an encoder encodes, once: (features, width) each."""
        if self.metadata is None or self.schema is None:
            return {}
        return self.schema.vectors(self.metadata, self.encoders)


def _shared(index: Positions) -> Tensor:
    """The index of a table as a tensor on the same memory: neither a table nor cells are ever written to."""
    view = index.view()
    try:
        view.flags.writeable = True  # PyTorch warns of memory that may not be written to
    except ValueError:  # it belongs to someone else, as that of a file that is mapped
        view = index.copy()
    return torch.from_numpy(view)
