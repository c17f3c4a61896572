"""What a model holds of one feature besides its head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headstart.table import MetadataSchema
from headstart.table.kinds import Kind


@dataclass(frozen=True)
class Feature:
    """What a model holds of one feature besides its head."""

    name: str
    kind: Kind
    in_backbone: bool  # whether the backbone reads it
    shots: int  # how many observations its head rests on
    metadata: NDArray[np.float32]  # encoded
    rows: NDArray[Any]  # the context of an adapter's head (int32 or int64); empty for one of the backbone's
    values: NDArray[np.float64]  # in the data's own units
    finds_scale: bool = False  # whether its center and scale are found from its observations
    record: Mapping[str, object] | None = None  # its metadata as it was given; None if that was not kept
    observed_since: bool = False  # whether it was observed after fit; rows then read its present head
    times: NDArray[np.float64] | None = None  # of its observations, in a model where they age
    now: float | None = None  # the time at which its head was computed

    @property
    def fixed(self) -> bool:
        """Whether its head is the backbone's own, made from observations that are not at hand."""
        return len(self.rows) < self.shots

    def readable(self, schema: MetadataSchema | None) -> dict[str, object]:
        """Its metadata by column: as it was given, or decoded from the numbers if that was not kept."""
        if self.record is not None:
            return dict(self.record)
        return {} if schema is None else schema.decode(self.metadata)

    def holds(self, row: int) -> bool:
        """Whether its context holds the row at this position."""
        at = self._place(row)
        return at < len(self.rows) and int(self.rows[at]) == row

    def _place(self, row: int) -> int:
        """Where a row is in the context, or would be."""
        # A number of another type would let numpy copy all rows to that type first.
        return int(self.rows.searchsorted(self.rows.dtype.type(row)))

    def observed(
        self,
        rows: NDArray[np.int64],
        values: NDArray[np.float64],
        times: NDArray[np.float64] | None = None,
    ) -> Feature:
        """Return the feature with these observations added, a row's later value replacing an earlier one."""
        fresh = ~np.isin(self.rows, rows)
        every = np.concatenate([self.rows[fresh], rows])
        numbers = np.concatenate([self.values[fresh], values])
        order = np.argsort(every)  # a head must not depend on the order observations came in
        both = (
            None if self.times is None or times is None else np.concatenate([self.times[fresh], times])[order]
        )
        return self._holding(every[order], numbers[order], both)

    def with_one(self, row: int, value: float, time: float | None = None) -> Feature:
        """``observed`` of one row."""
        at = self._place(row)
        tail = at + 1 if at < len(self.rows) and self.rows[at] == row else at
        rows = np.concatenate([self.rows[:at], [row], self.rows[tail:]])
        values = np.concatenate([self.values[:at], [value], self.values[tail:]])
        if self.times is None or time is None:
            return self._holding(rows, values)
        return self._holding(rows, values, np.concatenate([self.times[:at], [time], self.times[tail:]]))

    def among(self, rows: NDArray[np.int64]) -> Feature:
        """Return the feature with only its observations at these rows."""
        kept = np.isin(self.rows, rows)
        return self._holding(
            self.rows[kept], self.values[kept], None if self.times is None else self.times[kept]
        )

    def _holding(
        self,
        rows: NDArray[np.int64],
        values: NDArray[np.float64],
        times: NDArray[np.float64] | None = None,
    ) -> Feature:
        return replace(self, shots=len(rows), rows=rows, values=values, times=times, observed_since=True)
