"""The settings that a training run really used, as reports show them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headstart.adapters.protocol import Adapter
from headstart.backbones.protocol import Backbone, TrainedBackbone
from headstart.training.metatraining import MetaTrainingConfig
from headstart.training.pretraining import PretrainingConfig


def used_settings(
    backbone: Backbone,
    pretraining: PretrainingConfig,
    adapters: Mapping[str, tuple[Adapter, MetaTrainingConfig | None]],
) -> dict[str, Any]:
    """Return the settings that really ran as plain JSON, with every default and rule filled in.

    Parameters
    ----------
    backbone : Backbone
        A trained backbone.
    pretraining : PretrainingConfig
        How it was trained. Left out for a backbone in closed form, which has no epochs.
    adapters : mapping
        By method, a trained adapter and the settings of its meta-training, or None if it has none.

    Returns
    -------
    dict
        ``"backbone"``, ``"pretraining"`` and one entry per method.
    """
    used: dict[str, Any] = {"backbone": backbone.config.model_dump(mode="json")}
    if isinstance(backbone, TrainedBackbone):
        used["pretraining"] = pretraining.model_dump(mode="json")
    for method, (adapter, metatraining) in adapters.items():
        used[method] = {"adapter": adapter.config.model_dump(mode="json")}
        if metatraining is not None:
            used[method]["metatraining"] = metatraining.model_dump(mode="json")
    return used
