"""The features of a saved model, each read when it is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.core.heads import Heads
from headstart.model.parts.catalogue import Catalogue
from headstart.model.parts.entry import Entry
from headstart.model.parts.feature import Feature
from headstart.model.parts.fitted import Fitted
from headstart.model.parts.layered import Layered
from headstart.model.parts.store import Store
from headstart.model.saving.checking import Groups
from headstart.model.saving.saved_names import SavedNames
from headstart.table import Kind, Names
from headstart.table.kinds import KindType


def entry_tensors(fitted: Fitted) -> dict[str, Tensor]:
    """What ``SavedEntries`` reads beside the weights of a model, by name."""
    features = list(fitted.catalogue.values())
    own = {name: i for i, name in enumerate(fitted.backbone_features)}
    later = len(own) + np.cumsum([not feature.in_backbone for feature in features]) - 1
    every = zip(features, later.tolist(), strict=True)
    numbers = [own[feature.name] if feature.in_backbone else number for feature, number in every]
    streams = {name: i for i, name in enumerate(fitted.catalogue.evidence_at(fitted.roster.epoch))}
    kinds = [(float(each.kind.type), each.kind.first, each.kind.second) for each in features]
    flags = [(each.in_backbone, each.finds_scale, each.observed_since) for each in features]
    return {
        "kinds": torch.tensor(kinds, dtype=torch.float64).reshape(-1, 3),
        "flags": torch.tensor(flags, dtype=torch.bool).reshape(-1, 3),
        "shots": torch.tensor([feature.shots for feature in features], dtype=torch.int64),
        "numbers": torch.tensor(numbers, dtype=torch.int64),
        "streams": torch.tensor([streams.get(feature.name, -1) for feature in features], dtype=torch.int64),
    }


class SavedEntries(Mapping[str, Entry]):
    """Entries by name, in the order of a saved model; each is made when it is asked for.

    Parameters
    ----------
    names : SavedNames
        The names of the features.
    held : dict
        What ``entry_tensors`` gave.
    groups : dict
        The tensors of the weights, by part.
    """

    def __init__(self, names: SavedNames, held: dict[str, Tensor], groups: Groups) -> None:
        self._names, self._groups = names, groups
        self._held = {name: tensor.numpy() for name, tensor in held.items()}
        self._contexts = {name: tensor.numpy() for name, tensor in groups["contexts"].items()}
        self._metadata = groups["features"]["metadata"].numpy()
        self._ends = np.append(0, np.cumsum(self._contexts["counts"]))
        self._made: dict[int, Entry] = {}

    def __len__(self) -> int:
        return len(self._names)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __getitem__(self, name: str) -> Entry:
        place = self._names._index[name]
        entry = self._made.get(place)
        # Of two threads that ask for the same, both must get one and the same.
        return self._made.setdefault(place, self._entry(name, place)) if entry is None else entry

    def _entry(self, name: str, place: int) -> Entry:
        held, context = self._held, slice(self._ends[place], self._ends[place + 1])
        kind, first, second = held["kinds"][place].tolist()
        in_backbone, finds_scale, observed_since = held["flags"][place].tolist()
        times, stream = self._groups.get("times"), int(held["streams"][place])
        feature = Feature(
            name,
            Kind(KindType(int(kind)), first, second),
            in_backbone,
            int(held["shots"][place]),
            self._metadata[place],
            self._contexts["rows"][context],
            self._contexts["values"][context],
            finds_scale,
            self._record(place),
            observed_since,
            None if times is None else times["contexts"].numpy()[context],
            None if times is None else float(times["heads"][place]),
        )
        evidence = None if stream < 0 else self._groups["streams"][""][stream : stream + 1]
        return Entry(feature, place, evidence, 0, int(held["numbers"][place]))

    @cached_property
    def _records(self) -> pa.Table | None:
        content = self._groups.get("records")
        return None if content is None else table_in(content[""])

    def _record(self, place: int) -> dict[str, object] | None:
        if self._records is None:
            return None
        line = {name: self._records[name][place].as_py() for name in self._records.column_names}
        return {name: value for name, value in line.items() if value is not None}

    def catalogue(self, heads: Heads, own: Names) -> Catalogue:
        """The catalogue of these features, whose heads come first in ``heads``; the others are room."""
        catalogue = Catalogue(heads.take(slice(0, 0)), own)
        numbers, count = self._held["numbers"], max(len(own), int(self._held["numbers"].max(initial=-1)) + 1)
        slots, facts = np.full(count, -1), np.zeros((count, 4))
        slots[numbers] = np.arange(len(self))
        facts[numbers] = self._facts()
        catalogue._base, catalogue._store = self, Store.over(heads, len(self))
        catalogue._slots, catalogue._facts = Layered(slots), Layered(facts)
        return catalogue

    def _facts(self) -> NDArray[np.float64]:
        """``Entry.facts`` of all features."""
        kind, first, second = self._held["kinds"].T
        in_backbone, _, observed_since = self._held["flags"].T
        span = np.where(kind == KindType.REAL, second, second - first)
        return np.stack([kind, first, span, in_backbone & ~observed_since], axis=1)


def table_in(content: Tensor) -> pa.Table:
    """The table of metadata in these bytes, which are not copied."""
    with pa.ipc.open_stream(pa.py_buffer(content.numpy())) as reader:
        return reader.read_all()
