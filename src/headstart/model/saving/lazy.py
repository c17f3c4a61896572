"""Open a large saved model without reading all of it.

A second file (``lazy-….safetensors``) contains the facts of ``model.json`` as arrays, with an index of names
by their hashes. This file and the weights are mapped into memory, and features and rows are read on demand.
The file is redundant: if it is missing or damaged, the model is read from ``model.json``.
"""

from __future__ import annotations

import hashlib
import itertools
import json
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
from headstart.files import MappedFile, file_sha256, open_regular_file, pack_tensors, write_bytes
from headstart.model.features import SCALE, Entry, Feature, FeatureStore
from headstart.model.persistent import Arena
from headstart.model.rows import RowStore
from headstart.model.saving.assembly import (
    StoredItems,
    build_adapter,
    build_backbone,
    build_state,
    group_tensors,
)
from headstart.model.saving.format import (
    Groups,
    ModelFacts,
    context_values,
    read_clock,
    read_heads,
    read_row_metadata,
    widen_tensors,
    with_copies,
    with_observed_rows,
)
from headstart.model.saving.validation import check_counts, check_tensors
from headstart.model.state import ModelState
from headstart.table import Kind, Names
from headstart.table.kinds import KindType
from headstart.table.margins import margin_of
from headstart.table.metadata import table_from

_MAX_LOOKUPS = 1000  # with more lookups, a dictionary of all names is cheaper


def name_tensors(names: Iterable[str]) -> dict[str, Tensor]:
    """Return names as tensors: their bytes, where each ends, and their sorted hashes with their positions."""
    encoded = [name.encode() for name in names]
    hashes = np.array([_hash(name) for name in encoded], dtype=np.uint64).view(np.int64)
    order = np.argsort(hashes, kind="stable")
    ends = np.cumsum([0, *(len(name) for name in encoded)], dtype=np.int64)
    return {
        "bytes": torch.from_numpy(np.frombuffer(b"".join(encoded), np.uint8).copy()),
        "ends": torch.from_numpy(ends),
        "hashes": torch.from_numpy(hashes[order]),
        "order": torch.from_numpy(order),
    }


class SavedNames(Names):
    """Names in the tensors of ``name_tensors``, each read on demand."""

    def __init__(self, tensors: dict[str, Tensor], noun: str) -> None:
        self.noun = noun
        self._bytes = tensors["bytes"].numpy()
        self._ends = tensors["ends"].numpy()
        self._lookup = _Lookup(self, tensors["hashes"].numpy(), tensors["order"].numpy())

    @cached_property
    def _names(self) -> tuple[str, ...]:  # type: ignore[override]
        content, ends = self._bytes.tobytes(), self._ends.tolist()
        return tuple(content[start:end].decode() for start, end in itertools.pairwise(ends))

    @property
    def _index(self) -> dict[str, int]:
        if self._lookup.count > _MAX_LOOKUPS:
            return self._all_positions
        return self._lookup  # type: ignore[return-value]  # it has the methods of a dictionary that Names uses

    @cached_property
    def _all_positions(self) -> dict[str, int]:
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
        """Return the name at a position."""
        return self._bytes[self._ends[position] : self._ends[position + 1]].tobytes().decode()


class _Lookup:
    """A read-only mapping from names to positions that searches sorted hashes."""

    def __init__(self, names: SavedNames, hashes: NDArray[np.int64], order: NDArray[np.int64]) -> None:
        self._names, self._hashes, self._order = names, hashes, order
        self._found: dict[str, int] = {}  # one change of a model looks up the same name several times
        self.count = 0

    def _find(self, name: object) -> int | None:
        if not isinstance(name, str):
            return None
        if name in self._found:
            return self._found[name]
        self.count += 1
        try:
            wanted = np.array([_hash(name.encode())], dtype=np.uint64).view(np.int64)[0]
        except UnicodeEncodeError:
            return None
        at = int(self._hashes.searchsorted(wanted))
        while at < len(self._hashes) and self._hashes[at] == wanted:
            position = int(self._order[at])
            if self._names.at(position) == name:
                self._found[name] = position
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


