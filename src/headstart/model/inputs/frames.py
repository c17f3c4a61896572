"""Series and frames in the place of mappings of names to values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import narwhals as nw
import numpy as np

from headstart.errors import InputError, listed
from headstart.table.columns.column import is_missing
from headstart.table.names import as_name, spelled

_OWNERS = ("row", "feature")


def is_observations(given: object) -> bool:
    """Whether this may be the observations of one row or feature: a mapping, a Series or a frame."""
    return isinstance(given, Mapping) or _native(given) is not None


def is_frame(given: object) -> bool:
    """Whether this is a data frame of some library."""
    return isinstance(_native(given), nw.DataFrame)


def as_mapping(given: object, what: str) -> object:
    """Return a Series or frame as a mapping of names to values; anything else as it is.

    The index of a pandas Series holds the names. A frame has two columns: names and values, in this order or
    called ``row`` or ``feature`` and ``value``. A missing value is not observed.
    """
    if isinstance(given, Mapping):
        return given
    frame = _native(given)
    if frame is None:
        return given
    if isinstance(frame, nw.Series):
        native = nw.to_native(frame)
        if not hasattr(native, "index"):
            raise InputError(
                f"{what}: a {type(native).__module__.split('.')[0]} Series has no names; give a frame of "
                "names and values, or a dict"
            )
        return _paired(native.index.tolist(), native.tolist(), what)
    names, values = _columns(frame, what)
    return _paired(frame[names].to_list(), frame[values].to_list(), what)


def as_rows(given: object, what: str) -> object:
    """Return a frame with the columns row, feature and value as ``{row: {feature: value}}``."""
    frame = None if isinstance(given, (Mapping, str)) else _native(given)
    if not isinstance(frame, nw.DataFrame):
        return given
    wanted = ("row", "feature", "value")
    missing = [name for name in wanted if name not in frame.columns]
    if missing:
        raise InputError(
            f"{what}: the frame has no column {missing[0]!r}; its columns are {listed(frame.columns)}"
        )
    rows: dict[Any, dict[Any, Any]] = {}
    for row, feature, value in zip(*(frame[name].to_list() for name in wanted), strict=True):
        own = rows.setdefault(as_name(row, "row"), {})
        if is_missing(value):
            continue
        if feature in own:
            raise InputError(f"{what}: row {row!r} has two values of feature {feature!r}; keep one")
        own[feature] = value
    return rows


def _native(given: object) -> nw.DataFrame[Any] | nw.Series[Any] | None:
    if isinstance(given, (str, bytes, int, float, list, tuple, set, np.ndarray)) or given is None:
        return None
    try:
        frame = nw.from_native(given, allow_series=True)  # type: ignore[call-overload]
    except TypeError:
        return None
    return frame.collect() if isinstance(frame, nw.LazyFrame) else frame


def _columns(frame: nw.DataFrame[Any], what: str) -> tuple[str, str]:
    owners = [name for name in _OWNERS if name in frame.columns]
    if "value" in frame.columns and len(owners) == 1:
        return owners[0], "value"
    if len(frame.columns) == 2:
        return frame.columns[0], frame.columns[1]
    raise InputError(
        f"{what}: a frame of observations has two columns, names and values; got {listed(frame.columns)}"
    )


def _paired(names: Iterable[object], values: Iterable[object], what: str) -> dict[object, object]:
    pairs: dict[object, object] = {}
    for name, value in zip(names, values, strict=True):
        if is_missing(value):
            continue
        if name in pairs:
            raise InputError(f"{what}: {spelled(name)} is given twice; keep one")
        pairs[name] = value
    return pairs
