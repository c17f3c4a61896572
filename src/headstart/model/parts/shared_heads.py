"""Heads of features whose observations several processes have."""

from __future__ import annotations

from dataclasses import replace

import torch

from headstart.adapters.closed_form import ClosedFormAdapter
from headstart.adapters.together import adapt_together
from headstart.crew import crew
from headstart.model.parts.extremes import are_finite, too_extreme
from headstart.model.parts.feature import Feature
from headstart.model.parts.fitted import Fitted
from headstart.model.parts.widening import widened
from headstart.training.calibration import USUAL_LEVEL


@torch.no_grad()
def with_shared_heads(fitted: Fitted, features: list[Feature]) -> Fitted:
    """``Fitted.adapted`` where each process has the observations of its own rows."""
    adapter, batch = fitted.adapter, fitted.batch_of(features)
    if not isinstance(adapter, ClosedFormAdapter):
        raise TypeError(f"the heads of {adapter.config.name} are not made from sums over observations")
    shots = crew().total(batch.shots.clone())
    heads = adapt_together(adapter, batch, fitted.states, shots)
    for feature, finite in zip(features, are_finite(heads), strict=True):
        if not finite:
            raise too_extreme(feature)
    factors = fitted.calibration.factor(shots, batch.kinds)[:, USUAL_LEVEL]
    heads = widened(heads, batch, fitted.states, factors, fitted.knowledge.likelihood)
    return fitted.holding(features, heads)


def with_whole_shots(fitted: Fitted) -> Fitted:
    """Return the model whose features know how many observations they have in all processes."""
    features = list(fitted.catalogue.values())
    shots = crew().total(torch.tensor([feature.shots for feature in features], dtype=torch.int64)).tolist()
    whole = {
        feature.name: replace(feature, shots=count) for feature, count in zip(features, shots, strict=True)
    }
    return replace(fitted, catalogue=fitted.catalogue.with_contexts(whole))
