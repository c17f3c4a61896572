"""The largest values that models can compute with."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from headstart.errors import InputError
from headstart.table.compact import Floats

# On the models' scale. Models compute in single precision, which ends at 3.4e38, and sum squares over rows.
LARGEST = 1e17


def require_carried(values: Floats, scaled: NDArray[np.float64], where: Callable[[int], str]) -> None:
    """Refuse values that models cannot compute with.

    Parameters
    ----------
    values, scaled : ndarray of shape (n,)
        Values in the data's own units, and on the models' scale.
    where : callable
        Says of which row and feature a value is, given its position.

    Raises
    ------
    InputError
        If one of the scaled values is too large; it names the first.

    Examples
    --------
    >>> require_carried(np.array([5.0, 1e39]), np.array([0.1, 2e37]), lambda i: f"row 'u{i}'")
    Traceback (most recent call last):
    headstart.errors.InputError: row 'u1': the value 1e+39 is too large to compute with: at most 1e+17 times the scale of its feature is possible; correct it or leave it out, or measure the feature in larger units
    """  # noqa: E501 (the message of the example is one line)
    with np.errstate(invalid="ignore"):
        wrong = ~(np.abs(scaled) <= LARGEST)
    if wrong.any():
        first = int(np.flatnonzero(wrong)[0])
        raise InputError(
            f"{where(first)}: the value {values[first]:g} is too large to compute with: at most {LARGEST:g} "
            "times the scale of its feature is possible; correct it or leave it out, or measure the feature "
            "in larger units"
        )
