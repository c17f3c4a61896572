"""Small fitted models, trained once for all tests of a run."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from functools import cache

import numpy as np
import pyarrow as pa
import pytest

from headstart.model import Headstart
from headstart.table import Table

QUICK = {
    "pretraining": {"epochs": 8},
    "metatraining": {"epochs": 8},
    "quiet": True,
}
CLOSED = {"adapter": "bayes", "quiet": True}  # the quickest of all, where the judge is not the point


def ratings_table(rows: int = 60, features: int = 24, seed: int = 0) -> Table:
    """Low-rank ratings of 1 to 5 with a genre and a year a feature, half of them observed."""
    random = np.random.default_rng(seed)
    taste, trait = random.normal(size=(rows, 2)), random.normal(size=(features, 2))
    kindness, quality = random.normal(size=(rows, 1)), random.normal(size=features)
    stars = np.clip(np.round(3 + 0.7 * kindness + 0.7 * quality + 0.5 * taste @ trait.T), 1, 5)
    row, feature = np.nonzero(random.random((rows, features)) < 0.5)
    observations = pa.table(
        {"row": [f"u{i}" for i in row], "feature": [f"f{j}" for j in feature], "value": stars[row, feature]}
    )
    metadata = pa.table(
        {
            "feature": [f"f{j}" for j in range(features)],
            "genre": [["comedy", "drama"][int(trait[j, 0] > 0)] for j in range(features)],
            "year": [1980 + j for j in range(features)],
        }
    )
    return Table.read(observations, metadata=metadata, kinds="rating:1:5")


@cache
def fitted(backbone: str, adapter: str, meta_share: float | None) -> Headstart:
    settings = dict(QUICK)
    if "bayes" in adapter and backbone != "factorisation":  # closed forms of many activations take long
        settings["metatraining"] = {"epochs": 1}
    model = Headstart(backbone=backbone, adapter=adapter, meta_share=meta_share, **settings)
    return model.fit(ratings_table())


@cache
def able() -> Headstart:
    """A model trained long enough to have learned what there is to learn."""
    return Headstart(adapter="bayes", quiet=True).fit(ratings_table(rows=200, features=60))


@pytest.fixture
def fresh() -> Callable[..., Headstart]:
    """A fitted model of one's own to change: what was trained is shared, and never changes."""

    def build(backbone: str = "pvae", adapter: str = "chn", meta_share: float | None = None) -> Headstart:
        trained = able() if adapter == "able" else fitted(backbone, adapter, meta_share)
        return copy(trained)

    return build
