"""The models whose predictions are stored, and how they are asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from headstart.datasets.synthetic import synthetic_mixed, synthetic_responses
from headstart.model import Headstart
from headstart.model.prediction import Prediction
from headstart.table import Table
from tests.model.conftest import ratings_table
from tests.model.test_reals import columns, table_of

QUICK: dict[str, Any] = {"pretraining": {"epochs": 3}, "metatraining": {"epochs": 2}}
SMALL = {"name": "pvae", "embedding": 8, "set_size": 8, "encoder_layers": [16], "latent": 4,
         "decoder_layers": [12]}  # fmt: skip

TABLES: dict[str, Callable[[], Table]] = {
    "ratings": lambda: ratings_table(40, 16),
    "binary": lambda: synthetic_responses(60, 20, 0.5),
    "mixed": lambda: synthetic_mixed(60, 18, 0.6),
    "reals": lambda: table_of(columns()[:, :14]),
}

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "default ratings": ("ratings", {}),
    "default binary": ("binary", {}),
    "default mixed": ("mixed", {}),
    "default reals": ("reals", {}),
    "bayes ratings": ("ratings", {"adapter": "bayes"}),
    "bayes binary": ("binary", {"adapter": "bayes"}),
    "chn-bayes ratings": ("ratings", {"adapter": "chn-bayes"}),
    "chn-bayes binary": ("binary", {"adapter": "chn-bayes"}),
    "chn-bayes mixed": ("mixed", {"adapter": "chn-bayes"}),
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
    model.observe_feature("some", {rows[3]: low, rows[0]: low})
    yield said("observed", rows, ["some"])


def folder_model(settings: dict[str, Any]) -> Headstart:
    """A model as small as can be, with a feature added: what folders of each format hold."""
    model = Headstart(**{**QUICK, **settings}, quiet=True).fit(small_table())
    model.add_feature("new", metadata={"genre": "a"}, observations={"u1": 5, "u2": 2, "u3": 4})
    model.observe_feature("new", {"u6": 1})
    return model


def small_table() -> Table:
    """Sixteen rows of eight features with a label each."""
    whole = ratings_table(16, 9)
    names = [f"f{j}" for j in range(1, 9)]
    kept = [(i, j, v) for i, j, v in zip(whole.row_index, whole.feature_index, whole.values, strict=True)
            if whole.features[j] in names]  # fmt: skip
    observations = pa.table(
        {
            "row": [whole.rows[i] for i, _, _ in kept],
            "feature": [whole.features[j] for _, j, _ in kept],
            "value": [float(value) for _, _, value in kept],
        }
    )
    metadata = pa.table({"feature": names, "genre": list("abacabca")})
    return Table.read(observations, metadata=metadata, kinds="rating:1:5")


def folder_answers(model: Headstart) -> dict[str, Prediction]:
    """What a loaded model says of rows it knows and of a stranger, and as it is observed further."""
    answers = {"known": model.predict(), "stranger": model.predict({"x": {"f1": 5, "f2": 1}})}
    model.observe_feature("new", {"u4": 2, "u1": 3})
    model.add_feature("newer", metadata={"genre": "b"}, observations={"u5": 2})
    answers["later"] = model.predict(features=["new", "newer"])
    return answers
