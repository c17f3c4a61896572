"""Settings of meta-training that suit heads in closed form."""

from __future__ import annotations

from collections.abc import Mapping

_MANY = 1000  # features from which large batches at a higher rate learn as much in a third of the time
_EPOCH_FEATURES = 2000
_VISITS = 9  # of a feature in the whole training, about


def usual_training(features: int) -> Mapping[str, object]:
    """The settings for a table of so many features: few epochs at a high rate.

    >>> [usual_training(features)["epochs"] for features in (100, 3000, 5000, 100_000)]
    [15, 15, 22, 30]
    """
    many = features >= _MANY
    return {
        "epochs": min(30, max(15, _VISITS * features // _EPOCH_FEATURES)),
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
