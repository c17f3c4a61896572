"""What recommend and audience return: names in order, each with its prediction."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headstart.model.asking.scoring import By


class Ranked(NamedTuple):
    """One line of a ranking, in the data's own units."""

    name: str
    score: float
    mean: float
    low: float
    high: float


@dataclass(frozen=True, eq=False)
class Ranking:
    """Features for one row, or rows for one feature, best first.

    Iterating gives ``Ranked`` lines; ``names`` are the names alone. Equal scores are in the order of the
    model's own features or rows.

    Attributes
    ----------
    of : str
        The row that features were ranked for, or the feature that rows were ranked for.
    noun : str
        What is ranked: ``"feature"`` or ``"row"``.
    by : str
        What the ranking goes by: ``"mean"``, ``"upper"`` or ``"information"``.
    names : tuple of str
        The names, best first.
    score : ndarray of shape (n,)
        What was compared. By mean and upper it is in the data's units, or on the models' scale where kinds
        are mixed, and not cut off at a rating's ends. By information it is by how much the mean variance of
        predictions falls, on the models' scale.
    mean, std, low, high : ndarray of shape (n,)
        The predictions and their intervals, as ``predict`` gives them.
    level : float
        The probability that an interval contains the value.
    """

    of: str
    noun: str
    by: By
    names: tuple[str, ...]
    score: NDArray[np.float64]
    mean: NDArray[np.float64]
    std: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    level: float

    def __len__(self) -> int:
        return len(self.names)

    def __iter__(self) -> Iterator[Ranked]:
        numbers = (array.tolist() for array in (self.score, self.mean, self.low, self.high))
        return map(Ranked._make, zip(self.names, *numbers, strict=True))

    def __getitem__(self, place: int) -> Ranked:
        numbers = (array[place].item() for array in (self.score, self.mean, self.low, self.high))
        return Ranked(self.names[place], *numbers)

    def to_arrow(self) -> pa.Table:
        """One line per name: its name, score, mean, std, low and high."""
        columns = {"score": self.score, "mean": self.mean, "std": self.std, "low": self.low}
        return pa.table({self.noun: pa.array(self.names, pa.string()), **columns, "high": self.high})

    def to_pandas(self) -> Any:
        """The same as a pandas frame; pandas must be installed."""
        return self.to_arrow().to_pandas()

    def __repr__(self) -> str:
        other = "row" if self.noun == "feature" else "feature"
        title = f"{len(self)} {self.noun}s for {other} {self.of!r}, by {self.by}"
        width = max((len(name) for name in self.names), default=0)
        lines = [
            f"{place:>3}  {each.name:<{width}}  {each.mean:.4g}  ({each.low:.4g} – {each.high:.4g})"
            for place, each in enumerate(self, start=1)
        ]
        return "\n".join([title, *lines])
