"""Ragged batches as padded blocks, lines of similar length together, so that small products batch."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from headstart.algebra.symmetric import unpack, with_one
from headstart.table.cells import Cells

_BUDGET = 1 << 17  # numbers in one block: few enough to stay in a processor's cache


def blocks(
    counts: Tensor, size: int, apart: Tensor | None = None, budget: int | None = None
) -> Iterator[Tensor]:
    """Part lines into groups whose counts differ at most fourfold and whose blocks stay small.

    No group mixes two values of ``apart`` (lines,), and a block of more than one line has at most ``budget``
    numbers. Every line is in exactly one group.

    >>> [group.tolist() for group in blocks(torch.tensor([9, 0, 1, 12]), size=2)]
    [[1], [2], [0, 3]]
    """
    bucket = torch.ceil(torch.log2(counts.float() + 1) / 2).long()
    if apart is not None:
        bucket = bucket + 100 * apart.long()
    order = torch.argsort(bucket, stable=True)
    for group in torch.split(order, torch.unique(bucket, return_counts=True)[1].tolist()):
        most = int(counts[group].max())
        yield from torch.split(group, max(1, (budget or _BUDGET) // ((most + 1) * size)))


def places(cells: Cells) -> Tensor:
    """The place of each observation in its line: (n,)."""
    return torch.arange(len(cells.index), device=cells.index.device) - cells.indptr[cells.lines]


def padded(numbers: Tensor, cells: Cells) -> Tensor:
    """Put what there is of each observation (n, …) into a block of (lines, most, …), zeros elsewhere."""
    most = int(cells.counts.max()) if len(cells.index) else 0
    block = numbers.new_zeros(len(cells), most, *numbers.shape[1:])
    block[cells.lines, places(cells)] = numbers
    return block


def forms_at(matrices: Tensor, vectors: Tensor, cells: Cells) -> Tensor:
    """[v; 1]ᵀ·M·[v; 1] with each line's packed matrix and each observation's vector: (n,).

    ``matrices`` is (lines, packed), ``vectors`` (width, size − 1).
    """
    size = vectors.shape[1] + 1
    if len(cells) == 1:  # one product of matrices; parting a single line into blocks would cost more
        near = with_one(vectors.index_select(0, cells.index))
        return ((near @ unpack(matrices, size)[0]) * near).sum(1)
    where = torch.arange(len(cells.index), device=cells.index.device)
    values, order = [vectors.new_zeros(0)], [where[:0]]
    for group in blocks(cells.counts, size):
        part = Cells(cells.indptr, where, cells.values, len(where)).take(group)  # remembers its origin
        block = padded(with_one(vectors.index_select(0, cells.index[part.index])), part)
        forms = ((block @ unpack(matrices[group], size)) * block).sum(2)
        values.append(forms[part.lines, places(part)])
        order.append(part.index)
    return torch.cat(values)[torch.argsort(torch.cat(order))]
