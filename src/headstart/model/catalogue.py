"""The features a model can predict, each with its head."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.core.heads import Heads
from headstart.errors import UnknownNameError, did_you_mean
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


class Catalogue(Mapping[str, Feature]):
    """Features by name, and their heads in arrays that grow; no head moves when another is added."""

    def __init__(self, heads: Heads) -> None:
        """``heads`` shows what the heads to come are made of; none of them is kept."""
        self._features: dict[str, tuple[Feature, int]] = {}
        self._heads = heads.take(torch.zeros(0, dtype=torch.int64)).detach()
        self._free: list[int] = []
        self._evidence: dict[str, Tensor] = {}

    @property
    def evidence(self) -> Mapping[str, Tensor]:
        """By name, the sums that a streaming adapter's heads rest on, of features observed further."""
        return MappingProxyType(self._evidence)

    def __len__(self) -> int:
        return len(self._features)

    def __iter__(self) -> Iterator[str]:
        return iter(self._features)

    def __contains__(self, name: object) -> bool:
        return name in self._features

    def __getitem__(self, name: object) -> Feature:
        return self._find(name)[0]

    def _find(self, name: object) -> tuple[Feature, int]:
        key = as_name(name, "feature")
        try:
            return self._features[key]
        except KeyError:
            hint = did_you_mean(key, self._features if len(self) <= 20_000 else ())
            raise UnknownNameError(f"unknown feature {key!r}{hint}") from None

    def take(self, names: Iterable[object]) -> tuple[list[Feature], Heads]:
        """Return features and their heads, in this order."""
        pairs = [self._find(name) for name in names]
        slots = torch.tensor([slot for _, slot in pairs], dtype=torch.int64)
        return [feature for feature, _ in pairs], self._heads.take(slots)

    def put(self, features: list[Feature], heads: Heads, evidence: list[Tensor] | None = None) -> None:
        """Add features, or replace those of the same name, with the sums that their heads rest on, if any."""
        slots = [self._slot_for(feature.name) for feature in features]
        where = torch.tensor(slots, dtype=torch.int64)
        for held, given in zip(self._heads.parts(), heads.detach().parts(), strict=True):
            held[where] = given
        for feature, slot in zip(features, slots, strict=True):
            self._features[feature.name] = (feature, slot)
            self._evidence.pop(feature.name, None)  # it was that of the head before
        for feature, sums in zip(features, evidence or [], strict=evidence is not None):
            self._evidence[feature.name] = sums

    def remove(self, name: object) -> None:
        """Forget a feature; its place is used again by the next one added."""
        feature, slot = self._find(name)
        del self._features[feature.name]
        self._evidence.pop(feature.name, None)
        self._free.append(slot)

    def _slot_for(self, name: str) -> int:
        if name in self._features:
            return self._features[name][1]
        if not self._free:
            taken = len(self._heads)
            more = max(64, taken)  # doubling keeps the cost of an addition constant on average
            self._heads = self._heads.grown(more)
            self._free = list(range(taken + more - 1, taken - 1, -1))
        return self._free.pop()
