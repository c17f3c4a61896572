"""Opening a large saved model without reading all of it.

Beside a large model lies a file with the facts of ``model.json`` as arrays, in which names are found by their
hashes. It and the weights are mapped into memory, and what is asked for is read from there. The file says
nothing new: without it, or where anything is wrong with it, a model is read from ``model.json``.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any

from torch import Tensor

from headstart.core.heads import Heads
from headstart.core.states import RowStates
from headstart.errors import HeadstartError
from headstart.mapping import MappedFile
from headstart.model.parts.clock import Clock
from headstart.model.parts.fitted import Fitted
from headstart.model.parts.roster import Roster
from headstart.model.parts.store import Store
from headstart.model.saving.assembling import Holdings, adapter_from, grouped, trained_from, whole
from headstart.model.saving.checking import Groups
from headstart.model.saving.format import ModelFacts
from headstart.model.saving.metadata import row_metadata_from
from headstart.model.saving.row_observations import held_observations
from headstart.model.saving.saved_entries import SavedEntries, entry_tensors
from headstart.model.saving.saved_names import SavedNames, name_tensors
from headstart.storage import opened_own, pack, read_own, write_bytes

QUICK = re.compile(r"quick-[0-9a-f]{16}-[0-9a-f]{16}\.safetensors")
_LISTS = ("names", "kinds", "in_backbone", "shots", "finds_scale", "observed_since")
_ROOM = 1024  # heads and states that can be added before all of them are copied
_END = re.compile(rb'"checksum": "([0-9a-f]{64})"\s*}\s*$')
_WRONG = (HeadstartError, KeyError, TypeError, ValueError, RuntimeError, IndexError, AttributeError)


def write_quick(fitted: Fitted, facts: dict[str, Any], index: bytes, base: str, folder: Path) -> Path:
    """Write the file for the model of these facts, whose ``model.json`` has this content and checksum."""
    small = {
        **facts,
        "features": dict.fromkeys(_LISTS, ()),
        "backbone_features": (),
        "streams": (),
        "rows": (),
    }
    tensors: dict[str, Tensor] = {f"features/{name}": each for name, each in entry_tensors(fitted).items()}
    for what, names in (
        ("features", facts["features"]["names"]),
        ("backbone", facts["backbone_features"]),
        ("rows", facts["rows"]),
    ):
        tensors |= {f"names_of_{what}/{name}": each for name, each in name_tensors(names).items()}
    content = pack(tensors, {"facts": small, "base": base, "index": hashlib.sha256(index).hexdigest()})
    path = folder / f"quick-{base[:16]}-{hashlib.sha256(content).hexdigest()[:16]}.safetensors"
    write_bytes(path, content)
    return path


def checksum_in(index: Path) -> str | None:
    """The checksum that ends ``model.json``, without reading the rest; None if it does not end with one."""
    with opened_own(index) as file:
        file.seek(0, 2)
        file.seek(max(0, file.tell() - 128))
        found = _END.search(file.read())
    return None if found is None else found[1].decode()


def read_quickly(folder: Path, index: str, base: str, *, verify: bool) -> tuple[Fitted, int] | None:
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
    return hashlib.sha256(read_own(path)).hexdigest()


def _fitted(facts: ModelFacts, held: Groups, weights: MappedFile) -> Fitted:
    groups = grouped(weights.tensors())
    own = SavedNames(held["names_of_backbone"], "feature")
    times, half_life = facts.times, facts.settings.half_life
    clock = None
    if times is not None and half_life is not None:
        clock = Clock(half_life, times[1], times[0], groups["times"]["table"].numpy())
    backbone, knowledge = trained_from(facts, groups, len(own), clock)
    adapter = adapter_from(facts, groups, knowledge)
    entries = SavedEntries(SavedNames(held["names_of_features"], "feature"), held["features"], groups)
    heads = Heads(
        **{n: weights.with_room(f"features/{n}", _ROOM) for n in groups["features"] if n != "metadata"}
    )
    roster = _roster(SavedNames(held["names_of_rows"], "row"), groups, weights)
    if (observations := groups.get("row_observations")) is not None:
        roster._base = held_observations(observations, held["features"]["numbers"].numpy())
    row_metadata = row_metadata_from(facts, groups, backbone.activation_size, len(roster))
    holdings = Holdings(entries.catalogue(heads, own), roster, own, row_metadata)
    return whole(facts, groups, backbone, knowledge, adapter, clock, holdings)


def _roster(names: SavedNames, groups: Groups, weights: MappedFile) -> Roster:
    states = RowStates(**{name: weights.with_room(f"states/{name}", _ROOM) for name in groups["states"]})
    return Roster.over(names, Store.over(states, len(names)))
