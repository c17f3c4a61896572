"""Times and weights of observations, and weights that decrease with age."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from headstart.errors import InputError, option_name
from headstart.table.sources import as_microseconds, is_number, is_text

_UNITS = {"second": 1.0, "minute": 60.0, "hour": 3600.0, "day": 86400.0, "week": 604800.0,
          "month": 2629746.0, "year": 31556952.0}  # fmt: skip

_IN_WORDS = re.compile(r"\s*([0-9.]+(?:[eE][-+]?[0-9]+)?)\s*([a-z]+?)s?\s*")

LEAST_WEIGHT = 2.0**-60  # an observation of the weight 0 would have no precision

MOST_WEIGHT = 1e9  # the square of a larger one might overflow in single precision


def half_life_of(given: object) -> float | None:
    """Convert a half-life to a number in the unit of the times: seconds if it is in words.

    >>> half_life_of("2 days"), half_life_of(90), half_life_of(None)
    (172800.0, 90.0, None)
    """
    if given is None:
        return None
    number: float | None = None
    if isinstance(given, timedelta):
        number = given.total_seconds()
    elif isinstance(given, (int, float, np.integer, np.floating)) and not isinstance(given, bool):
        number = float(given)
    elif isinstance(given, str):
        words = _IN_WORDS.fullmatch(given.lower())
        amount, unit = (words[1], _UNITS.get(words[2])) if words else (given, 1.0)
        with contextlib.suppress(ValueError):
            number = None if unit is None else float(amount) * unit
    if number is None:
        raise InputError(
            f"{option_name('half_life', '180 days')} is a number in the unit of the times, a timedelta, or "
            f"words with one of {', '.join(_UNITS)}; got {given!r}"
        )
    if not (number > 0 and np.isfinite(number)):
        raise InputError(f"{option_name('half_life')} must be more than 0; got {given!r}")
    return number


def time_of(value: object, label: str) -> float:
    """Convert one time to a number, as ``times_of``."""
    return float(times_of([value], label)[0])


def times_of(values: Sequence[Any] | pa.Array | pa.ChunkedArray, label: str) -> NDArray[np.float64]:
    """Convert times to numbers: numbers unchanged, dates and texts of dates to seconds since 1970: (n,).

    ``label`` names the times in messages.

    >>> times_of(["1970-01-02"], "time"), times_of([5, 7], "time")
    (array([86400.]), array([5., 7.]))
    """
    if isinstance(values, (pa.Array, pa.ChunkedArray)):
        array = values
    else:
        types = {_type_name(value) for value in values}
        if len(types) > 1:
            raise InputError(
                f"{label} must all be numbers, or all be dates; got {' and '.join(sorted(types))}"
            )
        array = pa.array([_as_arrow_value(value) for value in values], from_pandas=True)
    if array.null_count:
        raise InputError(f"{label} is missing for some observations; give each its time, or leave it out")
    if pa.types.is_dictionary(array.type):
        array = array.cast(array.type.value_type)
    if is_text(array.type):
        array = _parse_texts(array, label)
    if pa.types.is_date(array.type) or pa.types.is_timestamp(array.type):
        times = as_microseconds(array, label).cast(pa.int64())
        numbers = np.asarray(times) / 1e6
    elif is_number(array.type):
        numbers = np.asarray(array.cast(pa.float64(), safe=False).to_numpy(), dtype=np.float64)
    else:
        raise InputError(f"{label} must be numbers or dates; got {array.type}")
    if not np.isfinite(numbers).all():
        raise InputError(f"{label} must be finite; got {numbers[~np.isfinite(numbers)][0]}")
    return np.asarray(numbers, dtype=np.float64)


def _type_name(value: object) -> str:
    if isinstance(value, (bool, np.bool_)):
        return "true or false"
    if isinstance(value, (int, float, np.integer, np.floating)):
        return "numbers"
    return "dates" if isinstance(value, (date, str, np.datetime64)) else type(value).__name__


def _as_arrow_value(value: object) -> object:
    if isinstance(value, np.datetime64):
        return value.astype("datetime64[us]").item()
    if isinstance(value, datetime):
        return value.astimezone(UTC).replace(tzinfo=None) if value.tzinfo else value
    return value.item() if isinstance(value, np.generic) else value


def _parse_texts(array: pa.Array | pa.ChunkedArray, label: str) -> pa.Array | pa.ChunkedArray:
    """Convert texts of numbers, or of dates such as 2024-05-17 or 2024-05-17T20:15:00."""
    for kind in (pa.float64(), pa.timestamp("us")):
        try:
            return pc.utf8_trim_whitespace(array).cast(kind)
        except pa.ArrowInvalid:
            continue
    raise InputError(
        f"{label} must be numbers, or dates as 2024-05-17 or 2024-05-17T20:15:00; got {array[0].as_py()!r}"
    )


def age_weights(
    times: NDArray[np.float64], now: float, half_life: float, given: NDArray[np.float64] | None = None
) -> NDArray[np.float64]:
    """Compute the weights of observations at ``now``: given weight · 2^(−age / half-life): (n,).

    The factor of the age is at most 1. Without ``given`` weights (n,) these are 1.

    >>> age_weights(np.array([0.0, 10.0, 20.0]), 20.0, 10.0)
    array([0.25, 0.5 , 1.  ])
    """
    weights: NDArray[np.float64] = np.exp2(np.minimum(times - now, 0.0) / half_life)
    return np.maximum(weights if given is None else np.multiply(weights, given), LEAST_WEIGHT)


def check_weights(weights: NDArray[np.float64], where: Callable[[int], str]) -> NDArray[np.float64] | None:
    """Return weights of observations (n,), or None if all are 1; refuse weights that are not positive.

    ``where`` names the observation at a position, for messages.

    >>> check_weights(np.array([0.5, 2.0]), str), check_weights(np.ones(3), str)
    (array([0.5, 2. ]), None)
    """
    bad = ~((weights >= LEAST_WEIGHT) & (weights <= MOST_WEIGHT))  # a NaN is bad
    if bad.any():
        first = int(np.argmax(bad))
        raise InputError(
            f"the weight of {where(first)} is {weights[first]:g}; weights must be numbers above 0, at most "
            f"{MOST_WEIGHT:g} (leave out an observation that should not count)"
        )
    return None if (weights == 1).all() else weights
