"""Measure recommend, audience, suggest and predict, compared with the bare products that they need.

    python benchmarks/rankings.py --features 100000 --rows 1000000 --width 64 --out rankings.json

The model has random heads and states. Each call alternates in one run with the bare product of the same
tensors in the same precision. Printed and written: the least time of each in milliseconds, because other
work on the machine only adds to it, their ratio, and the ratio of the medians of CPU times.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from headstart import Headstart
from headstart.core.types import Heads, RowStates
from headstart.datasets import synthetic_ratings
from headstart.linalg.packed import outer_products, unpack
from headstart.model.features import Feature, FeatureStore
from headstart.model.observations import ObservationList
from headstart.model.rows import RowStore
from headstart.table import Kind, Names

Call = Callable[[], object]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--features", type=int, default=100_000)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--width", type=int, default=64, help="activations of a row")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    facts: dict[str, dict[str, float]] = {}
    for model, pairs in (
        (wide := random_model(20_000, options.features, options.width), over_features(wide)),
        (long := random_model(options.rows, 100, options.width), over_rows(long)),
    ):
        del model
        for name, (call, bare) in pairs.items():
            facts[name] = measure(call, bare, options.repeats)
            print(f"{name:44} {facts[name]['ms']:9.1f} ms  bare {facts[name]['bare_ms']:9.1f} ms  "
                  f"ratio {facts[name]['ratio']:.2f}  of medians of CPU time "
                  f"{facts[name]['cpu_median_ratio']:.2f}")  # fmt: skip
    if options.out is not None:
        settings = {"features": options.features, "rows": options.rows, "width": options.width, "threads": 1}
        options.out.write_text(json.dumps({"settings": settings, "ratios": facts}, indent=1) + "\n")


def random_model(rows: int, features: int, width: int) -> Headstart:
    """Build a model of ratings with ``rows`` rows and ``features`` features and random numbers."""
    model = Headstart(backbone={"name": "factorisation", "latent": width}, adapter="bayes", quiet=True)
    model.fit(synthetic_ratings(rows=60, features=30, density=0.5))
    random = torch.Generator().manual_seed(0)
    packed = (width + 1) * (width + 2) // 2
    covariance = 0.01 * torch.randn(features, packed, generator=random) / width
    covariance[:, torch.arange(1, width + 2).cumsum(0) - 1] = 0.05
    heads = Heads(
        torch.randn(features, width, generator=random) / width**0.5,
        torch.randn(features, generator=random),
        covariance,
        torch.full((features,), 0.1),
    )
    fitted, blank = model.fitted_, np.zeros(model.fitted_.schema.width if model.fitted_.schema else 0)
    draws = np.random.default_rng(0)
    kind = Kind.rating(1, 5)
    known = [
        Feature(f"f{i}", kind, False, 20, blank.astype(np.float32), seen, np.full(20, 3.0))
        for i, seen in enumerate(np.sort(draws.integers(0, rows, (features, 20)), axis=1))
    ]
    states = RowStates(
        torch.zeros(rows, 1),
        torch.zeros(rows, 1),
        torch.randn(rows, width, generator=random),
        torch.ones(rows),
        torch.full((rows, width), 0.1),
    )
    model.fitted_ = replace(
        fitted,
        row_store=RowStore(Names([f"u{i}" for i in range(rows)], "row"), states),
        feature_store=FeatureStore(heads).put(known, heads),
    )
    return model


def over_features(model: Headstart) -> dict[str, tuple[Call, Call]]:
    """Return calls for one row and all features, each with its bare product."""
    heads = model.fitted_.feature_store.heads_at(slice(0, len(model.features)))
    row = model.fitted_.states.activation[7]
    square = outer_products(torch.cat([row, torch.ones(1)])[None])[0]

    def mean() -> object:
        return torch.addmv(heads.bias, heads.weight, row)

    def upper() -> object:
        assert heads.covariance is not None
        return torch.mv(heads.covariance, square), mean()

    return {
        "recommend, by mean": (lambda: model.recommend("u7", 10), mean),
        "recommend, by upper quantile": (lambda: model.recommend("u7", 10, by="upper"), upper),
    }


def over_rows(model: Headstart) -> dict[str, tuple[Call, Call]]:
    """Return calls for one feature and all rows, each with its bare product."""
    _, heads = model.fitted_.feature_store.take(["f7"])
    rows, weight = model.fitted_.states.activation, heads.weight[0]
    matrix = unpack(heads.packed_covariance, rows.shape[1] + 1)[0, :-1, :-1].contiguous()

    def form(dtype: torch.dtype) -> Call:
        return lambda: [
            ((part @ matrix.to(dtype)) * part).sum(1) for part in map(dtype_of(dtype), rows.split(4096))
        ]

    def forms() -> object:
        """Compute the products of 10 choices: two forms of each row, then two products per further choice."""
        single = form(torch.float32)
        return single(), single(), [torch.mv(rows, weight) for _ in range(2 * 9)]

    changed = np.random.default_rng(1)

    def after_a_change() -> object:
        """Change the state of one row before the call, which must not copy the states of all others."""
        row_store, row = model.fitted_.row_store, np.array([int(changed.integers(len(rows)))])
        nothing = ObservationList.empty()
        model.fitted_ = replace(model.fitted_, row_store=row_store.put(row, row_store.take(row), [nothing]))
        return model.audience("f7", 10)

    return {
        "audience, by mean": (lambda: model.audience("f7", 10), lambda: rows @ weight),
        "audience, by mean, after a change": (after_a_change, lambda: rows @ weight),
        "audience, by upper quantile": (
            lambda: model.audience("f7", 10, by="upper"),
            form(torch.float32),
        ),
        "suggest, 1 row": (lambda: model.suggest("f7", n=1), form(torch.float32)),
        "suggest, 10 rows": (lambda: model.suggest("f7", n=10), forms),
        "predict, all rows x one feature": (lambda: model.predict(features=["f7"]), form(torch.float64)),
    }


def dtype_of(dtype: torch.dtype) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda part: part.to(dtype)


def measure(call: Call, bare: Call, repeats: int) -> dict[str, float]:
    """Return the least times of both, alternating, after a first call that fills the caches."""
    times: dict[str, list[float]] = {"ms": [], "bare_ms": []}
    cpu: dict[str, list[float]] = {"ms": [], "bare_ms": []}
    call(), bare()
    end = time.perf_counter() + 2
    while len(times["ms"]) < repeats or time.perf_counter() < end:  # repeat short calls more often
        for name, work in (("ms", call), ("bare_ms", bare)):
            start, began = time.perf_counter(), time.thread_time()
            work()
            times[name].append(1000 * (time.perf_counter() - start))
            cpu[name].append(time.thread_time() - began)  # other work on the machine does not add to it
    least = {name: min(durations) for name, durations in times.items()}
    median = float(np.median(cpu["ms"]) / np.median(cpu["bare_ms"]))
    return {**least, "ratio": least["ms"] / least["bare_ms"], "cpu_median_ratio": median}


if __name__ == "__main__":
    main()
