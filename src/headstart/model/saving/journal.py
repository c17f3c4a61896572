"""Record the changes of a saved model, one line per change, and replay them.

A call names rows and features and has values in the data's own units. Those that happen often also hold what
they came to, the heads and states: to compute them again would take longer than to read them. Metadata is
in a call as it was encoded, because what encodes it need not be there when the call is made again.
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
from torch import Tensor

from headstart.core.types import Heads, OneHead, OneState, RowStates
from headstart.errors import InputError, ModelFileError
from headstart.files import explain_storage_error, read_regular_file, sync_folder
from headstart.model.features import Feature
from headstart.model.inputs import NewRows, Triples, numbers
from headstart.model.state import Arrived, ModelState
from headstart.model.updates import add_rows, observe_features, observe_row, observe_rows, remove_row
from headstart.table import Kind, MetadataSchema
from headstart.table.kinds import KindType
from headstart.table.metadata import as_bytes, records_from

Packed = dict[str, Any]  # by the name of an array: its type, shape and content


def packed(parts: Heads | RowStates) -> Packed:
    """All arrays of heads or states."""
    return {name: packed_array(part.numpy()) for name, part in vars(parts).items() if part is not None}


def heads_in(given: Packed) -> Heads:
    """The heads that were packed."""
    return Heads(**{name: tensor_in(each) for name, each in given.items()})


def states_in(given: Packed) -> RowStates:
    """The states that were packed."""
    return RowStates(**{name: tensor_in(each) for name, each in given.items()})


def packed_array(array: NDArray[Any]) -> list[Any]:
    """The type, shape and content of an array."""
    little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    return [little.dtype.str, list(array.shape), base64.b64encode(little.tobytes()).decode()]


def tensor_in(given: list[Any]) -> Tensor:
    """The array that was packed, which must be finite."""
    return torch.from_numpy(_array_in(given))


def one_head_in(given: Packed) -> OneHead | None:
    """The only head that was packed, if it has all of its parts."""
    return OneHead(**_first(given)) if len(given) == len(OneHead._fields) else None


def one_state_in(given: Packed) -> OneState:
    """The only state that was packed."""
    return OneState(**_first(given))


def _first(given: Packed) -> dict[str, Any]:
    return {name: _array_in(each)[0] for name, each in given.items()}


def _array_in(given: list[Any]) -> NDArray[Any]:
    kind, shape, text = given
    array = np.frombuffer(bytearray(base64.b64decode(text)), kind).reshape(shape)
    if not np.isfinite(array).all():
        raise InputError("it has numbers that are not finite")
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


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


def add_features_call(fitted: ModelState, after: ModelState, features: Sequence[Feature]) -> Call:
    """The call that adds these features, after which the model is the other one."""
    lines = [
        {
            "name": feature.name,
            "kind": [feature.kind.type.name, feature.kind.first, feature.kind.second],
            "finds_scale": feature.finds_scale,
            "metadata": feature.metadata.tolist(),
            "rows": [fitted.rows[row] for row in feature.rows],
            "values": feature.values.tolist(),
            "times": _listed(feature.times),
        }
        for feature in features
    ]
    records = _packed([feature.record or {} for feature in features], fitted.schema)
    heads = packed(after.catalogue.take([feature.name for feature in features])[1])
    return {"verb": "add_features", "features": lines, "records": records, "heads": heads}


def observe_call(fitted: ModelState, after: ModelState, given: Triples, side: str) -> Call:
    """The call that takes these observations, after which the model is the other one."""
    names, epoch = [feature.name for feature in given.features], after.roster.epoch
    of_features, of_rows = side != "rows", side != "features"
    sums = [after.catalogue.evidence_of(name, epoch) for name in names] if of_features else []
    return {
        "verb": "observe",
        "features": names,
        "places": given.places.tolist(),
        "rows": [fitted.rows[row] for row in given.rows],
        "values": given.values.tolist(),
        "times": _listed(given.times),
        "update": side,
        "heads": packed(after.catalogue.take(names)[1]) if of_features else None,
        "sums": [None if each is None else packed_array(each.numpy()) for each in sums],
        "states": packed(after.roster.take(np.unique(given.rows))) if of_rows else None,
        "arrived": list(after.arrived),
    }


def add_rows_call(fitted: ModelState, new: NewRows) -> Call:
    """The call that adds these rows."""
    held = [numbers(observations, "row") for observations in new.given.values()]
    rows = {
        name: dict(zip(features, values.tolist(), strict=True))
        for name, (features, values) in zip(new.names, held, strict=True)
    }
    schema = None if fitted.row_metadata is None else fitted.row_metadata.schema
    return {
        "verb": "add_rows",
        "rows": rows,
        "metadata": new.encoded.tolist(),
        "records": _packed(new.records, schema),
        "teach": new.teach,
    }


def replay(fitted: ModelState, call: Call) -> ModelState:
    """Return the model after a call, as it was when the call was made first."""
    verb = call.get("verb")
    if verb not in _AGAIN:
        raise ModelFileError(
            f"its journal has the change {verb!r}, which this version does not know; upgrade headstart"
        )
    return _AGAIN[verb](fitted, call)


def _add_features(fitted: ModelState, call: Call) -> ModelState:
    lines = call["features"]
    records = _unpacked(call["records"], len(lines))
    features = [_feature(fitted, *each) for each in zip(lines, records, strict=True)]
    return fitted.holding(features, heads_in(call["heads"]))


def _feature(fitted: ModelState, line: Call, record: Mapping[str, object]) -> Feature:
    kind, first, second = line["kind"]
    return Feature(
        line["name"],
        Kind(KindType[kind], first, second),
        False,
        len(line["rows"]),
        np.array(line["metadata"], dtype=np.float32),
        fitted.rows.positions(line["rows"]),
        np.array(line["values"], dtype=np.float64),
        line["finds_scale"],
        record,
        times=_array(line["times"]),
    )


def _observe(fitted: ModelState, call: Call) -> ModelState:
    features = [fitted.catalogue[name] for name in call["features"]]
    of = np.array([fitted.catalogue.number(name) for name in call["features"]], dtype=np.int64)
    places = np.array(call["places"], dtype=np.int64)
    values = np.array(call["values"], dtype=np.float64)
    rows = fitted.rows.positions(call["rows"])
    given = Triples(rows, features, places, of[places], values, _array(call["times"]))
    if fitted.clock is not None:
        fitted = replace(fitted, clock=fitted.clock.moved(given.times))
    if call["states"] is not None:
        fitted = observe_rows(fitted, given, lambda *_: states_in(call["states"]))
    if call["heads"] is not None:
        sums = [None if each is None else tensor_in(each) for each in call["sums"]]
        fitted = fitted.holding(observe_features(fitted, given), heads_in(call["heads"]), sums)
    return replace(fitted, arrived=Arrived(*call["arrived"]))


def _observe_one(fitted: ModelState, call: Call) -> ModelState:
    """``_observe`` of one observation, without batches: journals are full of such."""
    (name,), (value,) = call["features"], call["values"]
    feature, row = fitted.catalogue[name], fitted.rows.position(call["rows"][0])
    time = None if call["times"] is None else call["times"][0]
    head = None if call["heads"] is None else one_head_in(call["heads"])
    if feature.finds_scale or (head is None and call["heads"] is not None):
        return _observe(fitted, call)
    if fitted.clock is not None:
        fitted = replace(fitted, clock=fitted.clock.moved(_array(call["times"])))
    if call["states"] is not None:
        number = fitted.catalogue.number(name)
        fitted = observe_row(fitted, row, number, value, time, lambda _: one_state_in(call["states"]))
    if head is not None:
        (sums,) = call["sums"]
        catalogue = fitted.catalogue.put_one(
            replace(feature.with_one(row, value, time), now=fitted.now),
            head,
            None if sums is None else tensor_in(sums),
            fitted.roster.epoch,
        )
        fitted = replace(fitted, catalogue=catalogue)
    return replace(fitted, arrived=Arrived(*call["arrived"]))


def _add_rows(fitted: ModelState, call: Call) -> ModelState:
    given = call["rows"]
    encoded = np.array(call["metadata"], dtype=np.float32).reshape(len(given), -1)
    records = _unpacked(call["records"], len(given))
    return add_rows(fitted, NewRows(list(given), given, records, encoded, call["teach"]))


def _rename_feature(fitted: ModelState, call: Call) -> ModelState:
    return fitted.renamed(fitted.catalogue[call["name"]], call["to"])


def _rename_row(fitted: ModelState, call: Call) -> ModelState:
    return fitted.with_roster(fitted.roster.renamed(fitted.rows.position(call["name"]), call["to"]))


_AGAIN: dict[str, Callable[[ModelState, Call], ModelState]] = {
    "add_features": _add_features,
    "observe": lambda fitted, call: (_observe_one if len(call["values"]) == 1 else _observe)(fitted, call),
    "add_rows": _add_rows,
    "remove_feature": lambda fitted, call: fitted.without(call["name"]),
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


def _listed(times: NDArray[np.float64] | None) -> list[float] | None:
    return None if times is None else times.tolist()


def _array(times: list[float] | None) -> NDArray[np.float64] | None:
    return None if times is None else np.array(times, dtype=np.float64)
