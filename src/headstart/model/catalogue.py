"""The features a model can predict, each with its head."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from copy import copy
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.core.heads import Heads
from headstart.errors import UnknownNameError, did_you_mean
from headstart.model.feature import Feature
from headstart.model.listing import Listed, Listing
from headstart.model.store import Store
from headstart.table.names import Names, as_name


class _Entry(NamedTuple):
    feature: Feature
    slot: int  # of its head in the store
    evidence: Tensor | None  # the sums that the head rests on, if they are kept
    epoch: int  # of the roster, from whose states the sums were made
    number: int  # which stays the same as long as the feature is there, and is never given again


_MIN_ROOM = 64


class Catalogue(Mapping[str, Feature]):
    """Features by name, and their heads; it never changes.

    ``put`` and ``remove`` return another catalogue, so that whoever reads this one is not disturbed. The
    two share what they have in common: heads lie in arrays to which only new ones are written, and of the
    names only the recent ones are copied, so that a change costs little however many features there are.
    """

    def __init__(self, heads: Heads, own: Names | None = None) -> None:
        """``heads`` shows what the heads to come are made of; none of them is kept.

        ``own`` are the features of the backbone: their positions there are their numbers.
        """
        self._base: dict[str, _Entry] = {}
        self._recent: dict[str, _Entry] = {}  # come before those of the same name in the base
        self._store = Store(heads.take(torch.zeros(0, dtype=torch.int64)), 0)
        self._own = Names([], "feature") if own is None else own
        self._slots = np.full(len(self._own), -1)  # by number; -1 of a feature that is not there
        # By number: kind, offset and span of the scale, whether as fitted.
        self._facts = np.zeros((len(self._own), 4))
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
        return self._store.take(slots)

    @property
    def evidence(self) -> Mapping[str, Tensor]:
        """By name, the sums that a streaming adapter's heads rest on, of features observed further."""
        return self.evidence_at(None)

    def evidence_at(self, epoch: int | None) -> Mapping[str, Tensor]:
        """By name, the sums made from the states of this epoch of the roster; of any if it is None."""
        entries = ((name, self._find(name)) for name in self)
        kept = ((name, entry) for name, entry in entries if epoch is None or entry.epoch == epoch)
        return MappingProxyType({name: e.evidence for name, e in kept if e.evidence is not None})

    def evidence_of(self, name: str, epoch: int) -> Tensor | None:
        """The sums that one feature's head rests on, if they are kept and no row's state changed since."""
        entry = self._find(name)
        return entry.evidence if entry.epoch == epoch else None

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
        # A name is first looked for as it is, as ``Names`` does: models may be older than tidy names.
        key = name if isinstance(name, str) and name in self else as_name(name, "feature")
        entry = self._recent.get(key) or self._base.get(key)
        if entry is None:
            hint = did_you_mean(key, self if len(self) <= 20_000 else ())
            raise UnknownNameError(f"unknown feature {key!r}{hint}")
        return entry

    def take(self, names: Iterable[object]) -> tuple[list[Feature], Heads]:
        """Return features and their heads, in this order."""
        entries = [self._find(name) for name in names]
        slots = torch.tensor([entry.slot for entry in entries], dtype=torch.int64)
        return [entry.feature for entry in entries], self._store.take(slots)

    def arrays(self, name: object) -> tuple[Feature, list[NDArray[np.float32]]]:
        """A feature and the parts of its head, without a copy."""
        entry = self._find(name)
        return entry.feature, [part[entry.slot].numpy() for part in self._store.parts.parts()]

    def number(self, name: object) -> int:
        """The number of a feature, by which rows hold what they observed of it."""
        return self._find(name).number

    def slots_by_number(self, numbers: NDArray[np.int64] | slice) -> NDArray[np.int64]:
        """Where the heads of features lie, by number; -1 of features that are no longer there."""
        return self._slots[numbers]

    def facts(self, numbers: NDArray[np.int64]) -> NDArray[np.float64]:
        """The kind, the offset and span of the scale of features, and whether they are as fitted, by number.

        A feature of the backbone is as fitted while nothing is observed of it after ``fit``: (n, 4).
        """
        return self._facts[numbers]

    def names_by_number(self, numbers: NDArray[np.int64]) -> list[str | None]:
        """The names of features, by number; None of features that are no longer there."""
        own = len(self._own)
        later = self.by_number() if bool((numbers >= own).any()) else {}
        there = (number if self._slots[number] >= 0 else None for number in numbers.tolist())
        return [n if n is None else self._own[n] if n < own else later[n].name for n in there]

    def by_number(self) -> dict[int, Feature]:
        """All features by their numbers."""
        return {entry.number: entry.feature for entry in (self._find(name) for name in self)}

    def put(
        self, features: list[Feature], heads: Heads, evidence: list[Tensor] | None = None, epoch: int = 0
    ) -> Catalogue:
        """Return a catalogue with these features too, or in the place of those of the same name.

        ``evidence`` are the sums that their heads rest on, if any, made from the states of this ``epoch``.
        """
        after = copy(self)
        slots = self._store.claimed(len(features))
        if slots is None:
            after._move(len(features))
            slots = range(after._store.used, after._store.used + len(features))
            after._store.used = slots.stop
        after._store.write(slots, heads)
        sums = [None] * len(features) if evidence is None else evidence
        numbers = self._numbers(features)
        new = {
            feature.name: _Entry(feature, slot, own, epoch, number)
            for feature, slot, own, number in zip(features, slots, sums, numbers, strict=True)
        }
        more = max(0, max(numbers, default=-1) + 1 - len(after._slots))
        after._slots = np.concatenate([after._slots, np.full(more, -1)])
        after._slots[numbers] = slots
        facts = np.array([_facts_of(feature) for feature in features]).reshape(-1, 4)
        if more or not np.array_equal(after._facts[numbers], facts):  # usually they stay the same
            after._facts = np.concatenate([after._facts, np.zeros((more, 4))])
            after._facts[numbers] = facts
        after._recent = {**after._recent, **new}
        if len(after._recent) ** 2 > len(after._base):
            after._base, after._recent = {**after._base, **after._recent}, {}
        return after

    def _numbers(self, features: list[Feature]) -> list[int]:
        """Keep the numbers of features that are there, and give new ones to others."""
        numbers, following = [], len(self._slots)
        for feature in features:
            entry = self._recent.get(feature.name) or self._base.get(feature.name)
            if entry is not None:
                numbers.append(entry.number)
            elif feature.in_backbone:
                numbers.append(self._own.position(feature.name))
            else:
                numbers.append(following)
                following += 1
        return numbers

    def remove(self, name: object) -> Catalogue:
        """Return a catalogue without this feature."""
        after, gone = copy(self), self._find(name)
        after._base = {key: self._find(key) for key in self if key != gone.feature.name}
        after._recent = {}
        after._slots = self._slots.copy()
        after._slots[gone.number] = -1
        return after

    def with_contexts(self, features: Mapping[str, Feature]) -> Catalogue:
        """Return a catalogue with the same heads of features that have other contexts; sums are dropped."""
        after = copy(self)
        every = ((name, self._find(name)) for name in self)
        after._base = {name: e._replace(feature=features[name], evidence=None) for name, e in every}
        after._recent = {}
        numbers = [entry.number for entry in after._base.values()]
        after._facts = self._facts.copy()
        after._facts[numbers] = [_facts_of(entry.feature) for entry in after._base.values()]
        return after

    def renamed(self, name: object, other: str, own: Names) -> Catalogue:
        """Return a catalogue in which a feature has another name; ``own`` are the backbone's names then."""
        after, entry = copy(self), self._find(name)
        changed = entry._replace(feature=replace(entry.feature, name=other))
        every = (self._find(key) for key in self)
        after._base = {
            each.feature.name: each for each in (changed if old is entry else old for old in every)
        }
        after._recent, after._own = {}, own
        return after

    def _move(self, more: int) -> None:
        """Move the heads to a store of their own, where there is room for as many again."""
        _, heads = self.take(self)
        entries = {name: self._find(name) for name in self}
        # With room for as many as there are, the cost of a change is constant on average.
        self._store = Store(heads, max(_MIN_ROOM, len(entries), more))
        self._base = {name: entry._replace(slot=slot) for slot, (name, entry) in enumerate(entries.items())}
        self._recent = {}
        self._slots = np.full_like(self._slots, -1)
        self._slots[[entry.number for entry in entries.values()]] = np.arange(len(entries))


def _facts_of(feature: Feature) -> tuple[float, float, float, float]:
    kind, as_fitted = feature.kind, feature.in_backbone and not feature.observed_since
    return float(kind.type), kind.offset, kind.span, float(as_fitted)
