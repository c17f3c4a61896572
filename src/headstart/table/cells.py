"""Observations as compressed sparse rows of tensors, and arrays in the smallest exact types."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.errors import InputError

AT_ONCE = 2**20  # observations per chunk, so that temporary arrays stay small

MOST_POSITIONS = 2**31 - 1  # rows or features of a table: positions are int32

Positions = NDArray[np.int32]

Floats = NDArray[np.float32] | NDArray[np.float64]  # float32 only if it holds every value exactly

_MAX_CACHED = 2**18  # observations up to which ``Cells`` caches the lines


def chunk_slices(count: int) -> Iterator[slice]:
    """Yield consecutive slices of at most ``AT_ONCE`` of ``count`` observations."""
    for start in range(0, count, AT_ONCE):
        yield slice(start, min(count, start + AT_ONCE))


def require_positions(count: int, noun: str) -> None:
    """Raise an error if ``count`` rows or features (the ``noun``) are too many for int32 positions."""
    if count > MOST_POSITIONS:
        raise InputError(
            f"the table has {count} {noun}; at most {MOST_POSITIONS} are possible, so part it into several"
        )


def smallest_exact(values: NDArray[Any]) -> Floats:
    """Return the values as float32 if it holds each of them exactly, otherwise as float64.

    >>> smallest_exact(np.array([0.5, 4.0])).dtype, smallest_exact(np.array([0.5, 0.1])).dtype
    (dtype('float32'), dtype('float64'))
    """
    values = np.asarray(values)
    if values.dtype == np.float32:
        return values
    values = np.asarray(values, dtype=np.float64)
    with np.errstate(over="ignore"):  # a value too large for float32 becomes infinite, and differs
        for part in chunk_slices(len(values)):
            if not np.array_equal(values[part].astype(np.float32), values[part]):
                return values
        return values.astype(np.float32)


def count_positions(index: NDArray[Any], count: int) -> NDArray[np.int64]:
    """Count each position below ``count``, as ``np.bincount`` does, but without a copy of the index.

    >>> count_positions(np.array([2, 0, 2], np.int32), 3)
    array([1, 0, 2])
    """
    counts = np.zeros(count, np.int64)
    for part in chunk_slices(len(index)):
        counts += np.bincount(index[part], minlength=count)
    return counts


def take_positions(array: NDArray[Any], order: NDArray[Any]) -> NDArray[Any]:
    """Return ``array[order]`` without the int64 copy of ``order`` that numpy would make."""
    result = np.empty(len(order), array.dtype)
    for part in chunk_slices(len(order)):
        result[part] = array[order[part]]
    return result


def is_sorted(rows: NDArray[Any], features: NDArray[Any]) -> bool:
    """Return whether observations are sorted by (row, feature), each pair once.

    >>> is_sorted(np.array([0, 0, 1]), np.array([0, 2, 1])), is_sorted(np.array([0, 0]), np.array([1, 1]))
    (True, False)
    """
    for part in chunk_slices(len(rows) - 1):
        after = slice(part.start + 1, part.stop + 1)
        same, later = rows[after] == rows[part], rows[after] > rows[part]
        if not (later | (same & (features[after] > features[part]))).all():
            return False
    return True


@dataclass(frozen=True)
class Cells:
    """A sparse matrix in the compressed sparse row (CSR) format.

    Line ``i`` contains the positions ``index[indptr[i]:indptr[i+1]]``, with their ``values``. Lines are
    rows and ``index`` contains positions of features; after ``transpose`` it is the other way round.
    Values are on the models' scale. Every position in ``index`` is below ``width``. The tensors may share
    memory with a table and are never written to.

    >>> cells = Cells.from_pairs(torch.tensor([1, 0]), torch.tensor([2, 0]), torch.tensor([.5, 1.]), 2, 3)
    >>> cells.lines, cells.index, cells.values
    (tensor([0, 1]), tensor([0, 2], dtype=torch.int32), tensor([1.0000, 0.5000]))
    """

    indptr: Tensor  # (lines + 1,) int64
    index: Tensor  # (n,) int32; int64 if it is temporary or too wide
    values: Tensor  # (n,) float32
    width: int
    weights: Tensor | None = None  # (n,) float32, of each observation; None: all 1

    @classmethod
    def from_pairs(
        cls,
        lines: Tensor,
        index: Tensor,
        values: Tensor,
        height: int,
        width: int,
        weights: Tensor | None = None,
    ) -> Cells:
        """Build from the line, index and value of each observation, in any order."""
        order = torch.argsort(lines.long() * width + index)
        starts = offsets(torch.bincount(lines, minlength=height))
        small = index.to(index_dtype(width))[order]
        return cls(starts, small, values[order], width, None if weights is None else weights[order])

    def __len__(self) -> int:
        return self.indptr.shape[0] - 1  # ``len`` of a tensor takes several times as long

    @cached_property
    def counts(self) -> Tensor:
        """The number of observations of each line: (lines,)."""
        return self.indptr.diff()

    @property
    def lines(self) -> Tensor:
        """The line of each observation: (n,)."""
        lines: Tensor | None = self.__dict__.get("_lines")
        if lines is None:
            lines = torch.repeat_interleave(self.counts)
            if len(lines) <= _MAX_CACHED:  # a step of training asks for them many times
                self.__dict__["_lines"] = lines
        return lines

    @property
    def weighted_counts(self) -> Tensor:
        """The sum of the weights of each line's observations: (lines,)."""
        if self.weights is None:
            return self.counts
        return self.weights.new_zeros(len(self)).index_add_(0, self.lines, self.weights)

    def weighted(self, numbers: Tensor) -> Tensor:
        """Multiply ``numbers`` of the observations (n,) by their weights."""
        return numbers if self.weights is None else numbers * self.weights.to(numbers.dtype)

    def take(self, lines: Tensor) -> Cells:
        """Return these lines, in this order; the cells themselves if these are all lines in their order."""
        if len(lines) == len(self) and torch.equal(lines, torch.arange(len(self)).to(lines)):
            return self
        counts = self.counts[lines]
        positions = ranges(self.indptr[lines], counts)
        return self.at(offsets(counts), positions)

    def block(self, start: int, stop: int) -> Cells:
        """Return the lines from ``start`` up to ``stop``; their observations are not copied."""
        indptr = self.indptr[start : stop + 1]
        part = slice(int(indptr[0]), int(indptr[-1]))
        weights = None if self.weights is None else self.weights[part]
        return Cells(indptr - indptr[0], self.index[part], self.values[part], self.width, weights)

    def keep(self, mask: Tensor) -> Cells:
        """Return only the observations where ``mask`` (n,) is true. The number of lines does not change."""
        # Differences of a running sum give the counts also for empty lines.
        running = torch.cat([mask.new_zeros(1, dtype=torch.int64), mask.cumsum(0)])
        return self.at(running[self.indptr], mask)

    def at(self, indptr: Tensor, positions: Tensor) -> Cells:
        """Return the observations at ``positions`` (or in a mask), divided into lines by ``indptr``."""
        weights = None if self.weights is None else self.weights[positions]
        return Cells(indptr, self.index[positions], self.values[positions], self.width, weights)

    @staticmethod
    def concatenate(parts: list[Cells]) -> Cells:
        """Return the lines of all ``parts``, which have one width."""
        if len(parts) == 1:
            return parts[0]
        index, values = (torch.cat([getattr(part, name) for part in parts]) for name in ("index", "values"))
        indptr = offsets(torch.cat([part.counts for part in parts]))
        weights = None
        if any(part.weights is not None for part in parts):
            weights = torch.cat([part.weighted(torch.ones_like(part.values)) for part in parts])
        return Cells(indptr, index, values, parts[0].width, weights)

    def transpose(self) -> Cells:
        """Return the same observations with lines and index exchanged."""
        if self.index.device.type != "cpu":  # SciPy reads main memory only
            order, starts = self.by_index()
            weights = None if self.weights is None else self.weights[order]
            return Cells(starts, self.lines[order], self.values[order], len(self), weights)
        from scipy.sparse import csr_array  # imported here: few uses of the package need SciPy

        # SciPy counts instead of sorting: half the memory and a sixth of the time.
        numbers = self.values if self.weights is None else torch.arange(len(self.index))
        arrays = tuple(part.numpy() for part in (numbers, self.index, self.indptr))
        by_index = csr_array(arrays, shape=(len(self), self.width), copy=False).tocsc()
        indptr = torch.from_numpy(by_index.indptr).long()
        index = torch.from_numpy(by_index.indices).to(index_dtype(len(self)))
        data = torch.from_numpy(by_index.data)
        if self.weights is None:
            return Cells(indptr, index, data, len(self))
        return Cells(indptr, index, self.values[data], len(self), self.weights[data])

    def by_index(self) -> tuple[Tensor, Tensor]:
        """Return the order of observations by index (n,), and the start of each index in it (width + 1,)."""
        order = torch.argsort(self.index, stable=True)
        return order, offsets(torch.bincount(self.index, minlength=self.width))


def index_dtype(width: int) -> torch.dtype:
    """Return the type of an index of positions below ``width``: int32 if it suffices."""
    return torch.int32 if width <= MOST_POSITIONS else torch.int64


def offsets(counts: Tensor) -> Tensor:
    """Return the start of each line, and the end of the last, for lines of these lengths: (lines + 1,)."""
    return torch.cat([counts.new_zeros(1), counts.cumsum(0)])


def ranges(starts: Tensor, counts: Tensor) -> Tensor:
    """Concatenate ``arange(start, start + count)`` of every pair, without a loop.

    >>> ranges(torch.tensor([5, 0]), torch.tensor([2, 3]))
    tensor([5, 6, 0, 1, 2])
    """
    before = counts.cumsum(0) - counts
    positions = torch.arange(int(counts.sum()), device=counts.device)
    return torch.repeat_interleave(starts - before, counts) + positions
