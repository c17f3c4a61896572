"""One family of errors. Every message says what was wrong, where, and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from sklearn.exceptions import NotFittedError as _SklearnNotFittedError


class HeadstartError(Exception):
    """Whatever Headstart raises on purpose. Catch this one to catch them all."""


class InputError(HeadstartError, ValueError):
    """What was passed in cannot be used. Nothing was changed; safe to show to whoever sent it."""


class UnknownNameError(InputError):
    """A row, feature, setting or method was named that does not exist."""


class ModelFileError(HeadstartError):
    """A saved model or checkpoint is missing, damaged, or of a newer format."""


class NotFittedError(HeadstartError, _SklearnNotFittedError):  # type: ignore[misc]
    """The model was used before fit()."""


def did_you_mean(name: str, choices: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"`` for the nearest choice, or nothing.

    >>> did_you_mean("ratng", ["binary", "rating", "real"])
    "; did you mean 'rating'?"
    >>> did_you_mean("zzz", ["binary"])
    ''
    """
    close = difflib.get_close_matches(name, list(choices), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def listed(names: Iterable[object], limit: int = 5) -> str:
    """Name the first few things in a message, and how many more there are.

    >>> listed(["a", "b", "c"], limit=2)
    "'a', 'b' and 1 more"
    """
    every = list(names)
    text = ", ".join(repr(name) for name in every[:limit])
    return text if len(every) <= limit else f"{text} and {len(every) - limit} more"
