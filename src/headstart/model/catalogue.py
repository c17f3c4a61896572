"""The features a model can predict, each with its head."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from headstart.backbones.heads import Heads
from headstart.errors import UnknownNameError, did_you_mean
from headstart.table.kinds import Kind
from headstart.table.names import as_name


@dataclass(frozen=True)
class Feature:
    """What a model holds of one feature besides its head."""

    name: str
    kind: Kind
    trained: bool  # in the backbone, from all its observations; otherwise its head is an adapter's
    shots: int  # how many observations its head rests on
    metadata: NDArray[np.float32]  # encoded
    rows: NDArray[np.int64]  # the context of an adapter's head; empty for a trained one
    values: NDArray[np.float64]  # in the data's own units

    def observed(self, rows: NDArray[np.int64], values: NDArray[np.float64]) -> Feature:
        """Return the feature with these observations added, a row's later value replacing an earlier one."""
        fresh = ~np.isin(self.rows, rows)
        every = np.concatenate([self.rows[fresh], rows])
        numbers = np.concatenate([self.values[fresh], values])
        order = np.argsort(every)  # a head must not depend on the order observations came in
        return Feature(self.name, self.kind, False, len(every), self.metadata, every[order], numbers[order])


class Catalogue(Mapping[str, Feature]):
    """Features by name, and their heads in two arrays that grow; no head moves when another is added."""

    def __init__(self, width: int) -> None:
        self._features: dict[str, tuple[Feature, int]] = {}
        self._weight = torch.zeros(0, width)
        self._bias = torch.zeros(0)
        self._free: list[int] = []

    def __len__(self) -> int:
        return len(self._features)

    def __iter__(self) -> Iterator[str]:
        return iter(self._features)

    def __contains__(self, name: object) -> bool:
        return name in self._features

    def __getitem__(self, name: object) -> Feature:
        return self._find(name)[0]

    def _find(self, name: object) -> tuple[Feature, int]:
        known = as_name(name, "feature")
        try:
            return self._features[known]
        except KeyError:
            hint = did_you_mean(known, self._features if len(self) <= 20_000 else ())
            raise UnknownNameError(f"unknown feature {known!r}{hint}") from None

    def take(self, names: Iterable[object]) -> tuple[list[Feature], Heads]:
        """Return features and their heads, in this order."""
        found = [self._find(name) for name in names]
        slots = torch.tensor([slot for _, slot in found], dtype=torch.int64)
        return [feature for feature, _ in found], Heads(self._weight[slots], self._bias[slots])

    def put(self, features: list[Feature], heads: Heads) -> None:
        """Add features, or replace those of the same name."""
        slots = [self._slot_for(feature.name) for feature in features]
        where = torch.tensor(slots, dtype=torch.int64)
        self._weight[where] = heads.weight.detach()
        self._bias[where] = heads.bias.detach()
        for feature, slot in zip(features, slots, strict=True):
            self._features[feature.name] = (feature, slot)

    def remove(self, name: object) -> None:
        """Forget a feature; its place is used again by the next one added."""
        feature, slot = self._find(name)
        del self._features[feature.name]
        self._free.append(slot)

    def _slot_for(self, name: str) -> int:
        if name in self._features:
            return self._features[name][1]
        if not self._free:
            taken = len(self._bias)
            more = max(64, taken)  # doubling keeps the cost of an addition constant on average
            self._weight = torch.cat([self._weight, self._weight.new_zeros(more, self._weight.shape[1])])
            self._bias = torch.cat([self._bias, self._bias.new_zeros(more)])
            self._free = list(range(taken + more - 1, taken - 1, -1))
        return self._free.pop()
