"""The part of the studies that an experiment shows, and the panels of its picture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from headstart.evaluate.metrics import METRICS, Metric
from headstart.evaluate.plots import Panel
from headstart.evaluate.results import Curve, Results
from headstart.evaluate.timing import Timing
from headstart.experiments.catalogue import EPOCHS, STUDIES, Experiment


class Shown(NamedTuple):
    """The part of one study that an experiment shows."""

    study: str
    results: Results
    timings: list[Timing]


def show(experiment: Experiment, study: str, results: Results, timings: Sequence[Timing]) -> Shown:
    """Select the methods, shots and settings of a study that the experiment shows."""
    methods, data = experiment.methods[study], results.data
    if experiment.best_of:
        best = best_method(results, experiment.best_of)
        methods = (*methods[:-1], best, methods[-1])
        data = {
            **data,
            "maml": f"{best} is shown: the best of {', '.join(experiment.best_of)} on the held-out features, "
            "averaged over shots, as in the paper",
        }
    shots = set(experiment.shots or results.shots)
    settings = {**results.settings, "methods": list(methods)}
    if "used" in settings:
        other = set(results.methods) - set(methods)
        settings["used"] = {name: used for name, used in settings["used"].items() if name not in other}
    runs = [run for run in results.runs if run.method in methods and run.shots in shots]
    kept = [timing for timing in timings if timing.method in methods and timing.shots in shots]
    place = {method: i for i, method in enumerate(methods)}
    return Shown(
        study,
        Results.merged(data, settings, [runs]),
        sorted(kept, key=lambda timing: (place[timing.method], timing.shots)),
    )


def best_method(results: Results, methods: Sequence[str]) -> str:
    """Return the method with the best main metric, averaged over shots and splits."""
    metric = main_metric(results)
    curves = results.curves(metric)
    return methods[METRICS[metric].best(np.array([np.mean(curves[method].mean) for method in methods]))]


def main_metric(results: Results) -> str:
    """Return the metric to compare methods by: RMSE if the results have it, otherwise AUROC."""
    return "rmse" if "rmse" in results.metrics else "auroc"


def panels(experiment: Experiment, parts: Sequence[Shown]) -> list[Panel]:
    """Return the panels of a picture: one per study, or one per initial head for fine-tuning."""
    drawn = []
    for study, results, timings in parts:
        title, metric = str(results.data["name"]), METRICS[main_metric(results)]
        if experiment.shows == "times":
            drawn.append(Panel(_by_time(timings), Metric("ms per feature", "lower"), title))
        elif experiment.shows == "epochs":
            for start, head in (("train", "a random head"), ("chn-train", "the hypernetwork's head")):
                curves = _by_epochs(results, start)
                drawn.append(Panel(curves, metric, f"{title}: from {head}", "epochs of fine-tuning"))
        else:
            ordered = f", old to new by {STUDIES[study].by}" if STUDIES[study].by else ""
            drawn.append(Panel(results.curves(main_metric(results)), metric, title + ordered))
    return drawn


def _by_time(timings: Sequence[Timing]) -> dict[str, Curve]:
    """Return milliseconds per feature by shots: the median over splits."""
    times: dict[str, dict[int, list[float]]] = {}
    for timing in timings:
        times.setdefault(timing.method, {}).setdefault(timing.shots, []).append(timing.ms_per_feature)
    return {
        method: Curve(list(by), [float(np.median(ms)) for ms in by.values()], [None] * len(by))
        for method, by in times.items()
    }


def _by_epochs(results: Results, start: str) -> dict[str, Curve]:
    """Turn curves by shots of ``start-0``, ``start-1``, … into one curve by epochs per number of shots."""
    curves = results.curves(main_metric(results))
    return {
        f"{shots} shot{'s' * (shots != 1)}": Curve(
            list(EPOCHS),
            [curves[f"{start}-{n}"].mean[i] for n in EPOCHS],
            [curves[f"{start}-{n}"].sigma[i] for n in EPOCHS],
        )
        for i, shots in enumerate(results.shots)
    }
