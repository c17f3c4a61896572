"""Data sets. Each is a function that returns a Table."""

from headstart.datasets.eedi import eedi
from headstart.datasets.fetch import DOWNLOADS, Download, download, fetch
from headstart.datasets.movielens import movielens_1m, movielens_small
from headstart.datasets.neuropathic import neuropathic
from headstart.datasets.registry import DATASETS, DataSet, data_folder, load_dataset
from headstart.datasets.synthetic import (
    synthetic_diagnoses,
    synthetic_mixed,
    synthetic_ratings,
    synthetic_responses,
)

__all__ = [
    "DATASETS",
    "DOWNLOADS",
    "DataSet",
    "Download",
    "data_folder",
    "download",
    "eedi",
    "fetch",
    "load_dataset",
    "movielens_1m",
    "movielens_small",
    "neuropathic",
    "synthetic_diagnoses",
    "synthetic_mixed",
    "synthetic_ratings",
    "synthetic_responses",
]
