"""Open a large saved model without reading all of it.

Beside a large model lies a file with the facts of ``model.json`` as arrays, in which names are found by their
hashes. It and the weights are mapped into memory, and what is asked for is read from there. The file says
nothing new: without it, or where anything is wrong with it, a model is read from ``model.json``.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.core.types import Heads, RowStates
from headstart.errors import HeadstartError
from headstart.files import MappedFile, open_regular_file, pack_tensors, read_regular_file, write_bytes
from headstart.model.features import Entry, Feature, FeatureStore
from headstart.model.persistent import Arena, PersistentArray
from headstart.model.rows import RowStore
from headstart.model.saving.assembly import Holdings, adapter_from, grouped, trained_from, whole
from headstart.model.saving.format import ModelFacts, row_metadata_from, with_observed_rows
from headstart.model.saving.validation import Groups
from headstart.model.state import Clock, ModelState
from headstart.table import Kind, Names
from headstart.table.kinds import KindType

_LOOKUPS = 1000  # after so many it pays to hold all names in a dictionary


def name_tensors(names: Iterable[str]) -> dict[str, Tensor]:
    """Names as tensors: their bytes, where each ends, and their hashes in order with their positions."""
    encoded = [name.encode() for name in names]
    hashes = np.array([_hash(each) for each in encoded], dtype=np.uint64).view(np.int64)
    order = np.argsort(hashes, kind="stable")
    ends = np.cumsum([0, *(len(each) for each in encoded)], dtype=np.int64)
    return {
        "bytes": torch.from_numpy(np.frombuffer(b"".join(encoded), np.uint8).copy()),
        "ends": torch.from_numpy(ends),
        "hashes": torch.from_numpy(hashes[order]),
        "order": torch.from_numpy(order),
    }


class SavedNames(Names):
    """Names as ``name_tensors`` made them; each is read when it is asked for."""

    def __init__(self, tensors: dict[str, Tensor], noun: str) -> None:
        self.noun = noun
        self._bytes = tensors["bytes"].numpy()
        self._ends = tensors["ends"].numpy()
        self._lookup = _Lookup(self, tensors["hashes"].numpy(), tensors["order"].numpy())

    @cached_property
    def _names(self) -> tuple[str, ...]:  # type: ignore[override]
        every, ends = self._bytes.tobytes(), self._ends.tolist()
        return tuple(every[start:end].decode() for start, end in itertools.pairwise(ends))

    @property
    def _index(self) -> dict[str, int]:
        if self._lookup.count > _LOOKUPS and self._every is not None:
            return self._every
        return self._lookup  # type: ignore[return-value]  # it does what is asked of the dictionary

    @cached_property
    def _every(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self._names)}

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, position):  # type: ignore[no-untyped-def]  # int -> str, slice -> tuple
        if isinstance(position, slice) or "_names" in self.__dict__:
            return self._names[position]
        return self.at(range(len(self))[position])

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    __hash__ = Names.__hash__

    def at(self, position: int) -> str:
        """The name at a position."""
        return self._bytes[self._ends[position] : self._ends[position + 1]].tobytes().decode()


class _Lookup:
    """Finds positions of names by their hashes."""

    def __init__(self, names: SavedNames, hashes: NDArray[np.int64], order: NDArray[np.int64]) -> None:
        self._names, self._hashes, self._order = names, hashes, order
        self.count = 0

    def _find(self, name: object) -> int | None:
        if not isinstance(name, str):
            return None
        self.count += 1
        try:
            wanted = np.array([_hash(name.encode())], dtype=np.uint64).view(np.int64)[0]
        except UnicodeEncodeError:
            return None
        at = int(self._hashes.searchsorted(wanted))
        while at < len(self._hashes) and self._hashes[at] == wanted:
            position = int(self._order[at])
            if self._names.at(position) == name:
                return position
            at += 1
        return None

    def __contains__(self, name: object) -> bool:
        return self._find(name) is not None

    def __getitem__(self, name: str) -> int:
        position = self._find(name)
        if position is None:
            raise KeyError(name)
        return position


def _hash(name: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "little")


def entry_tensors(fitted: ModelState) -> dict[str, Tensor]:
    """What ``SavedEntries`` reads beside the weights of a model, by name."""
    features = list(fitted.catalogue.values())
    own = {name: i for i, name in enumerate(fitted.backbone_features)}
    later = len(own) + np.cumsum([not feature.in_backbone for feature in features]) - 1
    every = zip(features, later.tolist(), strict=True)
    numbers = [own[feature.name] if feature.in_backbone else number for feature, number in every]
    kinds = [(float(each.kind.type), each.kind.first, each.kind.second) for each in features]
    flags = [(each.in_backbone, each.finds_scale, each.arrivals is not None) for each in features]
    return {
        "kinds": torch.tensor(kinds, dtype=torch.float64).reshape(-1, 3),
        "flags": torch.tensor(flags, dtype=torch.bool).reshape(-1, 3),
        "shots": torch.tensor([feature.shots for feature in features], dtype=torch.int64),
        "numbers": torch.tensor(numbers, dtype=torch.int64),
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
        counts, flags = self._contexts["counts"], self._held["flags"]
        self._ends = np.append(0, np.cumsum(counts))
        self._arrival_ends = np.append(0, np.cumsum(counts * flags[:, 2]))
        # References lie in the arena after the current heads, in the order of the file.
        self._references = np.where(flags[:, 0], -1, np.arange(len(names)))
        self._reference_kinds = self._held["kinds"].copy()
        self.references = groups.get("feature_references", {})
        if self.references:
            positions = self.references["features"].numpy()
            self._references[positions] = len(names) + np.arange(len(positions))
            self._reference_kinds[positions, 1:] = self.references["kinds"].numpy()
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
        times, arrived = self._groups.get("times"), slice(*self._arrival_ends[place : place + 2])
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
            self._contexts["arrivals"][arrived] if observed_since else None,
            None if times is None else times["contexts"].numpy()[context],
        )
        reference = int(self._references[place])
        kind_of_reference = None
        if reference >= 0:
            kind, first, second = self._reference_kinds[place].tolist()
            kind_of_reference = Kind(KindType(int(kind)), first, second)
        return Entry(feature, place, int(held["numbers"][place]), reference, kind_of_reference)

    @cached_property
    def _records(self) -> pa.Table | None:
        content = self._groups.get("records")
        return None if content is None else table_in(content[""])

    def _record(self, place: int) -> dict[str, object] | None:
        if self._records is None:
            return None
        line = {name: self._records[name][place].as_py() for name in self._records.column_names}
        return {name: value for name, value in line.items() if value is not None}

    def catalogue(self, heads: Heads, own: Names) -> FeatureStore:
        """The catalogue of these features, whose heads come first in ``heads``; the others are room."""
        catalogue = FeatureStore(heads.take(slice(0, 0)), own)
        numbers, count = self._held["numbers"], max(len(own), int(self._held["numbers"].max(initial=-1)) + 1)
        slots, facts = np.full((count, 2), -1), np.zeros((count, 4))
        slots[numbers, 0] = current = np.arange(len(self))
        slots[numbers, 1] = np.where(self._references < 0, current, self._references)
        facts[numbers] = self._facts()
        catalogue._base, catalogue._arena = self, Arena.over(heads, len(self))
        if self.references:
            names = ("weight", "bias", "covariance", "noise")
            references = Heads(**{name: self.references.get(name) for name in names})  # type: ignore[arg-type]
            claimed = catalogue._arena.claimed(len(references))
            if claimed is None:
                raise ValueError("there is no room for its references")
            catalogue._arena.write(claimed, references)
        catalogue._slots, catalogue._facts = PersistentArray(slots), PersistentArray(facts)
        return catalogue

    def _facts(self) -> NDArray[np.float64]:
        """``Entry.facts`` of all features."""
        kind, first, second = self._reference_kinds.T
        span = np.where(kind == KindType.REAL, second, second - first)
        return np.stack([kind, first, span, self._references < 0], axis=1)


def table_in(content: Tensor) -> pa.Table:
    """The table of metadata in these bytes, which are not copied."""
    with pa.ipc.open_stream(pa.py_buffer(content.numpy())) as reader:
        return reader.read_all()


QUICK = re.compile(r"quick-[0-9a-f]{16}-[0-9a-f]{16}\.safetensors")

_LISTS = ("names", "kinds", "in_backbone", "shots", "finds_scale", "observed_since")

_ROOM = 1024  # heads and states that can be added before all of them are copied

_END = re.compile(rb'"checksum": "([0-9a-f]{64})"\s*}\s*$')

_WRONG = (HeadstartError, KeyError, TypeError, ValueError, RuntimeError, IndexError, AttributeError)


def write_quick(fitted: ModelState, facts: dict[str, Any], index: bytes, base: str, folder: Path) -> Path:
    """Write the file for the model of these facts, whose ``model.json`` has this content and checksum."""
    small = {
        **facts,
        "features": dict.fromkeys(_LISTS, ()),
        "backbone_features": (),
        "rows": (),
    }
    tensors: dict[str, Tensor] = {f"features/{name}": each for name, each in entry_tensors(fitted).items()}
    for what, names in (
        ("features", facts["features"]["names"]),
        ("backbone", facts["backbone_features"]),
        ("rows", facts["rows"]),
    ):
        tensors |= {f"names_of_{what}/{name}": each for name, each in name_tensors(names).items()}
    content = pack_tensors(
        tensors, {"facts": small, "base": base, "index": hashlib.sha256(index).hexdigest()}
    )
    path = folder / f"quick-{base[:16]}-{hashlib.sha256(content).hexdigest()[:16]}.safetensors"
    write_bytes(path, content)
    return path


def checksum_in(index: Path) -> str | None:
    """The checksum that ends ``model.json``, without reading the rest; None if it does not end with one."""
    with open_regular_file(index) as file:
        file.seek(0, 2)
        file.seek(max(0, file.tell() - 128))
        found = _END.search(file.read())
    return None if found is None else found[1].decode()


def read_quickly(folder: Path, index: str, base: str, *, verify: bool) -> tuple[ModelState, int] | None:
    """The model of this checksum and the size of its weights, mapped into memory.

    None if it has to be read as a whole: it has no such file, or something is wrong.

    Parameters
    ----------
    folder : Path
        The folder of the model.
    index : str
        The name of its index.
    base : str
        The checksum that the index has.
    verify : bool
        Whether to read everything once, to see that nothing is damaged.
    """
    path = next((each for each in folder.glob(f"quick-{base[:16]}-*") if QUICK.fullmatch(each.name)), None)
    if path is None:
        return None
    try:
        file = MappedFile(path)
        facts = ModelFacts(**file.facts["facts"])
        weights = MappedFile(folder / facts.weights)
        if file.facts["base"] != base:
            return None
        if verify and not (
            _digest(path).startswith(path.stem.rpartition("-")[2])
            and _digest(folder / index) == file.facts["index"]
            and _digest(folder / facts.weights) == facts.weights_sha256
        ):
            return None
        return _fitted(facts, grouped(file.tensors()), weights), weights.size
    except (FileNotFoundError, *_WRONG):
        return None  # reading it as a whole says what is wrong


def _digest(path: Path) -> str:
    return hashlib.sha256(read_regular_file(path)).hexdigest()


def _fitted(facts: ModelFacts, held: Groups, weights: MappedFile) -> ModelState:
    groups = grouped(weights.tensors())
    own = SavedNames(held["names_of_backbone"], "feature")
    times, half_life = facts.times, facts.settings.half_life
    clock = None
    if times is not None and half_life is not None:
        clock = Clock(half_life, times[1], times[0], groups["times"]["table"].numpy())
    backbone, knowledge = trained_from(facts, groups, len(own), clock)
    adapter = adapter_from(facts, groups, knowledge)
    entries = SavedEntries(SavedNames(held["names_of_features"], "feature"), held["features"], groups)
    room = _ROOM + len(entries.references.get("bias", ()))
    heads = Heads(
        **{n: weights.with_room(f"features/{n}", room) for n in groups["features"] if n != "metadata"}
    )
    names = SavedNames(held["names_of_rows"], "row")
    roster = _roster(names, groups, weights, held["features"]["numbers"].numpy())
    row_metadata = row_metadata_from(facts, groups, backbone.activation_size, len(roster))
    holdings = Holdings(entries.catalogue(heads, own), roster, own, row_metadata)
    return whole(facts, groups, backbone, knowledge, adapter, clock, holdings)


def _roster(names: SavedNames, groups: Groups, weights: MappedFile, numbers: NDArray[np.int64]) -> RowStore:
    room = _ROOM + 2 * len(groups.get("row_observations", {}).get("rows", ()))
    states = RowStates(**{name: weights.with_room(f"states/{name}", room) for name in groups["states"]})
    roster = RowStore.over(names, Arena.over(states, len(names)))
    return with_observed_rows(roster, groups, numbers) if "row_observations" in groups else roster
