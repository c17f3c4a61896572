"""The best of many candidates, found block by block."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

_SLACK = 16  # candidates kept beyond those asked for, because single precision may exchange neighbours
_ROUNDING = 1e-5  # of scores in single precision, relative to the largest, by far enough
_CELLS_AT_ONCE = 1 << 21


def leading(
    score: Callable[[slice], Tensor], lines: int, total: int, n: int, at_once: int | None = None
) -> list[Tensor]:
    """Return, for each line, the candidates that may be among its ``n`` best, in no order.

    ``score`` gives the scores of a slice of the ``total`` candidates in single precision, (lines, …), −∞
    for one that is left out. Only a running choice is kept. A candidate is returned if it could be among
    the best once rounding is taken into account, however many there are. ``at_once`` is the length of the
    slices; by default as many as memory allows.
    """
    at_once = at_once or max(1024, _CELLS_AT_ONCE // max(1, lines))
    parts = [slice(start, min(start + at_once, total)) for start in range(0, total, at_once)]
    values = torch.zeros(lines, 0)
    index = torch.zeros(lines, 0, dtype=torch.int64)
    for part in parts:
        found = score(part)
        some, where = torch.topk(found, min(n + _SLACK, found.shape[1]), dim=1)
        values, index = torch.cat([values, some], dim=1), torch.cat([index, where + part.start], dim=1)
        if values.shape[1] > n + _SLACK:
            values, kept = torch.topk(values, n + _SLACK, dim=1)
            index = index.gather(1, kept)
    if values.shape[1] == 0:
        return [index[0]] * lines if lines else []
    values, order = values.sort(dim=1, descending=True)
    index = index.gather(1, order)
    size = torch.where(values.isfinite(), values.abs(), 0.0).amax(1).clamp(min=1)
    least = values[:, min(n, values.shape[1]) - 1] - _ROUNDING * size
    enough = (values[:, -1] < least) | (values.shape[1] == total) | ~values[:, -1].isfinite()
    near = (values >= least[:, None]) & values.isfinite()
    return [
        index[line, near[line]] if enough[line] else _all_near(score, parts, line, float(least[line]))
        for line in range(lines)
    ]


def _all_near(score: Callable[[slice], Tensor], parts: list[slice], line: int, least: float) -> Tensor:
    """All candidates of a line from a score on: many are alike."""
    return torch.cat([torch.nonzero(score(part)[line] >= least)[:, 0] + part.start for part in parts])
