"""Sums over the contexts of features, remembered from one update to the next.

The head of a feature depends on its observations through sums over them (``HeadSums``), which are additive.
An update adds a few observations, or changes the states of a few rows, so it changes a few terms of these
sums. ``ContextMemory`` remembers the sums of features that were observed lately, with the observations that
they consist of, and computes only the terms that differ.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headstart.adapters.base import Adapter, ContextStack, HeadSums, OneContext, OneFeature
from headstart.core.types import RowStates
from headstart.model.features import Feature
from headstart.model.persistent import Arena
from headstart.model.rows import RowStore

_MAX_BYTES = 2**26  # of all remembered sums, approximately
_MIN_SHOTS = 8  # of a context that is worth remembering
_OBSERVATIONS_AT_ONCE = 2048  # of contexts that are summed together

_MIN_REMAINDER = 1e-4  # of a sum of precisions after a subtraction, which loses as many digits


class FeatureContext(NamedTuple):
    """A feature and its context, with the slots of the rows' states; ``context`` adds the states."""

    feature: OneFeature
    rows: NDArray[Any]  # (n,): ascending
    slots: NDArray[np.int64]  # (n,): of the rows' states in the arena of the row store
    values: NDArray[np.float64]  # (n,): on the models' scale
    weights: NDArray[np.float64] | None  # (n,): None: all 1

    def context(self, row_store: RowStore, *, code: bool) -> OneContext:
        """Return the context with the rows' states."""
        inputs = row_store.head_inputs(self.slots, code=code)[:4]
        kind, metadata, known, exposure = self.feature
        return OneContext(
            int(kind), metadata, int(known), self.values, *inputs, self.weights, float(exposure)
        )

    def take(self, chosen: NDArray[np.int64]) -> FeatureContext:
        """Return only the ``chosen`` observations."""
        return self._replace(
            rows=self.rows[chosen],
            slots=self.slots[chosen],
            values=self.values[chosen],
            weights=None if self.weights is None else self.weights[chosen],
        )

    @property
    def filled_weights(self) -> NDArray[np.float64]:
        """The weights of the observations, also if all are 1: (n,)."""
        return np.ones(len(self.rows)) if self.weights is None else self.weights

    @property
    def kind(self) -> int:
        """The type of the feature in the model, as in ``ModelState.kinds_of``."""
        return int(self.feature.kind)

    def same_feature(self, other: FeatureContext) -> bool:
        """Return whether the features of both contexts have equal kinds and metadata."""
        one, two = self.feature, other.feature
        same_metadata = one.metadata is two.metadata or np.array_equal(one.metadata, two.metadata)
        return same_metadata and (one.kind, one.known) == (two.kind, two.known)

    def differences(self, other: FeatureContext) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the positions of observations in ``self`` but not in ``other``, and the opposite.

        Observations are equal if row, state, value and weight are.
        """
        at = np.minimum(other.rows.searchsorted(self.rows), len(other.rows) - 1)
        same = (
            (other.rows[at] == self.rows)
            & (other.slots[at] == self.slots)
            & (other.values[at] == self.values)
        )
        if self.weights is not None or other.weights is not None:
            same &= other.filled_weights[at] == self.filled_weights
        removed = np.ones(len(other.rows), dtype=bool)
        removed[at[same]] = False
        return np.flatnonzero(~same), np.flatnonzero(removed)


class _RememberedSums(NamedTuple):
    adapter: Adapter
    arena: weakref.ref[Arena[RowStates]]  # which the slots of the context belong to
    context: FeatureContext
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
        self._remembered: OrderedDict[str, _RememberedSums] = OrderedDict()
        self._size = 0
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__()  # type: ignore[misc]

    def sums(
        self,
        adapter: Adapter,
        features: Sequence[Feature],
        contexts: Sequence[FeatureContext],
        row_store: RowStore,
    ) -> list[HeadSums]:
        """Return the sums over the ``contexts`` of features."""
        batch, arena = _SumBatch(adapter, row_store), weakref.ref(row_store.arena)
        plans: list[tuple[HeadSums | None, int, int | None]] = []  # old sums, and terms to add and subtract
        for feature, context in zip(features, contexts, strict=True):
            old = self._remembered.get(feature.name)
            differences = None
            if old is not None and old.adapter is adapter and old.arena == arena:
                differences = _differences(old.context, context)
            if old is None or differences is None:
                plans.append((None, batch.add(context), None))
                continue
            added, removed = differences
            less = batch.add(old.context.take(removed)) if len(removed) else None
            plans.append((old.sums, batch.add(context.take(added)), less))
        terms, results = batch.compute(), []
        for feature, context, (before, more, less) in zip(features, contexts, plans, strict=True):
            sums = terms[more] if before is None else before.add(terms[more])
            if before is not None and less is not None:
                whole, sums = sums, sums.add(terms[less], -1)
                if sums.total[-1] < _MIN_REMAINDER * whole.total[-1]:  # the sum of the precisions
                    again = _SumBatch(adapter, row_store)
                    again.add(context)
                    (sums,) = again.compute()
            results.append(sums)
            if len(context.rows) >= _MIN_SHOTS:
                self._remember(feature.name, _RememberedSums(adapter, arena, context, sums))
        return results

    def _remember(self, name: str, new: _RememberedSums) -> None:
        """Remember sums; if there are too many, forget the sums of features that were used longest ago."""
        with self._lock:
            old = self._remembered.pop(name, None)
            self._size += new.size - (0 if old is None else old.size)
            self._remembered[name] = new
            while self._size > _MAX_BYTES:
                self._size -= self._remembered.popitem(last=False)[1].size


def _differences(
    before: FeatureContext, context: FeatureContext
) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
    """Return the observations to add and to subtract; None if there are too many, or features differ."""
    if not context.same_feature(before):
        return None
    added, removed = context.differences(before)
    return None if 2 * (len(added) + len(removed)) > len(context.rows) else (added, removed)


class _SumBatch:
    """Sums over parts of contexts, computed together: the states of their rows are gathered at once."""

    def __init__(self, adapter: Adapter, row_store: RowStore) -> None:
        self._adapter, self._row_store = adapter, row_store
        self._parts: list[FeatureContext] = []

    def add(self, part: FeatureContext) -> int:
        """Add a part of a context; return the position of its sums in the result of ``compute``."""
        self._parts.append(part)
        return len(self._parts) - 1

    def compute(self) -> list[HeadSums]:
        """Return the sums over all parts, in the order in which they were added."""
        results: list[HeadSums] = []
        for block in self._blocks():
            results += self._adapter.sum_contexts(self._stack(block)).split()
        return results

    def _blocks(self) -> Iterator[list[FeatureContext]]:
        """Yield blocks of parts, whose observations fit in the cache."""
        block: list[FeatureContext] = []
        size = 0
        for part in self._parts:
            size += len(part.rows)
            if size > _OBSERVATIONS_AT_ONCE and block:
                yield block
                block, size = [], len(part.rows)
            block.append(part)
        if block:
            yield block

    def _stack(self, contexts: Sequence[FeatureContext]) -> ContextStack:
        """Return contexts with the states of their rows."""
        first, *others = contexts
        slots = np.concatenate([context.slots for context in contexts]) if others else first.slots
        values = np.concatenate([context.values for context in contexts]) if others else first.values
        inputs = self._row_store.head_inputs(slots, code=self._adapter.reads_code)[:4]
        weights = None
        if any(context.weights is not None for context in contexts):
            weights = np.concatenate([context.filled_weights for context in contexts])
        ends = [0, *accumulate(len(context.rows) for context in contexts)]
        features = OneFeature.stack([context.feature for context in contexts])
        return ContextStack(features, ends, values, *inputs, weights)
