"""What users pass to a model, checked and turned into arrays before anything changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from headstart.backbones.protocol import RowStates
from headstart.errors import InputError, UnknownNameError, did_you_mean
from headstart.model.catalogue import Feature
from headstart.model.fitted import Fitted
from headstart.table import Cells, Kind, Names
from headstart.table.kinds import BINARY, NAMES, REAL
from headstart.table.names import as_name

Observations = Mapping[Any, float]


def numbers(observations: Observations, what: str) -> tuple[list[str], NDArray[np.float64]]:
    """Part a mapping of name → value into names and finite numbers."""
    if not isinstance(observations, Mapping):
        raise InputError(
            f"{what}: observations must map names to values, as {{'u17': 5}}; got {observations!r}"
        )
    names = [as_name(name) for name in observations]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(f"{what}: {twice!r} is observed twice; give one value for it")
    values = np.empty(len(names))
    for i, value in enumerate(observations.values()):
        if not isinstance(value, (bool, int, float, np.bool_, np.integer, np.floating)):
            raise InputError(f"{what}: the value at {names[i]!r} must be a number; got {value!r}")
        values[i] = value
    if not np.isfinite(values).all():
        where = int(np.flatnonzero(~np.isfinite(values))[0])
        raise InputError(
            f"{what}: the value at {names[where]!r} is {values[where]}; leave unknown values out"
        )
    return names, values


def check_kind(values: NDArray[np.float64], kind: Kind, names: list[str], what: str) -> None:
    """Refuse values that a feature of this kind cannot take."""
    if kind.code == REAL:
        return
    if kind.code == BINARY:
        wrong, allowed = (values != 0) & (values != 1), "0 or 1"
    else:
        wrong, allowed = (values < kind.low) | (values > kind.high), f"from {kind.low:g} to {kind.high:g}"
    if wrong.any():
        first = int(np.flatnonzero(wrong)[0])
        raise InputError(
            f"{what}: the value {values[first]:g} at {names[first]!r} is not {allowed}, as kind {kind} says"
        )


def context_of(
    feature: str, observations: Observations, kind: Kind, rows: Names
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The context of a feature as row positions, in order, and values."""
    what = f"feature {feature!r}"
    names, values = numbers(observations, what)
    check_kind(values, kind, names, what)
    try:
        positions = rows.positions(names)
    except UnknownNameError as error:
        raise UnknownNameError(
            f"{what}: {error}; a context can only hold rows the model knows; add_rows() makes new ones known"
        ) from None
    order = np.argsort(positions)
    return positions[order], values[order]


PARTS = ("metadata", "observations", "kind")


def new_feature(fitted: Fitted, given: object, parts: Mapping[str, Any]) -> Feature:
    """Check all that is said of a new feature and put it together, without a head yet."""
    name = as_name(given, "feature")
    if name in fitted.catalogue:
        raise InputError(f"feature {name!r} is already in the model; use observe() to add observations to it")
    for part in parts:
        if part not in PARTS:
            raise InputError(f"feature {name!r}: unknown part {part!r}{did_you_mean(part, PARTS)}")
    observations = parts.get("observations") or {}
    kind = _kind_of(fitted, name, parts.get("kind"), observations)
    rows, values = context_of(name, observations, kind, fitted.rows)
    return Feature(name, kind, False, len(rows), _encoded_metadata(fitted, name, parts), rows, values)


def _encoded_metadata(fitted: Fitted, name: str, parts: Mapping[str, Any]) -> NDArray[np.float32]:
    metadata = parts.get("metadata")
    if fitted.schema is None:
        if metadata:
            raise InputError(f"feature {name!r}: the model was fitted without metadata and can use none")
        return np.zeros(0, dtype=np.float32)
    try:
        encoded = fitted.schema.encode([metadata or {}])
    except InputError as error:
        raise type(error)(f"feature {name!r}: {error}") from None
    line: NDArray[np.float32] = encoded[0]
    return line


def _kind_of(fitted: Fitted, name: str, given: str | Kind | None, observations: Observations) -> Kind:
    usual = fitted.default_kind
    known = {feature.kind for feature in fitted.catalogue.values()}
    if given is None or given == usual.name:
        if usual.code != REAL or sum(kind.code == REAL for kind in known) == 1:
            return usual
        if len(observations) < 2:
            raise InputError(
                f"feature {name!r}: the model's real features each have a scale of their own; say this "
                "one's, as kind='real:CENTER:SCALE', or give at least 2 observations"
            )
        _, values = numbers(observations, f"feature {name!r}")
        return Kind.real(float(values.mean()), float(values.std()) or 1.0)
    kind = given if isinstance(given, Kind) else Kind.parse(given)
    if kind.code not in {other.code for other in known}:
        trained = ", ".join(sorted({NAMES[other.code] for other in known}))
        raise InputError(
            f"feature {name!r}: kind {kind} is not among those the model was fitted on ({trained})"
        )
    return kind


def encode_rows(fitted: Fitted, rows: Mapping[Any, Observations]) -> RowStates:
    """The states of new rows; observations of features the backbone does not read are checked, not used."""
    lines, index, scaled = [], [], []
    for line, (row, observations) in enumerate(rows.items()):
        names, values = numbers(observations, f"row {row!r}")
        for name, value in zip(names, values, strict=True):
            feature = fitted.catalogue[name]
            check_kind(np.array([value]), feature.kind, [name], f"row {row!r}")
            if feature.trained:
                lines.append(line)
                index.append(fitted.encoded.position(name))
                scaled.append(feature.kind.scale(value))
    cells = Cells.from_pairs(
        torch.tensor(lines, dtype=torch.int64),
        torch.tensor(index, dtype=torch.int64),
        torch.tensor(scaled, dtype=torch.float32),
        len(rows),
        len(fitted.encoded),
    )
    return fitted.backbone.encode(cells)
