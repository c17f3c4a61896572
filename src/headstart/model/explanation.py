"""Explain a prediction as a sum of parts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from headstart.adapters.base import Adapter
from headstart.backbones.base import Backbone
from headstart.core.types import FeatureBatch, RowStates
from headstart.display import table_html
from headstart.errors import InputError, for_user, option_name
from headstart.model.features import Feature
from headstart.model.inputs import NEW_ROW, is_observations, rows_of
from headstart.model.observations import ObservationList
from headstart.model.prediction import predict_features
from headstart.model.row_states import RowInputs, compute_row_states, fitted_observations, row_inputs
from headstart.model.state import ModelState
from headstart.table import Names
from headstart.table.names import as_name

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
        from headstart.model.prediction import plot_explanation

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

    def _repr_html_(self) -> str:
        lines: list[tuple[object, ...]] = [("baseline", self.baseline, "")]
        lines += [(part.label, part.value, _TITLES[part.source]) for part in self.largest(12)]
        lines.append(("prediction", self.output, ""))
        title = f"row {self.row!r}, feature {self.feature!r}: {self.mean:.4g}"
        return table_html(("part", f"contribution ({self.unit})", "source"), lines, title)


_ROUNDING = 1e-6  # of an output on the models' scale: smaller remainders are not shown


@dataclass(frozen=True)
class _Row:
    """A row, and the observations that its state rests on."""

    name: str
    state: RowStates  # of this one row
    reading: RowInputs


@torch.no_grad()
def explain(fitted: ModelState, row: Any, feature: object) -> Explanation:
    """Part the prediction of one cell into contributions that add up."""
    backbone, adapter = _closed_forms(fitted)
    known, heads = fitted.catalogue.take([feature])
    own, asked = known[0], _row(fitted, row)
    head = _joined(heads.weight[0], heads.bias[0])
    average, bare, columns = _prior_heads(fitted, adapter, own)
    read = asked.reading
    positions = torch.from_numpy(read.numbers)
    positions = torch.where(positions < backbone.features, positions, -1)
    parts = backbone.row_parts(read.cells, read.heads, read.kinds, positions, read.belief)
    activation = asked.state.activation[0].double()
    nothing = read.known.keep(torch.zeros_like(read.known.index, dtype=torch.bool))
    usual = adapter.refine(backbone.states(nothing)).activation[0].double()
    # Row and head multiply: of what they do together each is given half.
    side = (head + average)[:-1] / 2
    middle = torch.cat([(activation + usual) / 2, torch.ones(1, dtype=torch.float64)])
    latent = backbone.activation_size
    learned = (activation - usual) - _padded(parts.total - parts.baseline, len(activation))
    found = _observed(fitted, read, parts.observations @ side[:latent])
    found.append(Contribution("choice", "", None, float(parts.choice @ side[:latent])))
    found.append(Contribution("row metadata", "", None, float(parts.metadata @ side[:latent])))
    found.append(Contribution("row", "", None, float(learned @ side)))
    values = own.readable(fitted.schema)
    found += [
        Contribution("metadata", name, values.get(name), float(change @ middle))
        for name, change in columns.items()
    ]
    together = (bare - average) - sum(columns.values(), torch.zeros_like(bare))
    found.append(Contribution("metadata", "all columns together", None, float(together @ middle)))
    found.append(
        Contribution(
            "context",
            f"{own.name}: {own.shots} observation{'s' * (own.shots != 1)}",
            None,
            float((head - bare) @ middle),
        )
    )
    baseline = float(average[:-1] @ usual + average[-1])
    kept = [each for each in found if each.source == "observation" or abs(each.value) > _ROUNDING]
    return _in_units(fitted, asked, own, baseline, kept)


def _closed_forms(fitted: ModelState) -> tuple[Backbone, Adapter]:
    backbone, adapter = fitted.backbone, fitted.adapter
    if backbone.explainable and adapter.explainable:
        return backbone, adapter
    raise InputError(
        f"{for_user('explain()', 'headstart explain')} needs closed forms, whose predictions are sums: the "
        f"backbone 'factorisation' with the adapter 'bayes' or 'chn-bayes'. This model has "
        f"{fitted.settings.backbone.name!r} with {fitted.settings.chosen_adapter.name!r}; fit with "
        f"{option_name('adapter', 'bayes')}"
    )


def _row(fitted: ModelState, row: Any) -> _Row:
    if is_observations(row):
        given, _ = rows_of(fitted, {NEW_ROW: row})
        state = compute_row_states(fitted, given, [NEW_ROW])
        return _Row(NEW_ROW, state, row_inputs(fitted, ObservationList(given.keys, given.values)))
    name = as_name(row, "row")
    place = fitted.rows.position(name)
    observations = fitted.roster.observations(place)
    if observations is None and place >= len(fitted.knowledge.cells):
        raise InputError(
            f"row {name!r} was added after fit to a model whose format did not keep its observations; "
            f"{for_user('pass them as {feature: value}', 'explain a row of the table')}"
        )
    held = fitted.row_metadata
    metadata = None if held is None else held.encoded[[place]]
    if observations is None:
        reading = row_inputs(fitted, fitted_observations(fitted, place), metadata, as_fitted=True)
    else:
        reading = row_inputs(fitted, observations, metadata)
    return _Row(name, fitted.roster.take(np.array([place])), reading)


def _observed(fitted: ModelState, read: RowInputs, values: Tensor) -> list[Contribution]:
    """What each observation of the row adds, the largest first."""
    found = []
    names = fitted.catalogue.names_by_number(read.numbers)
    for name, number, given, value in zip(
        names, read.numbers.tolist(), read.values.tolist(), values.tolist(), strict=True
    ):
        shown = None if name is None else float(np.round(given, 6))  # it may have been removed
        found.append(Contribution("observation", name or fitted.backbone_features[number], shown, value))
    return sorted(found, key=lambda each: -abs(each.value))


def _prior_heads(
    fitted: ModelState, adapter: Adapter, own: Feature
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Heads without observations, of average and of the feature's own metadata, and what columns change.

    Each is (size,): weights, then the bias. What the columns of ``bayes`` change adds up to the difference
    of the two heads. A hypernetwork reads all columns together beside that.
    """
    batch = fitted.batch_of([own.among(own.rows[:0])])
    usual = fitted.knowledge.metadata.mean(0, keepdim=True)
    average = FeatureBatch(batch.cells, usual, batch.kinds, batch.units)
    bare, middle = (adapter.adapt(each, fitted.states) for each in (batch, average))
    heads = [_joined(each.weight[0], each.bias[0]) for each in (middle, bare)]
    return heads[0], heads[1], _columns(fitted, adapter, batch, average)


