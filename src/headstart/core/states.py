"""Row states: what a backbone knows of rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray
from torch import Tensor


class OneState(NamedTuple):
    """What is known of one row, in numpy: the parts of ``RowStates`` without their first dimension."""

    code: NDArray[Any]
    code_std: NDArray[Any]
    activation: NDArray[Any]
    noise: float | None = None
    variance: NDArray[Any] | None = None

    def parts(self) -> list[Any]:
        """All that there is of the state, in the order of ``RowStates.parts``."""
        return [part for part in self if part is not None]


@dataclass(frozen=True)
class RowStates:
    """What a backbone knows of some rows."""

    code: Tensor  # (rows, latent): what the hypernetwork reads
    code_std: Tensor  # (rows, latent): how sure the backbone is of the code
    activation: Tensor  # (rows, width): what heads read
    noise: Tensor | None = None  # (rows,): how noisy a row's observations are, relative to the usual
    variance: Tensor | None = None  # (rows, width): how uncertain each part of the activation is

    def __len__(self) -> int:
        return len(self.code)

    def take(self, rows: Tensor | slice) -> RowStates:
        """Return the states of these rows; those of a slice are not copied."""
        if isinstance(rows, Tensor) and rows.dtype == torch.int64:
            return self.each(lambda part: part.index_select(0, rows))  # faster than an index
        return self.each(lambda part: part[rows])

    def parts(self) -> list[Tensor]:
        """All that there is of the states, as tensors of one entry a row."""
        every = (self.code, self.code_std, self.activation, self.noise, self.variance)
        return [part for part in every if part is not None]

    def room_for(self, rows: int) -> RowStates:
        """Return states of the same parts for so many rows, to be filled."""
        return self.each(lambda part: part.new_empty(rows, *part.shape[1:]))

    def put(self, start: int, states: RowStates) -> None:
        """Write states of rows over those from ``start`` on, before anyone reads them."""
        for own, given in zip(self.parts(), states.parts(), strict=True):
            own[start : start + len(states)] = given

    def to(self, dtype: torch.dtype) -> RowStates:
        """Return the states in this precision."""
        return self.each(lambda part: part.to(dtype))

    def detach(self) -> RowStates:
        """Return the same numbers, cut off from any gradient."""
        return self.each(lambda part: part.detach())

    def grown(self, more: int) -> RowStates:
        """Return the states with so many empty ones after them."""
        if more == 0:  # nothing needs to be copied
            return self
        return self.each(lambda part: torch.cat([part, part.new_zeros(more, *part.shape[1:])]))

    def each(self, change: Callable[[Tensor], Tensor]) -> RowStates:
        """Return states of which every part is changed so."""
        noise, variance = (None if part is None else change(part) for part in (self.noise, self.variance))
        return RowStates(change(self.code), change(self.code_std), change(self.activation), noise, variance)

    @classmethod
    def of_one(cls, state: OneState, dtype: torch.dtype) -> RowStates:
        """A batch of one row."""
        code, code_std, activation = (torch.tensor(part, dtype=dtype)[None] for part in state[:3])
        noise = None if state.noise is None else torch.tensor([state.noise], dtype=dtype)
        variance = None if state.variance is None else torch.tensor(state.variance, dtype=dtype)[None]
        return cls(code, code_std, activation, noise, variance)

    @classmethod
    def concatenate(cls, parts: list[RowStates]) -> RowStates:
        """Join batches of rows into one."""
        noises = [part.noise for part in parts if part.noise is not None]
        variances = [part.variance for part in parts if part.variance is not None]
        return cls(
            torch.cat([part.code for part in parts]),
            torch.cat([part.code_std for part in parts]),
            torch.cat([part.activation for part in parts]),
            torch.cat(noises) if len(noises) == len(parts) else None,
            torch.cat(variances) if len(variances) == len(parts) else None,
        )
