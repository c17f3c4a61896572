"""What a user holds: a fitted model that takes new features."""

from headstart.model.asking.prediction import Prediction
from headstart.model.headstart import Headstart

__all__ = ["Headstart", "Prediction"]
