"""Predicting many rows or cells, in partitions, on one machine or on a Ray cluster (extra ``ray``)."""

from headstart.scoring.running import score
from headstart.scoring.scored import Scored
from headstart.scoring.scorer import Scorer

__all__ = ["Scored", "Scorer", "score"]