def _columns(
    fitted: ModelState, adapter: Adapter, own: FeatureBatch, average: FeatureBatch
) -> dict[str, Tensor]:
    """How the prior mean changes because of each metadata column; empty where there is no such sum."""
    if fitted.schema is None or bool(own.unscaled.any()):  # units of its own are found from all at once
        return {}
    columns = fitted.schema.columns
    widths = [column.width for column in columns]
    effects = torch.split(adapter.metadata_effects(own, average), widths)
    return {column.name: effect.sum(0) for column, effect in zip(columns, effects, strict=True)}


def _in_units(
    fitted: ModelState, row: _Row, own: Feature, baseline: float, found: list[Contribution]
) -> Explanation:
    """Put everything in the data's units, or leave it in log-odds behind a logistic link."""
    prediction = predict_features(fitted, Names([row.name], "row"), row.state, [own.name])
    mean = float(prediction.mean[0, 0])
    if bool(fitted.knowledge.likelihood.squashes(fitted.kinds_of([own]))):
        output = baseline + sum(each.value for each in found)
        return Explanation(row.name, own.name, "log-odds", baseline, output, mean, tuple(found))
    span, offset = own.kind.span, own.kind.offset
    scaled = [Contribution(each.source, each.name, each.given, span * each.value) for each in found]
    baseline = offset + span * baseline
    output = baseline + sum(each.value for each in scaled)
    if abs(mean - output) > 10 * _ROUNDING * span:  # cut off at an end, or a probability corrected
        scaled.append(Contribution("link", "", None, mean - output))
        output = mean
    return Explanation(row.name, own.name, "data units", baseline, output, mean, tuple(scaled))


def _joined(weight: Tensor, bias: Tensor) -> Tensor:
    return torch.cat([weight, bias[None]]).double()


def _padded(vector: Tensor, size: int) -> Tensor:
    return torch.cat([vector, vector.new_zeros(size - len(vector))])
