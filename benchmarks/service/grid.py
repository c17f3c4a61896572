"""Measure 1,000 × 1,000 predictions in one call, compared with bare matrix products plus encoding."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from pydantic_core import to_json

from headstart import Headstart
from headstart.core.types import Heads, RowStates
from service.server import Connection, Server

_ARROW = "application/vnd.apache.arrow.stream"


def grid(model: Headstart, server: Server, repeats: int = 5) -> dict[str, Any]:
    """Return the least times of one call for all cells, and of the products and the encoding it needs."""
    rows, features = list(model.rows)[:1000], model.features[:1000]
    states = model.fitted_.row_store.take(np.arange(len(rows)))
    _, heads = model.fitted_.feature_store.take(features)
    body = to_json({"rows": rows, "features": features, "form": "arrays"})
    mean, _ = products(states, heads)
    lists = {name: mean.tolist() for name in ("mean", "std", "low", "high")}
    connection = Connection(server.port)
    ways: dict[str, Callable[[], object]] = {
        "JSON, one call": lambda: connection.post("/v1/predict", body),
        "Arrow, one call": lambda: connection.post("/v1/predict", body, _ARROW),
        "bare matrix products": lambda: products(states, heads),
        "encoding as JSON": lambda: to_json(lists),
        "predict() with intervals": lambda: model.predict(rows, features).interval(0.9),
    }
    least = dict.fromkeys(ways, float("inf"))
    for _ in range(repeats):
        for name, way in ways.items():
            start = time.perf_counter()
            way()
            least[name] = min(least[name], time.perf_counter() - start)
    floor = least["bare matrix products"] + least["encoding as JSON"]
    ratio = least["JSON, one call"] / floor
    return {"cells": [len(rows), len(features)], **least, "JSON / (products + encoding)": ratio}


def products(states: RowStates, heads: Heads) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute means and variances of all cells by bare products."""
    rows = torch.cat([states.activation, torch.ones(len(states), 1)], dim=1).double()
    weight = heads.stacked.double()
    down, across = torch.tril_indices(rows.shape[1], rows.shape[1])
    squares = rows[:, down] * rows[:, across]
    covariance = heads.packed_covariance
    variance = squares @ covariance.double().T if covariance is not None else torch.zeros(())
    return rows @ weight.T, variance
