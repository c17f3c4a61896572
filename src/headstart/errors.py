"""Exceptions of Headstart. Their messages name the fault, its place and a remedy."""

from __future__ import annotations

import difflib
import functools
import re
import shlex
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import TracebackType
from typing import Literal, ParamSpec, TypeVar

_MAX_MESSAGE = 1500  # characters of a message; a longer one, which shows a long value, is cut in the middle


class HeadstartError(Exception):
    """Base class of all errors that Headstart raises. Catch it to catch all of them.

    A message is one line of limited length, also if it shows a long value.
    """

    shared = False  # whether all processes of a training have raised it

    def __init__(self, message: object = "", *arguments: object) -> None:
        super().__init__(_one_line(message) if isinstance(message, str) else message, *arguments)


def _one_line(text: str) -> str:
    if len(text) > _MAX_MESSAGE:
        text = f"{text[: _MAX_MESSAGE // 2]} … {text[-_MAX_MESSAGE // 3 :]}"
    return re.sub(r"\s*[\r\n]\s*", " ", text).strip() if "\n" in text or "\r" in text else text


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


# Where the user reads a message: it names arguments, options of commands, or parts of the page.
_interface: ContextVar[Literal["python", "command line", "service"]] = ContextVar(
    "interface", default="python"
)
# Options that are not called as the argument.
_OPTIONS = {
    "kinds": "kind",
    "metadata_types": "metadata-type",
    "half_life": "half-life",
    "meta_share": "meta-share",
    "row_metadata": "row-metadata",
    "random_state": "seed",
}


@contextmanager
def command_line() -> Iterator[None]:
    """Word all messages of the ``with`` block for the command line."""
    token = _interface.set("command line")
    try:
        yield
    finally:
        _interface.reset(token)


@contextmanager
def service_request() -> Iterator[None]:
    """Word all messages of the ``with`` block for the page and the clients of the service."""
    token = _interface.set("service")
    try:
        yield
    finally:
        _interface.reset(token)


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


P = ParamSpec("P")
T = TypeVar("T")

# Modules that read and check arguments. An unexpected exception there is caused by the argument.
_INPUT_MODULES = re.compile(
    r"headstart\.(table|errors|config|registry|(adapters|backbones)\.base"
    r"|model\.(headstart|inputs|triples|features|levels|ranking|scores|prediction|cell_predictions|plots"
    r"|imputation|suggestion|similarity))\b"
)


def reads_input(function: Callable[P, T]) -> Callable[P, T]:
    """Guard a public function: any exception while its arguments are read becomes an ``InputError``.

    Arguments may be any object, and comparing, iterating, hashing or printing it may fail in any way. So may
    a lazy frame of another library. Exceptions from computations, which are no fault of the arguments, and
    a ``TypeError`` about the names of parameters pass unchanged.
    """

    @functools.wraps(function)
    def guarded(*arguments: P.args, **options: P.kwargs) -> T:
        try:
            return function(*arguments, **options)
        except (HeadstartError, Warning, MemoryError):
            raise
        except Exception as error:
            misnamed = isinstance(error, TypeError) and "unexpected keyword argument" in _describe(error)
            if misnamed or not _is_of_input(error.__traceback__):
                raise
            name = function.__qualname__
            message = f"{name}() cannot use its arguments: {_describe(error)}; see help({name})"
            raise InputError(message) from error

    return guarded


def guard_methods(cls: type[T]) -> type[T]:
    """Apply ``reads_input`` to all public methods and class methods that a class defines itself."""
    for name, member in list(vars(cls).items()):
        if name.startswith("_"):
            continue
        if isinstance(member, classmethod):
            if not hasattr(member.__func__, "__wrapped__"):  # a context manager runs code of the user
                setattr(cls, name, classmethod(reads_input(member.__func__)))
        elif callable(member) and not isinstance(member, type):
            setattr(cls, name, reads_input(member))
    return cls


def _is_of_input(traceback: TracebackType | None) -> bool:
    """Return whether the innermost code of Headstart in a traceback, below the guard, reads input.

    Training only computes, also where it calls parts of other packages.
    """
    innermost = ""
    frame = None if traceback is None else traceback.tb_next
    while frame is not None:
        module = str(frame.tb_frame.f_globals.get("__name__", ""))
        if module.startswith("headstart.training"):
            return False
        innermost = module if module.startswith("headstart") else innermost
        frame = frame.tb_next
    return _INPUT_MODULES.match(innermost) is not None


def _describe(error: Exception) -> str:
    try:
        text = str(error)
    except Exception:  # the text of an exception of another library may fail, too
        text = ""
    return f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__


def for_user(python: str, command: str, service: str | None = None) -> str:
    """Return one of the wordings: for Python, the command line, or the service (by default as for Python).

    >>> for_user("use observe()", "use headstart observe")
    'use observe()'
    >>> with command_line():
    ...     for_user("use observe()", "use headstart observe")
    'use headstart observe'
    """
    interface = _interface.get()
    if interface == "service":
        return python if service is None else service
    return command if interface == "command line" else python


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


def with_advice(message: str, advice: str) -> str:
    """Return a message with advice for the case that its question, if it has one, is answered with no.

    >>> with_advice("unknown row 'x'", "add it first")
    "unknown row 'x'; add it first"
    >>> with_advice("unknown row 'x'; did you mean 'y'?", "add it first")
    "unknown row 'x'; did you mean 'y'? If not, add it first"
    """
    return f"{message} If not, {advice}" if message.endswith("?") else f"{message}; {advice}"


def join_names(names: Iterable[object], limit: int = 5) -> str:
    """List the first few names for a message, and count the others.

    >>> join_names(["a", "b", "c"], limit=2)
    "'a', 'b' and 1 more"
    """
    all_names = list(names)
    text = ", ".join(repr(name) for name in all_names[:limit])
    return text if len(all_names) <= limit else f"{text} and {len(all_names) - limit} more"
