"""Features in batches whose heads are made together."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from headstart.crew import crew
from headstart.model.parts.feature import Feature

_FEATURES_AT_ONCE, _OBSERVATIONS_AT_ONCE = 1024, 2**18  # at most
BYTES_AT_ONCE = 2**29  # that heads of a batch take in between, about


def batches(features: list[Feature]) -> Iterator[list[Feature]]:
    """Cut features into batches of bounded numbers of features and observations, at least one in each."""
    batch: list[Feature] = []
    held = 0
    # Of several processes all have the same batches, of the observations of the one that has the most.
    counts = crew().largest(torch.tensor([len(feature.rows) for feature in features], dtype=torch.int64))
    for feature, count in zip(features, counts.tolist(), strict=True):
        full = len(batch) == _FEATURES_AT_ONCE or held + count > _OBSERVATIONS_AT_ONCE
        if batch and full:
            yield batch
            batch, held = [], 0
        batch.append(feature)
        held += count
    if batch:
        yield batch
