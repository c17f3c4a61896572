"""The features a model can predict, each with its head."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.core.heads import Heads
from headstart.errors import UnknownNameError, did_you_mean
from headstart.model.listing import Listed, Listing
from headstart.table.kinds import Kind
from headstart.table.names import as_name


@dataclass(frozen=True)
class Feature:
    """What a model holds of one feature besides its head."""

    name: str
    kind: Kind
    in_backbone: bool  # whether the backbone reads it
    shots: int  # how many observations its head rests on
    metadata: NDArray[np.float32]  # encoded
    rows: NDArray[np.int64]  # the context of an adapter's head; empty for one of the backbone's own
    values: NDArray[np.float64]  # in the data's own units
    finds_scale: bool = False  # whether its center and scale are found from its observations

    @property
    def fixed(self) -> bool:
        """Whether its head is the backbone's own, made from observations that are not at hand."""
        return len(self.rows) < self.shots

    def observed(self, rows: NDArray[np.int64], values: NDArray[np.float64]) -> Feature:
        """Return the feature with these observations added, a row's later value replacing an earlier one."""
        fresh = ~np.isin(self.rows, rows)
        every = np.concatenate([self.rows[fresh], rows])
        numbers = np.concatenate([self.values[fresh], values])
        order = np.argsort(every)  # a head must not depend on the order observations came in
        return self._holding(every[order], numbers[order])

    def among(self, rows: NDArray[np.int64]) -> Feature:
        """Return the feature with only its observations at these rows."""
        kept = np.isin(self.rows, rows)
        return self._holding(self.rows[kept], self.values[kept])

    def _holding(self, rows: NDArray[np.int64], values: NDArray[np.float64]) -> Feature:
        return replace(self, shots=len(rows), rows=rows, values=values)


class _Entry(NamedTuple):
    feature: Feature
    slot: int  # of its head in the store
    evidence: Tensor | None  # the sums that the head rests on, if they are kept


class _Store:
    """Heads in arrays with room for more. A slot is written once, before anyone knows of it."""

    def __init__(self, heads: Heads, room: int) -> None:
        self.heads = heads.detach().grown(room)
        self.used = len(heads)

    def claimed(self, count: int) -> range | None:
        """So many slots that no one else writes to, or None if there is no room left."""
        with _CLAIMING:
            if self.used + count > len(self.heads):
                return None
            self.used += count
            return range(self.used - count, self.used)

    def write(self, slots: range, heads: Heads) -> None:
        for held, given in zip(self.heads.parts(), heads.detach().parts(), strict=True):
            held[slots.start : slots.stop] = given


_CLAIMING = threading.Lock()  # one for all stores, because a lock of their own could not be copied
_MIN_ROOM = 64


