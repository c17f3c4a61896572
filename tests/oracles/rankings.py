"""Slow metrics of rankings: one list at a time, straight from the definitions."""

from __future__ import annotations

import math


def metrics_of_list(ranked: list[int], relevant: set[int], length: int) -> dict[str, float]:
    """Return NDCG@length, recall@length, average precision and reciprocal rank of one ranked list."""
    gains = sum(1 / math.log2(2 + i) for i, item in enumerate(ranked[:length]) if item in relevant)
    ideal = sum(1 / math.log2(2 + i) for i in range(min(length, len(relevant))))
    hits, precisions, reciprocal = 0, [], 0.0
    for i, item in enumerate(ranked):
        if item in relevant:
            hits += 1
            precisions.append(hits / (i + 1))
            reciprocal = reciprocal or 1 / (i + 1)
    return {
        f"ndcg@{length}": gains / ideal,
        f"recall@{length}": len(relevant & set(ranked[:length])) / len(relevant),
        "map": sum(precisions) / len(relevant),
        "mrr": reciprocal,
    }


def weighted_ndcg(scores: list[float], relevant: list[bool], weights: list[int]) -> float:
    """Return NDCG of one list, in which each irrelevant candidate stands for ``weights`` of them."""
    candidates = []
    for score, wanted, weight in zip(scores, relevant, weights, strict=True):
        candidates += [(score, wanted)] * (1 if wanted else weight)
    ranked = sorted(candidates, key=lambda candidate: (-candidate[0], candidate[1]))  # ties: irrelevant first
    gains = sum(1 / math.log2(2 + i) for i, (_, wanted) in enumerate(ranked) if wanted)
    return gains / sum(1 / math.log2(2 + i) for i in range(sum(relevant)))
