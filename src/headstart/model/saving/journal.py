"""Record the changes of a saved model, one line per change, and replay them.

A call names rows and features and has values in the data's own units, in the order in which they were given.
Heads and states are computed again from these (see ``updates``). Metadata is recorded as it was encoded,
because its encoder need not be available when the call is replayed.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from headstart.errors import ModelFileError
from headstart.files import explain_storage_error, read_regular_file, sync_folder
from headstart.model.features import Feature
from headstart.model.inputs import NewRows, Triples, split_observations
from headstart.model.state import Arrived, ModelState
from headstart.model.updates import (
    Update,
    add_features,
    add_observations,
    add_rows,
    remove_feature,
    remove_row,
)
from headstart.table import Kind, MetadataSchema
from headstart.table.kinds import KindType
from headstart.table.metadata import as_bytes, records_from

Call = dict[str, Any]  # a change: its verb, and all that it needs to be made again

_SIZES = 16  # hexadecimal digits: eight of the length and eight of its checksum

_DIGEST = 64

_BEFORE = _SIZES + 1 + _DIGEST + 1  # of a line, before its JSON


@dataclass(frozen=True)
class Journal:
    """What a journal holds.

    Attributes
    ----------
    path : Path
        Its file, which need not exist.
    changes : list
        The calls of each change; those of one change are made as a whole.
    digest : str
        That of the last line, or of the model if there is none.
    size : int
        How many bytes of the file are whole lines.
    """

    path: Path
    changes: list[list[Call]]
    digest: str
    size: int


def journal_name(base: str) -> str:
    """The name of the journal of a model with this checksum."""
    return f"journal-{base[:16]}.jsonl"


def read_journal(path: Path, base: str) -> Journal:
    """Read the journal of the model with this checksum; a missing file is an empty one.

    Raises
    ------
    ModelFileError
        If a line is damaged, or is not one of this model.
    """
    try:
        content = read_regular_file(path)
    except FileNotFoundError:
        return Journal(path, [], base, 0)
    changes: list[list[Call]] = []
    digest, start = base, 0
    while True:
        length = _length(path, content, start, len(changes))
        if length is None or start + _BEFORE + length + 1 > len(content):
            return Journal(path, changes, digest, start)
        text = content[start + _BEFORE : start + _BEFORE + length]
        digest = _digest(digest, text)
        line = content[start : start + _BEFORE + length + 1]
        if line != _line(digest, text):
            raise _damaged(path, len(changes))
        changes.append(json.loads(text))
        start += len(line)


def line_of(digest: str, calls: Sequence[Call]) -> bytes:
    """The line of a change that follows the line of this digest."""
    text = json.dumps(calls, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
    return _line(_digest(digest, text), text)


def append(journal: Journal, line: bytes) -> None:
    """Add a line; when this returns, it survives a power failure. If the disk refuses, nothing is added."""
    new = not journal.path.exists()
    flags = os.O_WRONLY | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    with explain_storage_error(journal.path):
        handle = os.open(journal.path, flags, 0o666)
        try:
            os.ftruncate(handle, journal.size)  # what a killed writer left is no line
            try:
                _write_all(handle, line, journal.size)
                os.fsync(handle)
            except BaseException:
                os.ftruncate(handle, journal.size)
                raise
        finally:
            os.close(handle)
        if new:
            sync_folder(journal.path.parent)


def _write_all(handle: int, line: bytes, at: int) -> None:
    os.lseek(handle, at, os.SEEK_SET)
    rest = memoryview(line)
    while rest:
        rest = rest[os.write(handle, rest) :]


def _length(path: Path, content: bytes, start: int, number: int) -> int | None:
    """The length of the JSON of the line that starts here; None if not all of its length is there."""
    sizes = content[start : start + _SIZES]
    if len(sizes) < _SIZES:
        return None
    if sizes[8:] != _checksum(sizes[:8]):
        raise _damaged(path, number)
    return int(sizes[:8], 16)


def _line(digest: str, text: bytes) -> bytes:
    length = f"{len(text):08x}".encode()
    return b"%s%s %s %s\n" % (length, _checksum(length), digest.encode(), text)


def _checksum(length: bytes) -> bytes:
    return f"{zlib.crc32(length):08x}".encode()


def _digest(before: str, text: bytes) -> str:
    return hashlib.sha256(before.encode() + text).hexdigest()


def _damaged(path: Path, number: int) -> ModelFileError:
    return ModelFileError(
        f"{path} is damaged: its line {number + 1} does not match its checksum, or is of another model; "
        "restore it from a copy, or remove the file to go back to the model without the changes in it"
    )


class Notes:
    """The calls by which a model became what it is now, since it was this one.

    A model may also change by what is no call, such as another ``fit``. Then the calls do not lead to it, and
    ``calls`` says so.
    """

    def __init__(self, fitted: ModelState) -> None:
        self._calls: list[Call] = []
        self._latest: ModelState | None = fitted

    def note(self, before: ModelState, after: ModelState, call: Call) -> None:
        """Note a call that changed the model from one state to another."""
        if self._latest is before:
            self._calls.append(call)
            self._latest = after

    def follow(self, before: ModelState, after: ModelState) -> None:
        """Note a change of what is never saved."""
        if self._latest is before:
            self._latest = after

    def forget(self) -> None:
        """The calls lead to nothing any more: the folder that they started from holds another model."""
        self._latest = None

    def calls(self, fitted: ModelState) -> list[Call] | None:
        """All calls that led to this state; None if others did."""
        return self._calls if self._latest is fitted else None


def add_features_call(fitted: ModelState, features: Sequence[Feature]) -> Call:
    """Return the call that adds these features."""
    lines = []
    for feature in features:
        order = np.argsort(feature.arrivals) if feature.arrivals is not None else slice(None)
        lines.append(
            {
                "name": feature.name,
                "kind": [feature.kind.type.name, feature.kind.first, feature.kind.second],
                "finds_scale": feature.finds_scale,
                "metadata": feature.metadata.tolist(),
                "rows": [fitted.rows[row] for row in feature.rows[order].tolist()],
                "values": feature.values[order].tolist(),
                "times": _list_of(None if feature.times is None else feature.times[order]),
            }
        )
    records = _packed([feature.record or {} for feature in features], fitted.schema)
    return {"verb": "add_features", "features": lines, "records": records}


def observe_call(fitted: ModelState, after: ModelState, given: Triples, update: Update) -> Call:
    """Return the call that takes these observations, after which the model is ``after``."""
    order = np.argsort(given.order)
    return {
        "verb": "observe",
        "features": [feature.name for feature in given.features],
        "places": given.places[order].tolist(),
        "rows": [fitted.rows[row] for row in given.rows[order].tolist()],
        "values": given.values[order].tolist(),
        "times": _list_of(None if given.times is None else given.times[order]),
        "update": update,
        "arrived": list(after.arrived),
    }


def add_rows_call(fitted: ModelState, new: NewRows) -> Call:
    """Return the call that adds these rows."""
    lists = [split_observations(observations, "row") for observations in new.observations.values()]
    rows = {
        name: dict(zip(features, values.tolist(), strict=True))
        for name, (features, values) in zip(new.names, lists, strict=True)
    }
    schema = None if fitted.row_metadata is None else fitted.row_metadata.schema
    return {
        "verb": "add_rows",
        "rows": rows,
        "metadata": new.encoded.tolist(),
        "records": _packed(new.records, schema),
        "teach": new.update_features,
    }


def replay(fitted: ModelState, call: Call) -> ModelState:
    """Return the model after a call, as it was when the call was made first."""
    verb = call.get("verb")
    if verb not in _REPLAYED:
        raise ModelFileError(
            f"its journal has the change {verb!r}, which this version does not know; upgrade headstart"
        )
    return _REPLAYED[verb](fitted, call)


def _add_features(fitted: ModelState, call: Call) -> ModelState:
    lines = call["features"]
    records = _unpacked(call["records"], len(lines))
    return add_features(fitted, [_feature(fitted, *each) for each in zip(lines, records, strict=True)])


def _feature(fitted: ModelState, line: Call, record: Mapping[str, object]) -> Feature:
    kind, first, second = line["kind"]
    rows = fitted.rows.positions(line["rows"])
    order = np.argsort(rows)
    times = _array(line["times"])
    return Feature(
        line["name"],
        Kind(KindType[kind], first, second),
        False,
        len(rows),
        np.array(line["metadata"], dtype=np.float32),
        rows[order],
        np.array(line["values"], dtype=np.float64)[order],
        line["finds_scale"],
        record,
        fitted.arrivals + order,
        None if times is None else times[order],
    )


def _observe(fitted: ModelState, call: Call) -> ModelState:
    features = [fitted.catalogue[name] for name in call["features"]]
    of = np.array([fitted.catalogue.number(name) for name in call["features"]], dtype=np.int64)
    places = np.array(call["places"], dtype=np.int64)
    values = np.array(call["values"], dtype=np.float64)
    rows = fitted.rows.positions(call["rows"])
    order = np.arange(len(values))
    given = Triples(rows, features, places, of[places], values, _array(call["times"]), order)
    after = add_observations(fitted, given, call["update"])
    return replace(after, arrived=Arrived(*call["arrived"]))


def _add_rows(fitted: ModelState, call: Call) -> ModelState:
    given = call["rows"]
    encoded = np.array(call["metadata"], dtype=np.float32).reshape(len(given), -1)
    records = _unpacked(call["records"], len(given))
    return add_rows(fitted, NewRows(list(given), given, records, encoded, call["teach"]))


def _rename_feature(fitted: ModelState, call: Call) -> ModelState:
    return fitted.renamed(fitted.catalogue[call["name"]], call["to"])


def _rename_row(fitted: ModelState, call: Call) -> ModelState:
    return fitted.with_roster(fitted.roster.renamed(fitted.rows.position(call["name"]), call["to"]))


_REPLAYED: dict[str, Callable[[ModelState, Call], ModelState]] = {
    "add_features": _add_features,
    "observe": _observe,
    "add_rows": _add_rows,
    "remove_feature": lambda fitted, call: remove_feature(fitted, call["name"]),
    "remove_row": lambda fitted, call: remove_row(fitted, fitted.rows.position(call["name"])),
    "rename_feature": _rename_feature,
    "rename_row": _rename_row,
}


def _packed(records: Sequence[Mapping[str, object]], schema: MetadataSchema | None) -> str | None:
    """Metadata as it was given, as the saved model has it; None if the model has none."""
    if schema is None:
        return None
    content = as_bytes(records, [column.name for column in schema.columns])
    return base64.b64encode(content.numpy().tobytes()).decode()


def _unpacked(text: str | None, count: int) -> list[dict[str, object]]:
    if text is None:
        return [{} for _ in range(count)]
    content = torch.from_numpy(np.frombuffer(base64.b64decode(text), dtype=np.uint8).copy())
    return [record or {} for record in records_from(content, count)]


def _list_of(times: NDArray[np.float64] | None) -> list[float] | None:
    return None if times is None else times.tolist()


def _array(times: list[float] | None) -> NDArray[np.float64] | None:
    return None if times is None else np.array(times, dtype=np.float64)
