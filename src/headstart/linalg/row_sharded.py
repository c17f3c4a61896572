"""Compute on matrices whose rows are spread over processes; one process gets what plain PyTorch gives."""

from __future__ import annotations

import torch
from torch import Tensor

from headstart.distributed import crew

_DRAWN = 2**22  # numbers that are drawn at a time; a multiple of 16, see ``normal_lines``


def tall_qr(part: Tensor) -> tuple[Tensor, Tensor]:
    """Q's lines of this process and R, of a matrix of which it has the lines ``part`` (lines, columns).

    The R of each process's own lines are gathered and decomposed once more. Signs may differ from those of
    ``torch.linalg.qr`` of the whole matrix.
    """
    near, upper = torch.linalg.qr(part)
    if crew().alone:
        return near, upper
    start, _ = crew().span(len(upper))
    far, upper = torch.linalg.qr(crew().gathered(upper.contiguous()))
    return near @ far[start : start + near.shape[1]], upper


def normal_lines(count: int, width: int, generator: torch.Generator) -> Tensor:
    """This process's lines of normal numbers, as if one process drew those of all: (count, width)."""
    start, whole = crew().span(count)
    if crew().alone:
        return torch.randn(count, width, generator=generator)
    found = torch.empty(count * width)
    begin, end, total = start * width, (start + count) * width, whole * width
    at = 0
    while at < total:
        # PyTorch draws normal numbers by 16, and the last 16 anew if they are not full: so no less remain.
        stop = total if total - at < _DRAWN + 16 else at + _DRAWN
        drawn = torch.randn(stop - at, generator=generator)
        low, high = max(at, begin), min(stop, end)
        if low < high:
            found[low - begin : high - begin] = drawn[low - at : high - at]
        at = stop
    return found.view(count, width)


def uniform_at(places: Tensor, whole: int, generator: torch.Generator) -> Tensor:
    """The numbers at ``places`` (n,), ascending, of so many uniform ones in double precision: (n,)."""
    if crew().alone and len(places) == whole:
        return torch.rand(whole, generator=generator, dtype=torch.float64)
    found = torch.empty(len(places), dtype=torch.float64)
    for at in range(0, whole, _DRAWN):
        drawn = torch.rand(min(_DRAWN, whole - at), generator=generator, dtype=torch.float64)
        low, high = torch.searchsorted(places, torch.tensor([at, at + len(drawn)])).tolist()
        found[low:high] = drawn[places[low:high] - at]
    return found


def chosen_here(chosen: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Which of the ``chosen`` (m,) of all lines are among this process's ``count``: places in both.

    Returned are places in ``chosen``, and the places of the same lines among the process's own.
    """
    start, _ = crew().span(count)
    here = torch.nonzero((chosen >= start) & (chosen < start + count))[:, 0]
    return here, chosen[here] - start


def gathered_some(most: int, *parts: Tensor) -> list[Tensor]:
    """At most so many lines of all processes, at equal distances, of each of several matrices."""
    count = len(parts[0])
    _, whole = crew().span(count)
    if whole > most:
        every = torch.linspace(0, whole - 1, most, dtype=torch.float64)
        own = chosen_here(every.long(), count)[1]
        parts = tuple(part[own] for part in parts)
    return [crew().gathered(part.contiguous()) for part in parts]


def mean_of(values: Tensor) -> float:
    """The mean of the values (n,) that all processes have, 0 if there are none."""
    if crew().alone:
        return float(values.mean()) if len(values) else 0.0
    return crew().count(float(values.double().sum())) / max(1, crew().span(len(values))[1])


def deviation_of(values: Tensor) -> float:
    """The standard deviation of the values (n,) that all processes have."""
    if crew().alone:
        return float(values.std(correction=0))
    return float(mean_of((values.double() - mean_of(values)) ** 2) ** 0.5)
