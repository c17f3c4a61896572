"""A fitted model and all that arrived since, as a function of what arrived and not of when."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from headstart.model.parts.fitted import Fitted
from headstart.model.parts.roster import RowObservations


@dataclass(frozen=True)
class LiveState:
    """One moment of a live model. It never changes: ``advanced`` gives another one.

    Heads depend on states of rows, and states of rows on heads. If each were computed from what the other
    is at the moment, the result would depend on the order of arrival, and no restart could repeat it. So
    each side reads the other as it is *kept*, and what is kept depends on nothing but the observations:

    - A row or feature of the fitted model is kept as it was fitted.
    - A row that was added is kept as the first 2ᵏ of its observations of fitted features describe it.
    - A feature that was added is kept with the head that its first 2ᵏ observations give, at kept rows.

    2ᵏ is the largest power of two that is not more than the observations there are. So what is kept is
    renewed when they double, which costs a constant time for each observation on average.

    What is *shown* (predicted) takes all observations: a feature's head is made from all of them at kept
    rows, and a row's state from all of them by kept heads.

    Attributes
    ----------
    origin : Fitted
        The model as it was loaded, without what was removed or forgotten since.
    base : Fitted
        Kept rows, and heads from all observations.
    reading : Fitted
        Kept rows and kept heads.
    shown : Fitted
        Rows and heads from all observations.
    number : int
        The number of the last change in the store that is contained.
    left_out : int
        How many observations of the store the model could not take.
    """

    origin: Fitted
    base: Fitted
    reading: Fitted
    shown: Fitted
    number: int = 0
    left_out: int = 0

    @classmethod
    def of(cls, fitted: Fitted) -> Self:
        """A model to which nothing has arrived yet."""
        return cls(fitted, fitted, fitted, fitted)

    @property
    def own_rows(self) -> int:
        """How many rows the model was loaded with; rows after them were added."""
        return len(self.origin.rows)

    @property
    def own_features(self) -> int:
        """How many features the backbone reads: their numbers come first."""
        return len(self.origin.backbone_features)

    def numbers(self, features: list[str]) -> NDArray[np.int64]:
        """The numbers of features in all catalogues."""
        return np.array([self.base.catalogue.number(name) for name in features], dtype=np.int64)

    def with_base(self, base: Fitted) -> Self:
        """Return the state with other kept rows or heads; what is read follows its rows."""
        reading = replace(
            self.reading,
            roster=base.roster,
            knowledge=base.knowledge,
            adapter=base.adapter,
            row_metadata=base.row_metadata,
        )
        return replace(self, base=base, reading=reading, shown=replace(base, roster=self.shown.roster))


NOTHING = RowObservations(np.zeros(0, np.int64), np.zeros(0))


def power_of_two(count: int) -> int:
    """The largest power of two that is not more than a count; 0 of 0."""
    return 1 << (count.bit_length() - 1) if count else 0


def kept_keys(
    everything: NDArray[np.int64], kept: NDArray[np.int64], arriving: NDArray[np.int64]
) -> NDArray[np.int64] | None:
    """Which observations are kept after more arrive; None if they are the same as before.

    Parameters
    ----------
    everything : ndarray of shape (n,)
        The keys of all observations before, in any order.
    kept : ndarray of shape (m,)
        Those that are kept, where m is the power of two for n.
    arriving : ndarray of shape (k,)
        The keys that arrive, in order; those that are known already are corrections.
    """
    fresh = arriving[~np.isin(arriving, everything)]
    count = len(everything) + len(fresh)
    most = power_of_two(count)
    if most == len(kept):
        return None
    # The next power of two is more than there were before: so all of these are among the first.
    return np.concatenate([everything, fresh[: most - len(everything)]])
