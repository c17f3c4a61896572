"""The posterior of a row by its definition, one observation after the other."""

from __future__ import annotations

import numpy as np

from headstart.model.state import ModelState


def row_state(fitted: ModelState, told: dict[str, float]) -> np.ndarray:
    """Return the factors of a row that observed ``told``: (latent,)."""
    backbone = fitted.backbone
    latent = backbone.latent
    features, _ = fitted.feature_store.take(list(told))
    own = {name: place for place, name in enumerate(fitted.backbone_features)}
    inside = [own[feature.name] for feature in features if feature.name in own]
    counts = np.array([len(inside)], dtype=np.float32)
    signature = backbone.signature
    raw = np.concatenate(
        [
            np.clip(np.log1p(counts), *signature.ends.numpy()),
            signature.table.numpy()[inside].sum(0) / np.sqrt(max(1, len(inside))),
        ]
    )
    difference = (raw - signature.centre.numpy()) / signature.scale.numpy()
    difference = difference * len(inside) / (len(inside) + float(signature.shrinkage_count))
    mean = np.concatenate([[1.0], difference]) @ backbone.row_map.numpy()
    prior = np.linalg.inv(backbone.row_covariance.numpy().astype(np.float64))
    seen = []
    for feature, value in zip(features, told.values(), strict=True):
        reference = fitted.feature_store.reference(feature.name)
        if reference is None:
            head, at = fitted.knowledge.heads, own[feature.name]
        else:
            head, at = fitted.feature_store.heads_at(slice(None)), reference[0]
        stacked = np.append(head.weight[at].numpy(), head.bias[at].item()).astype(np.float64)
        second = np.outer(stacked, stacked) + head.covariances(latent + 1)[at].numpy()
        seen.append(
            ((value - feature.kind.offset) / feature.kind.span, stacked, second, float(head.noise[at]))
        )
    exact, factors, spread = 1.0, mean.astype(np.float64), np.eye(latent)
    for turn in range(3):
        one = np.append(factors, 1.0)
        moment = np.outer(one, one)
        moment[:-1, :-1] += spread
        squared = 0.0
        for scaled, stacked, second, noise in seen:
            squared += (scaled**2 - 2 * scaled * stacked @ one + (second * moment).sum()) / noise
        if turn:
            exact = (5 + len(told)) / (5 + squared)
        precision, linear = prior.copy(), prior @ mean
        for scaled, stacked, second, noise in seen:
            precision += exact / noise * second[:-1, :-1]
            linear = linear + exact / noise * (scaled * stacked[:-1] - second[:-1, -1])
        spread = np.linalg.inv(precision)
        factors = spread @ linear
    return factors
