"""Data sets, each a function that returns a Table."""

from headstart.datasets.movielens import movielens_1m, movielens_small
from headstart.datasets.synthetic import synthetic_mixed, synthetic_ratings, synthetic_responses

__all__ = [
    "movielens_1m",
    "movielens_small",
    "synthetic_mixed",
    "synthetic_ratings",
    "synthetic_responses",
]
