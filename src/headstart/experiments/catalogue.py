"""The paper's figures and tables: the data and the methods of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headstart.errors import UnknownNameError, did_you_mean

MAML_EPOCHS = ("maml-0", "maml-1", "maml-3", "maml-5", "maml-10")
NEIGHBOURS = ("knn-1", "knn-5", "knn-10")
EPOCHS = (0, 1, 5, 10, 25)
BASELINES = ("random", "mean", "mean-head", "mean-head-matching", "knn-10", "train-10")


@dataclass(frozen=True)
class Study:
    """One benchmark whose results experiments use: a data set, and how its features are split."""

    dataset: str
    by: str | None = None  # metadata column to split by, from old to new; None: at random


STUDIES = {
    "movielens": Study("movielens"),
    "neuropathic": Study("neuropathic"),
    "elearning": Study("elearning"),
    "chronological": Study("movielens", by="year"),
}


@dataclass(frozen=True)
class Experiment:
    """One figure or table. Of the methods ``best_of`` only the best is shown, as in the paper."""

    title: str
    methods: dict[str, tuple[str, ...]]  # by study
    best_of: tuple[str, ...] = ()
    shots: tuple[int, ...] | None = None  # the numbers of shots that are shown; None: all
    shows: Literal["shots", "times", "epochs"] = "shots"

    @property
    def of_all(self) -> dict[str, tuple[str, ...]]:
        """By study, all methods that must be run."""
        return {study: (*methods, *self.best_of) for study, methods in self.methods.items()}


def _kshot(what: str, study: str, *without: str) -> Experiment:
    shown = tuple(method for method in (*BASELINES, "chn") if method not in without)
    return Experiment(f"k-shot performance on {what} (Figure 3)", {study: shown}, best_of=MAML_EPOCHS[1:])


def _on_all_three(title: str, methods: tuple[str, ...]) -> Experiment:
    return Experiment(title, dict.fromkeys(("movielens", "neuropathic", "elearning"), methods))


EXPERIMENTS = {
    "kshot-movielens": _kshot("MovieLens-1M", "movielens"),
    "kshot-neuropathic": _kshot("neuropathic pain", "neuropathic", "mean-head-matching"),  # no metadata
    "kshot-elearning": _kshot("e-learning", "elearning"),
    "timings": Experiment(
        "Time to produce a head (Table 1)",
        {"elearning": ("knn-10", "train-1", "train-5", "train-10", "maml-10", "chn")},
        shots=(1, 4, 16),
        shows="times",
    ),
    "chronological": Experiment(
        "k-shot performance on MovieLens-1M, features split by year from old to new",
        {"chronological": (*BASELINES, "chn")},
        best_of=MAML_EPOCHS[1:],
    ),
    "maml-epochs": _on_all_three("MAML by epochs of fine-tuning", MAML_EPOCHS),
    "knn-neighbours": _on_all_three("Nearest heads by number of neighbours", NEIGHBOURS),
    "finetuning": Experiment(
        "Fine-tuning from a random head and from the hypernetwork's, on e-learning",
        {"elearning": tuple(f"{start}-{n}" for start in ("train", "chn-train") for n in EPOCHS)},
        shots=(0, 1, 4, 8, 16, 32),
        shows="epochs",
    ),
}

ALL = "all"


def experiments_named(name: str) -> dict[str, Experiment]:
    """Return the experiment with this name, or all experiments.

    >>> list(experiments_named("timings"))
    ['timings']
    >>> experiments_named("timing")
    Traceback (most recent call last):
    headstart.errors.UnknownNameError: unknown experiment 'timing'; did you mean 'timings'?
    """
    if name == ALL:
        return dict(EXPERIMENTS)
    if name not in EXPERIMENTS:
        names = [*EXPERIMENTS, ALL]
        hint = did_you_mean(name, names) or f"; there are {', '.join(names)}"
        raise UnknownNameError(f"unknown experiment {name!r}{hint}")
    return {name: EXPERIMENTS[name]}


def methods_of(experiments: dict[str, Experiment]) -> dict[str, tuple[str, ...]]:
    """Return by study all methods that these experiments need, each once."""
    every: dict[str, dict[str, None]] = {}
    for experiment in experiments.values():
        for study, methods in experiment.of_all.items():
            every.setdefault(study, {}).update(dict.fromkeys(methods))
    return {study: tuple(methods) for study, methods in every.items()}
