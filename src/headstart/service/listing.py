"""Features as lists and pages show them."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from headstart.algebra.symmetric import weighted_traces
from headstart.core.moments import second_moment
from headstart.model.parts.fitted import Fitted
from headstart.table.kinds import KindType

Sort = Literal["added", "name", "shots", "uncertainty"]
_AT_ONCE = 1 << 14


@dataclass(frozen=True)
class FeatureIndex:
    """All features of one moment of a model, to be searched, sorted and paged.

    Parameters
    ----------
    fitted : Fitted
        The model.
    """

    fitted: Fitted

    @cached_property
    def names(self) -> list[str]:
        """The names, in the order in which the features came."""
        return list(self.fitted.catalogue)

    @cached_property
    def _folded(self) -> list[str]:
        return [name.casefold() for name in self.names]

    @cached_property
    def _slots(self) -> NDArray[np.int64]:
        listing = self.fitted.catalogue.listing
        return listing.present[np.argsort(listing.places[listing.present], kind="stable")]

    @cached_property
    def shots(self) -> NDArray[np.int64]:
        """How many observations each head rests on."""
        return self.fitted.catalogue.listing.shots[self._slots]

    @cached_property
    def uncertainty(self) -> NDArray[np.float64]:
        """``uncertainty_of`` of all features."""
        return self.uncertainty_of(np.arange(len(self.names)))

    @cached_property
    def _places(self) -> dict[str, int]:
        return {name: place for place, name in enumerate(self.names)}

    def place(self, name: str) -> int:
        """The place of a feature among all."""
        return self._places[name]

    def find(self, text: str, sort: Sort, *, descending: bool) -> NDArray[np.int64]:
        """The places of features whose names contain a text, sorted."""
        folded = text.casefold().strip()
        places = np.arange(len(self.names))
        if folded:
            places = np.array([i for i, name in enumerate(self._folded) if folded in name], dtype=np.int64)
        if sort == "name":
            order = np.array(
                sorted(range(len(places)), key=lambda i: self._folded[places[i]]), dtype=np.int64
            )
        elif sort == "added":
            order = np.arange(len(places))
        else:
            keys = self.shots[places] if sort == "shots" else np.nan_to_num(self.uncertainty[places])
            order = np.argsort(-keys if descending else keys, kind="stable")
            return places[order]
        return places[order[::-1] if descending else order]

    @torch.no_grad()
    def uncertainty_of(self, places: NDArray[np.int64]) -> NDArray[np.float64]:
        """How unsure the heads are: the root of the mean variance of their outputs over all rows.

        In the data's own units, of a feature behind the logistic link in log-odds; NaN where heads have no
        covariance.
        """
        fitted, result = self.fitted, np.full(len(places), np.nan)
        slots = self._slots[places]
        if not len(places) or fitted.catalogue.stored(slice(0, 1)).covariance is None:
            return result
        moment = second_moment(fitted.states)
        for start in range(0, len(slots), _AT_ONCE):
            part = slice(start, start + _AT_ONCE)
            packed = fitted.catalogue.stored(torch.from_numpy(slots[part])).packed_covariance
            # The mean of [d; 1]ᵀ·C·[d; 1] over rows is the trace of C with the rows' second moment.
            result[part] = weighted_traces(packed, moment.double()).clamp(min=0).sqrt().numpy()
        listing = fitted.catalogue.listing
        types = fitted.modelled(torch.from_numpy(listing.types[slots])).numpy()
        return result * np.where(types == KindType.BINARY, 1.0, listing.spans[slots])


class IndexCache:
    """Keeps the index of the last moment that was asked for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: FeatureIndex | None = None

    def of(self, fitted: Fitted) -> FeatureIndex:
        """The index of this moment."""
        with self._lock:
            if self._held is None or self._held.fitted is not fitted:
                self._held = FeatureIndex(fitted)
            return self._held
