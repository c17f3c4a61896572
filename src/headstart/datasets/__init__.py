"""Data sets. Each is a function that returns a Table."""

from headstart.datasets.downloads import DOWNLOADS, Download, download, fetch
from headstart.datasets.public import (
    DATASETS,
    EEDI_TASKS_1_2,
    DataSet,
    Task,
    data_folder,
    eedi,
    load_dataset,
    movielens_1m,
    movielens_small,
    neuropathic,
)
from headstart.datasets.synthetic import (
    synthetic_clicks,
    synthetic_diagnoses,
    synthetic_mixed,
    synthetic_ratings,
    synthetic_responses,
)

__all__ = [
    "DATASETS",
    "DOWNLOADS",
    "EEDI_TASKS_1_2",
    "DataSet",
    "Download",
    "Task",
    "data_folder",
    "download",
    "eedi",
    "fetch",
    "load_dataset",
    "movielens_1m",
    "movielens_small",
    "neuropathic",
    "synthetic_clicks",
    "synthetic_diagnoses",
    "synthetic_mixed",
    "synthetic_ratings",
    "synthetic_responses",
]
