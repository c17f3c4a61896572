"""Headstart predicts a brand-new column of a sparse table at once, from few observations or none."""

from headstart.errors import HeadstartError, InputError, ModelFileError, NotFittedError, UnknownNameError
from headstart.model import Headstart, Prediction
from headstart.table import Kind, Table

__version__ = "0.1.0"

__all__ = [
    "Headstart",
    "HeadstartError",
    "InputError",
    "Kind",
    "ModelFileError",
    "NotFittedError",
    "Prediction",
    "Table",
    "UnknownNameError",
]
