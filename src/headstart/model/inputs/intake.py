"""What users pass to a model, checked and turned into arrays before anything changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headstart.core.states import RowStates
from headstart.errors import InputError, UnknownNameError, argument, did_you_mean, worded
from headstart.model.inputs.frames import as_mapping
from headstart.model.inputs.given import NUMBERS, require_mapping, tidy_keys, unique_names
from headstart.model.parts.describing import described
from headstart.model.parts.feature import Feature
from headstart.model.parts.fitted import Fitted
from headstart.model.parts.roster import RowObservations
from headstart.model.parts.row_cells import RowCells
from headstart.table import Kind, Kinds, Names
from headstart.table.columns.column import is_missing
from headstart.table.kinds import KIND_NAMES, KindType
from headstart.table.limits import require_carried
from headstart.table.names import as_name

Observations = Any  # Mapping[Any, float], or a Series or frame (``frames.as_mapping``)
PARTS = ("metadata", "observations", "kind")


def numbers(observations: object, what: str) -> tuple[list[str], NDArray[np.float64]]:
    """Part a mapping of name → value, or a Series or frame, into names and finite numbers."""
    given = require_mapping(as_mapping(observations, what), f"{what}: observations", "{'u17': 5}")
    names = unique_names(given, what)
    for name, value in zip(names, given.values(), strict=True):
        if not isinstance(value, NUMBERS):
            raise InputError(f"{what}: the value at {name!r} must be a number; got {value!r}")
    try:
        values = np.array(list(given.values()), dtype=np.float64)
    except OverflowError:
        raise InputError(f"{what}: a value is too large to be a number here") from None
    if not np.isfinite(values).all():
        where = int(np.flatnonzero(~np.isfinite(values))[0])
        raise InputError(
            f"{what}: the value at {names[where]!r} is {values[where]}; leave unknown values out"
        )
    return names, values


def context_of(
    feature: str, observations: object, kind: Kind, rows: Names, advice: str = ""
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The context of a feature as row positions, in order, and values."""
    what = f"feature {feature!r}"
    names, values = numbers(observations, what)
    _check_values(values, names, Kinds([kind] * len(names)), what, advice)
    try:
        positions = rows.positions(names)
    except UnknownNameError as error:
        raise UnknownNameError(
            f"{what}: {error}; a context can only hold rows the model knows"
            + worded(" (add_rows() adds new ones)", "")
        ) from None
    order = np.argsort(positions)
    return positions[order], values[order]


def _check_values(
    values: NDArray[np.float64], names: list[str], kinds: Kinds, what: str, advice: str = ""
) -> None:
    """Refuse values that features of these kinds, one a value, cannot take."""
    wrong = kinds.impossible(values, np.arange(len(values)))
    if wrong.any():
        first = int(np.flatnonzero(wrong)[0])
        raise InputError(
            f"{what}: the value {values[first]:g} at {names[first]!r} is not {kinds[first].allowed} "
            f"(kind {kinds[first]}){advice}"
        )
    scaled = kinds.scale(values, np.arange(len(values)))
    require_carried(values, scaled, lambda i: f"{what} at {names[i]!r}")


def new_features(fitted: Fitted, given: Mapping[Any, object]) -> list[Feature]:
    """Check everything that is given of new features and return the features, without heads yet."""
    features = [_new_feature(fitted, name, parts) for name, parts in given.items()]
    records = {
        feature.name: _metadata_of(fitted, feature.name, parts)
        for feature, parts in zip(features, given.values(), strict=True)
    }
    encoded = _encoded_metadata(fitted, records)
    every = zip(features, encoded, records.values(), strict=True)
    return [replace(feature, metadata=line, record=_as_given(own)) for feature, line, own in every]


def _as_given(record: Mapping[Any, object]) -> dict[str, object]:
    """The metadata under the tidy names of its columns, without what is missing."""
    return {as_name(key, "column name"): value for key, value in record.items() if not is_missing(value)}