class Catalogue(Mapping[str, Feature]):
    """Features by name, and their heads; it never changes.

    ``put`` and ``remove`` return another catalogue, so that whoever reads this one is not disturbed. The
    two share what they have in common: heads lie in arrays to which only new ones are written, and of the
    names only the recent ones are copied, so that a change costs little however many features there are.
    """

    def __init__(self, heads: Heads) -> None:
        """``heads`` shows what the heads to come are made of; none of them is kept."""
        self._base: dict[str, _Entry] = {}
        self._recent: dict[str, _Entry] = {}  # come before those of the same name in the base
        self._store = _Store(heads.take(torch.zeros(0, dtype=torch.int64)), 0)
        self._listed: tuple[dict[str, _Entry], Listing] | None = None  # of the base
        self._overlaid: tuple[dict[str, _Entry], Listing] | None = None  # of the base with the recent ones

    @property
    def listing(self) -> Listing:
        """All features as arrays, in the order in which their heads are stored."""
        base, recent = self._base, self._recent
        if self._listed is None or self._listed[0] is not base:
            entries = enumerate(base.values())
            self._listed = (base, Listing.of([Listed(each.feature, each.slot, i) for i, each in entries]))
        listing = self._listed[1]
        if not recent:
            return listing
        if self._overlaid is None or self._overlaid[0] is not recent or self._overlaid[1].base is not listing:
            gone = [base[name].slot for name in recent if name in base]
            news = itertools.count(len(base))
            over = [
                Listed(
                    each.feature,
                    each.slot,
                    int(listing.places[base[name].slot]) if name in base else next(news),
                )
                for name, each in recent.items()
            ]
            self._overlaid = (recent, listing.overlaid(over, gone))
        return self._overlaid[1]

    def slots(self, names: Iterable[object]) -> list[int]:
        """Where the heads of these features are stored."""
        return [self._find(name).slot for name in names]

    def stored(self, slots: Tensor | slice) -> Heads:
        """The heads in these slots; those of a slice are not copied."""
        return self._store.heads.take(slots)

    @property
    def evidence(self) -> Mapping[str, Tensor]:
        """By name, the sums that a streaming adapter's heads rest on, of features observed further."""
        entries = ((name, self._find(name).evidence) for name in self)
        return MappingProxyType({name: sums for name, sums in entries if sums is not None})

    def evidence_of(self, name: str) -> Tensor | None:
        """The sums that one feature's head rests on, if they are kept."""
        return self._find(name).evidence

    def __len__(self) -> int:
        return len(self._base) + sum(name not in self._base for name in self._recent)

    def __iter__(self) -> Iterator[str]:
        yield from self._base
        yield from (name for name in self._recent if name not in self._base)

    def __contains__(self, name: object) -> bool:
        return name in self._recent or name in self._base

    def __getitem__(self, name: object) -> Feature:
        return self._find(name).feature

    def _find(self, name: object) -> _Entry:
        key = as_name(name, "feature")
        entry = self._recent.get(key) or self._base.get(key)
        if entry is None:
            hint = did_you_mean(key, self if len(self) <= 20_000 else ())
            raise UnknownNameError(f"unknown feature {key!r}{hint}")
        return entry

    def take(self, names: Iterable[object]) -> tuple[list[Feature], Heads]:
        """Return features and their heads, in this order."""
        entries = [self._find(name) for name in names]
        slots = torch.tensor([entry.slot for entry in entries], dtype=torch.int64)
        return [entry.feature for entry in entries], self._store.heads.take(slots)

    def put(self, features: list[Feature], heads: Heads, evidence: list[Tensor] | None = None) -> Catalogue:
        """Return a catalogue with these features too, or in the place of those of the same name.

        ``evidence`` are the sums that their heads rest on, if any.
        """
        after = copy(self)
        slots = self._store.claimed(len(features))
        if slots is None:
            after._move(len(features))
            slots = range(after._store.used, after._store.used + len(features))
            after._store.used = slots.stop
        after._store.write(slots, heads)
        sums = [None] * len(features) if evidence is None else evidence
        new = {
            feature.name: _Entry(feature, slot, own)
            for feature, slot, own in zip(features, slots, sums, strict=True)
        }
        after._recent = {**after._recent, **new}
        if len(after._recent) ** 2 > len(after._base):
            after._base, after._recent = {**after._base, **after._recent}, {}
        return after

    def remove(self, name: object) -> Catalogue:
        """Return a catalogue without this feature."""
        after, gone = copy(self), self._find(name).feature.name
        after._base = {key: self._find(key) for key in self if key != gone}
        after._recent = {}
        return after

    def _move(self, more: int) -> None:
        """Move the heads to a store of their own, where there is room for as many again."""
        _, heads = self.take(self)
        entries = {name: self._find(name) for name in self}
        # With room for as many as there are, the cost of a change is constant on average.
        self._store = _Store(heads, max(_MIN_ROOM, len(entries), more))
        self._base = {name: entry._replace(slot=slot) for slot, (name, entry) in enumerate(entries.items())}
        self._recent = {}
