"""Settings of meta-training that suit heads in closed form."""

from __future__ import annotations

from collections.abc import Mapping

_MANY = 1000  # features from which networks are trained longer
_EPOCH_FEATURES = 2000


def usual_training(features: int) -> Mapping[str, object]:
    """The settings for a table of so many features: few epochs at a high rate.

    >>> usual_training(100)["epochs"], usual_training(5000)["epochs"]
    (15, 30)
    """
    many = features >= _MANY
    return {
        "epochs": 30 if many else 15,
        # More features in an epoch cost time and change little; it has about 70 steps at most.
        "epoch_features": _EPOCH_FEATURES,
        "batch_size": 192 if many else 48,
        "learning_rate": 4e-3 if many else 2e-3,
        "schedule": "cosine",
        "weight_decay": 0.0,
        "decoupled_weight_decay": 0.05 if many else 0.1,
        "max_grad_norm": 1.0,
        # Of many features the last state is as good as the best validated, and less of an accident.
        "patience": None if many else 15,
        "shots": "log",
        "max_shots": 64,
        "max_targets": 32,
        "weighting": 0.5,
    }
