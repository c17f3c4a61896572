"""Draw cells jointly, and fill tables several times: ``Headstart.sample`` and ``Headstart.impute``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from headstart.core.sampling import draw_scores
from headstart.core.types import RowStates
from headstart.errors import InputError
from headstart.evaluate.pooling import Pooled, pool
from headstart.model.prediction import predict_features
from headstart.model.state import ModelState
from headstart.table import Names, Table
from headstart.table.names import as_name


@torch.no_grad()
def draw_cells(
    fitted: ModelState, rows: Names, states: RowStates, names: Sequence[Any], n: int, seed: int
) -> NDArray[np.float64]:
    """Draw the values of all cells jointly ``n`` times, in the data's own units: (n, rows, features).

    Each cell has the calibrated distribution of its prediction; draws of several cells have the rank
    correlations of their joint posterior (a Gaussian copula). Of the levels of a category one is drawn, the
    one with the largest log p − log(−log u), where u is the rank of its draw: with independent ranks, each
    level has its probability p (the Gumbel-max trick).
    """
    from scipy.special import ndtr

    features, heads = fitted.feature_store.take(names)
    places = {feature.name: place for place, feature in enumerate(features)}
    categories = [
        [places[column] for column in columns]
        for columns in fitted.feature_store.categories.values()
        if all(column in places for column in columns)
    ]
    prediction = predict_features(fitted, rows, states, names)
    generator = np.random.default_rng(seed)
    drawn = np.empty((n, len(rows), len(features)))
    kinds = fitted.kinds_of(features)
    scores = draw_scores(heads, states, kinds, fitted.knowledge.likelihood, n, generator)
    for number, score in enumerate(scores):
        ranks = np.clip(ndtr(score), 1e-12, 1 - 1e-12)
        drawn[number] = prediction.values_at(ranks)
        for columns in categories:
            chances = np.maximum(prediction.center[:, columns], np.finfo(float).tiny)
            level = (np.log(chances) - np.log(-np.log(ranks[:, columns]))).argmax(1)
            drawn[number][:, columns] = level[:, None] == np.arange(len(columns))
    return drawn


@dataclass(frozen=True, repr=False)
class Imputations(Sequence[Any]):
    """A table whose missing cells were filled several times, with draws from the model.

    ``imputations[0]`` is the first filled table as a pandas frame, with one line per row and one column per
    feature; the class is a sequence of m such frames. Observed cells have their observed values in each.

    Attributes
    ----------
    rows, features : Names
        The names of the rows and features.
    values : ndarray of shape (m, rows, features)
        The filled tables.
    observed : ndarray of shape (rows, features)
        Whether each cell was observed.
    """

    rows: Names
    features: Names
    values: NDArray[np.float64]
    observed: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, number: Any) -> Any:
        """Return one filled table as a pandas frame; pandas must be installed."""
        if isinstance(number, slice):
            return [self[i] for i in range(*number.indices(len(self)))]
        try:
            import pandas
        except ImportError:
            raise InputError("frames need pandas, which is not installed; use to_arrow() or values") from None
        return pandas.DataFrame(self.values[number], list(self.rows), list(self.features))

    def __iter__(self) -> Iterator[Any]:
        return (self[number] for number in range(len(self)))

    def to_arrow(self, number: int) -> pa.Table:
        """Return one filled table: a column ``row`` and one column per feature."""
        columns = dict(zip(self.features, self.values[number].T, strict=True))
        return pa.table({"row": list(self.rows), **columns})

    def pool(self, estimate: Callable[[Any], tuple[float, float]], *, degrees: float | None = None) -> Pooled:
        """Estimate a quantity from each filled table, and pool the estimates by Rubin's rules.

        Parameters
        ----------
        estimate : callable
            Maps a pandas frame to an estimate and its variance (the squared standard error).
        degrees : float, default=None
            The degrees of freedom of an estimate from complete data, as in ``pool``.

        Returns
        -------
        Pooled
            The pooled estimate, with the uncertainty of the missing values.
        """
        if not callable(estimate):
            raise InputError(f"pool() takes a function of a frame; got {type(estimate).__name__}")
        pairs = [estimate(frame) for frame in self]
        try:
            numbers = np.array(pairs, dtype=np.float64).reshape(len(self), 2)
        except (TypeError, ValueError):
            raise InputError(
                "the function given to pool() must return two numbers, an estimate and its variance; it "
                f"returned {pairs[0]!r}"
            ) from None
        return pool(numbers[:, 0].tolist(), numbers[:, 1].tolist(), degrees)

    def __repr__(self) -> str:
        filled = int((~self.observed).sum())
        rows, features = len(self.rows), len(self.features)
        return f"Imputations({len(self)} × {rows} rows × {features} features, {filled} cells filled)"


def require_missing_cells(fitted: ModelState, names: Sequence[Any]) -> None:
    """Raise an error for features of clicks, whose cells without an observation are not missing."""
    clicks = [name for name in names if fitted.feature_store[name].kind.name == "click"]
    if clicks:
        raise InputError(
            f"feature {clicks[0]!r} has clicks: a cell without a click is not missing, so there is nothing "
            "to impute; sample() draws from its prediction"
        )


def fill_cells(drawn: NDArray[np.float64], table: Table, rows: Names, features: Sequence[Any]) -> Imputations:
    """Return draws (m, rows, features) with the observed cells of ``table`` unchanged."""
    columns = Names([as_name(feature, "feature") for feature in features], "feature")
    row, column = np.full(len(table.rows), -1), np.full(len(table.features), -1)
    row[table.rows.positions(rows)] = np.arange(len(rows))
    column[table.features.positions(columns)] = np.arange(len(columns))
    at = row[table.row_index], column[table.feature_index]
    inside = (at[0] >= 0) & (at[1] >= 0)
    observed = np.zeros((len(rows), len(columns)), dtype=bool)
    observed[at[0][inside], at[1][inside]] = True
    drawn[:, at[0][inside], at[1][inside]] = table.values[inside]
    return Imputations(rows, columns, drawn, observed)
