"""The features a model can predict, each with its head."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.core.heads import Heads, OneHead
from headstart.errors import UnknownNameError, did_you_mean
from headstart.model.parts.entry import Entry
from headstart.model.parts.feature import Feature
from headstart.model.parts.layered import Layered
from headstart.model.parts.listing import Listed, Listing
from headstart.model.parts.store import Store
from headstart.model.parts.without import without
from headstart.table.names import Names, as_name

Evidence = Sequence[Tensor | None]  # the sums that heads rest on, of those that rest on some
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
        self._base: Mapping[str, Entry] = {}
        self._recent: dict[str, Entry] = {}  # come before those of the same name in the base
        self._store = Store(heads.take(torch.zeros(0, dtype=torch.int64)), 0)
        self._own = Names([], "feature") if own is None else own
        self._slots = Layered(np.full(len(self._own), -1))  # by number; -1 of a feature that is not there
        # By number: kind, offset and span of the scale, whether as fitted.
        self._facts = Layered(np.zeros((len(self._own), 4)))
        self._listed: tuple[Mapping[str, Entry], Listing] | None = None  # of the base
        self._overlaid: tuple[Mapping[str, Entry], Listing] | None = None  # of the base with the recent ones

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
        return entry.evidence if (entry := self._find(name)).epoch == epoch else None

    def __len__(self) -> int:
        return len(self._base) + sum(name not in self._base for name in self._recent)

    def __iter__(self) -> Iterator[str]:
        yield from self._base
        yield from (name for name in self._recent if name not in self._base)

    def __contains__(self, name: object) -> bool:
        return name in self._recent or name in self._base

    def __getitem__(self, name: object) -> Feature:
        return self._find(name).feature

    def _find(self, name: object) -> Entry:
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
        return self._slots.whole()[numbers] if isinstance(numbers, slice) else self._slots.take(numbers)

    def facts(self, numbers: NDArray[np.int64]) -> NDArray[np.float64]:
        """The kind, the offset and span of the scale of features, and whether they are as fitted, by number.

        A feature of the backbone is as fitted while nothing is observed of it after ``fit``: (n, 4).
        """
        return self._facts.take(numbers)

    def names_by_number(self, numbers: NDArray[np.int64]) -> list[str | None]:
        """The names of features, by number; None of features that are no longer there."""
        own = len(self._own)
        later = self.by_number() if bool((numbers >= own).any()) else {}
        slots = self._slots.take(numbers)
        there = (number if slot >= 0 else None for number, slot in zip(numbers.tolist(), slots, strict=True))
        return [n if n is None else self._own[n] if n < own else later[n].name for n in there]

    def by_number(self) -> dict[int, Feature]:
        """All features by their numbers."""
        return {entry.number: entry.feature for entry in (self._find(name) for name in self)}

    def put(
        self, features: list[Feature], heads: Heads, evidence: Evidence | None = None, epoch: int = 0
    ) -> Catalogue:
        """Return a catalogue with these features too, or in the place of those of the same name.

        ``evidence`` are the sums that their heads rest on, if any, made from the states of this ``epoch``.
        """
        after, slots = self._copied(len(features))
        after._store.write(slots, heads)
        return after._entered(features, slots, evidence or [None] * len(features), epoch)

    def put_one(self, feature: Feature, head: OneHead, evidence: Tensor | None, epoch: int) -> Catalogue:
        """``put`` of one feature."""
        after, slots = self._copied(1)
        after._store.write_one(slots.start, head)
        return after._entered([feature], slots, [evidence], epoch)

    @property
    def stored_arrays(self) -> list[NDArray[Any]]:
        """The weights, biases, covariances and noises of all stored heads, in numpy."""
        return self._store.arrays

    def _copied(self, count: int) -> tuple[Catalogue, range]:
        """A copy, and so many slots to write to, of a larger store if there is no room."""
        after, slots = copy(self), self._store.claimed(count)
        if slots is None:
            after._move(count)
            slots = range(after._store.used, after._store.used + count)
            after._store.used = slots.stop
        return after, slots

    def _entered(self, features: list[Feature], slots: range, evidence: Evidence, epoch: int) -> Catalogue:
        """Enter features whose heads lie in these slots; for a copy that no one knows of yet."""
        numbers = self._numbers(features)
        new = {
            feature.name: Entry(feature, slot, own, epoch, number)
            for feature, slot, own, number in zip(features, slots, evidence, numbers, strict=True)
        }
        more, at = max(0, max(numbers, default=-1) + 1 - len(self._slots)), np.array(numbers, dtype=np.int64)
        self._slots = self._slots.extended(np.full(more, -1)).put(at, np.arange(slots.start, slots.stop))
        facts = np.array([entry.facts for entry in new.values()]).reshape(-1, 4)
        if more or not np.array_equal(self._facts.take(at), facts):  # usually they stay the same
            self._facts = self._facts.extended(np.zeros((more, 4))).put(at, facts)
        self._recent = {**self._recent, **new}
        if len(self._recent) ** 2 > len(self._base):
            self._base, self._recent = {**self._base, **self._recent}, {}
        return self

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
        after._base, after._recent = without(self._base, self._recent, gone.feature.name)
        after._slots = self._slots.put(np.array([gone.number]), np.array([-1]))
        return after

    def with_contexts(self, features: Mapping[str, Feature]) -> Catalogue:
        """Return a catalogue with the same heads of features that have other contexts; sums are dropped."""
        after = copy(self)
        every = ((name, self._find(name)) for name in self)
        after._base = {name: e._replace(feature=features[name], evidence=None) for name, e in every}
        after._recent = {}
        numbers = [entry.number for entry in after._base.values()]
        facts = np.array([entry.facts for entry in after._base.values()]).reshape(-1, 4)
        after._facts = self._facts.put(np.array(numbers, dtype=np.int64), facts)
        return after

    def renamed(self, name: object, other: str, own: Names) -> Catalogue:
        """Return a catalogue in which a feature has another name; ``own`` are the backbone's names then."""
        after, entry = copy(self), self._find(name)
        changed = entry._replace(feature=replace(entry.feature, name=other))
        every = (changed if (old := self._find(key)) is entry else old for key in self)
        after._base = {each.feature.name: each for each in every}
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
        slots = np.full(len(self._slots), -1)
        slots[[entry.number for entry in entries.values()]] = np.arange(len(entries))
        self._slots = Layered(slots)
