"""The data sets of the paper by name. All real data sets are in one data folder."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from headstart.datasets.eedi import eedi
from headstart.datasets.movielens import movielens_1m
from headstart.datasets.neuropathic import neuropathic
from headstart.datasets.synthetic import synthetic_diagnoses, synthetic_ratings, synthetic_responses
from headstart.errors import InputError, UnknownNameError, did_you_mean
from headstart.table import Table

VARIABLE = "HEADSTART_DATA"


@dataclass(frozen=True)
class DataSet:
    """A data set of the paper, and a synthetic data set of the same form."""

    title: str
    folder: str  # within the data folder
    load: Callable[[Path], Table]
    synthetic: Callable[[], Table]
    note: str  # how the data differs from the paper's


DATASETS = {
    "movielens": DataSet(
        "MovieLens-1M",
        "ml-1m",
        movielens_1m,
        lambda: synthetic_ratings(300, 120, 0.4),
        "The paper reports MovieLens-1M as 8,094 users × 5,660 films, 2.2 % observed; the official files "
        "contain 6,040 users × 3,706 rated films, 4.47 % observed, and are used here.",
    ),
    "neuropathic": DataSet(
        "Neuropathic pain (rebuilt simulator)",
        "neuropathic",
        neuropathic,
        lambda: synthetic_diagnoses(400, 60),
        "The paper simulates 1,000 patients with the authors' network, 82 labels of at least 50 patients, "
        "17.3 % positive. The patients used here come from a rebuilt simulator: the network's 770 edges with "
        "parameters estimated again from the authors' published sample of 100; 81 labels, 17.3 % positive.",
    ),
    "elearning": DataSet(
        "Eedi, tasks 3/4 (subset)",
        "eedi",
        eedi,
        lambda: synthetic_responses(300, 80),
        "The paper uses tasks 1/2 of Eedi, students and questions of at least 250 answers: 6,797 students × "
        "4,792 questions, 8.2 % observed. Used here: tasks 3/4, a subset of 2,402 of 4,918 students, of at "
        "least 50 answers.",
    ),
}


def data_folder(folder: str | Path | None = None) -> Path:
    """Return ``folder``, or the folder in the environment variable ``HEADSTART_DATA``."""
    path = folder or os.environ.get(VARIABLE)
    if not path:
        content = ", ".join(f"{dataset.folder}/ ({dataset.title})" for dataset in DATASETS.values())
        raise InputError(
            f"no data folder was given; pass it with --data or the environment variable {VARIABLE}; "
            f"it contains {content}"
        )
    if not Path(path).is_dir():
        raise InputError(f"the data folder {str(path)!r} does not exist")
    return Path(path)


def load_dataset(name: str, folder: str | Path | None = None) -> Table:
    """Load a real data set from the data folder.

    >>> load_dataset("movielense")
    Traceback (most recent call last):
    headstart.errors.UnknownNameError: unknown data set 'movielense'; did you mean 'movielens'?
    """
    if name not in DATASETS:
        raise UnknownNameError(f"unknown data set {name!r}{did_you_mean(name, DATASETS)}")
    return DATASETS[name].load(data_folder(folder))
