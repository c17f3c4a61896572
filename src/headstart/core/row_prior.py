"""What the metadata of rows says of them before they have observed anything."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from headstart.core.description import bent


@dataclass(frozen=True)
class RowBelief:
    """What is believed of some rows beside what their backbone believes of every row."""

    shift: Tensor  # (rows, width): added to the prior mean of a row's activation
    covariance: Tensor  # (width, width): of activations around that

    def take(self, rows: Tensor) -> RowBelief:
        """Return what is believed of these rows."""
        return RowBelief(self.shift[rows], self.covariance)

    def double(self) -> RowBelief:
        """The same in double precision."""
        return RowBelief(self.shift.double(), self.covariance.double())


@dataclass(frozen=True)
class RowPrior:
    """A regression of rows' activations on the columns of their metadata that tell something."""

    matrix: Tensor  # (columns with bends, width)
    constant: Tensor  # (width,)
    covariance: Tensor  # (width, width)
    bends: Tensor  # (columns,): mask of the columns that may matter other than by a straight line
    gains: Tensor  # (metadata columns,): the share of the error that each removes; 0 if it is not used

    def belief(self, encoded: Tensor) -> RowBelief:
        """What the metadata (rows, columns) says of rows."""
        return RowBelief(bent(encoded, self.bends) @ self.matrix + self.constant, self.covariance)
