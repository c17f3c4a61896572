"""Summarise a fitted model, one of its features or one of its rows.

The classes are the results of ``Headstart.info``, ``Headstart.feature`` and ``Headstart.row``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headstart.display import facts_html
from headstart.model.levels import category_columns, collapse_answers, owner_of
from headstart.model.row_states import given_values, observations_of_row
from headstart.model.state import ModelState
from headstart.table import Kind, Kinds, Names
from headstart.table.kinds import KindType, split_column
from headstart.table.margins import Category
from headstart.table.names import as_name
from headstart.training.comparison import Verdict


@dataclass(frozen=True)
class ExpectedError:
    """The expected error of a new feature with ``shots`` observations.

    It is the root mean squared error over features held out from the whole training, in ``ModelInfo.unit``.
    The standard error is 0 if there is a single feature.
    """

    shots: int
    error: float
    standard_error: float


@dataclass(frozen=True)
class ModelInfo:
    """A summary of a fitted model: ``print(model.info)``.

    Attributes
    ----------
    backbone, adapter : str
        The names of the trained parts.
    chosen : str or None
        The candidate that won on the held-out features; None if no candidates were compared.
    judged_on : int
        The number of features held out to choose and calibrate.
    errors : list of ExpectedError
        The expected error by shots; empty if no feature was held out.
    means : list of ExpectedError
        The error of shrunk row and column means on the same features; empty for clicks and for features of
        several kinds.
    unit : str
        The unit of ``errors``: the data's own if all features have the same, otherwise the models' scale.
    metadata : dict of str to float
        By metadata column, the share of the error of heads without observations that it removes; 0 for an
        unused column.
    rows, features, added : int
        The numbers of rows, of features, and of features added after ``fit``.
    kind : str
        The most frequent kind.
    columns : str
        The metadata columns with their types.
    latest : tuple of str
        The last features added after ``fit``, with their shots; at most three.
    not_applicable : int
        The number of cells whose feature does not apply to their row, which are not predicted.
    """

    backbone: str
    adapter: str
    chosen: str | None
    judged_on: int
    errors: list[ExpectedError]
    metadata: dict[str, float]
    rows: int
    features: int
    added: int
    kind: str = ""
    columns: str = ""
    latest: tuple[str, ...] = ()
    unit: str = ""
    means: list[ExpectedError] = field(default_factory=list)
    not_applicable: int = 0

    def lines(self) -> list[tuple[str, str]]:
        """Return the summary as pairs of label and text."""
        facts = [
            ("backbone", self.backbone),
            ("adapter", self.adapter),
            ("rows", str(self.rows)),
            ("features", f"{self.features}, {self.added} of them added after fit"),
        ]
        if self.not_applicable:
            facts.append(("not applicable", f"{self.not_applicable} cells, which are not predicted"))
        if self.chosen is not None and self.judged_on:
            facts.append(("chosen", f"{self.chosen}, judged on {self.judged_on} features held out"))
        if self.errors:
            parts = (
                f"{item.error:.3g} ± {item.standard_error:.1g} ({item.shots})"
                if item.standard_error > 0  # unknown if there is a single feature
                else f"{item.error:.3g} ({item.shots})"
                for item in self.errors
            )
            facts.append(("error by shots", ", ".join(parts)))
            if any(item.standard_error <= 0 for item in self.errors):
                facts.append(
                    ("uncertainty", "an error without ± comes from a single feature: take it as a hint")
                )
        if self.means:
            parts = (f"{item.error:.3g} ({item.shots})" for item in self.means)
            facts.append(("row and column means", ", ".join(parts)))
        if self.errors and self.unit:
            facts.append(("unit of errors", self.unit))
        if self.metadata:
            shares = sorted(self.metadata.items(), key=lambda pair: -pair[1])
            parts = (f"{name} {share:.0%}" if share > 0 else f"{name} not used" for name, share in shares)
            facts.append(("metadata", ", ".join(parts)))
        return facts

    def __str__(self) -> str:
        return "\n".join(f"{label}: {text}" for label, text in self.lines())

    def _repr_html_(self) -> str:
        return facts_html(self.lines())


def describe_model(model: ModelState) -> ModelInfo:
    """Return the summary of a fitted model."""
    features = {owner_of(feature): feature for feature in model.feature_store.values()}
    added = {name: feature for name, feature in features.items() if not feature.in_backbone}
    judgement = model.judgement
    shots = () if judgement is None else judgement.shots
    verdict = None if judgement is None else judgement.candidates.get(judgement.chosen)
    return ModelInfo(
        backbone=model.settings.backbone.name,
        adapter=model.settings.chosen_adapter.name,
        chosen=None if judgement is None else judgement.chosen,
        judged_on=0 if judgement is None else judgement.features,
        errors=_expected_errors(model, shots, verdict),
        means=_expected_errors(model, shots, None if judgement is None else judgement.means),
        metadata=_metadata_gains(model),
        rows=len(model.rows),
        features=len(features),
        added=len(added),
        kind=str(model.kinds[0]),
        columns=model.schema.describe() if model.schema else "no metadata",
        latest=tuple(f"{name} ({feature.shots} shots)" for name, feature in list(added.items())[-3:]),
        unit=_error_unit(model),
        not_applicable=len(model.not_applicable),
    )


def _error_unit(model: ModelState) -> str:
    """Return ``ModelInfo.unit``."""
    if len(model.kinds) > 1:
        return (
            "root mean square on the models' scale: ratings from 0 to 1, reals in their standard deviations"
        )
    kind = model.kinds[0]
    if kind.type == KindType.CLICK:
        return "1 - NDCG of the ranking of all rows for a new feature, from 0 (all clicks first) to 1"
    if kind.type == KindType.BINARY:
        return "root mean square of probabilities, from 0 to 1"
    if not kind.margin.identity:
        return f"root mean square of the numbers that a {kind.name} is modelled as (see the page on methods)"
    return f"root mean square in the units of the values ({kind})"


def _expected_errors(
    model: ModelState, shots: tuple[int, ...], verdict: Verdict | None
) -> list[ExpectedError]:
    """Return the errors of a ``verdict`` at its ``shots``, in ``ModelInfo.unit``; none without a verdict."""
    if verdict is None:
        return []
    span = model.kinds[0].span if len(model.kinds) == 1 else 1.0
    if all(kind.type == KindType.CLICK for kind in model.kinds):  # errors of rankings have no root
        numbers = zip(shots, verdict.error, verdict.standard_error, strict=True)
        return [ExpectedError(*parts) for parts in numbers]
    errors = []
    for k, squared, deviation in zip(shots, verdict.error, verdict.standard_error, strict=True):
        root = max(squared, 1e-12) ** 0.5
        errors.append(ExpectedError(k, span * root, span * deviation / (2 * root)))  # by the delta method
    return errors


def _metadata_gains(model: ModelState) -> dict[str, float]:
    """Return ``ModelInfo.metadata``; empty if the adapter has no gain per column."""
    if model.schema is None or not model.adapter.explainable:
        return {}
    names = [column.name for column in model.schema.columns]
    return dict(zip(names, model.adapter.metadata_gains.tolist(), strict=True))


@dataclass(frozen=True, eq=False, repr=False)
class KnownFeature:
    """A feature of a model, as ``model.feature(feature)`` returns it.

    Attributes
    ----------
    name : str
        Its name.
    kind : Kind
        The values that it takes.
    shots : int
        The number of observations that its head is computed from.
    metadata : dict of str to object
        Its metadata by column, before encoding; missing values are left out.
    in_backbone : bool
        Whether it is an input of the backbone.
    fixed : bool
        Whether its head belongs to the backbone and can only change by another ``fit``.
    values : ndarray of shape (n,)
        The observed values, in the data's own units; empty for a fixed head.
    """

    name: str
    kind: Kind
    shots: int
    metadata: dict[str, object]
    in_backbone: bool
    fixed: bool
    values: NDArray[np.float64]
    _positions: NDArray[Any] = field(repr=False)  # (n,): of the observed rows
    _names: Names = field(repr=False)  # of all rows

    @property
    def rows(self) -> list[str]:
        """The names of the observed rows, in the order of ``values``."""
        return [self._names[position] for position in self._positions.tolist()]

    @property
    def observations(self) -> dict[str, Any]:
        """The observed values by row; labels, if the kind has labels."""
        margin = self.kind.margin
        labels = margin.names if isinstance(margin, Category) and margin.names else None
        values = [labels[int(value)] if labels else margin.label(value) for value in self.values.tolist()]
        return dict(zip(self.rows, values, strict=True))

    def __repr__(self) -> str:
        return _one_line(f"{self.name!r} ({self.kind})", self.shots, self.metadata)


@dataclass(frozen=True, eq=False, repr=False)
class KnownRow:
    """A row of a model, as ``model.row(row)`` returns it.

    Attributes
    ----------
    name : str
        Its name.
    observations : dict of str to float
        Its observed values by feature, in the data's own units.
    metadata : dict of str to object
        Its metadata by column, before encoding; missing values are left out.
    """

    name: str
    observations: dict[str, Any]
    metadata: dict[str, object]

    @property
    def n_observed(self) -> int:
        """The number of features that the row has observed."""
        return len(self.observations)

    def __repr__(self) -> str:
        return _one_line(repr(self.name), self.n_observed, self.metadata)


def _one_line(title: str, observations: int, metadata: dict[str, object]) -> str:
    """Return the text of a feature or a row."""
    columns = ", ".join(f"{column}: {value}" for column, value in metadata.items())
    return f"{title}, {observations} observations" + (columns and f"; {columns}")


def known_feature(model: ModelState, name: object) -> KnownFeature:
    """Return the summary of the feature ``name``."""
    if columns := category_columns(model, name):
        return _known_category(model, as_name(name, "feature"), columns)
    feature = model.feature_store[name]
    return KnownFeature(
        name=feature.name,
        kind=feature.kind,
        shots=feature.shots,
        metadata=feature.readable_metadata(model.schema),
        in_backbone=feature.in_backbone,
        fixed=feature.fixed,
        values=feature.kind.margin.to_value(feature.values),
        _positions=feature.rows,
        _names=model.rows,
    )


def _known_category(model: ModelState, name: str, columns: list[str]) -> KnownFeature:
    """Return the summary of a category, whose ``values`` are the positions of levels."""
    parts = [model.feature_store[column] for column in columns]
    levels = tuple(split_column(column)[1] for column in columns)
    rows = parts[0].rows
    first = parts[0].readable_metadata(model.schema)
    common = {
        key: value
        for key, value in first.items()
        if all(part.readable_metadata(model.schema).get(key) == value for part in parts)
    }
    values = np.stack([part.values for part in parts]).argmax(axis=0).astype(np.float64)
    return KnownFeature(
        name=name,
        kind=Kind(Category(levels)),
        shots=parts[0].shots,
        metadata=common,
        in_backbone=parts[0].in_backbone,
        fixed=parts[0].fixed,
        values=values,
        _positions=rows,
        _names=model.rows,
    )


def known_row(model: ModelState, row: object) -> KnownRow:
    """Return the summary of one row, with the observations in its state and in the contexts of features."""
    position = model.rows.position(row)
    state = observations_of_row(model, position)
    names = model.feature_store.names_by_number(state.keys)  # None for a removed feature
    known = [feature is not None for feature in names]
    kinds = Kinds([model.feature_store[feature].kind for feature in names if feature is not None])
    numbers = given_values(model, position, state)[known]
    values = kinds.values(numbers, np.arange(len(kinds))).tolist()
    # Otherwise the numbers of the table of the fit are in single precision.
    if model.row_store.observations(position) is None and model.table_values is None:
        values = [float(f"{value:.7g}") for value in values]
    observations = dict(zip([feature for feature in names if feature is not None], values, strict=True))
    columns = model.feature_store.columns
    for slot in columns.observed_by(position):
        feature = columns.features[slot]
        observations[feature.name] = feature.value_at(position)
    order = np.argsort(columns.positions[model.feature_store.slots(observations)], kind="stable")
    ordered = list(observations)
    record: dict[str, object] = {}
    if model.row_metadata is not None:
        record = model.row_metadata.lines.slice(position, 1).to_pylist()[0]
    return KnownRow(
        model.rows[position],
        collapse_answers(
            {name: model.feature_store[name].kind for name in observations},
            {ordered[i]: observations[ordered[i]] for i in order},
        ),
        {column: value for column, value in record.items() if value is not None},
    )


def count_by_row(model: ModelState) -> NDArray[np.int64]:
    """Return the number of features whose contexts have each row: (rows,); a category is one feature."""
    features = {owner_of(feature): feature for feature in model.feature_store.values()}
    positions = [feature.rows for feature in features.values()]
    return np.bincount(np.concatenate([*positions, np.zeros(0, np.int64)]), minlength=len(model.rows))
