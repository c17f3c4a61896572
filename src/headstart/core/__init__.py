"""Data types, predictive distributions and networks that backbones, adapters and models share."""

from headstart.core.likelihood import Likelihood, LikelihoodConfig
from headstart.core.predictive import Predictive, predict_cells, predict_grid
from headstart.core.types import FeatureBatch, Heads, Knowledge, NetworkHeads, RowStates

__all__ = [
    "FeatureBatch",
    "Heads",
    "Knowledge",
    "Likelihood",
    "LikelihoodConfig",
    "NetworkHeads",
    "Predictive",
    "RowStates",
    "predict_cells",
    "predict_grid",
]
