"""Compute on matrices whose rows are spread over processes; one process gets what plain PyTorch gives."""

from __future__ import annotations

import torch
from torch import Tensor

from headstart.distributed import process_group

_DRAWN = 2**22  # numbers that are drawn at a time; a multiple of 16, see ``draw_normal_rows``


def tall_qr(part: Tensor) -> tuple[Tensor, Tensor]:
    """Q's lines of this process and R, of a matrix of which it has the lines ``part`` (lines, columns).

    The R of each process's own lines are gathered and decomposed once more. Signs may differ from those of
    ``torch.linalg.qr`` of the whole matrix.
    """
    near, upper = torch.linalg.qr(part)
    if process_group().is_single:
        return near, upper
    start, _ = process_group().span(len(upper))
    far, upper = torch.linalg.qr(process_group().all_gather(upper.contiguous()))
    return near @ far[start : start + near.shape[1]], upper


def draw_normal_rows(count: int, width: int, generator: torch.Generator) -> Tensor:
    """This process's lines of normal numbers, as if one process drew those of all: (count, width)."""
    start, whole = process_group().span(count)
    if process_group().is_single:
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


def draw_uniform_at(places: Tensor, whole: int, generator: torch.Generator) -> Tensor:
    """The numbers at ``places`` (n,), ascending, of so many uniform ones in double precision: (n,)."""
    if process_group().is_single and len(places) == whole:
        return torch.rand(whole, generator=generator, dtype=torch.float64)
    found = torch.empty(len(places), dtype=torch.float64)
    for at in range(0, whole, _DRAWN):
        drawn = torch.rand(min(_DRAWN, whole - at), generator=generator, dtype=torch.float64)
        low, high = torch.searchsorted(places, torch.tensor([at, at + len(drawn)])).tolist()
        found[low:high] = drawn[places[low:high] - at]
    return found


def select_local(chosen: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Which of the ``chosen`` (m,) of all lines are among this process's ``count``: places in both.

    Returned are places in ``chosen``, and the places of the same lines among the process's own.
    """
    start, _ = process_group().span(count)
    here = torch.nonzero((chosen >= start) & (chosen < start + count))[:, 0]
    return here, chosen[here] - start


def gather_sample(most: int, *parts: Tensor) -> list[Tensor]:
    """At most so many lines of all processes, at equal distances, of each of several matrices."""
    count = len(parts[0])
    _, whole = process_group().span(count)
    if whole > most:
        every = torch.linspace(0, whole - 1, most, dtype=torch.float64)
        own = select_local(every.long(), count)[1]
        parts = tuple(part[own] for part in parts)
    return [process_group().all_gather(part.contiguous()) for part in parts]


def global_mean(values: Tensor) -> float:
    """The mean of the values (n,) that all processes have, 0 if there are none."""
    if process_group().is_single:
        return float(values.mean()) if len(values) else 0.0
    return process_group().sum_number(float(values.double().sum())) / max(
        1, process_group().span(len(values))[1]
    )


def global_std(values: Tensor) -> float:
    """The standard deviation of the values (n,) that all processes have."""
    if process_group().is_single:
        return float(values.std(correction=0))
    return float(global_mean((values.double() - global_mean(values)) ** 2) ** 0.5)