def entry_tensors(facts: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the tensors that ``SavedEntries`` needs besides the weights, by name."""
    features = facts["features"]
    positions = {name: i for i, name in enumerate(facts["backbone_features"])}
    in_backbone = np.array(features["in_backbone"], dtype=bool)
    numbers = len(positions) + np.cumsum(~in_backbone) - 1
    numbers[in_backbone] = [
        positions[name]
        for name, inside in zip(features["names"], features["in_backbone"], strict=True)
        if inside
    ]
    codes: dict[str, int] = {}
    lines: dict[str, tuple[int, float, float]] = {}
    for text in dict.fromkeys(features["kinds"]):
        kind = Kind.parse(text)
        lines[text] = codes.setdefault(kind.margin.family, len(codes)), kind.first, kind.second
    kinds = [lines[text] for text in features["kinds"]]
    flags = [features[name] for name in ("in_backbone", "finds_scale", "observed_since")]
    return {
        "kinds": torch.tensor(kinds, dtype=torch.float64).reshape(-1, 3),
        "margins": torch.from_numpy(np.frombuffer(json.dumps(list(codes)).encode(), np.uint8).copy()),
        "flags": torch.tensor(flags, dtype=torch.bool).T.contiguous(),
        "shots": torch.tensor(features["shots"], dtype=torch.int64),
        "numbers": torch.from_numpy(numbers.astype(np.int64)),
    }


class SavedFeature(Feature):
    """A feature whose values and metadata are read from the file when they are first needed."""

    _entries: SavedEntries
    _position: int
    _part: slice

    @classmethod
    def of(cls, entries: SavedEntries, position: int, part: slice, **fields: Any) -> SavedFeature:
        """Return the feature at a ``position`` of saved ``entries``, with these ``fields``.

        Its values are a ``part`` of the saved contexts.
        """
        feature = object.__new__(cls)
        vars(feature).update(fields, _entries=entries, _position=position, _part=part)
        return feature

    @cached_property
    def values(self) -> NDArray[np.float64]:
        """The numbers of the context: (n,)."""
        return context_values(self._entries.groups["contexts"], self._part)

    @cached_property
    def record(self) -> Mapping[str, object] | None:
        """The metadata by column before encoding; None if the model has no metadata."""
        return self._entries.record(self._position)


class SavedEntries(Mapping[str, Entry]):
    """Feature entries by name, in the order of a saved model, each built on demand.

    Parameters
    ----------
    names : SavedNames
        The names of the features.
    tensors : dict
        The tensors returned by ``entry_tensors``.
    groups : dict
        The tensors of the weights, by part.
    """

    def __init__(self, names: SavedNames, tensors: dict[str, Tensor], groups: Groups) -> None:
        self._names, self.groups = names, groups
        self._arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
        self._margins = [margin_of(family) for family in json.loads(self._arrays["margins"].tobytes())]
        self._contexts = {name: tensor.numpy() for name, tensor in groups["contexts"].items()}
        self._metadata = groups["features"]["metadata"].numpy()
        counts, flags = self._contexts["counts"], self._arrays["flags"]
        self._ends = np.append(0, np.cumsum(counts))
        self._arrival_ends = np.append(0, np.cumsum(counts * flags[:, 2]))
        # References are in the arena after the current heads, in the order of the file.
        self._references = np.where(flags[:, 0], -1, np.arange(len(names)))
        self._reference_kinds = self._arrays["kinds"].copy()
        self.references = groups.get("feature_references", {})
        if self.references:
            positions = self.references["features"].numpy()
            self._references[positions] = len(names) + np.arange(len(positions))
            self._reference_kinds[positions, 1:] = self.references["kinds"].numpy()
        self._entries: dict[int, Entry] = {}

    def __len__(self) -> int:
        return len(self._names)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __getitem__(self, name: str) -> Entry:
        position = self._names._index[name]
        entry = self._entries.get(position)
        # Two threads that look up the same name must get the same object.
        return self._entries.setdefault(position, self._build(name, position)) if entry is None else entry

    def _build(self, name: str, position: int) -> Entry:
        arrays, context = self._arrays, slice(self._ends[position], self._ends[position + 1])
        code, first, second = arrays["kinds"][position].tolist()
        in_backbone, finds_scale, observed_since = arrays["flags"][position].tolist()
        arrived = slice(*self._arrival_ends[position : position + 2])
        times, weights = (self.groups.get(name) for name in ("times", "observation_weights"))
        feature = SavedFeature.of(
            self,
            position,
            context,
            name=name,
            kind=Kind(self._margins[int(code)], first, second),
            in_backbone=in_backbone,
            shots=int(arrays["shots"][position]),
            metadata=self._metadata[position],
            rows=self._contexts["rows"][context],
            finds_scale=finds_scale,
            arrivals=self._contexts["arrivals"][arrived] if observed_since else None,
            times=None if times is None else times["contexts"].numpy()[context],
            weights=None if weights is None else weights["contexts"].numpy()[context],
        )
        reference, reference_kind = int(self._references[position]), None
        if reference >= 0:
            code, first, second = self._reference_kinds[position].tolist()
            reference_kind = Kind(self._margins[int(code)], first, second)
        return Entry(feature, position, int(arrays["numbers"][position]), reference, reference_kind)

    @cached_property
    def _records(self) -> pa.Table | None:
        content = self.groups.get("records")
        return None if content is None else table_from(content[""])

    def names_observed_since(self) -> list[str]:
        """Return the names of the features that were observed since fit."""
        return [self._names[position] for position in np.flatnonzero(self._arrays["flags"][:, 2]).tolist()]

    def check_records(self) -> None:
        """Refuse metadata that cannot be read, or is not of these features."""
        if self._records is not None and self._records.num_columns and len(self._records) != len(self):
            raise ValueError("its metadata does not agree with its features")

    def record(self, position: int) -> dict[str, object] | None:
        """Return the metadata by column of the feature at a position; None if there is no metadata."""
        if self._records is None:
            return None
        record = {name: self._records[name][position].as_py() for name in self._records.column_names}
        return {name: value for name, value in record.items() if value is not None}

    def feature_store(self, heads: Heads, backbone_features: Names) -> FeatureStore:
        """Return the store of these features; ``heads`` are their heads, followed by room for new ones."""
        numbers = self._arrays["numbers"]
        count = max(len(backbone_features), int(numbers.max(initial=-1)) + 1)
        if numbers.min(initial=0) < 0 or count > len(backbone_features) + len(self):
            raise ValueError("its features have impossible numbers")
        slots, scales = np.full((count, 2), -1), np.zeros(count, SCALE)
        slots[numbers, 0] = current = np.arange(len(self))
        slots[numbers, 1] = np.where(self._references < 0, current, self._references)
        scales[numbers] = self._scales()
        arena = Arena.wrap(heads, len(self))
        if self.references:
            names = ("weight", "bias", "covariance", "noise")
            references = Heads(**{name: self.references.get(name) for name in names})  # type: ignore[arg-type]
            if arena.append(references) is None:
                raise ValueError("there is no room for its references")
        return FeatureStore.from_entries(self, arena, slots, scales, backbone_features)

    def _scales(self) -> NDArray[np.void]:
        """Return the ``SCALE`` of all features: (features,)."""
        code, first, second = self._reference_kinds.T
        types = np.array([margin.type for margin in self._margins], dtype=np.int64)[code.astype(np.int64)]
        span = np.where(types == KindType.REAL, second, second - first)
        scales = np.empty(len(types), SCALE)
        scales["type"], scales["offset"], scales["span"] = types, first, span
        scales["as_fitted"] = self._references < 0
        return scales


LAZY_FILE = re.compile(r"lazy-[0-9a-f]{16}-[0-9a-f]{16}\.safetensors")

_LISTS = ("names", "kinds", "in_backbone", "shots", "finds_scale", "observed_since")

_ROOM = 1024  # heads or states that can be added before the arena must be copied

_CHECKSUM = re.compile(rb'"checksum": "([0-9a-f]{64})"\s*}\s*$')

_DAMAGE_ERRORS = (HeadstartError, KeyError, TypeError, ValueError, RuntimeError, IndexError, AttributeError)


def write_lazy_file(facts: dict[str, Any], base: str, folder: Path) -> Path:
    """Write the file with which a large model is opened lazily; return its path.

    Parameters
    ----------
    facts : dict
        The content of its ``model.json`` except the checksum.
    base : str
        The checksum.
    folder : Path
        The folder of the model.
    """
    content = pack_tensors(_lazy_tensors(facts), {"facts": _without_lists(facts), "base": base})
    path = folder / f"lazy-{base[:16]}-{hashlib.sha256(content).hexdigest()[:16]}.safetensors"
    write_bytes(path, content)
    return path


def _without_lists(facts: dict[str, Any]) -> dict[str, Any]:
    return {**facts, "features": {name: [] for name in _LISTS}, "backbone_features": [], "rows": []}


def _lazy_tensors(facts: dict[str, Any]) -> dict[str, Tensor]:
    """Return the lists of ``model.json`` as tensors."""
    tensors = {f"features/{name}": tensor for name, tensor in entry_tensors(facts).items()}
    for part, names in (
        ("features", facts["features"]["names"]),
        ("backbone", facts["backbone_features"]),
        ("rows", facts["rows"]),
    ):
        tensors |= {f"names_of_{part}/{name}": tensor for name, tensor in name_tensors(names).items()}
    return tensors


def find_checksum(index: Path) -> str | None:
    """Return the checksum at the end of ``model.json`` without reading the rest; None if there is none."""
    with open_regular_file(index) as file:
        file.seek(0, 2)
        file.seek(max(0, file.tell() - 128))
        match = _CHECKSUM.search(file.read())
    return None if match is None else match[1].decode()


def open_lazily(folder: Path, base: str, facts: dict[str, Any] | None) -> tuple[ModelState, int] | None:
    """Map a model into memory; return it and the size of its weights in bytes.

    Return None if the model must be read as a whole, because its lazy file is missing or damaged.

    Parameters
    ----------
    folder : Path
        The folder of the model.
    base : str
        The checksum of its ``model.json``.
    facts : dict or None
        The rest of ``model.json``. If given, everything is read once and checked as if it were read whole.
    """
    path = next((file for file in folder.glob(f"lazy-{base[:16]}-*") if LAZY_FILE.fullmatch(file.name)), None)
    if path is None:
        return None
    try:
        file = MappedFile(path)
        if file.facts["base"] != base:
            return None
        lazy_facts, tensors = ModelFacts(**file.facts["facts"]), file.tensors()
        weights = MappedFile(folder / lazy_facts.weights)
        if facts is None:
            return _assemble(lazy_facts, group_tensors(tensors), weights, None), weights.size
        if not (
            file.facts["facts"] == _without_lists(facts)
            and _are_equal(tensors, _lazy_tensors(facts))
            and file_sha256(weights.path) == lazy_facts.weights_sha256
        ):
            return None
        return _assemble(lazy_facts, group_tensors(tensors), weights, ModelFacts(**facts)), weights.size
    except (FileNotFoundError, *_DAMAGE_ERRORS):
        return None  # reading the whole model then raises an error that explains


def _are_equal(tensors: dict[str, Tensor], others: dict[str, Tensor]) -> bool:
    return tensors.keys() == others.keys() and all(
        tensor.dtype == others[name].dtype and torch.equal(tensor, others[name])
        for name, tensor in tensors.items()
    )


def _assemble(facts: ModelFacts, lazy: Groups, weights: MappedFile, checked: ModelFacts | None) -> ModelState:
    """Assemble a model from its facts, the tensors of the lazy file and the mapped weights.

    ``checked`` are the facts with their lists, if the weights are to be checked against them.
    """
    groups = group_tensors(with_copies(widen_tensors(weights.tensors()), facts.copies))
    if checked is not None:
        check_tensors(groups)
    backbone_features = SavedNames(lazy["names_of_backbone"], "feature")
    clock = read_clock(facts, groups)
    backbone, knowledge = build_backbone(facts, groups, len(backbone_features), clock)
    if checked is not None:
        check_counts(checked, knowledge, RowStates(**groups["states"]), groups)
    adapter = build_adapter(facts, groups, knowledge)
    entries = SavedEntries(SavedNames(lazy["names_of_features"], "feature"), lazy["features"], groups)
    if checked is not None:
        entries.check_records()
    room = _ROOM + len(entries.references.get("bias", ()))
    covariances = groups.get("covariances")
    if covariances is not None:
        covariances = covariances | {"dense": weights.with_room("covariances/dense", room)}
    names_of_parts = [name for name in groups["features"] if name != "metadata"]
    tensors = {name: weights.with_room(f"features/{name}", room) for name in names_of_parts}
    heads = read_heads(tensors, covariances)
    names = SavedNames(lazy["names_of_rows"], "row")
    row_store = _build_row_store(names, groups, weights, lazy["features"]["numbers"].numpy())
    row_metadata = read_row_metadata(facts, groups, backbone.activation_size, len(row_store))
    stored = StoredItems(
        entries.feature_store(heads, backbone_features), row_store, backbone_features, row_metadata
    )
    return build_state(facts, groups, backbone, knowledge, adapter, clock, stored)


def _build_row_store(
    names: SavedNames, groups: Groups, weights: MappedFile, numbers: NDArray[np.int64]
) -> RowStore:
    """Build the rows, with room for the references and states of the fit of observed rows."""
    room = _ROOM + 2 * len(groups.get("row_observations", {}).get("rows", ()))
    states = RowStates(**{name: weights.with_room(f"states/{name}", room) for name in groups["states"]})
    row_store = RowStore.from_arena(names, Arena.wrap(states, len(names)))
    return with_observed_rows(row_store, groups, numbers) if "row_observations" in groups else row_store
