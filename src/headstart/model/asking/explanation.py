"""What explain returns: a prediction as a sum of parts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa

Source = Literal["observation", "choice", "row metadata", "row", "metadata", "context", "link", "others"]
_TITLES: dict[Source, str] = {
    "observation": "what the row observed",
    "choice": "which features the row observed",
    "row metadata": "the row's metadata",
    "row": "what else is known of the row",
    "metadata": "the feature's metadata",
    "context": "the feature's own observations",
    "link": "from output to prediction",
    "others": "",
}


@dataclass(frozen=True)
class Contribution:
    """One part of a prediction.

    Attributes
    ----------
    source : str
        Where it comes from: an ``"observation"`` of the row, the ``"choice"`` of features that the row
        observed, the ``"row metadata"``, what else is known of the ``"row"`` (activations that the adapter
        learned; heads that have changed since the row was read by them), a ``"metadata"`` column of the
        feature, its ``"context"``, or the ``"link"`` (calibration, and the ends of a rating).
    name : str
        The feature that was observed, or the metadata column; otherwise empty.
    given : object
        The value observed or the metadata value, where there is one.
    value : float
        What it adds, in the explanation's unit.
    """

    source: Source
    name: str
    given: object
    value: float

    @property
    def label(self) -> str:
        """A short text for tables and pictures."""
        if not self.name:
            return _TITLES[self.source]
        shown = f"{self.given:.4g}" if isinstance(self.given, float) else self.given
        return self.name if self.given is None else f"{self.name} = {shown}"


@dataclass(frozen=True)
class Explanation:
    """Why one cell is predicted as it is: ``baseline + sum of contributions == output``, up to rounding.

    The baseline is the output for a row without observations at a feature of average metadata without
    observations. Observations of the row and what makes the feature act together: how much the feature
    depends on a taste, times how much the row has of it. Of what they do together, each side is given
    half (their Shapley value), so that the sum holds exactly.

    Attributes
    ----------
    row, feature : str
        The cell.
    unit : str
        ``"data units"``, or ``"log-odds"`` for a feature behind the logistic link.
    baseline, output : float
        Where the sum begins and ends. The output is the prediction in this unit.
    mean : float
        What ``predict`` gives; for log-odds the probability, calibrated.
    contributions : tuple of Contribution
        The parts, the largest first within each source.
    """

    row: str
    feature: str
    unit: str
    baseline: float
    output: float
    mean: float
    contributions: tuple[Contribution, ...]

    def __iter__(self) -> Iterator[Contribution]:
        return iter(self.contributions)

    def __len__(self) -> int:
        return len(self.contributions)

    def of(self, source: Source) -> tuple[Contribution, ...]:
        """The contributions of one source."""
        return tuple(each for each in self.contributions if each.source == source)

    def largest(self, n: int) -> list[Contribution]:
        """The ``n`` largest contributions, largest first, and the others in one, so that they add up."""
        order = sorted(self.contributions, key=lambda each: -abs(each.value))
        rest = order[n:]
        if len(rest) < 2:
            return order
        total = sum(each.value for each in rest)
        return [*order[:n], Contribution("others", f"{len(rest)} others", None, total)]

    def to_arrow(self) -> pa.Table:
        """One line per contribution: source, name, given (as text), value."""
        return pa.table(
            {
                "source": [each.source for each in self.contributions],
                "name": [each.name for each in self.contributions],
                "given": [None if each.given is None else str(each.given) for each in self.contributions],
                "value": [each.value for each in self.contributions],
            }
        )

    def to_pandas(self) -> Any:
        """The same as a pandas frame; pandas must be installed."""
        return self.to_arrow().to_pandas()

    def plot(self, n: int = 10, ax: Any = None) -> Any:
        """Draw the largest contributions from the baseline to the prediction; needs matplotlib.

        Parameters
        ----------
        n : int, default=10
            How many contributions to show; the others are drawn as one.
        ax : matplotlib.axes.Axes, default=None
            Where to draw; a new figure by default.

        Returns
        -------
        matplotlib.axes.Axes
            The axes that were drawn on.
        """
        from headstart.model.asking.pictures import plot_explanation

        return plot_explanation(self, n, ax)

    def __str__(self) -> str:
        shown = [("baseline", self.baseline, "")]
        shown += [(each.label, each.value, _TITLES[each.source]) for each in self.largest(12)]
        width = max(len(label) for label, _, _ in shown)
        lines = [f"  {label:<{width}}  {value:+9.4g}  {source}".rstrip() for label, value, source in shown]
        lines.append(f"  {'prediction':<{width}}  {self.output:+9.4g}")
        title = f"row {self.row!r}, feature {self.feature!r}: {self.mean:.4g} (parts in {self.unit})"
        return "\n".join([title, *lines])

    def __repr__(self) -> str:
        return str(self)
