"""Names and values as users give them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from headstart.errors import InputError
from headstart.table.names import as_name, spelled

NUMBERS = (bool, int, float, np.bool_, np.integer, np.floating)  # the types of values that are taken


def require_mapping(given: object, what: str, example: str) -> Mapping[Any, Any]:
    """Refuse anything that does not map names to something."""
    if not isinstance(given, Mapping):
        raise InputError(f"{what} must map names to values, as {example}; got {type(given).__name__}")
    return given


def unique_names(given: Mapping[Any, Any], what: str, of: str = "name") -> list[str]:
    """The keys as names of rows or features; 1 and "1" are one name, so both at once are refused."""
    names: dict[str, object] = {}
    for key in given:
        name = as_name(key, of)
        if name in names:
            both = f"{spelled(names[name])} and {spelled(key)}"
            raise InputError(f"{what}: {name!r} is given twice, as {both}; keep one")
        names[name] = key
    return list(names)


def as_list(names: Any) -> list[Any]:
    """A single name is a list of one; a string is never a list of letters."""
    single = isinstance(names, str) or np.isscalar(names)
    return [names] if single else list(names)


def whole_number(n: object, what: str) -> int:
    """How many are asked for: a whole number from 1 up."""
    if isinstance(n, bool) or not isinstance(n, (int, np.integer)) or n < 1:
        raise InputError(f"{what} takes a whole number n from 1 up; got {n!r}")
    return int(n)


def tidy_keys(metadata: Mapping[Any, object], columns: list[str]) -> dict[Any, object]:
    """The metadata by tidy names of columns; what is no name is left to the schema to refuse."""
    tidy: dict[Any, object] = {}
    for key, value in metadata.items():
        column = as_name(key, "column name") if isinstance(key, str) and key not in columns else key
        if column in tidy:
            raise InputError(f"metadata {column!r} is given twice, in two spellings; keep one")
        tidy[column] = value
    return tidy
