"""Settings of meta-training that suit heads in closed form."""

from __future__ import annotations

from collections.abc import Mapping

_MANY = 1000  # features from which large batches at a higher rate learn as much in a third of the time
_EPOCH_FEATURES = 2000


def usual_training(features: int) -> Mapping[str, object]:
    """The settings for a table of so many features: few epochs at a high rate.

    >>> usual_training(100)["batch_size"], usual_training(5000)["batch_size"]
    (48, 96)
    """
    many = features >= _MANY
    return {
        "epochs": 15,
        # More features in an epoch cost time and change little.
        "epoch_features": _EPOCH_FEATURES,
        "batch_size": 96 if many else 48,
        "learning_rate": 3e-3 if many else 2e-3,
        "schedule": "cosine",
        "weight_decay": 0.0,
        "decoupled_weight_decay": 0.05 if many else 0.1,
        "max_grad_norm": 1.0,
        # Of many features the last state is as good as the best validated, and less of an accident.
        "patience": None if many else 15,
        "shots": "log",
        # What networks know beyond a context is worth less and less: with more shots they learn little.
        "max_shots": 64 if many else 128,
        "max_targets": 64 if many else 256,
        "weighting": 0.5,
    }
