"""What a user holds: a fitted model that takes new features."""

from headstart.model.headstart import Headstart
from headstart.model.prediction import Prediction

__all__ = ["Headstart", "Prediction"]
