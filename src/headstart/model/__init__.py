"""The fitted model: the public class ``Headstart`` and the objects that its methods return."""

from headstart.model.card import ModelCard
from headstart.model.explanation import Explanation
from headstart.model.headstart import Headstart
from headstart.model.imputation import Imputations
from headstart.model.prediction import Prediction
from headstart.model.ranking import Ranking
from headstart.model.similarity import Similar
from headstart.model.summary import KnownFeature, KnownRow, ModelInfo

__all__ = [
    "Explanation",
    "Headstart",
    "Imputations",
    "KnownFeature",
    "KnownRow",
    "ModelCard",
    "ModelInfo",
    "Prediction",
    "Ranking",
    "Similar",
]
