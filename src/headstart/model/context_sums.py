"""Sums over the contexts of features, remembered from one update to the next.

The head of a feature depends on its observations through sums over them (``HeadSums``), which are additive.
An update adds a few observations, or changes the states of a few rows, so it changes a few terms of these
sums. ``ContextMemory`` remembers the sums of features that were observed lately, with the observations that
they consist of, and computes only the terms that differ.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headstart.adapters.base import Adapter, HeadSums, OneContext, OneFeature
from headstart.model.features import Feature
from headstart.model.rows import RowStore, Version

_MAX_BYTES = 2**26  # of all remembered sums, approximately
_MIN_SHOTS = 8  # of a context that is worth remembering
_MIN_REMAINDER = 1e-4  # of a sum of precisions after a subtraction, which loses as many digits


class ContextOf(NamedTuple):
    """A feature and its context, without the states of the rows; ``context`` adds them."""

    feature: OneFeature
    rows: NDArray[Any]  # (n,): ascending
    stamps: NDArray[np.int64]  # (n,): of the rows' states (``RowStore.stamps``)
    values: NDArray[np.float64]  # (n,): on the models' scale
    weights: NDArray[np.float64] | None  # (n,): None: all 1

    def context(
        self, row_store: RowStore, version: Version, *, code: bool, chosen: NDArray[np.int64] | None = None
    ) -> OneContext:
        """Return the context, or its ``chosen`` observations, with a version of the rows' states."""
        rows, values, weights = self.rows, self.values, self.weights
        if chosen is not None:
            rows, values = rows[chosen], values[chosen]
            weights = None if weights is None else weights[chosen]
        code_of, activation, noise, variance = row_store.head_inputs(rows, version, code=code)[:4]
        kind, metadata, known, exposure = self.feature
        inputs = (code_of, activation, noise, variance)
        return OneContext(int(kind), metadata, int(known), values, *inputs, weights, float(exposure))

    @property
    def kind(self) -> int:
        """The kind as which the model treats the feature."""
        return int(self.feature.kind)

    def same_feature(self, other: ContextOf) -> bool:
        """Return whether both contexts are those of features with equal kinds and metadata."""
        one, two = self.feature, other.feature
        return (one.kind, one.known) == (two.kind, two.known) and np.array_equal(one.metadata, two.metadata)

    def differences(self, other: ContextOf) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the positions of observations in ``self`` but not in ``other``, and the opposite.

        Observations are equal if row, state, value and weight are.
        """
        at = np.minimum(other.rows.searchsorted(self.rows), len(other.rows) - 1)
        same = (
            (other.rows[at] == self.rows)
            & (other.stamps[at] == self.stamps)
            & (other.values[at] == self.values)
        )
        if self.weights is not None or other.weights is not None:
            weights, others = (
                np.ones(len(part.rows)) if part.weights is None else part.weights for part in (self, other)
            )
            same &= others[at] == weights
        gone = np.ones(len(other.rows), dtype=bool)
        gone[at[same]] = False
        return np.flatnonzero(~same), np.flatnonzero(gone)


class _Remembered(NamedTuple):
    adapter: Adapter
    context: ContextOf
    sums: HeadSums

    @property
    def size(self) -> int:
        """The memory in bytes, approximately."""
        return 8 * (len(self.sums.total) + len(self.sums.encoded) + 4 * len(self.context.rows))


class ContextMemory:
    """The sums over contexts that were computed last, by the names of their features.

    Versions of a model share a memory: remembered sums belong to observations and states, not to a version. A
    copy of a model starts with an empty one.
    """

    def __init__(self) -> None:
        self._remembered: OrderedDict[str, _Remembered] = OrderedDict()
        self._size = 0
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__()  # type: ignore[misc]

    def sums(
        self, adapter: Adapter, feature: Feature, context: ContextOf, row_store: RowStore, version: Version
    ) -> HeadSums:
        """Return the sums over the ``context`` of a feature, with a version of the states of its rows."""
        sums = None
        old = self._remembered.get(feature.name)
        if old is not None and old.adapter is adapter and context.same_feature(old.context):
            sums = _update(adapter, old, context, row_store, version)
        if sums is None:
            sums = adapter.sum_context(context.context(row_store, version, code=adapter.reads_code))
        if len(context.rows) >= _MIN_SHOTS:
            self._remember(feature.name, _Remembered(adapter, context, sums))
        return sums

    def _remember(self, name: str, new: _Remembered) -> None:
        """Remember sums; if there are too many, forget the sums of features that were used longest ago."""
        with self._lock:
            old = self._remembered.pop(name, None)
            self._size += new.size - (0 if old is None else old.size)
            self._remembered[name] = new
            while self._size > _MAX_BYTES:
                self._size -= self._remembered.popitem(last=False)[1].size


def _update(
    adapter: Adapter, old: _Remembered, context: ContextOf, row_store: RowStore, version: Version
) -> HeadSums | None:
    """Return sums by adding and subtracting the terms that differ; None if this is slow or not exact."""
    added, gone = context.differences(old.context)
    if 2 * (len(added) + len(gone)) > len(context.rows) or old.context.stamps[gone].any():
        return None  # states since fit may not exist any more
    sums = old.sums
    if len(added):
        more = context.context(row_store, version, code=adapter.reads_code, chosen=added)
        sums = sums.add(adapter.sum_context(more))
    if len(gone):
        less = old.context.context(row_store, "fit", code=adapter.reads_code, chosen=gone)
        before, sums = sums, sums.add(adapter.sum_context(less), -1)
        if sums.total[-1] < _MIN_REMAINDER * before.total[-1]:  # the sum of the precisions
            return None
    return sums
