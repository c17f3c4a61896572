"""Headstart predicts a brand-new column of a sparse table at once, from few observations or none."""

from __future__ import annotations

import logging
from importlib import import_module
from typing import TYPE_CHECKING

from headstart.errors import (
    BusyError,
    HeadstartError,
    InputError,
    LostProcessError,
    MemoryLimitError,
    ModelFileError,
    NotFittedError,
    NumericalError,
    StorageError,
    SurpriseWarning,
    UnknownNameError,
)
from headstart.parallel import set_openmp_wait_policy

if TYPE_CHECKING:
    from headstart.model import Headstart, Prediction
    from headstart.table import Kind, Table

set_openmp_wait_policy()
logging.getLogger(__name__).addHandler(logging.NullHandler())  # silent unless the application listens

__version__ = "0.1.0"  # the only place; the package's metadata is read from here

__all__ = [
    "BusyError",
    "Headstart",
    "HeadstartError",
    "InputError",
    "Kind",
    "LostProcessError",
    "MemoryLimitError",
    "ModelFileError",
    "NotFittedError",
    "NumericalError",
    "Prediction",
    "StorageError",
    "SurpriseWarning",
    "Table",
    "UnknownNameError",
]

# Loaded at first use: the command line imports this package too, and its help does not need torch.
_MODULES = {
    "Headstart": "headstart.model",
    "Kind": "headstart.table",
    "Prediction": "headstart.model",
    "Table": "headstart.table",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module 'headstart' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_MODULES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
