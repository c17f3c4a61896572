"""Explain a prediction as a sum of contributions.

``explain`` computes an ``Explanation``, the result of ``Headstart.explain``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from headstart.adapters.base import Adapter
from headstart.core.predictive import predict_grid
from headstart.core.types import FeatureBatch, Heads, RowStates
from headstart.display import count, table_html
from headstart.errors import InputError, UnsupportedError, for_user, option_name
from headstart.model.cell_predictions import predict_features
from headstart.model.features import Feature
from headstart.model.inputs import NEW_ROW, check_rows, is_observations
from headstart.model.levels import category_columns, is_level, owner_of
from headstart.model.local import local_part, row_residuals
from headstart.model.observations import ObservationList
from headstart.model.plots import plot_explanation
from headstart.model.row_states import RowInputs, compute_row_states, fitted_observations, row_inputs
from headstart.model.state import ModelState
from headstart.model.titles import row_titles, title_of
from headstart.table import Names
from headstart.table.arrow_columns import number_column, text_column
from headstart.table.kinds import split_column
from headstart.table.names import as_name

Source = Literal[
    "observation", "choice", "row metadata", "row", "metadata", "context", "neighbour", "link", "others"
]

_TITLES: dict[Source, str] = {
    "observation": "what the row observed",
    "choice": "which features the row observed",
    "row metadata": "the row's metadata",
    "row": "what else is known of the row",
    "metadata": "the feature's metadata",
    "context": "the feature's own observations",
    "neighbour": "how the row differs at a feature like this one",
    "link": "from output to prediction",
    "others": "",
}

_MAX_PARTS = 12  # contributions of a printed explanation; the others are added up


@dataclass(frozen=True)
class Contribution:
    """One part of a prediction.

    Attributes
    ----------
    source : str
        The origin of the contribution:

        - ``"observation"``: one observation of the row;
        - ``"choice"``: the choice of features that the row observed;
        - ``"row metadata"``: the metadata of the row;
        - ``"row"``: the rest of the row's state, which is the part that the adapter learned and the effect
          of heads that have changed since the state was computed;
        - ``"metadata"``: one metadata column of the feature;
        - ``"context"``: the observations of the feature;
        - ``"neighbour"``: the residual of a known feature at this row, see the local part in the methods;
        - ``"link"``: calibration, the limits of a rating, and the average of a probability over the
          uncertainty of its log-odds;
        - ``"others"``: the sum of small contributions, see ``Explanation.largest``.
    name : str
        The observed feature, the neighbour or the metadata column; otherwise empty.
    given : object
        The observed value or the metadata value; None if there is none.
    value : float
        The amount that is added to the prediction, in the explanation's unit.
    title : str, optional
        The metadata ``title`` or ``name`` of an observed feature, if it has one.
    """

    source: Source
    name: str
    given: object
    value: float
    title: str | None = None

    @property
    def label(self) -> str:
        """A short text for tables and plots."""
        if not self.name:
            return _TITLES[self.source]
        name = self.title or self.name
        value = f"{self.given:.4g}" if isinstance(self.given, float) else self.given
        return name if self.given is None else f"{name} = {value}"


@dataclass(frozen=True)
class Explanation:
    """Contributions to the prediction of one cell: ``baseline + sum of contributions == output``.

    The sum holds up to rounding. The baseline is the output for a row without observations at a feature with
    average metadata and without observations. The output is a product of the row's activation and the
    feature's head, so a change of both has a joint effect. The row and the feature each get half of it,
    which is their Shapley value.

    Attributes
    ----------
    row, feature : str
        The names of the row and the feature.
    unit : str
        The unit of all contributions: what values are called (``Words.value``), ``"the data's units"`` if
        they have no name, or ``"log-odds"`` for a feature with a logistic link.
    baseline, output : float
        The start and the end of the sum. The output is the prediction in ``unit``.
    mean : float
        The mean that ``predict`` returns; for log-odds, the probability with the log-odds ``output``.
    contributions : tuple of Contribution
        The contributions by source; observations have the largest first.
    row_title, feature_title : str, optional
        The metadata ``title`` or ``name`` of the row and the feature, if they have one.
    """

    row: str
    feature: str
    unit: str
    baseline: float
    output: float
    mean: float
    contributions: tuple[Contribution, ...]
    row_title: str | None = None
    feature_title: str | None = None

    def __iter__(self) -> Iterator[Contribution]:
        return iter(self.contributions)

    def __len__(self) -> int:
        return len(self.contributions)

    def of(self, source: Source) -> tuple[Contribution, ...]:
        """Return the contributions of one ``source``."""
        return tuple(part for part in self.contributions if part.source == source)

    def largest(self, n: int) -> list[Contribution]:
        """Return the ``n`` largest contributions, largest first, and the sum of the others as one more."""
        ordered = sorted(self.contributions, key=lambda part: -abs(part.value))
        others = ordered[n:]
        if len(others) < 2:
            return ordered
        total = sum(part.value for part in others)
        return [*ordered[:n], Contribution("others", f"{len(others)} others", None, total)]

    def to_arrow(self) -> pa.Table:
        """Return one line per contribution: source, name, title if there are any, given (as text), value."""
        parts = self.contributions
        titles = [part.title for part in parts]
        return pa.table(
            {
                "source": text_column([part.source for part in parts]),
                "name": text_column([part.name for part in parts]),
                **({"title": text_column(titles)} if any(titles) else {}),
                "given": text_column([None if part.given is None else str(part.given) for part in parts]),
                "value": number_column(np.array([part.value for part in parts])),
            }
        )

    def to_pandas(self) -> Any:
        """Return ``to_arrow`` as a pandas frame; pandas must be installed."""
        return self.to_arrow().to_pandas()

    def plot(self, n: int = 10, ax: Any = None) -> Any:
        """Draw the largest contributions from the baseline to the prediction; needs matplotlib.

        Parameters
        ----------
        n : int, default=10
            The number of contributions to draw; the others are drawn as one.
        ax : matplotlib.axes.Axes, default=None
            The axes to draw on; a new figure by default.

        Returns
        -------
        matplotlib.axes.Axes
            The axes with the plot.
        """
        return plot_explanation(self, n, ax)

    def __str__(self) -> str:
        parts = [("baseline", self.baseline, "")]
        parts += [(part.label, part.value, _TITLES[part.source]) for part in self.largest(_MAX_PARTS)]
        width = max(len(label) for label, _, _ in parts)
        lines = [f"  {label:<{width}}  {value:+9.4g}  {source}".rstrip() for label, value, source in parts]
        lines.append(f"  {'prediction':<{width}}  {self.output:+9.4g}")
        return "\n".join([f"{self._title} (parts in {self.unit})", *lines])

    @property
    def _title(self) -> str:
        row, feature = (
            repr(name) if title is None else f"{name!r} ({title})"
            for name, title in ((self.row, self.row_title), (self.feature, self.feature_title))
        )
        return f"row {row}, feature {feature}: {self.mean:.4g}"

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        lines: list[tuple[object, ...]] = [("baseline", self.baseline, "")]
        lines += [(part.label, part.value, _TITLES[part.source]) for part in self.largest(_MAX_PARTS)]
        lines.append(("prediction", self.output, ""))
        return table_html(("part", f"contribution ({self.unit})", "source"), lines, self._title)


_LEAST_PROBABILITY = 1e-12  # whose log-odds are finite

_ROUNDING = 1e-6  # smaller contributions, on the models' scale, are left out


@dataclass(frozen=True)
class _Row:
    """The row of an explained cell."""

    name: str
    state: RowStates  # of this one row
    inputs: RowInputs  # the observations that the state was computed from


class _PriorHeads(NamedTuple):
    """Heads of features without observations, each (size,): the weights, then the bias."""

    average: Tensor  # with average metadata
    feature: Tensor  # with the metadata of the explained feature
    columns: dict[str, Tensor]  # the part of feature − average that is due to each metadata column, if known


@torch.no_grad()
def explain(model: ModelState, row: Any, feature: object) -> Explanation:
    """Split the prediction of one cell into contributions that add up to it.

    Let d be the activation of the row and (w, b) the head of the feature; d₀ and (w₀, b₀) are those of the
    baseline. The difference of the outputs w·d + b and w₀·d₀ + b₀ is

        (w + w₀)/2 · (d − d₀)  +  (w − w₀, b − b₀) · ((d + d₀)/2, 1),

    where the first term is due to the row and the second to the feature. Both d − d₀ and the change of the
    head are sums over their sources.

    Parameters
    ----------
    model : ModelState
        The model.
    row : str, int, dict, Series or frame
        The name of a row, or the observations of a row that is not in the model.
    feature : str or int
        A feature of the model. Of a category the probability of its most probable level is explained; a name
        ``FEATURE=LEVEL`` is another level.
    """
    backbone, adapter = model.backbone, model.adapter
    _require_explainable(model)
    explained = _explained_row(model, row)
    if columns := category_columns(model, feature):  # the most probable level
        predicted = predict_features(model, Names([explained.name], "row"), explained.state, [feature])
        feature = columns[int(predicted.chances[0].argmax())]
    (known,), heads = model.feature_store.take([feature])
    if (explained.name, owner_of(known)) in model.not_applicable:
        raise InputError(
            f"feature {owner_of(known)!r} does not apply to row {explained.name!r}: there is no prediction "
            "to explain"
        )
    inputs = explained.inputs
    numbers = torch.from_numpy(inputs.numbers)
    positions = torch.where(numbers < backbone.features, numbers, -1)
    parts = backbone.row_parts(inputs.cells, inputs.heads, inputs.kinds, positions, inputs.row_prior)
    head = _with_bias(heads.weight[0], heads.bias[0])
    prior = _prior_heads(model, adapter, known)
    activation = explained.state.activation[0].double()
    no_cells = inputs.known.keep(torch.zeros_like(inputs.known.index, dtype=torch.bool))
    baseline_activation = adapter.refine(backbone.states(no_cells)).activation[0].double()
    mean_weight = (head + prior.average)[:-1] / 2
    mean_activation = torch.cat([(activation + baseline_activation) / 2, torch.ones(1, dtype=torch.float64)])

    # The backbone explains the leading part of an activation; the adapter learned the rest.
    weight = mean_weight[: backbone.activation_size]
    unexplained = activation - baseline_activation
    unexplained[: len(parts.total)] -= parts.total - parts.baseline
    contributions = _observation_contributions(model, inputs, parts.observations @ weight)
    contributions += [
        Contribution("choice", "", None, float(parts.choice @ weight)),
        Contribution("row metadata", "", None, float(parts.metadata @ weight)),
        Contribution("row", "", None, float(unexplained @ mean_weight)),
    ]
    metadata = known.readable_metadata(model.schema)
    feature_title = title_of(metadata, model.words.title)
    contributions += [
        Contribution("metadata", name, metadata.get(name), float(effect @ mean_activation))
        for name, effect in prior.columns.items()
    ]
    joint = (prior.feature - prior.average) - sum(prior.columns.values(), torch.zeros_like(head))
    context = f"{feature_title or known.name}: {count(known.shots, 'observation')}"
    contributions += [
        Contribution("metadata", "all columns together", None, float(joint @ mean_activation)),
        Contribution("context", context, None, float((head - prior.feature) @ mean_activation)),
    ]
    contributions += _neighbour_contributions(model, known, heads, explained)
    baseline = float(prior.average[:-1] @ baseline_activation + prior.average[-1])
    relevant = [part for part in contributions if part.source == "observation" or abs(part.value) > _ROUNDING]
    explanation = _explanation(model, explained, known, baseline, relevant)
    return replace(explanation, row_title=_row_title(model, explained.name), feature_title=feature_title)


def _row_title(model: ModelState, name: str) -> str | None:
    """Return the title of a row, or None if it has none or is not in the model."""
    titles = row_titles(model, [model.rows.position(name)]) if name in model.rows else None
    return titles[0] or None if titles else None


def _require_explainable(model: ModelState) -> None:
    """Raise an error if the states of rows are not sums of contributions."""
    if not model.backbone.explainable:
        raise UnsupportedError(
            f"{for_user('explain()', 'headstart explain')} needs a backbone whose row states are sums of "
            f"contributions, such as 'factorisation', not {model.settings.backbone.name!r}; "
            f"fit with {option_name('backbone', 'factorisation')}"
        )


def _explained_row(model: ModelState, row: Any) -> _Row:
    """Return a row given by its name or its observations, with its state."""
    if is_observations(row):
        lists, _ = check_rows(model, {NEW_ROW: row})
        state = compute_row_states(model, lists, [NEW_ROW])
        return _Row(NEW_ROW, state, row_inputs(model, ObservationList(lists.keys, lists.values)))
    name = as_name(row, "row")
    position = model.rows.position(name)
    observations = model.row_store.observations(position)
    metadata = None if model.row_metadata is None else model.row_metadata.encoded[[position]]
    if observations is None:
        inputs = row_inputs(model, fitted_observations(model, position), metadata, as_fitted=True)
    else:
        inputs = row_inputs(model, observations, metadata)
    return _Row(name, model.row_store.take(np.array([position])), inputs)


def _observation_contributions(model: ModelState, inputs: RowInputs, effects: Tensor) -> list[Contribution]:
    """Return the contribution of each observation of the row, the largest first.

    ``effects`` (observations,) are the amounts that they add to the output.
    """
    contributions = []
    answers: dict[str, tuple[object, float]] = {}  # of categories: the level and the sum over all levels
    names = model.feature_store.names_by_number(inputs.numbers)
    for name, number, value, effect in zip(
        names, inputs.numbers.tolist(), inputs.values.tolist(), effects.tolist(), strict=True
    ):
        if name is None:  # the feature has been removed from the model, but the backbone still reads it
            contribution = Contribution("observation", model.backbone_features[number], None, effect)
        elif is_level(feature := model.feature_store[name]):
            category, level = split_column(name)
            answer, total = answers.get(category, (None, 0.0))
            answers[category] = level if value == 1 else answer, total + effect
            continue
        else:
            value = feature.kind.margin.label(float(np.round(feature.kind.margin.to_value(value), 6)))
            title = title_of(feature.readable_metadata(model.schema), model.words.title)
            contribution = Contribution("observation", name, value, effect, title)
        contributions.append(contribution)
    contributions += [Contribution("observation", name, *answer) for name, answer in answers.items()]
    return sorted(contributions, key=lambda part: -abs(part.value))


def _neighbour_contributions(
    model: ModelState, feature: Feature, heads: Heads, row: _Row
) -> list[Contribution]:
    """Return the contribution of each known feature to the local part, the largest first."""
    local = local_part(model, [feature], np.array(model.feature_store.slots([feature.name])))
    residuals = row_residuals(model, row.state)
    if local is None or residuals is None:
        return []
    predictive = predict_grid(heads, row.state, model.kinds_of([feature]), model.knowledge.likelihood)
    moved = predictive.shifted(torch.ones_like(predictive.logits))
    numbers, shifts = local.terms(residuals)
    effects = shifts * float((moved.logits - predictive.logits)[0, 0])
    names = model.feature_store.names_by_number(numbers)
    values = dict(zip(row.inputs.numbers.tolist(), row.inputs.values.tolist(), strict=True))
    contributions = []
    for name, number, effect in zip(names, numbers.tolist(), effects.tolist(), strict=True):
        if name is None:  # the feature has been removed from the model, but its residuals are still read
            contributions.append(Contribution("neighbour", model.backbone_features[number], None, effect))
        else:
            given = float(np.round(model.feature_store[name].kind.margin.to_value(values[number]), 6))
            contributions.append(Contribution("neighbour", name, given, effect))
    return sorted(contributions, key=lambda part: -abs(part.value))


def _prior_heads(model: ModelState, adapter: Adapter, feature: Feature) -> _PriorHeads:
    """Return the heads of a feature without observations, with average and with its own metadata.

    The effects of columns add up to the difference of the two heads for ``bayes``. A hypernetwork has a joint
    effect of all columns besides.
    """
    batch = model.batch_of([feature.restrict_to(feature.rows[:0])])
    average_metadata = model.knowledge.metadata.mean(0, keepdim=True)
    average_batch = FeatureBatch(batch.cells, average_metadata, batch.kinds, batch.units)
    average, head = (adapter.adapt(part, model.states) for part in (average_batch, batch))
    return _PriorHeads(
        _with_bias(average.weight[0], average.bias[0]),
        _with_bias(head.weight[0], head.bias[0]),
        _column_effects(model, adapter, batch, average_batch),
    )


def _column_effects(
    model: ModelState, adapter: Adapter, batch: FeatureBatch, average: FeatureBatch
) -> dict[str, Tensor]:
    """Return the effect of each metadata column on the prior head; empty if there is no such sum.

    There is none for a feature whose scale the model finds, because the scale depends on all columns jointly,
    and for an adapter that is not ``explainable``.
    """
    if model.schema is None or not adapter.explainable or bool(batch.unscaled.any()):
        return {}
    columns = model.schema.columns
    widths = [column.width for column in columns]
    effects = torch.split(adapter.metadata_effects(batch, average), widths)
    return {column.name: effect.sum(0) for column, effect in zip(columns, effects, strict=True)}


def _explanation(
    model: ModelState, row: _Row, feature: Feature, baseline: float, contributions: list[Contribution]
) -> Explanation:
    """Return an explanation in the data's units, or in log-odds for a feature with a logistic link."""
    prediction = predict_features(model, Names([row.name], "row"), row.state, [feature.name])
    mean = float(prediction.mean[0, 0])
    if bool(model.knowledge.likelihood.squashes(model.kinds_of([feature]))):
        probability = min(max(mean, _LEAST_PROBABILITY), 1 - _LEAST_PROBABILITY)
        unit, span, predicted = "log-odds", 1.0, math.log(probability / (1 - probability))
    else:
        unit = feature.kind.margin.unit or model.words.unit or "the data's units"
        span, predicted = feature.kind.span, float(prediction.center[0, 0])
        contributions = [replace(part, value=span * part.value) for part in contributions]
        baseline = feature.kind.offset + span * baseline
    output = baseline + sum(part.value for part in contributions)
    if abs(predicted - output) > 10 * _ROUNDING * span:  # clipped, calibrated, or averaged behind the link
        contributions = [*contributions, Contribution("link", "", None, predicted - output)]
        output = predicted
    return Explanation(row.name, feature.name, unit, baseline, output, mean, tuple(contributions))


def _with_bias(weight: Tensor, bias: Tensor) -> Tensor:
    """Return the weights (latent,) and the bias of a head as one vector in double precision."""
    return torch.cat([weight, bias[None]]).double()
