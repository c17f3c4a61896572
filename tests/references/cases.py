"""The models whose predictions are stored, and how they are asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from headstart.datasets.synthetic import synthetic_mixed, synthetic_responses
from headstart.model import Headstart
from headstart.table import Table
from tests.model.conftest import ratings_table

QUICK: dict[str, Any] = {"pretraining": {"epochs": 3}, "metatraining": {"epochs": 2}}
SMALL = {"name": "pvae", "embedding": 8, "set_size": 8, "encoder_layers": [16], "latent": 4,
         "decoder_layers": [12]}  # fmt: skip

TABLES: dict[str, Callable[[], Table]] = {
    "ratings": lambda: ratings_table(40, 16),
    "binary": lambda: synthetic_responses(60, 20, 0.5),
    "mixed": lambda: synthetic_mixed(60, 18, 0.6),
}

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "default ratings": ("ratings", {}),
    "default binary": ("binary", {}),
    "default mixed": ("mixed", {}),
    "bayes ratings": ("ratings", {"adapter": "bayes"}),
    "bayes binary": ("binary", {"adapter": "bayes"}),
    "knn factorisation": ("ratings", {"adapter": "knn-5"}),
    "chn-bayes pvae": ("ratings", {"backbone": SMALL, "adapter": "chn-bayes"}),
    "chn pvae": ("ratings", {"backbone": SMALL, "adapter": "chn"}),
    "chn feedforward": ("mixed", {"backbone": "feedforward", "adapter": "chn"}),
    **{
        f"{adapter} pvae": ("ratings", {"backbone": SMALL, "adapter": adapter})
        for adapter in (
            "random",
            "mean",
            "mean-head",
            "mean-head-matching",
            "train-5",
            "maml-3",
            "chn-train-5",
        )
    },
}


def fitted(case: str) -> Headstart:
    """The model of a case."""
    table, settings = CASES[case]
    return Headstart(**{**QUICK, **settings}, quiet=True).fit(TABLES[table]())


def predictions(model: Headstart) -> Iterator[tuple[str, list[list[float]], list[list[float]]]]:
    """Names, means and standard deviations of what a model is asked, as new features and rows come."""
    rows, features = list(model.rows)[:4], model.features[:4]
    usual = model.feature(features[0])
    low = usual.kind.offset
    high = low + usual.kind.span

    def said(name: str, asked: Any, about: list[str]) -> tuple[str, list[list[float]], list[list[float]]]:
        found = model.predict(asked, about)
        return name, found.mean.tolist(), found.std.tolist()

    yield said("trained", rows, features)
    yield said("stranger", {"x": {features[0]: high, features[1]: model.feature(features[1]).kind.offset}},
               features)  # fmt: skip
    model.add_features(
        {
            "none": {"kind": str(usual.kind)},
            "some": {"kind": str(usual.kind), "observations": {rows[0]: high, rows[1]: low, rows[2]: high}},
        }
    )
    yield said("added", rows, ["none", "some"])
    model.observe("some", {rows[3]: low, rows[0]: low})
    yield said("observed", rows, ["some"])