def _new_feature(fitted: Fitted, given: object, parts: object) -> Feature:
    """Check a new feature and return it without a head and without its metadata."""
    name = as_name(given, "feature")
    if name in fitted.catalogue:
        fixed = fitted.catalogue[name].fixed
        observe = worded("use observe()", "use headstart observe") + " to add observations to it"
        advice = worded("fit() again to change it", "fit the model again to change it") if fixed else observe
        raise InputError(f"feature {name!r} is already in the model; {advice}")
    said = require_mapping(parts, f"feature {name!r}", "{'metadata': …, 'observations': …}")
    for part in said:
        if part not in PARTS:
            raise InputError(f"feature {name!r}: unknown part {part!r}{did_you_mean(str(part), PARTS)}")
    observations = {} if said.get("observations") is None else said["observations"]
    kind = _kind_of(fitted, name, said.get("kind"))
    advice = f"; {argument('kind')} gives the feature another kind" if said.get("kind") is None else ""
    rows, values = context_of(name, observations, kind, fitted.rows, advice)
    finds_scale = fitted.middle is not None and kind == fitted.middle
    blank = np.zeros(0, dtype=np.float32)
    times = None if fitted.clock is None else fitted.clock.times_now(len(rows))
    feature = Feature(name, kind, False, len(rows), blank, rows, values, finds_scale, times=times)
    return fitted.with_own_units(feature)


def _metadata_of(fitted: Fitted, name: str, parts: Any) -> Mapping[str, object]:
    given = parts.get("metadata")
    metadata = (
        {} if given is None else require_mapping(given, f"feature {name!r}: metadata", "{'year': 2026}")
    )
    if fitted.schema is None and metadata:
        raise InputError(f"feature {name!r}: the model was fitted without metadata and can use none")
    return metadata


def _encoded_metadata(fitted: Fitted, records: Mapping[str, Mapping[str, object]]) -> NDArray[np.float32]:
    """Encode the metadata of new features together, because encoders are fast on many values: (n, width)."""
    if fitted.schema is None:
        return np.zeros((len(records), 0), dtype=np.float32)
    try:
        columns = [column.name for column in fitted.schema.columns]
        tidy = [tidy_keys(record, columns) for record in records.values()]
        return fitted.schema.encode(tidy, fitted.encoders)
    except InputError as error:
        if len(records) > 1:  # find the feature that it is about
            for name, record in records.items():
                _encoded_metadata(fitted, {name: record})
            raise
        raise type(error)(f"feature {next(iter(records))!r}: {error}") from None


def _kind_of(fitted: Fitted, name: str, given: object) -> Kind:
    """The kind said, or the usual one; a bare "rating" or "real" takes the model's ends or scale."""
    wanted = fitted.kinds[0].name if given is None else str(given)
    if isinstance(given, Kind) or wanted not in KIND_NAMES:
        kind = given if isinstance(given, Kind) else Kind.parse(wanted)
        if kind.type not in {other.type for other in fitted.kinds}:
            raise InputError(f"feature {name!r}: kind {kind} is {_none_of(fitted)}")
        return kind
    alike = [kind for kind in fitted.kinds if kind.name == wanted]
    if not alike:
        raise InputError(f"feature {name!r}: kind {wanted} is {_none_of(fitted)}")
    if len(alike) == 1 or (given is None and alike[0].type != KindType.REAL):
        return alike[0]
    if alike[0].type != KindType.REAL:
        raise InputError(f"feature {name!r}: say its ends, as {argument('kind', str(alike[0]))}")
    # The model's real features each have a scale of their own: this one's is found from its observations.
    return alike[0] if fitted.middle is None else fitted.middle


def _none_of(fitted: Fitted) -> str:
    there = ", ".join(sorted({kind.name for kind in fitted.kinds}))
    advice = f"; give {argument('kind', 'real')} to read its values as numbers" if "real" in there else ""
    return f"not among those the model was fitted on ({there}){advice}"


def rows_of(fitted: Fitted, rows: Mapping[Any, object]) -> RowCells:
    """What new rows observed, checked."""
    checked = []
    for row, observations in rows.items():
        what = f"row {row!r}"
        names, values = numbers(observations, what)
        features = [fitted.catalogue[name] for name in names]
        _check_values(values, names, Kinds([feature.kind for feature in features]), what)
        places = np.array([fitted.catalogue.number(name) for name in names], dtype=np.int64)
        order = np.argsort(places)
        checked.append(RowObservations(places[order], values[order]))
    return RowCells.of(checked)


def encode_rows(fitted: Fitted, rows: Mapping[Any, object]) -> RowStates:
    """The states of new rows."""
    return described(fitted, rows_of(fitted, rows), [str(row) for row in rows])
