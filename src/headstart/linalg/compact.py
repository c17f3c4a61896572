"""Covariances of many heads in few numbers.

A head with n observations has the covariance of its prior less a matrix of rank n. If the prior is stored
once for all heads, n vectors describe it. A covariance that needs too many vectors is stored as a packed
triangle in half precision, and one that is added later in single precision.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.linalg.packed import pack, quadratic_forms, unpack
from headstart.linalg.ragged import segment_sum
from headstart.table.cells import offsets

TOLERANCE = 3e-5  # of the variance in each direction of the average vector, in units of the noise

MOST_DECODED = 2**24  # numbers of a tensor that is decoded when a model is opened, in a few milliseconds

_ROWS_PER_VECTOR = 4  # of a matrix that has vectors, at least

_MATRICES_AT_ONCE = 256  # that are decomposed or added up together

_NUMBERS_AT_ONCE = 2**19  # of vectors that are converted to double precision at a time: 4 MB


@dataclass(frozen=True)
class CompactMatrices:
    """Symmetric matrices of one size, each in one of three forms.

    ``where`` has the positions of the first matrices in the sequence of the factored, the halved and the
    dense ones. Later matrices are dense, in order: there, the position is the same.
    """

    bases: Tensor  # (bases, packed): a factored matrix is Σ share·base + Σ scale·x·xᵀ
    shares: Tensor  # (factored, bases)
    vectors: Tensor  # (n, size): x, in half precision
    scales: Tensor  # (n,)
    ends: Tensor  # (factored + 1,): where the vectors of each matrix start, and where the last ones end
    halves: Tensor  # (halved, packed): divided by their units, in half precision
    units: Tensor  # (halved,): powers of 2
    dense: Tensor  # (dense, packed)
    where: Tensor  # (first matrices,)

    @property
    def factored(self) -> int:
        """The number of matrices that have vectors."""
        return self.shares.shape[0]  # ``len`` of a tensor takes several times as long

    @property
    def first_dense(self) -> int:
        """The number of matrices that are not dense."""
        return self.shares.shape[0] + self.halves.shape[0]

    @cached_property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """Views of all parts in numpy, by name."""
        return {field.name: getattr(self, field.name).numpy() for field in fields(self)}

    def one(self, position: int) -> NDArray[Any]:
        """Return one matrix in numpy: (packed,). It has double precision unless it is dense."""
        parts = self.arrays
        at = int(parts["where"][position]) if position < len(parts["where"]) else position
        if at >= self.first_dense:
            return parts["dense"][at - self.first_dense]  # type: ignore[no-any-return]
        if at >= self.factored:
            at -= self.factored
            return parts["halves"][at].astype(np.float64) * parts["units"][at]  # type: ignore[no-any-return]
        part = slice(*parts["ends"][at : at + 2])
        vectors = parts["vectors"][part].astype(np.float64)
        products = pack((vectors.T * parts["scales"][part]) @ vectors)
        return products + parts["shares"][at].astype(np.float64) @ parts["bases"]  # type: ignore[no-any-return]

    def divide(self, where: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return the places of each form in ``where`` (n,), and their positions in its parts."""
        limits = (0, self.factored, self.first_dense, self.first_dense + len(self.dense))
        members = [torch.nonzero((where >= start) & (where < end))[:, 0] for start, end in pairwise(limits)]
        return [(at, where[at] - start) for at, start in zip(members, limits[:-1], strict=True)]

    @cached_property
    def divided(self) -> list[tuple[Tensor, Tensor]]:
        """The places and positions of the first matrices, by form."""
        return self.divide(self.where)

    def take_factored(self, positions: Tensor) -> CompactMatrices:
        """Return only the factored matrices at these positions among the factored ones."""
        where = torch.arange(len(positions))
        none = replace(self, halves=self.halves[:0], units=self.units[:0], dense=self.dense[:0], where=where)
        if _is_range(positions, self.factored):
            return none
        counts = self.ends.diff()[positions]
        ends = offsets(counts)
        chosen = torch.arange(int(ends[-1])) + torch.repeat_interleave(
            self.ends[positions] - ends[:-1], counts
        )
        vectors, scales = self.vectors[chosen], self.scales[chosen]
        return replace(none, shares=self.shares[positions], vectors=vectors, scales=scales, ends=ends)

    def add_up(self, dtype: torch.dtype) -> Tensor:
        """Return the factored matrices, added up in double precision: (factored, packed)."""
        size, parts = self.vectors.shape[1], [self.bases[:0].to(dtype)]
        for start in range(0, self.factored, _MATRICES_AT_ONCE):
            block = self.take_factored(torch.arange(start, min(start + _MATRICES_AT_ONCE, self.factored)))
            counts = block.ends.diff()
            lines = torch.repeat_interleave(torch.arange(len(counts)), counts)
            at = lines, torch.arange(len(lines)) - block.ends[:-1][lines]
            vectors = torch.zeros(len(counts), int(counts.max()), size, dtype=torch.float64)
            scaled = torch.zeros_like(vectors)
            vectors[at] = block.vectors.double()
            scaled[at] = block.vectors.double() * block.scales[:, None]
            products = pack(scaled.mT @ vectors) + block.shares.double() @ self.bases.double()
            parts.append(products.to(dtype))
        return torch.cat(parts)

    def factored_forms(self, vectors: Tensor, variances: Tensor | None) -> Tensor:
        """Compute the quadratic forms of the factored matrices as ``forms`` does: (n, factored)."""
        dtype = vectors.dtype
        total = quadratic_forms(vectors, self.bases, variances) @ self.shares.to(dtype).T
        step = max(1, _NUMBERS_AT_ONCE // max(self.vectors.shape[1], len(vectors)))
        starts = torch.searchsorted(self.ends, torch.arange(0, len(self.vectors), step)).tolist()
        for first, last in pairwise([*starts, self.factored]):  # none if no matrix has vectors
            part = slice(int(self.ends[first]), int(self.ends[last]))
            factors = self.vectors[part].float().to(dtype)
            squares = (factors @ vectors.T) ** 2
            if variances is not None:
                squares += factors[:, : variances.shape[1]] ** 2 @ variances.T
            squares *= self.scales[part, None].to(dtype)
            total[:, first:last] += segment_sum(squares, self.ends[first : last + 1] - part.start).T
        return total


class StoredMatrices:
    """Some matrices of ``CompactMatrices``, in the place of a tensor (matrices, packed) of ``Heads``.

    They are computed when they are needed: see ``packed`` and ``forms``.
    """

    def __init__(
        self, parts: CompactMatrices, positions: Tensor | None = None, dtype: torch.dtype = torch.float32
    ) -> None:
        self.parts, self.dtype, self._positions = parts, dtype, positions

    def __len__(self) -> int:
        return (
            self.parts.first_dense + len(self.parts.dense)
            if self._positions is None
            else len(self._positions)
        )

    @property
    def positions(self) -> Tensor:
        """The positions of the matrices: (matrices,)."""
        return torch.arange(len(self)) if self._positions is None else self._positions

    def index_select(self, _: int, positions: Tensor) -> StoredMatrices:
        """Return the matrices at these positions among these matrices."""
        chosen = positions if self._positions is None else self._positions[positions]
        return StoredMatrices(self.parts, chosen, self.dtype)

    def __getitem__(self, chosen: slice | Tensor) -> StoredMatrices:
        return StoredMatrices(self.parts, self.positions[chosen], self.dtype)

    def __setitem__(self, chosen: slice, matrices: Tensor) -> None:
        """Overwrite dense matrices, for which there is room after the others."""
        start = self.parts.first_dense
        self.parts.dense[chosen.start - start : chosen.stop - start] = matrices

    def detach(self) -> StoredMatrices:
        """Return the matrices themselves: they have no gradients."""
        return self

    def to(self, dtype: torch.dtype) -> StoredMatrices:
        """Return the matrices in another precision."""
        return StoredMatrices(self.parts, self._positions, dtype)

    def numpy(self) -> OneByOne:
        """Return the matrices in numpy, each computed when it is read."""
        return OneByOne(self.parts)

    def _divide(self) -> list[tuple[Tensor, Tensor]]:
        """Return the positions of the factored, halved and dense matrices, among these and in their parts."""
        where, positions = self.parts.where, self.positions
        if _is_range(positions, len(where)):
            return self.parts.divided
        if len(where):
            positions = torch.where(
                positions < len(where), where[positions.clamp(max=len(where) - 1)], positions
            )
        return self.parts.divide(positions)

    def packed(self) -> Tensor:
        """Compute the matrices: (matrices, packed)."""
        if len(self) == 1:  # most calls are for one head
            return torch.from_numpy(self.parts.one(int(self.positions[0])))[None].to(self.dtype)
        parts, result = self.parts, self.parts.dense.new_empty(len(self), self.parts.dense.shape[1])
        result = result.to(self.dtype)
        (factored, at_factored), (halved, at_halved), (dense, at_dense) = self._divide()
        if len(factored):
            result[factored] = parts.take_factored(at_factored).add_up(self.dtype)
        if len(halved):
            result[halved] = parts.halves[at_halved].to(self.dtype) * parts.units[at_halved, None].to(
                self.dtype
            )
        if len(dense):
            result[dense] = parts.dense[at_dense].to(self.dtype)
        return result

    def forms(self, vectors: Tensor, variances: Tensor | None = None) -> Tensor:
        """Compute vᵀ·M·v of all ``vectors`` (n, size), as ``quadratic_forms`` does: (n, matrices)."""
        parts, result = self.parts, vectors.new_empty(len(vectors), len(self))
        (factored, at_factored), (halved, at_halved), (dense, at_dense) = self._divide()
        if len(factored):
            result[:, factored] = parts.take_factored(at_factored).factored_forms(vectors, variances)
        if len(halved):
            units, chosen = parts.units[at_halved].to(vectors.dtype), at_halved
            result[:, halved] = units * quadratic_forms(
                vectors, parts.halves, variances, None if _is_range(chosen, len(parts.halves)) else chosen
            )
        if len(dense):
            result[:, dense] = quadratic_forms(vectors, parts.dense, variances, at_dense)
        return result

    def gather(self, room: int = 0) -> CompactMatrices:
        """Return a copy of only these matrices, with ``room`` for more dense ones."""
        parts = self.parts
        (factored, at_factored), (halved, at_halved), (dense, at_dense) = self._divide()
        where = torch.empty(len(self), dtype=torch.int64)
        where[torch.cat([factored, halved, dense])] = torch.arange(len(self))
        more = parts.dense.new_zeros(room, parts.dense.shape[1])
        return replace(
            parts.take_factored(at_factored),
            halves=parts.halves[at_halved],
            units=parts.units[at_halved],
            dense=torch.cat([parts.dense[at_dense], more]),
            where=where,
        )

    def append_zeros(self, more: int) -> StoredMatrices:
        """Return a copy with ``more`` dense matrices of zeros."""
        return StoredMatrices(self.gather(more), None, self.dtype)


class OneByOne:
    """Matrices in numpy by position, each computed when it is read; dense ones can be written."""

    def __init__(self, parts: CompactMatrices) -> None:
        self._parts = parts

    def __getitem__(self, position: int) -> NDArray[Any]:
        return self._parts.one(position)

    def __setitem__(self, position: int, matrix: NDArray[Any]) -> None:
        self._parts.arrays["dense"][position - self._parts.first_dense] = matrix


def _is_range(positions: Tensor, count: int) -> bool:
    """Return whether the positions are 0, 1, …, ``count`` − 1."""
    return len(positions) == count and torch.equal(positions, torch.arange(count))


def to_halves(numbers: Tensor) -> tuple[Tensor, Tensor]:
    """Return lines of numbers (n, width) in half precision, and the powers of 2 that divide them: (n,).

    Numbers of ``from_halves`` give the same halves and units again.

    >>> to_halves(torch.tensor([[3.0, 1.0]]))
    (tensor([[0.7500, 0.2500]], dtype=torch.float16), tensor([4.]))
    """
    largest = numbers.abs().amax(1) if numbers.numel() else numbers.new_zeros(len(numbers))
    units = _powers_above(largest)
    units = _powers_above((largest / units).half().float() * units)  # rounding may reach the next power
    return (numbers / units[:, None]).half(), units


def _powers_above(numbers: Tensor) -> Tensor:
    """Return the smallest power of 2 above each of the positive ``numbers`` (n,), and 1 for a 0: (n,)."""
    return torch.ldexp(torch.ones_like(numbers), torch.frexp(numbers).exponent)


def from_halves(halves: Tensor, units: Tensor) -> Tensor:
    """Return the numbers of ``to_halves`` in single precision: (n, width)."""
    return halves.float() * units[:, None]


def compact(packed: Tensor, bases: Tensor, shares: Tensor, metric: Tensor, units: Tensor) -> CompactMatrices:
    """Find few vectors for each matrix by a pivoted decomposition L·D·Lᵀ.

    The error of vᵀ·M·v is below ``TOLERANCE`` units in each direction of the average v. A vector is rounded
    to half precision before its product is subtracted, so that later vectors correct the rounding. A matrix
    that would need more vectors than a quarter of its rows is stored in half precision instead.

    Parameters
    ----------
    packed : Tensor of shape (matrices, packed)
        The matrices.
    bases : Tensor of shape (bases, packed)
        Matrices whose combinations are the given ones, up to a low rank.
    shares : Tensor of shape (matrices, bases)
        The coefficients of these combinations.
    metric : Tensor of shape (size, size)
        The second moment of the vectors v.
    units : Tensor of shape (matrices,)
        The unit of the errors of each matrix.
    """
    size = len(metric)
    lower = torch.linalg.cholesky(metric.double())
    root, inverse = lower.float(), torch.linalg.inv(lower).float()
    blocks: list[tuple[Tensor, Tensor, Tensor]] = []  # owners, vectors and scales
    many = torch.zeros(len(packed), dtype=torch.bool)  # whether a matrix needs too many vectors
    for start in range(0, len(packed), _MATRICES_AT_ONCE):
        block = slice(start, start + _MATRICES_AT_ONCE)
        rest = unpack(packed[block] - shares[block] @ bases, size) / units[block, None, None]
        rest, owners = root.T @ rest @ root, torch.arange(start, start + len(rest))
        for step in range(size // _ROWS_PER_VECTOR + 1):
            diagonal = rest.diagonal(dim1=1, dim2=2)
            pivots = diagonal.abs().argmax(1)
            values = diagonal.gather(1, pivots[:, None])[:, 0]
            left = values.abs() > TOLERANCE
            rest, owners, pivots, values = rest[left], owners[left], pivots[left], values[left]
            if step == size // _ROWS_PER_VECTOR or not len(owners):
                break
            vectors = rest[torch.arange(len(rest)), pivots] @ inverse
            largest = vectors.abs().amax(1)
            vectors, scales = (vectors / largest[:, None]).half(), largest**2 / values
            columns = vectors.float() @ root
            rest = torch.baddbmm(rest, (scales[:, None] * columns)[:, :, None], columns[:, None], alpha=-1)
            blocks.append((owners, vectors, scales * units[owners]))
        many[owners] = True
    owners, vectors, scales = (torch.cat(parts) for parts in zip(*blocks, strict=True)) if blocks else (
        torch.zeros(0, dtype=torch.int64), packed.new_zeros(0, size).half(), packed.new_zeros(0)
    )  # fmt: skip
    order = torch.argsort(owners, stable=True)
    order = order[~many[owners[order]]]
    counts = torch.bincount(owners[order], minlength=len(packed))
    halves, powers = to_halves(packed[many])
    where = torch.empty(len(packed), dtype=torch.int64)
    where[torch.cat([torch.nonzero(~many)[:, 0], torch.nonzero(many)[:, 0]])] = torch.arange(len(packed))
    return CompactMatrices(
        bases,
        shares[~many],
        vectors[order],
        scales[order],
        offsets(counts[~many]),
        halves,
        powers,
        packed[:0].clone(),
        where,
    )
