"""The time of a model whose observations age."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from headstart.table.times import weights_of


@dataclass(frozen=True)
class Clock:
    """When the observations of a model were made, and how much they count by now.

    ``now`` is the newest time that the model knows. A head or a row's state counts by the time at which it
    was computed last, because others must not change when one is observed.
    """

    half_life: float
    now: float
    fitted_at: float
    table: NDArray[np.float64]  # (n,): the times of the observations that the backbone was fitted on

    @classmethod
    def starting(cls, half_life: float, times: NDArray[np.float64], now: float) -> Clock:
        """The clock of a model that was just fitted."""
        return cls(half_life, now, now, times)

    def moved(self, times: NDArray[np.float64] | None) -> Clock:
        """Return a clock that knows these times too; it never goes back."""
        if times is None or not len(times):
            return self
        return replace(self, now=max(self.now, float(times.max())))

    def weights(self, times: NDArray[np.float64], now: float | None = None) -> NDArray[np.float64]:
        """How much observations of these times count: (n,)."""
        return weights_of(times, self.now if now is None else now, self.half_life)

    def faded(self, since: float | None) -> float:
        """By what sums of that time are multiplied to be those of now."""
        return 1.0 if since is None else float(np.exp2((since - self.now) / self.half_life))

    def times_now(self, count: int) -> NDArray[np.float64]:
        """The times of so many observations that are given without one."""
        return np.full(count, self.now)
