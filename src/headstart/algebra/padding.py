"""Ragged batches as padded blocks, lines of similar length together, so that small products batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from headstart.algebra.symmetric import unpack, with_one
from headstart.table.cells import Cells

_BUDGET = 1 << 17  # numbers in one block: few enough to stay in a processor's cache
_WORTH = 1 << 16  # zeros of padding that cost less than the calls for one more block


def blocks(
    counts: Tensor, size: int, apart: Tensor | None = None, budget: int | None = None
) -> Iterator[Tensor]:
    """Part lines into groups of similar counts whose blocks stay small.

    Counts of a group differ at most fourfold, or so little that padding costs less than another block. No
    group mixes two values of ``apart`` (lines,), and a block of more than one line has at most ``budget``
    numbers. Every line is in exactly one group.

    >>> [group.tolist() for group in blocks(torch.tensor([9, 0, 1, 12]), size=2)]
    [[1, 2, 0, 3]]
    >>> [group.tolist() for group in blocks(torch.tensor([9, 0, 1, 12]), size=2**15)]
    [[1, 2], [0], [3]]
    """
    kinds = torch.zeros_like(counts) if apart is None else apart.long()
    order = torch.argsort(counts + (kinds << 40), stable=True)
    ordered = counts[order]
    bucket = torch.ceil(torch.log2(ordered.float() + 1) / 2).long() + 100 * kinds[order]
    names, lengths = torch.unique_consecutive(bucket, return_counts=True)
    start = stop = 0
    for place, length in enumerate(lengths.tolist()):
        stop += length
        if place + 1 < len(names) and int(names[place]) // 100 == int(names[place + 1]) // 100:
            longest = int(ordered[stop + int(lengths[place + 1]) - 1])
            zeros = ((stop - start) * longest - int(ordered[start:stop].sum())) * size
            if zeros <= _WORTH:
                continue
        yield from torch.split(
            order[start:stop], max(1, (budget or _BUDGET) // ((int(ordered[stop - 1]) + 1) * size))
        )
        start = stop


def places(cells: Cells) -> Tensor:
    """The place of each observation in its line: (n,)."""
    return torch.arange(len(cells.index), device=cells.index.device) - cells.indptr[cells.lines]


def padded(numbers: Tensor, cells: Cells) -> Tensor:
    """Put what there is of each observation (n, …) into a block of (lines, most, …), zeros elsewhere."""
    most = int(cells.counts.max()) if len(cells.index) else 0
    block = numbers.new_zeros(len(cells), most, *numbers.shape[1:])
    block[cells.lines, places(cells)] = numbers
    return block


def padded_rows(vectors: Tensor, cells: Cells) -> Tensor:
    """[v; 1] of the ``vectors`` (width, size − 1) that each line points at: (lines, most, size).

    Where a line ends before the longest one, some vector fills its place: give it no weight.
    """
    index = padded(cells.index, cells)
    return with_one(vectors.index_select(0, index.view(-1))).view(*index.shape, vectors.shape[1] + 1)


def outputs_at(weights: Tensor, matrices: Tensor, vectors: Tensor, cells: Cells) -> tuple[Tensor, Tensor]:
    """w·[v; 1] and [v; 1]ᵀ·M·[v; 1] with each line's w and packed M, and each observation's v: two of (n,).

    ``weights`` is (lines, size), ``matrices`` (lines, packed), ``vectors`` (width, size − 1).
    """
    size = vectors.shape[1] + 1
    if len(cells) == 1:  # one product of matrices; parting a single line into blocks would cost more
        near = with_one(vectors.index_select(0, cells.index))
        return near @ weights[0], ((near @ unpack(matrices, size)[0]) * near).sum(1)
    where = torch.arange(len(cells.index), device=cells.index.device)
    origins = Cells(cells.indptr, where, cells.values, len(where))
    means, forms, order = [vectors.new_zeros(0)], [vectors.new_zeros(0)], [where[:0]]
    for group in blocks(cells.counts, size):
        part = origins.take(group)
        block = padded_rows(vectors, replace(part, index=cells.index[part.index]))
        at = part.lines * block.shape[1] + places(part)
        mean = (block @ weights[group][:, :, None]).view(-1)
        form = ((block @ unpack(matrices[group], size)) * block).sum(2).view(-1)
        means.append(mean.index_select(0, at))
        forms.append(form.index_select(0, at))
        order.append(part.index)
    back = torch.argsort(torch.cat(order))
    return torch.cat(means)[back], torch.cat(forms)[back]
