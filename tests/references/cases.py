"""Predictions of every adapter, kind and backbone, as new features and rows come."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from headstart import Headstart, Prediction, Table
from tests.references import tables

QUICK: dict[str, Any] = {"pretraining": {"epochs": 3}, "metatraining": {"epochs": 2}}
SMALL = {"name": "pvae", "embedding": 8, "set_size": 8, "encoder_layers": [16], "latent": 4,
         "decoder_layers": [12]}  # fmt: skip

TABLES: dict[str, Callable[[], Table]] = {
    "ratings": tables.ratings,
    "binary": tables.binary,
    "mixed": tables.mixed,
    "reals": tables.reals,
    "dated": tables.dated,
    "few binary": lambda: tables.binary().with_features(np.arange(10)),
    "few mixed": lambda: tables.mixed().with_features(np.arange(10)),
    "few reals": lambda: tables.reals().with_features(np.arange(10)),
}
KINDS = ("ratings", "binary", "mixed", "reals")
TRAINED_ON_HEADS = ("random", "mean", "mean-head", "mean-head-matching", "train-5", "maml-3", "chn-train-5")

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "default ratings": ("ratings", {}),
    "default binary": ("few binary", {}),
    "default mixed": ("few mixed", {}),
    "default reals": ("few reals", {}),
    **{f"bayes {kind}": (kind, {"adapter": "bayes"}) for kind in KINDS},
    "chn-bayes ratings": ("ratings", {"adapter": "chn-bayes"}),
    "chn-bayes binary": ("binary", {"adapter": "chn-bayes"}),
    "knn-5 ratings": ("ratings", {"adapter": "knn-5"}),
    "bayes dated": ("dated", {"adapter": "bayes", "half_life": "90 days"}),
    "bayes meta-share": ("ratings", {"adapter": "bayes", "meta_share": 0.3}),
    "chn-bayes pvae": ("ratings", {"backbone": SMALL, "adapter": "chn-bayes"}),
    "bayes pvae": ("ratings", {"backbone": SMALL, "adapter": "bayes"}),
    "chn pvae": ("ratings", {"backbone": SMALL, "adapter": "chn"}),
    "chn pvae reals": ("reals", {"backbone": SMALL, "adapter": "chn"}),
    "chn feedforward": ("mixed", {"backbone": "feedforward", "adapter": "chn"}),
    "mean feedforward": ("binary", {"backbone": "feedforward", "adapter": "mean"}),
    **{
        f"{adapter} pvae": ("ratings", {"backbone": SMALL, "adapter": adapter})
        for adapter in TRAINED_ON_HEADS
    },
}


@cache
def once_fitted(name: str) -> Headstart:
    """Fit the model of a case, quickly and only once."""
    table, settings = CASES[name]
    return Headstart(**{**QUICK, **settings}, quiet=True).fit(TABLES[table]())


def model_of(name: str) -> Headstart:
    """Give the model of a case, as it was fitted, to change."""
    return copy.copy(once_fitted(name))


def numbers(prediction: Prediction) -> dict[str, Any]:
    """Give means, standard deviations and the ends of intervals."""
    low, high = prediction.interval(0.9)
    return {"mean": prediction.mean, "std": prediction.std, "low": low, "high": high}


def case(name: str, folder: Path) -> dict[str, Any]:
    """Ask a model about its own rows, a stranger, added features, and one that is observed further."""
    model, held = model_of(name), TABLES[CASES[name][0]]()
    rows, features = list(model.rows)[:4], model.features[:4]
    kind = str(model.feature(features[0]).kind)
    values = held.values[held.feature_index == held.features.position(features[0])]
    low, high = float(values.min()), float(values.max())
    time = {"time": "2024-01-15"} if model.half_life is not None else {}
    answers = {
        "trained": numbers(model.predict(rows, features)),
        "stranger": numbers(model.predict({"x": {features[0]: high}, "y": {}}, features)),
    }
    model.add_features(
        {
            "none": {"kind": kind},
            "some": {"kind": kind, "observations": {rows[0]: high, rows[1]: low, rows[2]: high}},
        }
    )
    answers["added"] = numbers(model.predict(rows, ["none", "some"]))
    model.observe_feature("some", {rows[3]: low, rows[0]: low}, **time)
    answers["observed"] = numbers(model.predict(rows, ["some"]))
    return answers


SCENARIOS = {name: partial(case, name) for name in CASES}


def folder_model(settings: dict[str, Any]) -> Headstart:
    """Fit a model as small as can be and add a feature, as the stored folders hold it."""
    model = Headstart(**{**QUICK, **settings}, quiet=True).fit(tables.eight_features())
    model.add_feature("new", metadata={"genre": "a"}, observations={"u1": 5, "u2": 2, "u3": 4})
    model.observe_feature("new", {"u6": 1})
    return model


def folder_answers(model: Headstart) -> dict[str, Prediction]:
    """Ask a loaded model about rows it knows and a stranger, and as it is observed further."""
    answers = {"known": model.predict(), "stranger": model.predict({"x": {"f1": 5, "f2": 1}})}
    model.observe_feature("new", {"u4": 2, "u1": 3})
    model.add_feature("newer", metadata={"genre": "b"}, observations={"u5": 2})
    answers["later"] = model.predict(features=["new", "newer"])
    return answers
