"""Exceptions of Headstart, whose messages name the problem, its place and its remedy."""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar


class HeadstartError(Exception):
    """Base class of all errors that Headstart raises. Catch it to catch all of them."""

    shared = False  # whether all processes of a training have raised it


class InputError(HeadstartError, ValueError):
    """An argument or a file cannot be used. Nothing was changed. The message is safe to show to a user."""


class UnknownNameError(InputError):
    """A row, feature, column, setting or method with this name does not exist."""


class UnsupportedError(InputError):
    """The chosen backbone or adapter does not support the operation."""


class ModelFileError(HeadstartError):
    """A saved model or checkpoint is missing, damaged, or has a newer format."""


class BusyError(HeadstartError):
    """Another process, or this thread itself, is changing the folder. Nothing was changed."""


class LostProcessError(HeadstartError):
    """Another process of the same training has ended. No model was written."""


class StorageError(HeadstartError, OSError):
    """The disk refused to write or read a file. The files that were there before are unchanged."""


class NumericalError(InputError):
    """The computation breaks down with these numbers or settings. Nothing was changed."""


class MemoryLimitError(HeadstartError, MemoryError):
    """There is not enough memory. Nothing was changed or left half-written."""


class SurpriseWarning(UserWarning):
    """An observation lies far outside the range that the model expected. It was accepted."""


class MetadataWarning(UserWarning):
    """A new feature or row has a label that the model does not know, or a number far outside its range."""


class ModelFileWarning(UserWarning):
    """A saved model was loaded, but a part of its files is damaged or missing. The message says which."""


class NotFittedError(HeadstartError, ValueError, AttributeError):
    """The model was used before ``fit``. It has the same base classes as scikit-learn's NotFittedError."""


# Whether the user is on the command line. Messages must name options, not arguments, there.
_on_command_line: ContextVar[bool] = ContextVar("on_command_line", default=False)
# Options that are not called as the argument.
_OPTIONS = {
    "kinds": "kind",
    "metadata_types": "metadata-type",
    "half_life": "half-life",
    "meta_share": "meta-share",
    "row_metadata": "row-metadata",
}


@contextmanager
def command_line() -> Iterator[None]:
    """Word all messages of the ``with`` block for the command line."""
    token = _on_command_line.set(True)
    try:
        yield
    finally:
        _on_command_line.reset(token)


@contextmanager
def explain_memory_error(message: Callable[[], str]) -> Iterator[None]:
    """Raise MemoryLimitError with ``message()`` in place of an out-of-memory error of the ``with`` block.

    >>> with explain_memory_error(lambda: "too many rows; take fewer"):
    ...     raise MemoryError
    Traceback (most recent call last):
    headstart.errors.MemoryLimitError: too many rows; take fewer
    """
    try:
        yield
    except MemoryLimitError:
        raise
    except (MemoryError, RuntimeError) as error:
        # Not all builds of PyTorch have an exception class for it.
        lacking = ("can't allocate memory", "CUDA out of memory")
        if isinstance(error, MemoryError) or any(words in str(error) for words in lacking):
            raise MemoryLimitError(message()) from error
        raise


def for_user(python: str, command: str) -> str:
    """Return one of two wordings: for Python, or for the command line.

    >>> for_user("use observe()", "use headstart observe")
    'use observe()'
    >>> with command_line():
    ...     for_user("use observe()", "use headstart observe")
    'use headstart observe'
    """
    return command if _on_command_line.get() else python


def option_name(name: str, value: object = None) -> str:
    """Name an argument as the user writes it: ``form='long'`` in Python, ``--form long`` in a command.

    >>> option_name("form", "long"), option_name("kinds")
    ("form='long'", 'kinds=')
    >>> with command_line():
    ...     option_name("form", "long"), option_name("kinds"), option_name("row", "the user")
    ('--form long', '--kind', "--row 'the user'")
    """
    option = f"--{_OPTIONS.get(name, name.replace('_', '-'))}"
    if value is None:
        return for_user(f"{name}=", option)
    return for_user(f"{name}={value!r}", f"{option} {shlex.quote(str(value))}")


def did_you_mean(name: str, choices: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"`` for the most similar choice, or an empty string.

    >>> did_you_mean("ratng", ["binary", "rating", "real"])
    "; did you mean 'rating'?"
    >>> did_you_mean("zzz", ["binary"])
    ''
    """
    close = difflib.get_close_matches(name, list(choices), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def join_names(names: Iterable[object], limit: int = 5) -> str:
    """List the first few names for a message, and count the others.

    >>> join_names(["a", "b", "c"], limit=2)
    "'a', 'b' and 1 more"
    """
    all_names = list(names)
    text = ", ".join(repr(name) for name in all_names[:limit])
    return text if len(all_names) <= limit else f"{text} and {len(all_names) - limit} more"
