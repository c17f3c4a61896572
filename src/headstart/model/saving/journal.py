"""Record the changes of a saved model, one line per change, and replay them.

A second, small file holds the number of acknowledged changes and the digest of the last of them. It is
written after the line of a change and before the writer returns. So a journal that lost an acknowledged
change is told apart from the incomplete line of a writer that was killed.

A change is a list of calls. A call contains its verb, names of rows and features, and values in their order
of arrival; replaying it computes heads and states again (see ``updates``). The values of ``observe`` and
``add_features`` are numbers of the kind, such as the logarithm of a count (see ``table.kinds.Margin``).
Metadata is recorded in encoded form, because its encoder may not be available when the call is replayed.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from headstart.errors import ModelFileError, StorageError
from headstart.files import (
    explain_storage_error,
    json_bytes,
    read_json,
    read_regular_file,
    sync_folder,
    write_bytes,
)
from headstart.model.features import Feature
from headstart.model.inputs import NewRows, split_observations
from headstart.model.staleness import ErrorSums
from headstart.model.state import ModelState
from headstart.model.triples import Triples
from headstart.model.updates import (
    Update,
    add_features,
    add_observations,
    add_rows,
    remove_feature,
    remove_row,
)
from headstart.table import Kind, MetadataSchema
from headstart.table.metadata import as_bytes, records_from

Call = dict[str, Any]  # a verb and its arguments, which are written as JSON

_LENGTH_DIGITS = 16  # hexadecimal: eight digits of the length of the JSON, and eight of its checksum

_DIGEST_DIGITS = 64

_HEADER = _LENGTH_DIGITS + 1 + _DIGEST_DIGITS + 1  # bytes of a line before its JSON


class Acknowledged(NamedTuple):
    """The number of acknowledged changes of a journal, and the digest of the last one."""

    changes: int
    digest: str


@dataclass(frozen=True)
class Journal:
    """The content of a journal.

    Attributes
    ----------
    path : Path
        The file, which may not exist yet.
    changes : list
        The calls of each change. A change is applied as a whole.
    digest : str
        The digest of the last line, or the checksum of the model if there is no line.
    size : int
        The number of bytes of the file that are complete lines.
    acknowledged : Acknowledged or None
        The acknowledged changes; None if it is not known how many they are.
    rest : bytes
        The bytes after the complete lines, unless they are an incomplete line that was never acknowledged.
    warning : str or None
        A message about the rest, or about a missing file of acknowledged changes.
    """

    path: Path
    changes: list[list[Call]]
    digest: str
    size: int
    acknowledged: Acknowledged | None
    rest: bytes = b""
    warning: str | None = None


def journal_name(base: str) -> str:
    """Return the file name of the journal of the model with the checksum ``base``."""
    return f"journal-{base[:16]}.jsonl"


def acknowledged_path(journal: Path) -> Path:
    """Return the file with the number of acknowledged changes of a journal."""
    return journal.with_name(f"acknowledged-{journal.stem.removeprefix('journal-')}.json")


def read_journal(path: Path, base: str) -> Journal:
    """Read the journal of the model with the checksum ``base``; a missing file is an empty journal.

    Raises
    ------
    ModelFileError
        If an acknowledged change is damaged or missing, or belongs to another model.
    """
    # Before the journal: another process may append a change in between, and then acknowledge it.
    acknowledged = _read_acknowledged(acknowledged_path(path))
    try:
        content = read_regular_file(path)
    except FileNotFoundError:
        content = b""
    changes: list[list[Call]] = []
    digests, start = [base], 0
    while (text := _read_text(content, start, digests[-1])) is not None:
        digests.append(_digest(digests[-1], text))
        changes.append(json.loads(text))
        start += _HEADER + len(text) + 1
    rest = content[start:]
    incomplete = _is_incomplete_line(rest)
    _require_acknowledged(path, acknowledged, digests, rest, incomplete)
    warning = None
    if acknowledged is None and content:
        warning = (
            f"{acknowledged_path(path)} is missing, so it is not known whether {path} is complete; "
            f"its {len(changes)} whole changes were loaded{_describe_rest(path, rest)}"
        )
    elif not incomplete:
        warning = (
            f"{path} ends with {len(rest)} bytes that are not a change, as after a power failure; "
            f"all {len(changes)} acknowledged changes were loaded{_describe_rest(path, rest)}"
        )
    else:
        rest = b""  # of a killed writer, or of one that is still at work
    return Journal(path, changes, digests[-1], start, acknowledged, rest, warning)


def _require_acknowledged(
    path: Path, acknowledged: Acknowledged | None, digests: list[str], rest: bytes, incomplete: bool
) -> None:
    """Refuse a journal without its acknowledged changes; ``digests`` belong to its complete lines."""
    count = len(digests) - 1
    if acknowledged is None:
        if not incomplete and rest.strip(b"\0"):
            raise _damage_error(path, count)
        return
    if count < acknowledged.changes and not incomplete and rest.strip(b"\0"):
        raise _damage_error(path, count)
    if count < acknowledged.changes:
        raise ModelFileError(
            f"{path} is cut short: {acknowledged.changes} changes were acknowledged, and {count} of them are "
            f"there, with {len(rest)} bytes of the next; restore it from a copy, or remove "
            f"{acknowledged_path(path)}, which holds only their number, to go on with the {count} that are "
            f"there{_describe_rest(path, rest)}"
        )
    if digests[acknowledged.changes] != acknowledged.digest:
        raise _damage_error(path, max(0, acknowledged.changes - 1))


def _describe_rest(path: Path, rest: bytes) -> str:
    return (
        f"; the next change will keep the {len(rest)} bytes after them in {_rest_path(path, rest)}"
        if rest
        else ""
    )


def _rest_path(path: Path, rest: bytes) -> Path:
    return path.with_name(f"cut-off-{hashlib.sha256(rest).hexdigest()[:16]}.jsonl")


def keep_rest(journal: Journal) -> None:
    """Write the rest of a journal to a file beside it, before a change overwrites it."""
    if journal.rest:
        write_bytes(_rest_path(journal.path, journal.rest), journal.rest)


def _read_acknowledged(path: Path) -> Acknowledged | None:
    """Read the number of acknowledged changes; return None if there is no such file."""
    if not os.path.lexists(path):
        return None
    try:
        facts = read_json(path)
        acknowledged = Acknowledged(facts["changes"], facts["digest"])
        if facts == _acknowledged_facts(acknowledged) and acknowledged.changes >= 0:
            return acknowledged
    except (KeyError, TypeError, ValueError):
        pass
    except ModelFileError:
        if not os.path.lexists(path):  # another process has just replaced the model
            return None
        raise
    raise ModelFileError(
        f"{path} is damaged; restore it from a copy, or remove it: it holds only the number of changes, and "
        "the changes themselves are in the journal"
    )


def _write_acknowledged(path: Path, acknowledged: Acknowledged) -> None:
    write_bytes(path, json_bytes(_acknowledged_facts(acknowledged)))


def _acknowledged_facts(acknowledged: Acknowledged) -> dict[str, object]:
    facts = acknowledged._asdict()
    return {**facts, "checksum": hashlib.sha256(repr(facts).encode()).hexdigest()}


def encode_line(digest: str, calls: Sequence[Call]) -> bytes:
    """Return the line of a change that follows the line with this digest."""
    text = json.dumps(calls, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
    return _line(_digest(digest, text), text)


def append_line(journal: Journal, line: bytes) -> None:
    """Append a line durably and acknowledge it; if writing fails, the journal is unchanged."""
    path = acknowledged_path(journal.path)
    before = journal.acknowledged
    if before is None:
        # Otherwise a killed first write would look like a journal that has lost this file.
        before = Acknowledged(len(journal.changes), journal.digest)
        _write_acknowledged(path, before)
    digest = line[_LENGTH_DIGITS + 1 : _HEADER - 1].decode()
    new = not journal.path.exists()
    flags = os.O_WRONLY | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    with explain_storage_error(journal.path):
        handle = os.open(journal.path, flags, 0o666)
        try:
            os.ftruncate(handle, journal.size)  # removes an incomplete line of a killed writer
            try:
                _write_all(handle, line, journal.size)
                os.fsync(handle)
                if new:
                    sync_folder(journal.path.parent)
                _write_acknowledged(path, Acknowledged(len(journal.changes) + 1, digest))
            except BaseException:
                with suppress(StorageError, ModelFileError):
                    if _read_acknowledged(path) != before:  # replaced, but perhaps not on the disk
                        _write_acknowledged(path, before)
                os.ftruncate(handle, journal.size)
                raise
        finally:
            os.close(handle)


def _write_all(handle: int, line: bytes, position: int) -> None:
    os.lseek(handle, position, os.SEEK_SET)
    rest = memoryview(line)
    while rest:
        rest = rest[os.write(handle, rest) :]


def _read_text(content: bytes, start: int, digest: str) -> bytes | None:
    """Return the JSON of the line at ``start`` after the line with this digest; None if it is not whole."""
    length = _read_length(content[start : start + _LENGTH_DIGITS])
    if length is None:
        return None
    text = content[start + _HEADER : start + _HEADER + length]
    line = content[start : start + _HEADER + length + 1]
    return text if line == _line(_digest(digest, text), text) else None


def _read_length(digits: bytes) -> int | None:
    """Return the length of the JSON of a line that starts with ``digits``; None if they are damaged."""
    if len(digits) < _LENGTH_DIGITS or digits[8:] != _checksum(digits[:8]):
        return None
    return int(digits[:8], 16)


def _is_incomplete_line(rest: bytes) -> bool:
    """Return whether ``rest`` is empty, or may be the beginning of a line."""
    length = _read_length(rest[:_LENGTH_DIGITS])
    if length is None:
        return len(rest) < _LENGTH_DIGITS and not rest.strip(b"0123456789abcdef")
    return len(rest) < _HEADER + length + 1


def _line(digest: str, text: bytes) -> bytes:
    length = f"{len(text):08x}".encode()
    return b"%s%s %s %s\n" % (length, _checksum(length), digest.encode(), text)


def _checksum(length: bytes) -> bytes:
    return f"{zlib.crc32(length):08x}".encode()


def _digest(previous: str, text: bytes) -> str:
    """Return the digest of a line with this JSON, after a line with the digest ``previous``."""
    return hashlib.sha256(previous.encode() + text).hexdigest()


def _damage_error(path: Path, number: int) -> ModelFileError:
    return ModelFileError(
        f"{path} is damaged: its line {number + 1} does not match its checksum, or is of another model; "
        "restore it from a copy. It holds changes that were acknowledged, so do not delete it"
    )


class CallLog:
    """The calls that changed a model since its state was ``model``.

    A model can also change without a call, such as by another ``fit``. Then ``calls`` returns None.
    """

    def __init__(self, model: ModelState) -> None:
        self._calls: list[Call] = []
        self._latest: ModelState | None = model  # the state to which the calls lead

    def record(self, before: ModelState, after: ModelState, *calls: Call) -> None:
        """Record calls that changed the model from the state ``before`` to ``after``."""
        if self._latest is before:
            self._calls += calls
            self._latest = after

    def record_unsaved(self, before: ModelState, after: ModelState) -> None:
        """Record a change of parts that are never saved."""
        if self._latest is before:
            self._latest = after

    def discard(self) -> None:
        """Discard the calls: the folder contains another model than the one they started from."""
        self._latest = None

    def calls(self, model: ModelState) -> list[Call] | None:
        """Return the calls that led to the state ``model``; None if it was reached in another way."""
        return self._calls if self._latest is model else None


def add_features_call(model: ModelState, features: Sequence[Feature]) -> Call:
    """Return the call that adds these features."""
    lines = []
    for feature in features:
        order = np.argsort(feature.arrivals) if feature.arrivals is not None else slice(None)
        lines.append(
            {
                "name": feature.name,
                "kind": str(feature.kind),
                "finds_scale": feature.finds_scale,
                "metadata": feature.metadata.tolist(),
                "rows": [model.rows[row] for row in feature.rows[order].tolist()],
                "values": feature.values[order].tolist(),
                "times": _to_list(None if feature.times is None else feature.times[order]),
                **({} if feature.weights is None else {"weights": feature.weights[order].tolist()}),
            }
        )
    records = _encode_records([feature.record or {} for feature in features], model.schema)
    return {"verb": "add_features", "features": lines, "records": records}


def observe_call(model: ModelState, after: ModelState, triples: Triples, update: Update) -> Call:
    """Return the call that adds these observations to ``model`` and gives ``after``."""
    order = np.argsort(triples.order)
    return {
        "verb": "observe",
        "features": [feature.name for feature in triples.features],
        "feature_positions": triples.feature_positions[order].tolist(),
        "rows": [model.rows[row] for row in triples.rows[order].tolist()],
        "values": triples.values[order].tolist(),
        "times": _to_list(None if triples.times is None else triples.times[order]),
        "update": update,
        "arrived": list(after.arrived),
        **({} if triples.weights is None else {"weights": triples.weights[order].tolist()}),
    }


def add_rows_call(model: ModelState, new: NewRows) -> Call:
    """Return the call that adds these rows."""
    lists = [split_observations(observations, "row") for observations in new.observations.values()]
    rows = {
        name: dict(zip(features, values.tolist(), strict=True))
        for name, (features, values) in zip(new.names, lists, strict=True)
    }
    schema = None if model.row_metadata is None else model.row_metadata.schema
    return {
        "verb": "add_rows",
        "rows": rows,
        "metadata": new.encoded.tolist(),
        "records": _encode_records(new.records, schema),
        "update_features": new.update_features,
    }


def join_observations(calls: Iterable[Call]) -> Iterator[Call]:
    """Join consecutive calls of ``observe`` into one, which gives the same model in less time.

    A call with a cell that an earlier one has too, a correction, begins another one.
    """
    joined: Call | None = None
    cells: set[tuple[str, str]] = set()
    for call in calls:
        observed = _cells_of(call)
        if joined is not None and _can_join(joined, call) and cells.isdisjoint(observed):
            joined = _join(joined, call)
            cells |= observed
            continue
        if joined is not None:
            yield joined
        joined, cells = call, observed
    if joined is not None:
        yield joined


def _cells_of(call: Call) -> set[tuple[str, str]]:
    """Return the rows and features of the observations of a call; empty for other verbs."""
    if call.get("verb") != "observe":
        return set()
    features = [call["features"][position] for position in call["feature_positions"]]
    return set(zip(call["rows"], features, strict=True))


def _can_join(call: Call, later: Call) -> bool:
    """Return whether two calls are observations that the same sides store, both with or without weights."""
    return (
        call.get("verb") == later.get("verb") == "observe"
        and call["update"] == later["update"]
        and ("weights" in call) == ("weights" in later)
    )


def _join(call: Call, later: Call) -> Call:
    """Return one call with the observations of two."""
    positions = {name: position for position, name in enumerate(call["features"])}
    for name in later["features"]:
        positions.setdefault(name, len(positions))
    moved = [positions[later["features"][position]] for position in later["feature_positions"]]
    return {
        **later,
        "features": list(positions),
        "feature_positions": [*call["feature_positions"], *moved],
        **{
            name: [*call[name], *later[name]]
            for name in ("rows", "values", "times", "weights")
            if call.get(name) is not None
        },
    }


def replay(model: ModelState, call: Call) -> ModelState:
    """Return the model after a recorded call."""
    verb = call.get("verb")
    if verb not in _VERBS:
        raise ModelFileError(
            f"its journal has the change {verb!r}, which this version does not know; upgrade headstart"
        )
    return _VERBS[verb](model, call)


def _add_features(model: ModelState, call: Call) -> ModelState:
    lines = call["features"]
    records = _decode_records(call["records"], len(lines))
    features = [_feature(model, line, record) for line, record in zip(lines, records, strict=True)]
    return add_features(model, features)


def _feature(model: ModelState, line: Call, record: Mapping[str, object]) -> Feature:
    rows = model.rows.positions(line["rows"])
    order = np.argsort(rows)
    times, weights = _to_array(line["times"]), _to_array(line.get("weights"))
    return Feature(
        line["name"],
        Kind.parse(line["kind"]),
        False,
        len(rows),
        np.array(line["metadata"], dtype=np.float32),
        rows[order],
        np.array(line["values"], dtype=np.float64)[order],
        line["finds_scale"],
        record,
        model.arrivals + order,
        None if times is None else times[order],
        None if weights is None else weights[order],
    )


def _observe(model: ModelState, call: Call) -> ModelState:
    features = [model.feature_store[name] for name in call["features"]]
    feature_numbers = np.array(
        [model.feature_store.number(name) for name in call["features"]], dtype=np.int64
    )
    feature_positions = np.array(call["feature_positions"], dtype=np.int64)
    values = np.array(call["values"], dtype=np.float64)
    rows = model.rows.positions(call["rows"])
    order = np.arange(len(values))
    times = _to_array(call["times"])
    weights = _to_array(call.get("weights"))
    observations = Triples(
        rows, features, feature_positions, feature_numbers[feature_positions], values, times, order, weights
    )
    after = add_observations(model, observations, call["update"])
    return replace(after, arrived=ErrorSums(*call["arrived"]))


def _add_rows(model: ModelState, call: Call) -> ModelState:
    rows = call["rows"]
    encoded = np.array(call["metadata"], dtype=np.float32).reshape(len(rows), -1)
    records = _decode_records(call["records"], len(rows))
    return add_rows(model, NewRows(list(rows), rows, records, encoded, call["update_features"]))


def _rename_feature(model: ModelState, call: Call) -> ModelState:
    return model.rename_feature(model.feature_store[call["name"]], call["to"])


def _rename_row(model: ModelState, call: Call) -> ModelState:
    return model.rename_row(model.rows.position(call["name"]), call["to"])


_VERBS: dict[str, Callable[[ModelState, Call], ModelState]] = {
    "add_features": _add_features,
    "observe": _observe,
    "add_rows": _add_rows,
    "remove_feature": lambda model, call: remove_feature(model, call["name"]),
    "remove_row": lambda model, call: remove_row(model, model.rows.position(call["name"])),
    "rename_feature": _rename_feature,
    "rename_row": _rename_row,
}


def _encode_records(records: Sequence[Mapping[str, object]], schema: MetadataSchema | None) -> str | None:
    """Encode the metadata passed by the user as text; return None if the model has no metadata."""
    if schema is None:
        return None
    content = as_bytes(records, [column.name for column in schema.columns])
    return base64.b64encode(content.numpy().tobytes()).decode()


def _decode_records(text: str | None, count: int) -> list[dict[str, object]]:
    """Decode the text of ``_encode_records`` to ``count`` records."""
    if text is None:
        return [{} for _ in range(count)]
    content = torch.from_numpy(np.frombuffer(base64.b64decode(text), dtype=np.uint8).copy())
    return [record or {} for record in records_from(content, count)]


def _to_list(times: NDArray[np.float64] | None) -> list[float] | None:
    return None if times is None else times.tolist()


def _to_array(times: list[float] | None) -> NDArray[np.float64] | None:
    return None if times is None else np.array(times, dtype=np.float64)
