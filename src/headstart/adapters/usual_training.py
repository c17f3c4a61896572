"""Settings of meta-training that suit heads in closed form."""

from __future__ import annotations

from collections.abc import Mapping

_MANY = 1000  # features from which networks are trained longer, in larger batches


def usual_training(features: int) -> Mapping[str, object]:
    """The settings for a table of so many features: few epochs at a high rate.

    >>> usual_training(100)["epochs"], usual_training(5000)["epochs"]
    (15, 24)
    """
    many = features >= _MANY
    return {
        "epochs": 24 if many else 15,
        "epoch_features": 2000,  # more of them cost time and change little
        # Of many features a large batch, with little of each, teaches more in the same time than a small one.
        "batch_size": 192 if many else 48,
        "max_shots": 32 if many else 128,
        "max_targets": 32 if many else 256,
        "learning_rate": 4e-3 if many else 2e-3,
        "schedule": "cosine",
        "weight_decay": 0.0,
        "decoupled_weight_decay": 0.05 if many else 0.1,
        "max_grad_norm": 1.0,
        # Of many features the last state is as good as the best validated, and less of an accident.
        "patience": None if many else 15,
        "shots": "log",
        "weighting": 0.5,
    }
