"""What changes between two moments of a live model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Cell(NamedTuple):
    """One observation, by names."""

    row: str
    feature: str
    value: float


@dataclass(frozen=True)
class Delta:
    """Changes in the order in which they are applied: what goes, then what comes, then observations.

    Attributes
    ----------
    lost_features, lost_rows : list of str
        Features to remove and rows to forget; names that are not there are passed over.
    features : dict
        ``{name: {"metadata": …, "kind": …}}`` of new features.
    rows : dict
        ``{name: metadata}`` of new rows; the metadata may be None.
    cells : list of Cell
        Observations in the order of their first arrival, each cell once, with its latest value.
    """

    lost_features: Sequence[str] = ()
    lost_rows: Sequence[str] = ()
    features: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    rows: Mapping[str, Mapping[str, Any] | None] = field(default_factory=dict)
    cells: Sequence[Cell] = ()

    def __bool__(self) -> bool:
        return bool(self.lost_features or self.lost_rows or self.features or self.rows or self.cells)


# The observations that arrived of these features, or of these rows, in the order of their first arrival.
Arrivals = Callable[[Sequence[str], Sequence[str]], list[Cell]]
