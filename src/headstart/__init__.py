"""Predict a new column of a sparse table at once, from few observations or none.

The classes to start with are ``Headstart``, the model, and ``Table``, its data.
"""

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
    MetadataWarning,
    ModelFileError,
    NotFittedError,
    NumericalError,
    StorageError,
    SurpriseWarning,
    UnknownNameError,
    UnsupportedError,
)

if TYPE_CHECKING:
    from headstart.client import Client
    from headstart.evaluate.results import Results
    from headstart.model.explanation import Explanation
    from headstart.model.headstart import Headstart
    from headstart.model.prediction import Prediction
    from headstart.model.ranking import Ranking
    from headstart.model.similarity import Similar
    from headstart.model.summary import ModelInfo
    from headstart.scoring import score
    from headstart.table import Kind, Table
    from headstart.testing import check_adapter, check_backbone

logging.getLogger(__name__).addHandler(logging.NullHandler())  # silent unless the application listens

__version__ = "0.1.0"  # the only place; the package's metadata is read from here

__all__ = [
    "BusyError",
    "Client",
    "Explanation",
    "Headstart",
    "HeadstartError",
    "InputError",
    "Kind",
    "LostProcessError",
    "MemoryLimitError",
    "MetadataWarning",
    "ModelFileError",
    "ModelInfo",
    "NotFittedError",
    "NumericalError",
    "Prediction",
    "Ranking",
    "Results",
    "Similar",
    "StorageError",
    "SurpriseWarning",
    "Table",
    "UnknownNameError",
    "UnsupportedError",
    "check_adapter",
    "check_backbone",
    "score",
]

# Imported at first use: the command line imports this package too, and its help does not need torch.
_MODULES = {
    "Client": "headstart.client",
    "Explanation": "headstart.model.explanation",
    "Headstart": "headstart.model.headstart",
    "Kind": "headstart.table",
    "ModelInfo": "headstart.model.summary",
    "Prediction": "headstart.model.prediction",
    "Ranking": "headstart.model.ranking",
    "Results": "headstart.evaluate.results",
    "Similar": "headstart.model.similarity",
    "Table": "headstart.table",
    "check_adapter": "headstart.testing",
    "check_backbone": "headstart.testing",
    "score": "headstart.scoring",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module 'headstart' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_MODULES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
